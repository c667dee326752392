"""Small training runs on real servers, and what is compared in them.

A reward function is called after a batch was generated and before it is learned from: the one moment at which the
server must have exactly the trainer's weights. So the reward functions here look at both.
"""

from collections.abc import Callable, Sequence

import torch
from datasets import Dataset

from mintrl_trl import KEEP, Correction, MInTRLConfig, MInTRLTrainer, Revise
from mintrl_trl.reporting.records import RolloutRecord
from mintrl_trl.rollouts.rollout import Author

from .recorder import Exchange
from .server import MODEL, RealServer

TEXT = "The capital of France is Paris, and 17 + 25 = 42. So the answer is 42."


class HalfRejects:
    """Rejects the newest step of every second review, by the review's seed."""

    weight_version = "script"

    async def review(self, problem, steps, first_new, *, seed):
        return Revise(len(steps) - 1, "no") if seed % 2 else KEEP

    async def intervene(self, problem, accepted, verdict, max_tokens, *, seed):
        return Correction(text=" Let me check.")


class Comparing:
    """A reward by row, so that every group learns; before it, what trainer and servers make of `TEXT`.

    Attributes:
        trainer ([`MInTRLTrainer`]): Set once it is there.
        apart (`list[float]`): For each batch, the largest difference in nats between trainer and any server.
        moved (`list[float]`): For each batch, the largest difference between the trainer and its initial weights.
    """

    __name__ = "comparing"

    def __init__(self, servers: Sequence[RealServer], then: Callable[[], None] = lambda: None):
        self.servers, self.then = servers, then
        self.trainer: MInTRLTrainer | None = None
        self.apart: list[float] = []
        self.moved: list[float] = []
        self._first: torch.Tensor | None = None

    def __call__(self, completions, **kwargs) -> list[float]:
        ids = self.trainer.processing_class(TEXT)["input_ids"]
        model = self.trainer.policy.generator.model
        trained = trainer_logps(self.trainer, ids)
        served = [torch.tensor(server.logps(ids, model)) for server in self.servers]
        self._first = trained if self._first is None else self._first
        self.apart.append(max((trained - logps).abs().max().item() for logps in served))
        self.moved.append((trained - self._first).abs().max().item())
        self.then()
        return [float(row % 2) for row in range(len(completions))]


def trainer_logps(trainer: MInTRLTrainer, ids: list[int]) -> torch.Tensor:
    """Log-probability of each id after the first, by the forward that the loss is made of."""
    rows = torch.tensor([ids])
    with torch.no_grad():
        logps, *_ = trainer._get_per_token_logps_and_entropies(
            trainer.model, rows, torch.ones_like(rows), rows.size(1) - 1
        )
    return logps[0]


def make_trainer(output_dir, url: str, reward: Comparing, *, peft_config=None, judge_object=None, **overrides):
    """A trainer of four rollouts an update on the server or servers at `url`."""
    args = {
        "prompts_per_update": 1,
        "num_control": 2,
        "num_intervened": 2,
        "per_device_train_batch_size": 4,
        "chunk_tokens": 4,
        "max_reviews": 2,
        "correction_tokens": 4,
        "max_prompt_length": 64,
        "max_completion_length": 12,
        "max_steps": 2,
        "intervention_updates": 2,
        "learning_rate": 1e-3,
        "use_cpu": True,
        "gradient_checkpointing": False,
        "save_strategy": "no",
        "show_progress": False,
        "disable_tqdm": True,
        "use_vllm": True,
        "vllm_server_base_url": url,
    } | overrides
    rows = [{"prompt": [{"role": "user", "content": f"What is {i} + 1?"}]} for i in range(4)]
    reward.trainer = MInTRLTrainer(
        MODEL,
        reward_funcs=reward,
        args=MInTRLConfig(str(output_dir), **args),
        train_dataset=Dataset.from_list(rows),
        judge=judge_object if judge_object is not None else HalfRejects(),
        peft_config=peft_config,
    )
    return reward.trainer


def assert_streamed(record: RolloutRecord, exchanges: Sequence[Exchange], prompt_ids: Sequence[int]) -> None:
    """Every policy token of a rollout is what the server answered to exactly the ids before it."""
    streams: dict[tuple[int, ...], list[list[int]]] = {}
    for exchange in exchanges:
        assert exchange.prompt_ids in ([], exchange.body["prompt"])
        streams.setdefault(tuple(exchange.body["prompt"]), []).append(exchange.ids)
    for span in record.spans:
        if span.author is not Author.POLICY:
            continue
        reached = span.start  # a stream that broke off may have been longer than what came through
        for place in range(span.start, span.end):
            wanted = record.ids[place : span.end]
            assert place <= reached, f"row {record.row}: no answer goes on with {wanted} at response token {place}"
            for answer in streams.get((*prompt_ids, *record.ids[:place]), []):
                reached = max(reached, place + _same_beginning(wanted, answer))
        assert reached == span.end


def _same_beginning(left: Sequence[int], right: Sequence[int]) -> int:
    return next((i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))
