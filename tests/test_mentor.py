"""MENTOR's trainer on tiny models: who writes what, advantages of both kinds, gamma, the end of mixing, refusals."""

import json
import os
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from mintrl_trl import ConfigError, MInTRLConfig
from mintrl_trl.baselines import build_trainer
from mintrl_trl.baselines.mentor import MentorSettings, MentorTrainer
from mintrl_trl.baselines.mentor_mixing import FIRST_GAMMA, alpha
from mintrl_trl.data.chains import base_model_path, build_tokenizer
from mintrl_trl.recipe import parse_recipe
from mintrl_trl.rollouts.rollout import Author, Role
from mintrl_trl.tasks import build_task
from tests.tiny import tiny_model, tiny_tokenizer
from tests.trainers import ROWS, settings, weights

RECIPES = Path(__file__).parents[1] / "recipes"


def small_settings(**overrides) -> dict:
    return settings(max_reviews=0, intervention_updates=3, max_steps=3) | overrides


def odd_start(completion_ids, **kwargs) -> list[float]:
    """1.0 for responses whose first id is odd."""
    return [float(ids[0] % 2) for ids in completion_ids]


def sure_expert():
    """A larger model with opinions, unlike the policy."""
    expert = tiny_model(1, layers=3, width=64)
    with torch.no_grad():
        expert.model.embed_tokens.weight.mul_(8)
    return expert


def mentor_trainer(
    folder, *, expert=None, expert_tokenizer=None, mentor=None, trainer_class=MentorTrainer, **overrides
):
    return trainer_class(
        tiny_model(),
        odd_start,
        MInTRLConfig(str(folder), **small_settings(**overrides)),
        Dataset.from_list(ROWS),
        processing_class=tiny_tokenizer(),
        expert=sure_expert() if expert is None else expert,
        expert_tokenizer=expert_tokenizer,
        settings=mentor,
    )


class Watched(MentorTrainer):
    """Keeps what is trained with."""

    def __init__(self, *args, **kwargs):
        self.batches, self.gammas, self.entropies = [], [], []
        super().__init__(*args, **kwargs)

    def _credit(self, batch, is_control, output):
        gained = super()._credit(batch, is_control, output)
        self.batches.append((batch, is_control, gained))
        return gained

    def _renew_gamma(self):
        self.entropies.append(torch.cat(self._entropies))
        super()._renew_gamma()
        self.gammas.append(self.gamma)


def test_a_run_mixes_then_goes_on_policy(tmp_path):
    mentor = MentorSettings(entropy_quantile=0.5)
    trainer = mentor_trainer(tmp_path, trainer_class=Watched, mentor=mentor, max_steps=4)
    before = weights(trainer)
    trainer.train()
    trainer.close()
    assert any(not torch.equal(before[name], now) for name, now in weights(trainer).items())

    roles = [[rollout.request.role for rollout in batch.rollouts] for batch, _, _ in trainer.batches]
    mixed = [Role.CONTROL, Role.CONTROL, Role.INTERVENED, Role.INTERVENED] * 2
    assert roles == [mixed, mixed, [Role.CONTROL] * 8, [Role.CONTROL] * 8]  # alpha is 0 from update 3 on
    for batch, _, _ in trainer.batches:
        for rollout in batch.rollouts:
            foreign = any(span.author is Author.INTERVENTION for span in rollout.spans)
            assert not foreign or rollout.request.role is Role.INTERVENED

    first, second = (gained["advantages"] for _, _, gained in trainer.batches[:2])
    for number, (found, (batch, is_control, _)) in enumerate(zip((first, second), trainer.batches, strict=False), 1):
        mean = batch.rewards.view(2, 4)[:, :2].mean(dim=1).repeat_interleave(4)
        above = (batch.rewards - mean).clamp(min=0) * alpha(number, 1.0, 3)
        torch.testing.assert_close(found[~is_control], above[~is_control])
    assert trainer.batches[2][2] == {}  # TRL's own
    assert (trainer.epsilon_low, trainer.epsilon_high, trainer.args.delta, trainer.loss_type) == (
        0.2,
        0.28,
        3.0,
        "dapo",
    )

    # gamma: the median of all entropies of on-policy tokens of the update before; none needed for the third
    controls = [r for r in trainer.batches[0][0].rollouts if r.request.role is Role.CONTROL]
    assert [len(values) for values in trainer.entropies] == [sum(len(r.ids) for r in controls)]
    assert trainer.gammas == [pytest.approx(trainer.entropies[0].median().item(), abs=0.05)]

    lines = [line for line in trainer.state.log_history if "mentor/gamma" in line]
    assert [line["mentor/gamma"] for line in lines] == [FIRST_GAMMA, trainer.gammas[0]]
    assert [line["mentor/alpha"] for line in lines] == [alpha(1, 1.0, 3), alpha(2, 1.0, 3)]
    assert lines[0]["off_policy_share"] < 0.1 < lines[1]["off_policy_share"]
    assert lines[0]["mentor/expert_weight"] < 0.01 < lines[1]["mentor/expert_weight"] <= 1
    assert lines[1]["mentor/taken"] < 0.9 < lines[0]["mentor/taken"]
    for line in lines:
        assert 0 < line["passes/expert"] < line["passes/policy"]
        assert line["mentor/drafted"] > 0 and line["positions/expert"] > 0 and line["seconds/mixed"] > 0


@pytest.mark.parametrize("gamma_floor", [0.0, 50.0])
def test_the_floor_of_gamma(tmp_path, gamma_floor):
    trainer = mentor_trainer(tmp_path, mentor=MentorSettings(gamma_floor=gamma_floor))
    trainer._entropies = [torch.tensor([0.5, 1.0]), torch.tensor([3.0])]
    trainer._renew_gamma()
    trainer.close()
    assert trainer.gamma == trainer.carried["gamma"] == pytest.approx(max(gamma_floor, 2.8))
    assert trainer._entropies == []


def test_loss_is_the_clipped_one_over_the_tokens_of_both_kinds(tmp_path):
    """By hand: with old log-probabilities equal to the new ones, each token of row i adds -A_i / (all tokens)."""
    trainer = mentor_trainer(tmp_path, trainer_class=Watched, max_steps=1, lean_updates=False)
    losses = []
    upstream = trainer.compute_loss
    trainer.compute_loss = lambda *args, **kwargs: losses.append(upstream(*args, **kwargs)) or losses[-1]
    trainer.train()
    trainer.close()
    batch, _, gained = trainer.batches[0]
    lengths = torch.tensor([len(rollout.ids) for rollout in batch.rollouts])
    expected = -(gained["advantages"] * lengths).sum() / lengths.sum()  # zero advantages count in the denominator
    torch.testing.assert_close(losses[0].detach(), expected, rtol=1e-5, atol=1e-6)


def test_the_expert_reads_its_own_rendering_of_the_prompt(tmp_path):
    other = tiny_tokenizer()
    other.chat_template = "e" + other.chat_template.replace(":", ".")
    rows = [{"prompt": [{"role": "user", "content": f"{i}+1="}], "answer": str(i + 1)} for i in range(8)]
    trainer = MentorTrainer(
        tiny_model(),
        odd_start,
        MInTRLConfig(str(tmp_path), **small_settings()),
        Dataset.from_list(rows),
        processing_class=tiny_tokenizer(),
        expert=tiny_model(1),
        expert_tokenizer=other,
    )
    trainer.close()
    assert other.decode(trainer._expert_prompt(rows[3])) == "eu.3+1=\na."


@pytest.mark.slow
def test_a_run_that_goes_on_knows_gamma(tmp_path):
    saving = {"save_strategy": "steps", "save_steps": 1, "resumable_checkpoints": 3}
    whole = mentor_trainer(tmp_path / "whole", trainer_class=Watched, **saving)
    whole.train()
    whole.close()
    resumed = mentor_trainer(tmp_path / "whole", trainer_class=Watched, **saving)
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-1"))
    resumed.close()
    assert [[r.ids for r in batch.rollouts] for batch, _, _ in resumed.batches] == [
        [r.ids for r in batch.rollouts] for batch, _, _ in whole.batches[1:]
    ]
    for name, weight in weights(whole).items():
        assert torch.equal(weight, weights(resumed)[name]), name


def test_a_recipe_brings_what_mentor_needs():
    recipe = parse_recipe(["--config", str(RECIPES / "chains_mentor.yaml"), "--draft_tokens", "1"], default=RECIPES)
    config = recipe.config
    assert (config.max_reviews, config.needs_judge) == (0, False)
    assert (config.schedule().num_control, config.num_intervened, config.intervention_updates) == (8, 8, 90)
    named = {field.name: getattr(recipe.arguments, field.name) for field in fields(MentorSettings)}
    assert MentorSettings(**named) == MentorSettings(draft_tokens=1)
    with pytest.raises(ConfigError, match="teacher_model"):
        parse_recipe(["--task", "chains", "--method", "mentor"], default=RECIPES / "chains_grpo.yaml")


@pytest.mark.slow
def test_the_recipe_of_the_small_world(tmp_path, monkeypatch):
    """Two updates, one of each phase, with the base model as its own expert, which then never contradicts it."""
    monkeypatch.chdir(tmp_path)
    short = {"max_steps": 3, "intervention_updates": 2, "prompts_per_update": 2, "per_device_train_batch_size": 32}
    flags = short | {"eval_problems": 4, "teacher_model": base_model_path(), "output_dir": tmp_path / "run"}
    words = [word for name, value in flags.items() for word in (f"--{name}", str(value))]
    recipe = parse_recipe(["--config", str(RECIPES / "chains_mentor.yaml"), *words], default=RECIPES)
    trainer = build_trainer(recipe, build_task(recipe))
    trainer.train()
    trainer.close()
    metrics = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    (first,) = (line for line in metrics if "mentor/gamma" in line)
    assert first["mentor/taken"] > 0.999 and first["off_policy_share"] < 0.001  # but for rounding
    assert any("rewards/control" in line and line["update"] == 3 for line in metrics)


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_two_processes_make_the_rollouts_and_gammas_of_one(tmp_path):
    expert = AutoModelForCausalLM.from_pretrained(base_model_path())
    with torch.no_grad():
        expert.model.norm.weight.mul_(0.6)  # of another opinion
    expert.save_pretrained(tmp_path / "expert")
    build_tokenizer().save_pretrained(tmp_path / "expert")
    short = {"max_steps": 4, "intervention_updates": 3, "prompts_per_update": 2, "eval_problems": 0, "eval_every": 0}
    short["teacher_model"] = tmp_path / "expert"

    def words(processes: int) -> list[str]:
        flags = short | {"per_device_train_batch_size": 32 // processes, "output_dir": tmp_path / str(processes)}
        recipe = ["--config", str(RECIPES / "chains_mentor.yaml")]
        return recipe + [word for name, value in flags.items() for word in (f"--{name}", str(value))]

    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    environment = os.environ | {"PYTHONPATH": str(RECIPES.parent), "OMP_NUM_THREADS": "1"}
    command = [*launcher, str(RECIPES / "train_math.py"), *words(2)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=170)
    assert done.returncode == 0, done.stderr
    recipe = parse_recipe(words(1), default=RECIPES)
    trainer = build_trainer(recipe, build_task(recipe))
    trainer.train()
    trainer.close()

    files = ("rollouts.jsonl", "metrics.jsonl")
    runs = [[[json.loads(x) for x in (tmp_path / n / f).read_text().splitlines()] for f in files] for n in "12"]
    (rollouts, metrics), (others, their_metrics) = runs
    kept = ("row", "ids", "spans", "advantage")
    assert [[r[name] for name in kept] for r in rollouts] == [[r[name] for name in kept] for r in others]
    gammas, theirs = (
        [line["mentor/gamma"] for line in lines if "mentor/gamma" in line] for lines in (metrics, their_metrics)
    )
    assert gammas == pytest.approx(theirs, abs=1e-5) and len(set(gammas)) == 2
    assert any(line.get("off_policy_share", 0) > 0 for line in metrics)


@pytest.mark.parametrize(
    ("overrides", "field"),
    [
        ({"max_reviews": 2, "judge": "exact"}, "max_reviews"),
        ({"num_intervened": 0, "num_control": 4}, "num_intervened"),
        ({"intervention_updates": 1}, "intervention_updates"),
        ({"dry_run_worst_case": True}, "dry_run_worst_case"),
    ],
)
def test_settings_it_does_not_follow_are_refused(tmp_path, overrides, field):
    with pytest.raises(ConfigError) as caught:
        mentor_trainer(tmp_path, **overrides)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("mentor_alpha", -0.1),
        ("entropy_quantile", 1.1),
        ("gamma_floor", -1.0),
        ("reward_range", 0.0),
        ("draft_tokens", 0),
    ],
)
def test_numbers_out_of_range_are_refused(name, value):
    with pytest.raises(ConfigError) as caught:
        MentorSettings(**{name: value})
    assert caught.value.field == name


def test_an_expert_that_cannot_write_along_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="teacher_model"):
        mentor_trainer(tmp_path, expert="no/such/folder")

    expert = tiny_model(1)
    expert.generation_config.eos_token_id = [2, 5]
    with pytest.raises(ConfigError, match=r"it has \[5\]"):
        mentor_trainer(tmp_path, expert=expert)

    short = tiny_model(1)
    short.config.max_position_embeddings = 40
    with pytest.raises(ConfigError, match="= 48 positions, not 40"):
        mentor_trainer(tmp_path, expert=short)

    other = PreTrainedTokenizerFast(tokenizer_object=build_tokenizer().backend_tokenizer)
    with pytest.raises(ConfigError, match="vocabulary"):
        mentor_trainer(tmp_path, expert_tokenizer=other)
