"""Whole solutions of a teacher to the training prompts: sampled, scored, kept in a file as they come.

Each prompt is tried until one try is right, at most so many times. Owns that file (`trajectories.jsonl`: one line per
try). Invariant: every (prompt, try) is sampled once, and its seed depends on these two
alone, so that an interrupted collection that goes on ends with the same lines.
"""

import json
import logging
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accelerate import PartialState
from accelerate.utils import gather_object

from ..processes import all_or_none
from ..reporting.live import LiveProgress
from ..rollouts.doors import PolicyGenerator, Vocabulary
from ..rollouts.rollout import Problem, Role, Rollout, RolloutRequest, StopReason
from ..rollouts.sampler import InterventionSampler, SamplerSettings
from ..rollouts.schedule import InterventionBudget, request_seed
from .scoring import score_rollouts

logger = logging.getLogger(__name__)

SOLVED_ABOVE = 0.5  # a reward above this is a right solution
BATCH = 512  # prompts between two writes
_STREAM = 1 << 40  # number of an update that no run reaches: the seeds of its tries are apart from training's


@dataclass(frozen=True)
class Trajectory:
    """One try.

    Args:
        prompt (`int`): Number of the training row.
        attempt (`int`): Which try, from 0.
        ids (`tuple[int, ...]`): The response, with its end id where it ended.
        ended (`bool`): Whether it ended before the length limit.
        reward (`float`, *optional*): `None` where there is none.
    """

    prompt: int
    attempt: int
    ids: tuple[int, ...]
    ended: bool
    reward: float | None

    @property
    def right(self) -> bool:
        """Whether it ended and was rewarded."""
        return self.ended and self.reward is not None and self.reward > SOLVED_ABOVE


def collect_trajectories(
    generator: PolicyGenerator,
    vocabulary: Vocabulary,
    prompt_ids: Sequence[Sequence[int]],
    rows: Sequence[Mapping[str, Any]],
    reward: Callable[..., Any],
    path: Path,
    *,
    attempts: int,
    only_right: bool,
    max_completion_tokens: int,
    seed: int,
    show_progress: bool | None = None,
) -> list[Trajectory]:
    """At most one trajectory for each prompt: its first right try or, without `only_right`, its first that ended.

    Every process takes part, with its share of each batch; the main one writes.

    Args:
        generator ([`PolicyGenerator`]): The teacher.
        vocabulary ([`Vocabulary`]): The teacher's.
        prompt_ids (`Sequence[Sequence[int]]`): Prompts as the teacher renders them.
        rows (`Sequence[Mapping]`): The rows they are of.
        reward (`Callable`): In TRL's signature.
        path (`Path`): The file; tries found there are not made again.
        attempts (`int`): Tries of one prompt at most.
        only_right (`bool`): Whether a wrong solution is tried again, and left out in the end.
        max_completion_tokens (`int`): Length limit.
        seed (`int`): Seed of the run.
        show_progress (`bool`, *optional*): As for the trainer.

    Returns:
        `list[Trajectory]`: In the order of the prompts.
    """
    state = PartialState()
    known = {(found.prompt, found.attempt): found for found in read_trajectories(path)}

    def wanted(trajectory: Trajectory) -> bool:
        return trajectory.right if only_right else trajectory.ended

    def sample(numbers: Sequence[int], attempt: int, label: str) -> list[Trajectory]:
        requests = [_request(number, prompt_ids[number], attempt) for number in numbers]
        sampler = InterventionSampler(generator, None, vocabulary, _settings(max_completion_tokens, seed))
        show = show_progress if state.is_main_process else False
        try:
            with LiveProgress(sampler.progress, label, enabled=show), sampler:
                sampler.start(requests)
                by_row = sampler.collect()
        finally:
            sampler.close()
        rollouts = [by_row[number] for number in numbers]
        rewards, _ = score_rollouts(reward, [rows[number] for number in numbers], rollouts, vocabulary)
        tried = zip(numbers, rollouts, rewards, strict=True)
        return [_trajectory(number, attempt, rollout, value) for number, rollout, value in tried]

    kept: dict[int, Trajectory] = {}
    for attempt in range(attempts):
        open_prompts = [number for number in range(len(rows)) if number not in kept]
        missing = [number for number in open_prompts if (number, attempt) not in known]
        for start in range(0, len(missing), BATCH):
            numbers = missing[start : start + BATCH]
            own = numbers[state.process_index :: state.num_processes]
            found: list[Trajectory] = []
            with all_or_none():
                label = f"teacher, try {attempt + 1}: {start} of {len(missing)} problems done"
                found = sample(own, attempt, label) if own else []
            for trajectory in (merged := gather_object(found)):
                known[trajectory.prompt, trajectory.attempt] = trajectory
            with all_or_none():
                if state.is_main_process:
                    _append(path, merged)
        kept |= {n: known[n, attempt] for n in open_prompts if wanted(known[n, attempt])}
        logger.info("Teacher, try %d: %d of %d problems have a solution.", attempt + 1, len(kept), len(rows))
        if len(kept) == len(rows):
            break
    return [kept[number] for number in sorted(kept)]


def read_trajectories(path: Path) -> Iterator[Trajectory]:
    """The lines of a file of trajectories; none where there is no file. A line that a crash tore is passed over."""
    if not path.exists():
        return
    with path.open("rb") as file:
        for raw in file:
            try:
                line = json.loads(raw)
            except ValueError:
                continue
            yield Trajectory(**line | {"ids": tuple(line["ids"])})


def _request(number: int, prompt_ids: Sequence[int], attempt: int) -> RolloutRequest:
    return RolloutRequest(
        row=number,
        prompt_ids=tuple(prompt_ids),
        problem=Problem(question=""),
        role=Role.CONTROL,
        update=_STREAM + attempt,
    )


def _trajectory(number: int, attempt: int, rollout: Rollout, reward: float) -> Trajectory:
    ended = rollout.stop is not StopReason.LENGTH
    return Trajectory(number, attempt, tuple(rollout.ids), ended, None if math.isnan(reward) else reward)


def _settings(max_completion_tokens: int, seed: int) -> SamplerSettings:
    budget = InterventionBudget(
        chunk_tokens=max_completion_tokens,
        max_reviews=0,
        correction_tokens=1,
        max_completion_tokens=max_completion_tokens,
    )
    return SamplerSettings(budget=budget, run_seed=request_seed(seed, _STREAM, row=0, revisions=0))


def _append(path: Path, trajectories: Sequence[Trajectory]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab+") as file:
        if file.seek(0, os.SEEK_END):
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":  # a crash tore the last line
                file.write(b"\n")
        for item in trajectories:
            line = {"prompt": item.prompt, "attempt": item.attempt, "ids": item.ids, "ended": item.ended}
            file.write(json.dumps(line | {"reward": item.reward}).encode() + b"\n")
