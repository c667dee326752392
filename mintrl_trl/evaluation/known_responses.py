"""Whether a benchmark is scored right: responses that must be solved, and empty ones that must not.

Owns: what a right response to a row looks like, and the check. Samples nothing. Invariant: the responses take the way
that sampled ones take, through a folder of samples and its scoring; nothing is scored by a path of its own.

| domain | right response |
|---|---|
| `math` | the answer in a box |
| `code` | the reference solution in a code block; rows without one have none |
| `chains` | the reference solution and its end token |
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ..data.chains import EOS_ID, encode
from ..rollouts.rollout import StopReason
from .benchmarks import CHAINS, LoadedBenchmark
from .pass_at_k import SOLVED_ABOVE
from .run import score
from .samples import Sample, SampleFolder, Score

_RIGHT, _EMPTY = range(2)  # numbers of a problem's two samples


@dataclass(frozen=True)
class ScoringCheck:
    """What became of a benchmark's known responses.

    Args:
        name (`str`): Of the benchmark.
        problems (`int`): How many it has; each got an empty response.
        right (`int`): How many have a right response.
        right_solved, empty_solved (`int`): Of those responses, how many were rewarded above 0.5.
        wrong_scores (`tuple[Score, ...]`): Scores that are not as they must be, those without a reward among them.
    """

    name: str
    problems: int
    right: int
    right_solved: int
    empty_solved: int
    wrong_scores: tuple[Score, ...]

    @property
    def passed(self) -> bool:
        """Whether right responses score 100 %, and empty ones 0 %."""
        return not self.wrong_scores


def right_response(domain: str, row: Mapping[str, Any]) -> tuple[str, tuple[int, ...]] | None:
    """A response that has to be rewarded, as text and token ids (only those of `chains` are read; others are empty).

    Returns:
        `tuple` or `None`: `None` where the row tells of none.
    """
    if domain == CHAINS:
        solution = row["privileged_context"]
        return solution, (*encode(solution), EOS_ID)
    if domain == "math":
        return rf"\boxed{{{row['answer']}}}", ()
    if not row["privileged_context"]:
        return None
    return f"```python\n{row['privileged_context']}\n```", ()


def check_scoring(
    benchmark: LoadedBenchmark, on_progress: Callable[[int, int], None] = lambda done, total: None
) -> ScoringCheck:
    """Score a benchmark's known responses.

    Args:
        benchmark ([`LoadedBenchmark`]): Whose rows and reward are checked.
        on_progress (`Callable[[int, int], None]`, *optional*): Called with responses done and in all.

    Raises:
        RewardError: Programs cannot be run on this machine.
    """
    rows, reward = {row["id"]: row for row in benchmark.rows}, benchmark.reward
    with TemporaryDirectory(prefix="mintrl-check-") as path:
        folder = SampleFolder(Path(path))
        folder.begin({"benchmark": benchmark.name, "samples": 2})
        right = 0
        for name, row in rows.items():
            response = right_response(benchmark.domain, row)
            if response is not None:
                right += 1
                folder.append(Sample(name, _RIGHT, response[1], response[0], StopReason.END.value))
            folder.append(Sample(name, _EMPTY, (), "", StopReason.END.value))
        score(folder, rows, reward, on_progress=on_progress)
        scores = list(folder.scores().values())
    solved = {kind: sum(_solved(one) for one in scores if one.sample == kind) for kind in (_RIGHT, _EMPTY)}
    wrong = tuple(one for one in scores if one.reward is None or _solved(one) != (one.sample == _RIGHT))
    return ScoringCheck(benchmark.name, len(rows), right, solved[_RIGHT], solved[_EMPTY], wrong)


def _solved(score: Score) -> bool:
    return score.reward is not None and score.reward > SOLVED_ABOVE
