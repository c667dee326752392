"""A trainer that makes one update from recorded rollouts: no generator, no judge, no reward function, no server.

Loss and gradients come from the trainer's own code, of which nothing but the source of rollouts, rewards and
advantages is replaced. Invariant: no optimizer exists here, so no weight changes, and nothing is written.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from . import trl_seams
from .objective.loss import RegressionLoss
from .objective.metrics import Totals
from .reporting.records import RolloutRecord
from .reporting.replay_report import ReplayedRollout
from .rollouts.rollout import Author, Rollout, RolloutRequest
from .trainer import MInTRLTrainer

_RECORDED = "recorded_reward"  # column of the rows: what the rollout earned


class NoDoor:
    """In place of generator and judge, which a replay has no use for."""

    weight_version = "recorded"

    async def review(self, *args: Any, **kwargs: Any) -> Any:
        """Never called."""
        raise RuntimeError("a replay asks no judge")

    intervene = review

    async def stream(self, *args: Any, **kwargs: Any) -> Any:
        """Never called."""
        raise RuntimeError("a replay samples nothing")
        yield


def recorded_reward(completions: Sequence[str], **columns: Any) -> list[float | None]:
    """A reward function that gives what was given."""
    return columns[_RECORDED]


class Replay(MInTRLTrainer):
    """In front of a trainer's class: its batch is the recorded one. Give it to [`replay_class`] for other trainers."""

    records: Sequence[RolloutRecord]

    def replay(self, records: Sequence[RolloutRecord], update: int) -> tuple[float, float]:
        """Forward and backward of an update.

        Args:
            records (`Sequence[RolloutRecord]`): The generated batch's, in the order of their rows.
            update (`int`): Which update it is the first of, from 1.

        Returns:
            `tuple[float, float]`: The loss as it is logged, and the norm of its gradients.
        """
        self.records, self.run_folder = records, None
        self.window = self.seen = SeenMicroBatches(self)
        self.advantage_difference = 0.0
        self.state.global_step = update - 1
        self.current_gradient_accumulation_steps = self.args.gradient_accumulation_steps
        model = self.model_wrapped = self.accelerator.prepare_model(self.model)
        model.zero_grad(set_to_none=True)
        self.accelerator.gradient_state._set_sync_gradients(True)
        rows = [{"prompt": record.prompt, _RECORDED: record.reward} for record in records]
        losses = [self.training_step(model, rows, None) for _ in range(self.args.gradient_accumulation_steps)]
        norm = self.accelerator.clip_grad_norm_(model.parameters(), math.inf)
        return torch.stack(losses).sum().item(), float(norm)

    def _tokenize_prompts(self, prompts: list) -> tuple[list[list[int]], None, dict]:
        """The ids that were trained on, not those that their text would have."""
        return [list(record.prompt_ids) for record in self.records], None, {}

    def _sample(self, requests: Sequence[RolloutRequest], *, training: bool) -> list[Rollout]:
        return [record.to_rollout() for record in self.records]

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        output = super()._generate_and_score_completions(inputs)
        recorded = [math.nan if record.advantage is None else record.advantage for record in self.records]
        recorded = torch.tensor(recorded, device=output["advantages"].device)  # (B,)
        difference = torch.where(recorded.isnan(), 0.0, (output["advantages"] - recorded).abs())
        self.advantage_difference = difference.max().item()
        # What was trained with, whatever rewards were made of (several functions, weights, an older version).
        return output | {"advantages": torch.where(recorded.isnan(), 0.0, recorded)}

    def _regress(self, inputs: dict[str, Any], terms: dict[str, Any]) -> RegressionLoss:
        regression = super()._regress(inputs, terms)
        self.seen.regression(inputs[trl_seams.ROW], regression)
        return regression


class SeenMicroBatches:
    """Takes the place of a trainer's window: keeps what every micro-batch says about its rollouts, and stops nothing.

    Args:
        trainer ([`Replay`]): Whose.
    """

    def __init__(self, trainer: Replay):
        self.trainer = trainer
        self._rows: dict[int, dict[str, Any]] = {}

    def clear(self) -> None:
        """Forget everything."""
        self._rows.clear()

    def add(self, totals: Totals) -> None:
        """Means over a micro-batch say nothing about a rollout."""

    def regression(self, places: Tensor, terms: RegressionLoss) -> None:
        """Keep the terms of Eq. 7, by rollout."""
        for index, place in enumerate(places.tolist()):
            self._rows.setdefault(place, {}).update(
                loss=terms.per_sequence[index].item(),
                log_ratio=terms.log_ratio[index].item(),
                residual=terms.residual[index].item(),
                imitation_bonus=terms.imitation_bonus[index].item(),
            )

    def add_micro_batch(self, loss: Tensor, inputs: dict[str, Any]) -> None:
        """Keep what the newest forward says about each of its rollouts."""
        logps, mask = self.trainer.lean.logps, inputs["completion_mask"].bool()  # (B, C)
        for index, place in enumerate(inputs[trl_seams.ROW].tolist()):
            values = logps[index][mask[index]].float()
            broken = (~values.isfinite()).nonzero().flatten().tolist()
            live = bool(inputs[trl_seams.LIVE][index])
            self._rows.setdefault(place, {}).update(
                live=live, logp=values.sum().item() if live else None, broken_at=broken[0] if broken else None
            )

    def rollouts(self) -> tuple[ReplayedRollout, ...]:
        """Every rollout of the update, in the order of their rows."""
        records = {record.row: record for record in self.trainer.records}
        return tuple(_replayed(records[place], seen) for place, seen in sorted(self._rows.items()))


def _replayed(record: RolloutRecord, seen: dict[str, Any]) -> ReplayedRollout:
    by_judge = sum(span.end - span.start for span in record.spans if span.author is Author.INTERVENTION)
    return ReplayedRollout(
        row=record.row,
        group=record.group,
        role=record.role.value,
        reward=record.reward,
        advantage=record.advantage,
        tokens=len(record.ids),
        judge_tokens=by_judge,
        **seen,
    )


def replay_class(trainer_class: type[MInTRLTrainer]) -> type[Replay]:
    """[`Replay`] in front of a trainer of the same settings."""
    if trainer_class is MInTRLTrainer:
        return Replay
    return type(f"Replay{trainer_class.__name__}", (Replay, trainer_class), {})
