"""What a recipe shows when it ends: a picture, one rollout with its correction, scores before and after, the cost.

Reads the run folder and writes to the terminal. It evaluates nothing itself.
"""

import os
import shlex
import time
from collections.abc import Mapping
from itertools import takewhile
from pathlib import Path

from rich.console import Console
from rich.table import Table

from .checkpoints import last_good
from .errors import DataError
from .evaluation import EvalResult
from .reporting.colours import needs_marks, print_rollout
from .reporting.plots import learning_curves
from .reporting.records import RolloutRecord
from .reporting.run_folder import RunFolder
from .rollouts.rollout import Role


class Stopwatch:
    """Wall-clock and CPU seconds of a `with` block, child processes that ended included."""

    def __enter__(self) -> "Stopwatch":
        self._wall, self._cpu = time.perf_counter(), _cpu_seconds()
        return self

    def __exit__(self, *exc: object) -> None:
        self.wall_seconds = time.perf_counter() - self._wall
        self.cpu_seconds = _cpu_seconds() - self._cpu


def print_summary(
    output_dir: str | Path,
    stopwatch: Stopwatch,
    results: Mapping[int, EvalResult],
    console: Console | None = None,
) -> None:
    """Show what came of a run.

    Args:
        output_dir (`str` or `Path`): The run folder.
        stopwatch ([`Stopwatch`]): Time of the training.
        results (`Mapping[int, EvalResult]`): Evaluations by updates done; may be empty. The last line then is
            `RESULT pass@1 BEFORE -> AFTER pass@k BEFORE -> AFTER`, of the hard problems where there are some.
        console (`Console`, *optional*): Where to. Defaults to standard output.
    """
    console = console if console is not None else Console(highlight=False)
    folder = RunFolder(output_dir)
    record = corrected_rollout(folder)
    if record is not None:
        legend = "{+the judge's+}, [-cut-]" if needs_marks(console) else "green: the judge's, struck through: cut"
        console.rule(f"a correction ({legend}, in brackets: why)")
        print_rollout(record, console, outcome="rescued" if _rescued(folder, record) else "")
        console.rule()
    if results:
        console.print(_scores(results))
    console.print(f"wall {stopwatch.wall_seconds:.0f} s, CPU {stopwatch.cpu_seconds:.0f} s", markup=False)
    console.print(f"model and run folder: {folder.path}", markup=False, soft_wrap=True)
    try:
        curves = learning_curves(folder)
    except DataError as error:
        console.print(f"no learning curves: {error}", markup=False, soft_wrap=True)
    else:
        place = shlex.quote(str(folder.path))
        console.print(
            f"look closer: mintrl report {place}, mintrl show {place} --rescued", markup=False, soft_wrap=True
        )
        console.print(f"learning curves: {curves}", markup=False, soft_wrap=True)
    if results:
        console.print(_result_line(results), markup=False, soft_wrap=True)


def interruption(output_dir: str | Path) -> str:
    """What to say after an interrupt: where the files are, and how to go on."""
    folder = Path(output_dir)
    checkpoint = last_good(folder)
    if checkpoint is not None:
        return f"Interrupted. The run is in {folder}; go on with --resume_from_checkpoint {checkpoint.path}"
    return (
        f"Interrupted. Metrics and rollouts are in {folder}; no checkpoint was saved, so the run begins anew next time "
        "with --set_aside_older_run true or another --output_dir."
    )


def corrected_rollout(folder: RunFolder) -> RolloutRecord | None:
    """The rollout to show: the first of the run that was corrected and rewarded, else the least corrected one."""
    least = None
    for record in folder.rollouts():
        if any(review.review.intervened for review in record.reviews):
            if record.reward is not None and record.reward > 0:
                return record
            if least is None or record.off_policy_share < least.off_policy_share:
                least = record
    return least


def _rescued(folder: RunFolder, record: RolloutRecord) -> bool:
    """Whether a rollout with interventions is right and every control of its group wrong, as `mintrl show` has it."""
    controls = [
        other.reward
        for other in takewhile(lambda other: other.update == record.update, folder.rollouts(record.update))
        if other.group == record.group and other.role is Role.CONTROL and other.reward is not None
    ]
    right = record.role is Role.INTERVENED and record.reward is not None and record.reward > 0
    return right and bool(controls) and max(controls) <= 0


def _scores(results: Mapping[int, EvalResult]) -> Table:
    updates = sorted({min(results), max(results)})
    k = _largest_k(results)
    table = Table(title="the policy alone, without any judge")
    table.add_column("problems")
    for n in sorted({1, k}):
        for update in updates:
            when = "before" if update == 0 else f"after {update} update{'' if update == 1 else 's'}"
            table.add_column(f"pass@{n}\n{when}", justify="right")
    subsets = results[updates[0]].subsets
    for subset in (*(subsets if len(subsets) > 1 else ()), None):  # one alone is all
        cells = [f"{results[u].pass_at(n, subset):.1%}" for n in sorted({1, k}) for u in updates]
        table.add_row(subset or "all", *cells)
    return table


def _result_line(results: Mapping[int, EvalResult]) -> str:
    before, after = results[min(results)], results[max(results)]
    subset = "hard" if "hard" in after.subsets else None
    scores = [
        f"pass@{n} {before.pass_at(n, subset):.3f} -> {after.pass_at(n, subset):.3f}"
        for n in dict.fromkeys((1, _largest_k(results)))
    ]
    return " ".join(["RESULT", *scores])


def _largest_k(results: Mapping[int, EvalResult]) -> int:
    return min(problem.samples for result in results.values() for problem in result.problems)


def _cpu_seconds() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system
