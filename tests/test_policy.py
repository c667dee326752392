"""The doors of a trainer: which judge and which generator it ends up with."""

import pytest
from datasets import Dataset
from peft import LoraConfig

from mintrl_trl import ConfigError, LikelihoodJudge, LocalGenerator, LocalJudge, MInTRLConfig, MInTRLTrainer
from mintrl_trl.rollouts.loop import BackgroundLoop
from tests.tiny import tiny_model, tiny_tokenizer
from tests.trainers import ROWS, AlwaysKeep, HashGenerator, make_trainer, parity_reward, settings


class JudgeOfGenerator(AlwaysKeep):
    """A judge that is made from the generator."""

    def __init__(self, generator):
        self.generator = generator


@pytest.mark.parametrize(
    "judge", [JudgeOfGenerator, lambda generator: JudgeOfGenerator(generator)], ids=["class", "function"]
)
def test_a_judge_is_made_from_the_generator(tmp_path, judge):
    generator = HashGenerator()
    trainer = make_trainer(tmp_path, judge=judge, generator=generator)
    assert isinstance(trainer.judge, JudgeOfGenerator)
    assert trainer.judge.generator is trainer.policy.generator is generator


def test_a_judge_that_is_ready_is_taken_as_it_is(tmp_path):
    judge = AlwaysKeep()
    assert make_trainer(tmp_path, judge=judge).judge is judge


@pytest.mark.parametrize(
    "overrides", [{"num_intervened": 0, "num_control": 4}, {"max_reviews": 0}, {"intervention_updates": 0}]
)
def test_where_nothing_is_reviewed_no_judge_is_made(tmp_path, overrides):
    def never(generator):
        raise AssertionError("made a judge")

    assert make_trainer(tmp_path, judge=never, **overrides).judge is None


@pytest.mark.parametrize(
    ("lengths", "fix"),
    [
        ((32, 481), "set max_completion_length=480"),
        ((512, 16), "set max_prompt_length=256 and max_completion_length=256"),
    ],
)
def test_prompts_and_responses_must_fit_the_models_positions(tmp_path, lengths, fix):
    """T11: refused at start-up, not at the first long prompt."""
    prompt, completion = lengths
    with pytest.raises(ConfigError) as caught:
        make_trainer(tmp_path, generator=None, max_prompt_length=prompt, max_completion_length=completion)
    allowed = f"at most 512, the model's positions, together with max_prompt_length={prompt}"
    assert str(caught.value) == f"`max_completion_length` is {completion}. Allowed: {allowed}. Fix: {fix}."


def self_judging(tmp_path, *, adapter: bool, **overrides) -> MInTRLTrainer:
    return MInTRLTrainer(
        model=tiny_model(),
        reward_funcs=parity_reward,
        args=MInTRLConfig(str(tmp_path), judge="self", no_verdict_limit=1.0, **settings(**overrides)),
        train_dataset=Dataset.from_list(ROWS),
        processing_class=tiny_tokenizer(),
        peft_config=LoraConfig(r=2, target_modules=["q_proj"]) if adapter else None,
    )


@pytest.mark.parametrize(
    ("kind", "overrides", "attribute", "value"),
    [
        (LocalJudge, {"judge_keep_bias": -2.5}, "keep_bias", -2.5),
        (LikelihoodJudge, {"judge_likelihood_threshold": -4.0}, "threshold", -4.0),
    ],
    ids=["replies", "likelihood"],
)
def test_a_self_judge_is_made_from_the_settings(tmp_path, kind, overrides, attribute, value):
    trainer = self_judging(tmp_path, adapter=True, **overrides)
    assert isinstance(trainer.judge, kind)
    assert getattr(trainer.judge, attribute) == value
    trainer.close()


@pytest.mark.parametrize("adapter", [True, False], ids=["adapter", "all weights"])
def test_a_self_judge_asks_the_initial_weights_while_the_policy_moves_on(tmp_path, adapter):
    trainer = self_judging(tmp_path, adapter=adapter, learning_rate=0.1, max_reviews=1)
    generator = trainer.policy.generator
    loop = BackgroundLoop()

    def scores(weights: str) -> tuple[float, ...]:
        with trainer.policy.generating():
            return loop.run(generator.score((1, 5, 6), (7, 8, 9), weights=weights))

    before = scores("base")
    assert scores("policy") == pytest.approx(before)
    trainer.train()
    assert scores("base") == before
    assert scores("policy") != pytest.approx(before, abs=1e-3)
    assert trainer.policy.generator.base_version != trainer.policy.generator.weight_version
    trainer.close()
    loop.close()


def test_without_a_self_judge_no_copy_of_the_weights_is_kept(tmp_path):
    trainer = make_trainer(tmp_path, generator=None)
    assert isinstance(trainer.policy.generator, LocalGenerator)
    assert not trainer.policy.generator.has_base
    trainer.close()


def test_an_exact_judge_is_not_made_by_name(tmp_path):
    args = MInTRLConfig(str(tmp_path), judge="exact", **settings())
    with pytest.raises(ConfigError, match=r"`judge` is 'exact'. Allowed: a judge object.*pass judge=ChainsJudge"):
        MInTRLTrainer(
            model=tiny_model(),
            reward_funcs=parity_reward,
            args=args,
            train_dataset=Dataset.from_list(ROWS),
            processing_class=tiny_tokenizer(),
        )
