"""Runs cells as processes, some side by side, and keeps a summary of each that ends well.

It decides nothing about what is run. Invariant: a cell with a summary is never run again, one without is run from its
beginning, and a cell that fails keeps its log and stops no other.
"""

import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from .cells import RECIPES, Cell
from .summary import summarize, write_summary

ROOT = RECIPES.parent
SECONDS_PER_UPDATE = 0.5  # of a method not yet measured, two runs side by side on two cores
SECONDS_APART = 25.0  # starting, evaluations
_LOG_END_CHARS = 1500


# Folder of a model -> the program that makes it.
MODELS = {"models/chains_teacher": "scripts/train_chains_teacher.py"}


def make_models(cells: Sequence[Cell], console: Console) -> None:
    """Make the models that cells need and that are not there.

    Raises:
        RuntimeError: A program failed.
    """
    for model in sorted(set().union(*(cell.models for cell in cells))):
        if model in MODELS and not (ROOT / model / "config.json").exists():
            console.print(f"{model} is not there: {MODELS[model]} makes it once, in some minutes.")
            if subprocess.run([sys.executable, MODELS[model]], cwd=ROOT).returncode:
                raise RuntimeError(f"{MODELS[model]} failed; what it wrote stands above")


class Processes:
    """Training processes that are running, so that an interruption ends them.

    Attributes:
        running (`set`): Those that have not ended.
    """

    def __init__(self) -> None:
        self._lock, self.running, self._stopped = threading.Lock(), set(), False

    def run(self, command: Sequence[str], log: Path) -> int:
        """Run to the end on one thread; the exit code. After `stop`, nothing is started and the code is -1."""
        one_thread = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        with open(log, "w", encoding="utf-8") as file:
            with self._lock:
                if self._stopped:
                    return -1
                process = subprocess.Popen(
                    command, cwd=ROOT, stdout=file, stderr=subprocess.STDOUT, env=os.environ | one_thread
                )
                self.running.add(process)
            try:
                return process.wait()
            finally:
                if process.poll() is None:  # whatever interrupted the wait
                    process.kill()
                    process.wait()
                with self._lock:
                    self.running.discard(process)

    def stop(self) -> None:
        """End all that run and let nothing else start."""
        with self._lock:
            self._stopped = True
            for process in self.running:
                process.terminate()


def execute(cell: Cell, runs: Path, summaries: Path, processes: Processes) -> dict[str, Any]:
    """Train and summarize.

    Args:
        cell ([`Cell`]): What to run.
        runs (`Path`): Where run folders are kept; what an interrupted run left of this one is removed.
        summaries (`Path`): Where its summary is written.
        processes ([`Processes`]): Through which it runs.

    Returns:
        `dict`: The summary.

    Raises:
        RuntimeError: The process failed; the message ends with the end of its log.
    """
    folder = runs / cell.folder_name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    started = time.perf_counter()
    code = processes.run([sys.executable, *cell.command(folder)], folder / "log.txt")
    if code:
        end = (folder / "log.txt").read_text(encoding="utf-8", errors="replace")[-_LOG_END_CHARS:]
        raise RuntimeError(f"{folder} ended with exit code {code}:\n{end}")
    summary = summarize(cell, folder, time.perf_counter() - started)
    write_summary(summary, summaries)
    return summary


def execute_all(
    cells: Sequence[Cell], runs: Path, summaries: Path, jobs: int, expected: Mapping[str, float], console: Console
) -> list[Cell]:
    """Run cells side by side, in order, saying what is done and how long the rest will take.

    Args:
        cells (`Sequence[Cell]`): Without a summary so far.
        runs, summaries (`Path`): As for [`execute`].
        jobs (`int`): Processes side by side.
        expected (`Mapping[str, float]`): Minutes of each cell, by key.
        console (`Console`): Where progress is written.

    Returns:
        `list[Cell]`: Those that failed.
    """
    started, failed, processes = time.perf_counter(), [], Processes()
    total, done = sum(expected[cell.key] for cell in cells), 0.0
    with ThreadPoolExecutor(jobs) as pool:
        futures = {pool.submit(execute, cell, runs, summaries, processes): cell for cell in cells}
        try:
            for number, future in enumerate(as_completed(futures), start=1):
                cell = futures[future]
                done += expected[cell.key]
                spent = (time.perf_counter() - started) / 60
                left = spent / done * (total - done)
                if error := future.exception():
                    failed.append(cell)
                    console.print(f"{cell.label}, seed {cell.seed}: FAILED. {error}", markup=False)
                else:
                    summary = future.result()
                    console.print(
                        f"{cell.label}, seed {cell.seed}: {outcome(summary)} · {summary['minutes']:.1f} min · "
                        f"{number}/{len(cells)} cells, {spent:.0f} min so far, about {left:.0f} min left",
                        markup=False,
                    )
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            processes.stop()
            raise
    return failed


def outcome(summary: Mapping[str, Any]) -> str:
    """Pass@1 and Pass@k of the last evaluation, in words."""
    passes = summary["evaluations"][-1]["pass"] if summary["evaluations"] else {}
    subset = passes.get("hard") or passes.get("all")
    if not subset:
        return "done"
    most = max(subset, key=int)
    return f"hard Pass@1 {subset['1']:.1%}, Pass@{most} {subset[most]:.1%}"


def expected_minutes(cells: Sequence[Cell], summaries: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """Minutes that each cell will take, by key: as measured, or at the pace of its recipe's other runs."""
    paces: dict[str, list[float]] = {}
    for summary in summaries.values():
        paces.setdefault(summary["recipe"], []).append(summary["minutes"] / summary["updates"])
    minutes = {}
    for cell in cells:
        if cell.key in summaries:
            minutes[cell.key] = summaries[cell.key]["minutes"]
        elif cell.recipe in paces:
            minutes[cell.key] = cell.updates * sum(paces[cell.recipe]) / len(paces[cell.recipe])
        else:
            minutes[cell.key] = (SECONDS_APART + cell.updates * SECONDS_PER_UPDATE) / 60
    return minutes


def plan_table(
    cells: Sequence[Cell], summaries: Mapping[str, Mapping[str, Any]], minutes: Mapping[str, float]
) -> Table:
    """Minutes per cell, one row for all seeds of one label."""
    table = Table(title="minutes per cell: measured where there is a summary, else expected")
    for column, justify in (("run", "left"), ("recipe", "left"), ("seeds", "left"), ("done", "right")):
        table.add_column(column, justify=justify)
    table.add_column("minutes each", justify="right")
    rows: dict[tuple[str, str], list[Cell]] = {}
    for cell in cells:
        rows.setdefault((cell.label, cell.recipe), []).append(cell)
    for (label, recipe), row in rows.items():
        each = sum(minutes[cell.key] for cell in row) / len(row)
        seeds = ", ".join(map(str, sorted({cell.seed for cell in row})))
        table.add_row(label, recipe, seeds, f"{sum(c.key in summaries for c in row)}/{len(row)}", f"{each:.1f}")
    return table
