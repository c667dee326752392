"""Which token ids go from the trainer to its generator, which come back, and which of them are trained on."""

from datasets import Dataset

from mintrl_trl import MInTRLConfig, MInTRLTrainer
from mintrl_trl.rollouts.doors import SampledToken
from mintrl_trl.rollouts.rollout import Role
from tests.tiny import tiny_model, tiny_tokenizer
from tests.trainers import AlwaysKeep, HashGenerator, RejectLastStep, make_trainer, parity_reward, settings

# Like Qwen3's: without thinking, an empty thinking block opens the answer; earlier answers are shown without theirs.
THINKING_TEMPLATE = (
    "{% for m in messages %}{{ m['role'][0] }}.{{ m['content'].split('=\n\n')[-1] }}\n{% endfor %}"
    "{% if add_generation_prompt %}a.{% if enable_thinking is defined and not enable_thinking %}think=\n\n{% endif %}"
    "{% endif %}"
)


class Keeper(MInTRLTrainer):
    """Keeps its rollouts and the batches made of them."""

    def __init__(self, *args, **kwargs):
        self.rollouts, self.batches = [], []
        super().__init__(*args, **kwargs)

    def _sample(self, requests, **kwargs):
        rollouts = super()._sample(requests, **kwargs)
        self.rollouts += rollouts
        return rollouts

    def _generate_and_score_completions(self, inputs):
        self.batches.append(super()._generate_and_score_completions(inputs))
        return self.batches[-1]


def test_every_chunk_continues_the_prompt_as_it_was_rendered_once(tmp_path):
    """A template that would render the partial answer differently is never asked to."""
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = THINKING_TEMPLATE
    question = [{"role": "user", "content": "1+1="}]
    rendered = tuple(
        tokenizer.apply_chat_template(
            question, add_generation_prompt=True, enable_thinking=False, tokenize=True, return_dict=False
        )
    )
    assert tokenizer.decode(rendered).endswith("a.think=\n\n")
    generator = HashGenerator(end_every=40)
    trainer = Keeper(
        model=tiny_model(),
        reward_funcs=lambda completions, **kwargs: [1.0] * len(completions),
        args=MInTRLConfig(str(tmp_path), **settings(max_steps=1, overlap_reviews=False, max_reviews=3)),
        train_dataset=Dataset.from_list([{"prompt": question}] * 4),
        processing_class=tokenizer,
        judge=RejectLastStep(),
        generator=generator,
    )
    trainer.train()
    assert {rollout.request.prompt_ids for rollout in trainer.rollouts} == {rendered}
    prefixes = [prefix for prefix, *_ in generator.requests]
    assert len(prefixes) > len(trainer.rollouts), "rollouts went on after their first chunk"
    for prefix in prefixes:
        assert prefix[: len(rendered)] == rendered
        response = prefix[len(rendered) :]
        assert any(rollout.ids[: len(response)] == response for rollout in trainer.rollouts)


def test_two_entries_of_one_prompt_become_two_rollouts_with_a_role_each(tmp_path):
    trainer = make_trainer(
        tmp_path,
        trainer_class=Keeper,
        prompts_per_update=1,
        num_control=1,
        num_intervened=1,
        per_device_train_batch_size=2,
        max_steps=1,
    )
    asked = []
    generate = trainer._generate_single_turn
    trainer._generate_single_turn = lambda prompt_ids, *rest, **kwargs: (
        asked.append(prompt_ids) or generate(prompt_ids, *rest, **kwargs)
    )
    trainer.train()
    (prompts,) = asked
    assert len(prompts) == 2 and prompts[0] == prompts[1], "TRL repeats the prompt before it asks"
    assert [rollout.request.role for rollout in trainer.rollouts] == [Role.CONTROL, Role.INTERVENED]
    assert trainer.batches[0]["completion_ids"].size(0) == 2
    assert [bool(rollout.intervention_tokens) for rollout in trainer.rollouts] == [False, True]


class EndsAndGoesOn:
    """One response of five tokens; the others are 5, 6, the end token, and end tokens after it."""

    weight_version = "script"

    def __init__(self):
        self.streams = 0

    async def stream(self, prefix_ids, max_tokens, seed):
        self.streams += 1
        for token in [7, 8, 9, 10, 2] if self.streams == 1 else [5, 6, 2, 2, 2]:
            yield SampledToken(token, None)


def test_the_first_end_token_is_trained_on_where_it_is_also_the_padding(tmp_path):
    """5 6 2 2 2: the first 2 is part of the response, those after it are padding."""
    tokenizer = tiny_tokenizer()
    tokenizer.pad_token = tokenizer.eos_token

    trainer = Keeper(
        model=tiny_model(),
        reward_funcs=parity_reward,
        args=MInTRLConfig(str(tmp_path), **settings(max_steps=1)),
        train_dataset=Dataset.from_list([{"prompt": "1+1="}] * 4),
        processing_class=tokenizer,
        judge=AlwaysKeep(),
        generator=EndsAndGoesOn(),
    )
    assert trainer.processing_class.pad_token_id == 2
    trainer.train()
    (batch,) = trainer.batches
    ids, masks = batch["completion_ids"].tolist(), batch["completion_mask"].tolist()
    rows = {tuple(row): mask for row, mask in zip(ids, masks, strict=True)}
    assert rows == {(7, 8, 9, 10, 2): [1, 1, 1, 1, 1], (5, 6, 2, 2, 2): [1, 1, 1, 0, 0]}
    assert {rollout.ids for rollout in trainer.rollouts} == {(7, 8, 9, 10, 2), (5, 6, 2)}
