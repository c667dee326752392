"""Trainers on tiny models with scripted doors, for the tests of the trainer."""

import hashlib
from collections.abc import Callable, Sequence

import torch
from datasets import Dataset
from trl import GRPOTrainer

from mintrl_trl import KEEP, Correction, MInTRLConfig, MInTRLTrainer, Revise
from mintrl_trl.rollouts.doors import SampledToken
from tests.tiny import tiny_model, tiny_tokenizer

ROWS = [{"prompt": f"{i}+1=", "answer": str(i + 1)} for i in range(8)]

# TRL's own trainer as these tests run it: MInTRL's defaults, on the CPU, without files.
TRL_SETTINGS = {
    "num_generations": 4,
    "max_completion_length": 16,
    "lr_scheduler_type": "constant",
    "weight_decay": 0.01,
    "delta": 3.0,
    "logging_steps": 1,
    "report_to": "none",
    "bf16": False,
    "use_cpu": True,
    "gradient_checkpointing": False,
    "save_strategy": "no",
    "disable_tqdm": True,
}


class HashGenerator:
    """Tokens that depend on seed and absolute position only; ends at a fixed rate. Records its requests."""

    weight_version = "script"

    def __init__(self, size: int = 47, end_id: int = 2, end_every: int = 9):
        self.size, self.end_id, self.end_every = size, end_id, end_every
        self.requests: list[tuple[tuple[int, ...], int, int]] = []
        self.open = 0

    async def stream(self, prefix_ids: Sequence[int], max_tokens: int, seed: int):
        self.requests.append((tuple(prefix_ids), max_tokens, seed))
        self.open += 1
        try:
            for position in range(len(prefix_ids), len(prefix_ids) + max_tokens):
                digest = hashlib.blake2b(f"{seed}:{position}".encode(), digest_size=8).digest()
                value = int.from_bytes(digest, "little")
                token = self.end_id if value % self.end_every == 0 else 3 + (value // self.end_every) % (self.size - 3)
                yield SampledToken(token, None)
                if token == self.end_id:
                    return
        finally:
            self.open -= 1


class RejectLastStep:
    """Rejects the newest step of every chunk and writes a fixed correction. Records the problems it saw."""

    weight_version = "judge"

    def __init__(self, ids: tuple[int, ...] = (5, 6), logps: tuple[float, ...] | None = None):
        self.ids, self.logps, self.problems = ids, logps, []

    async def review(self, problem, steps, first_new, *, seed):
        self.problems.append(problem)
        return Revise(len(steps) - 1, "not good")

    async def intervene(self, problem, accepted, verdict, max_tokens, *, seed):
        logps = None if self.logps is None else self.logps[:max_tokens]
        return Correction(ids=self.ids[:max_tokens], logps=logps)


class AlwaysKeep:
    """Accepts everything."""

    async def review(self, problem, steps, first_new, *, seed):
        return KEEP

    async def intervene(self, *args, **kwargs):
        raise AssertionError("nothing was rejected")


def parity_reward(completions: Sequence[str], completion_ids: Sequence[Sequence[int]], **kwargs) -> list[float]:
    """1.0 for responses of even length: differs within groups, and depends on the ids only."""
    return [float(len(ids) % 2 == 0) for ids in completion_ids]


def settings(**overrides) -> dict:
    """Settings of a tiny run on the CPU: 2 prompts x (2 control + 2 intervened), one micro-batch."""
    return {
        "prompts_per_update": 2,
        "num_control": 2,
        "num_intervened": 2,
        "chunk_tokens": 4,
        "max_reviews": 2,
        "correction_tokens": 2,
        "max_prompt_length": 32,
        "max_completion_length": 16,
        "max_steps": 2,
        "intervention_updates": 2,
        "learning_rate": 1e-2,
        "per_device_train_batch_size": 8,
        "use_cpu": True,
        "gradient_checkpointing": False,
        "save_strategy": "no",
        "show_progress": False,
        "disable_tqdm": True,
    } | overrides


def make_trainer(
    output_dir,
    *,
    reward: Callable = parity_reward,
    judge="reject",
    generator="hash",
    rows=ROWS,
    model=None,
    trainer_class=MInTRLTrainer,
    config_class=MInTRLConfig,
    trainer_kwargs=None,
    **overrides,
) -> MInTRLTrainer:
    """A trainer; `judge` and `generator` take an object, or a name for the scripted ones."""
    judge = RejectLastStep() if judge == "reject" else judge
    generator = HashGenerator() if generator == "hash" else generator
    return trainer_class(
        model=model if model is not None else tiny_model(),
        reward_funcs=reward,
        args=config_class(str(output_dir), **settings(**overrides)),
        train_dataset=Dataset.from_list(list(rows)),
        processing_class=tiny_tokenizer(),
        judge=judge,
        generator=generator,
        **(trainer_kwargs or {}),
    )


def weights(trainer) -> dict[str, torch.Tensor]:
    """A copy of all parameters by name."""
    return {name: parameter.detach().clone() for name, parameter in trainer.model.named_parameters()}


def assert_same_weights(left: dict, right: dict, **tolerance) -> None:
    """Exactly equal, or close where a tolerance is given."""
    assert left.keys() == right.keys()
    for name in left:
        if tolerance:
            torch.testing.assert_close(left[name], right[name], msg=lambda text, n=name: f"{n}: {text}", **tolerance)
        else:
            assert torch.equal(left[name], right[name]), name


class Recorder(MInTRLTrainer):
    """Keeps generated batches, micro-batches and the gradients of every update."""

    def __init__(self, *args, **kwargs):
        self.batches, self.micro_batches, self.completions, self.gradients = [], [], [], []
        super().__init__(*args, **kwargs)

    def _generate_single_turn(self, *args, **kwargs):
        output = super()._generate_single_turn(*args, **kwargs)
        self.completions.append(output[0])
        return output

    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        self.batches.append(output)
        return output

    def compute_loss(self, model, inputs, *args, **kwargs):
        self.micro_batches.append(inputs)
        return super().compute_loss(model, inputs, *args, **kwargs)

    def training_step(self, *args, **kwargs):
        loss = super().training_step(*args, **kwargs)
        self.gradients.append({n: p.grad.clone() for n, p in self.model.named_parameters() if p.grad is not None})
        return loss


class Replayed(GRPOTrainer):
    """TRL's own trainer, given completions; keeps the gradients of its last step."""

    script: list

    def _generate_single_turn(self, *args, **kwargs):
        return self.script.pop(0), None

    def training_step(self, *args, **kwargs):
        loss = super().training_step(*args, **kwargs)
        self.gradients = {n: p.grad.clone() for n, p in self.model.named_parameters()}
        return loss
