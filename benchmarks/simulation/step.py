"""A whole training step, and how to divide GPUs between the trainer, the policy's servers and the judge's.

The update and the sync are sums of a few numbers of the scenario, not simulated. A step is strictly sequential, as
on-policy training is: rollouts, update, sync.
"""

from dataclasses import dataclass

from .modes import Mode, simulate
from .scenario import Scenario


@dataclass(frozen=True)
class Split:
    """GPUs by what they do. Without a judge of its own, the judge's requests join the policy's servers."""

    trainers: int
    policy: int
    judge: int

    @property
    def gpus(self) -> int:
        return self.trainers + self.policy + self.judge


@dataclass(frozen=True)
class Step:
    """Seconds of one training step, and the share of all GPUs' time in which they had nothing to do."""

    split: Split
    rollout_seconds: float
    update_seconds: float
    sync_seconds: float
    idle_share: float

    @property
    def seconds(self) -> float:
        return self.rollout_seconds + self.update_seconds + self.sync_seconds


def splits(gpus: int, most_judge: int = 2) -> list[Split]:
    """All ways to divide `gpus`, with at most `most_judge` for the judge alone."""
    return [
        Split(gpus - policy - judge, policy, judge)
        for judge in range(most_judge + 1)
        for policy in range(1, gpus - judge)
    ]


def whole_step(scenario: Scenario, split: Split, mode: Mode = Mode.OVERLAP) -> Step:
    """Simulate the rollouts of a split and add the rest of the step.

    A GPU of the policy or the judge runs one server with the scenario's places; reviews are limited by all places.
    """
    judges = split.judge or split.policy
    outcome = simulate(
        mode,
        scenario.but(
            policy_servers=split.policy,
            judge_servers=split.judge,
            max_concurrent_reviews=scenario.judge_places * judges,
        ),
    )
    tokens = outcome.tokens.policy + outcome.tokens.corrections + scenario.prompt_tokens * len(scenario.lengths)
    work = scenario.flops_per_parameter * scenario.parameters * tokens
    update = work / (scenario.trainer_flops * split.trainers)
    sync = scenario.sync_seconds + 2 * scenario.parameters / scenario.sync_bytes_per_second
    used = outcome.policy_busy_seconds + outcome.judge_busy_seconds
    used += split.trainers * update + (split.trainers + split.policy) * sync
    total = split.gpus * (outcome.seconds + update + sync)
    return Step(split, outcome.seconds, update, sync, 1 - used / total)
