"""What a generated batch was, for the metrics and the run folder. Reads; decides nothing.

Invariant: every number is reduced over processes as a sum and a count, and divided once.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from accelerate.utils import gather_object
from torch import Tensor

from . import trl_seams
from .errors import FailureLimitError
from .objective.metrics import Totals, counter_totals, reward_metrics, rollout_totals
from .processes import all_or_none
from .reporting.records import rollout_record
from .rollouts.rollout import Rollout
from .rollouts.schedule import Phase

if TYPE_CHECKING:
    from .trainer import MInTRLTrainer


@dataclass
class GeneratedBatch:
    """The generated batch that is being made: held while TRL's hooks run, then dropped."""

    rows: list[dict[str, Any]]
    phase: Phase
    update: int
    training: bool
    corrected: bool = False  # whether TRL weights its tokens by importance
    rollouts: list[Rollout] = field(default_factory=list)
    rewards: Tensor | None = None  # (N,), NaN = no reward
    reward_reasons: list[str | None] = field(default_factory=list)

    def own_rows(self, process: int) -> slice:
        """Where the rows of a process stand among those of all."""
        return slice(process * len(self.rows), (process + 1) * len(self.rows))

    def check_scored(self, limit: float) -> None:
        """Called by every process once the rewards of all are there.

        Raises:
            FailureLimitError: The share of rollouts without a reward is above `limit`.
        """
        unscored = torch.isnan(self.rewards).float().mean().item()
        if unscored <= limit:
            return
        reasons = Counter(reason for reason in self.reward_reasons if reason is not None).most_common(3)
        named = ", ".join(f"{reason} {number}" for reason, number in reasons) or "none given"
        with all_or_none():
            raise FailureLimitError(
                f"{unscored:.0%} of the rollouts of update {self.update + 1} got no reward; `unscored_limit` is "
                f"{limit:.0%}. Reasons on this process: {named}. Mend the reward function or its data, then continue "
                "from the last checkpoint, or raise the limit."
            )


class DoorCounters:
    """What the counters of judge, sampler and generator gained since the last time they were asked.

    Args:
        sources (`Any`): Objects whose method `counters()` gives numbers by name that only grow; others have none. What
            several of them count under one name is added up.
    """

    def __init__(self, *sources: Any):
        self._sources = [source for source in sources if hasattr(source, "counters")]
        self._before: dict[str, float] = {}

    def gained(self) -> Totals:
        """Totals since the last call."""
        before, self._before = self._before, self._now()
        return counter_totals(before, self._before)

    @contextmanager
    def apart(self) -> Iterator[None]:
        """What is counted while this lasts, such as the work of an evaluation, is no gain."""
        before = self._now()
        try:
            yield
        finally:
            for name, value in self._now().items():
                self._before[name] = self._before.get(name, 0.0) + value - before.get(name, 0.0)

    def _now(self) -> dict[str, float]:
        counted: Counter[str] = Counter()
        for source in self._sources:
            counted.update(source.counters())
        return dict(counted)


def report_batch(
    trainer: "MInTRLTrainer",
    batch: GeneratedBatch,
    is_control: Tensor,
    advantages: Tensor,
    scored: Tensor | None = None,
) -> None:
    """Metrics of a generated batch, reduced once, and its rollouts for the run folder.

    Args:
        trainer ([`MInTRLTrainer`]): Whose batch it is.
        batch ([`GeneratedBatch`]): Its rows and rollouts are this process's, its rewards those of all processes.
        is_control (`Tensor`): (N,) bool, the pure on-policy rows of all processes.
        advantages (`Tensor`): (B,) of this process; NaN: none.
        scored (`Tensor`, *optional*): (B,) bool, true for rollouts that are trained with; by default all that have one.
    """
    if scored is not None:
        advantages = advantages.where(scored, torch.nan)
    metrics = reduce_totals(Totals.merge([rollout_totals(batch.rollouts), trainer.door_counters.gained()]))
    metrics |= reward_metrics(batch.rewards, is_control, trainer.num_generations)
    trl_seams.add_metrics(trainer, metrics)
    trainer.step_meter.add_rollouts(batch.rollouts)
    first = trainer.accelerator.process_index * len(batch.rows)
    records = [
        rollout_record(
            rollout,
            vocabulary=trainer.policy.vocabulary,
            update=batch.update + 1,
            group=rollout.request.row // trainer.num_generations,
            reward=batch.rewards[first + index].item(),
            reward_why=batch.reward_reasons[index],
            advantage=advantages[index].item(),
            row_id=batch.rows[index].get("id"),
            policy_logps=batch.corrected,
        )
        for index, rollout in enumerate(batch.rollouts)
    ]
    records = gather_object(records)
    with all_or_none():
        if trainer.run_folder is not None:
            trainer.run_folder.append_rollouts(records)


def reduce_totals(totals: Totals) -> dict[str, float]:
    """Means over all processes: sums and counts are added up first, then divided once. Called on every process."""
    return Totals.merge(gather_object([totals])).means()
