r"""The rule-based reward for maths: the last boxed answer of a completion, compared with the gold answer.

Owns: the reward function for TRL and the check of the gold answers at start-up; `rewards.boxes` says where the answer
of a completion is. Never parses maths in the calling process: all but two plain whole numbers are compared in children
that are killed at a limit (`rewards.worker`), by the rules of `rewards.equivalence`. Invariant: one result per row, in
order.

| comparison | result |
|---|---|
| no answer found in the completion | 0, with the reason that the table of `rewards.boxes` gives |
| the answer cannot be read as maths or words | 0 `answer_unparsed` |
| the comparison passes its limit | 0 `timeout` |
| the comparison ends its process, twice | 0 `crashed` |
| the gold answer cannot be read | no reward (`None`) `gold_unparsed`; `check_golds` finds these at start-up |
"""

import asyncio
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cache

from ..errors import DataError, RewardError
from .boxes import Why, find_answer, opens_thinking
from .worker import Failure, Outcome, WorkerPool

ROW_SECONDS = 5.0  # a comparison takes milliseconds; whoever needs seconds is no answer to a short question
BATCH_SECONDS = 120.0
MEMORY_MB = 1024
MAX_PROCESSES = 4

_TARGET = "mintrl_trl.rewards.equivalence:grade"
_WHOLE_NUMBER = re.compile(r"[-+]?[0-9]{1,400}")  # two of these need no mathematics, and most short answers are


@dataclass(frozen=True)
class MathCheck:
    """What became of one completion.

    Args:
        why (`Why`): The reason; it decides the reward.
        boxed (`str`): The answer as it stands in the completion, for the log; empty without a closed box.
    """

    why: Why
    boxed: str = ""

    @property
    def correct(self) -> bool:
        """Whether the answer equals the gold answer."""
        return self.why is Why.CORRECT

    @property
    def reward(self) -> float | None:
        """1.0 or 0.0; `None` where the gold answer is at fault."""
        return None if self.why is Why.GOLD_UNPARSED else float(self.correct)


@dataclass(frozen=True)
class _Pending:
    """An answer whose comparison is under way."""

    boxed: str
    outcome: "Future[Outcome]"

    def result(self) -> MathCheck:
        outcome = self.outcome.result()
        if outcome.failure is None:
            return MathCheck(Why(outcome.value), self.boxed)
        return MathCheck(Why.TIMEOUT if outcome.failure is Failure.TIMEOUT else Why.CRASHED, self.boxed)


class MathChecker:
    """Checks completions against gold answers in child processes, which start with the first check.

    Args:
        processes (`int`, *optional*): Children; defaults to the number of CPUs, at most 4.
        row_seconds (`float`, defaults to 5.0): Wall-clock limit for one comparison.
        batch_seconds (`float`, defaults to 120.0): Limit for one call as a whole; rows not done by then are `timeout`.
        memory_mb (`int`, defaults to 1024): Address space of a child.
        prompt_opens_thinking (`bool`, defaults to `False`): Whether the chat template ends the prompt with `<think>`,
            which message prompts do not show. Then a completion without `</think>` is unfinished thinking.
    """

    def __init__(
        self,
        *,
        processes: int | None = None,
        row_seconds: float = ROW_SECONDS,
        batch_seconds: float = BATCH_SECONDS,
        memory_mb: int = MEMORY_MB,
        prompt_opens_thinking: bool = False,
    ):
        processes = processes or min(MAX_PROCESSES, os.cpu_count() or 1)
        self._pool = WorkerPool(_TARGET, processes=processes, memory_mb=memory_mb)
        self._row_seconds, self._batch_seconds = row_seconds, batch_seconds
        self._prompt_opens_thinking = prompt_opens_thinking
        self._early: dict[tuple[str, str], Future[Outcome]] = {}  # comparisons that `begin` started

    def check(self, completion: str, gold: str) -> MathCheck:
        """Check one completion. May be called from any thread, also inside a running event loop (it blocks)."""
        return self.check_all([completion], [gold])[0]

    def check_all(self, completions: Sequence[str], golds: Sequence[str]) -> list[MathCheck]:
        """Check completions against golds, one to one, in order."""
        return _results(self._start(completions, golds, time.monotonic() + self._batch_seconds))

    async def reward(
        self,
        prompts: Sequence,
        completions: Sequence,
        answer: Sequence[str],
        log_extra: Callable[[str, list], None] | None = None,
        log_metric: Callable[[str, float], None] | None = None,
        **kwargs: object,
    ) -> list[float | None]:
        """The reward function for TRL; see `math_reward`."""
        if not len(prompts) == len(completions) == len(answer):
            raise RewardError(f"{len(prompts)} prompts, {len(completions)} completions and {len(answer)} answers")
        for row, gold in enumerate(answer):
            if not isinstance(gold, str):
                raise RewardError(f"row {row}: `answer` is {gold!r}; math_reward compares with text")
        texts = [
            ("<think>" if self._opens_thinking(prompt) else "") + text_of(completion)
            for prompt, completion in zip(prompts, completions, strict=True)
        ]
        early, self._early = self._early, {}
        early = {key: outcome for key, outcome in early.items() if not _failed(outcome)}
        rows = self._start(texts, answer, time.monotonic() + self._batch_seconds, early)
        waiting = {row.outcome for row in rows if isinstance(row, _Pending)}
        await asyncio.gather(*map(asyncio.wrap_future, waiting))
        checks = _results(rows)
        if log_extra is not None:
            log_extra("why", [str(check.why) for check in checks])
            log_extra("boxed", [check.boxed for check in checks])
        if log_metric is not None and checks:
            for why in Why:  # all of them each time, so that means over processes and steps stay right
                log_metric(f"reward/{why}", sum(check.why is why for check in checks) / len(checks))
        return [check.reward for check in checks]

    def begin(self, completion: str, row: Mapping[str, object]) -> None:
        """Start the comparison of one completion before the batch is whole; the next call of `reward` finds it.

        One that fails or passes its limit meanwhile is made again then. Called from one thread at a time, and not
        during `reward`.

        Args:
            completion (`str`): Its text.
            row (`Mapping`): With `prompt` and `answer`.
        """
        text = ("<think>" if self._opens_thinking(row["prompt"]) else "") + completion
        self._start([text], [row["answer"]], time.monotonic() + self._batch_seconds, self._early)

    def check_golds(self, rows: Iterable[Mapping[str, object]]) -> list[tuple[int, Why]]:
        """Compare every row's `answer` with itself; see the function `check_golds`."""
        golds = [row["answer"] if isinstance(row["answer"], str) else "" for row in rows]
        checks = _results(self._start([rf"\boxed{{{gold}}}" for gold in golds], golds, float("inf")))
        return [(index, check.why) for index, check in enumerate(checks) if not check.correct]

    def close(self) -> None:
        """End the child processes. Later checks start new ones."""
        self._pool.close()

    def _opens_thinking(self, prompt: object) -> bool:
        return self._prompt_opens_thinking or (isinstance(prompt, str) and opens_thinking(prompt))

    def _start(
        self,
        texts: Sequence[str],
        golds: Sequence[str],
        deadline: float,
        running: dict[tuple[str, str], "Future[Outcome]"] | None = None,
    ) -> list[MathCheck | _Pending]:
        """Per row its result, where the text alone decides, or the comparison it waits for; equal ones run once.

        `running` holds comparisons under way by answer and gold; those that are started are added.
        """
        running = {} if running is None else running
        rows: list[MathCheck | _Pending] = []
        for text, gold in zip(texts, golds, strict=True):
            why, boxed = find_answer(text)
            if why is not None:
                rows.append(MathCheck(why, boxed))
                continue
            if _WHOLE_NUMBER.fullmatch(boxed) and _WHOLE_NUMBER.fullmatch(gold):
                rows.append(MathCheck(Why.CORRECT if int(boxed) == int(gold) else Why.WRONG, boxed))
                continue
            key = boxed, gold
            if key not in running:
                request = {"gold": find_answer(gold)[1] or gold, "answer": boxed}
                running[key] = self._pool.submit(request, seconds=self._row_seconds, deadline=deadline)
            rows.append(_Pending(boxed, running[key]))
        return rows


def _results(rows: Sequence[MathCheck | _Pending]) -> list[MathCheck]:
    return [row if isinstance(row, MathCheck) else row.result() for row in rows]


def _failed(outcome: "Future[Outcome]") -> bool:
    """Whether a comparison is over without a verdict."""
    if not outcome.done():
        return False
    return outcome.cancelled() or outcome.exception() is not None or outcome.result().failure is not None


def text_of(completion: object) -> str:
    """The text of a completion: a string, or the last of a list of messages.

    Raises:
        RewardError: It is neither.
    """
    if isinstance(completion, str):
        return completion
    content = completion[-1].get("content") if isinstance(completion, Sequence) and completion else None
    if isinstance(content, Sequence) and not isinstance(content, str):
        content = "".join(part.get("text", "") for part in content)
    if not isinstance(content, str):
        raise RewardError(f"a completion is text or a list of messages with text, not {type(completion).__name__}")
    return content


@cache
def _default_checker() -> MathChecker:
    return MathChecker()


async def math_reward(
    prompts: Sequence,
    completions: Sequence,
    answer: Sequence[str],
    log_extra: Callable[[str, list], None] | None = None,
    log_metric: Callable[[str, float], None] | None = None,
    **kwargs: object,
) -> list[float | None]:
    """1.0 for a completion whose boxed answer equals the row's `answer`, else 0.0. For TRL's `reward_funcs`.

    It serves any event loop and never blocks it. For other limits pass `MathChecker(...).reward`.

    Args:
        prompts (`Sequence`): Text or messages; read only for whether they open a thinking block.
        completions (`Sequence`): Text, or lists of messages.
        answer (`Sequence[str]`): Gold answers: short, LaTeX without `$`.
        log_extra (`Callable`, *optional*): Gets the columns `why` and `boxed` for the table of completions.
        log_metric (`Callable`, *optional*): Gets `reward/<why>`, the share of rows with each reason.
        **kwargs: Other columns and what else TRL passes; not read.

    Returns:
        `list[float | None]`: One reward per completion, in order; `None` where the gold answer cannot be read.

    Raises:
        RewardError: Lengths differ, an answer or completion is not text, or no child process can be started.
    """
    return await _default_checker().reward(prompts, completions, answer, log_extra, log_metric, **kwargs)


def begin(completion: str, row: Mapping[str, object]) -> None:
    """Start the comparison of one completion before its batch is whole; see `MathChecker.begin`."""
    _default_checker().begin(completion, row)


math_reward.begin = begin


def check(completion: str, gold: str) -> MathCheck:
    """Check one completion; `.correct` and `.why` say what became of it."""
    return _default_checker().check(completion, gold)


def check_golds(rows: Iterable[Mapping[str, object]]) -> list[tuple[int, Why]]:
    """Find gold answers that do not equal themselves, so that no completion could ever be right.

    Args:
        rows (`Iterable[Mapping]`): Data rows with `answer`.

    Returns:
        `list[tuple[int, Why]]`: Row number (from 0) and reason of each bad one; empty when all are good.
    """
    return _default_checker().check_golds(rows)


def require_golds(rows: Sequence[Mapping[str, object]]) -> None:
    """Stop before training if `check_golds` finds anything.

    Raises:
        DataError: Names the rows, the first bad answer and its reason.
    """
    bad = check_golds(rows)
    if bad:
        numbers = ", ".join(str(index) for index, _ in bad[:10]) + (", ..." if len(bad) > 10 else "")
        raise DataError(
            f"{len(bad)} of {len(rows)} rows (number {numbers})",
            "answer",
            rows[bad[0][0]]["answer"],
            f"a short answer in LaTeX that equals itself when checked (this one: {bad[0][1]})",
            "correct these answers or drop the rows that check_golds(rows) lists",
        )
