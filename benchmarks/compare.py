"""MInTRL against GRPO on the small world: what each learns from the same problems.

    python benchmarks/compare.py [--output runs/compare]

Four methods: MInTRL-Const, MInTRL-Proxy, GRPO, and GRPO with twice the updates. Each takes its learning rate from one
grid, chosen on a seed of its own by Pass@16 over all evaluation problems (ties: by Pass@1), and is then run on three
other seeds. Evaluation problems are fixed: 100 easy, 100 hard, 16 samples each, the policy alone. The rate is constant
and problems are fresh, so one GRPO run gives both GRPO rows: the shorter one is its middle. The base model's row is
what the runs of MInTRL-Const begin with, on the same problems.

Runs are processes of one thread, two side by side. Finished runs are kept in the output folder and not repeated. The
last line is the ratio of hard Pass@16 of MInTRL-Const and GRPO.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev

from rich.console import Console
from rich.table import Table

RECIPES = Path(__file__).parents[1] / "recipes"
UPDATES = 150
LEARNING_RATES = (1.5e-4, 3e-4, 6e-4)
TUNING_SEED = 100
SEEDS = (0, 1, 2)
PROBLEMS = 200
SAMPLES = 16


@dataclass(frozen=True)
class Method:
    """A row of the table: a recipe, read off after so many updates."""

    name: str
    recipe: str
    updates: int
    trained: int  # updates of the run that it is read off


METHODS = (
    Method("MInTRL-Const", "quickstart", UPDATES, UPDATES),
    Method("MInTRL-Proxy", "chains_proxy", UPDATES, UPDATES),
    Method("GRPO", "chains_grpo", UPDATES, 2 * UPDATES),
    Method("GRPO, twice the updates", "chains_grpo", 2 * UPDATES, 2 * UPDATES),
)


@dataclass(frozen=True)
class Run:
    """One training process."""

    recipe: str
    updates: int
    learning_rate: float
    seed: int

    def folder(self, output: Path) -> Path:
        return output / f"{self.recipe}_lr{self.learning_rate:g}_seed{self.seed}"


@dataclass(frozen=True)
class Scores:
    """What a run reached after so many updates; shares in [0, 1]."""

    hard_1: float
    hard_k: float
    easy_1: float
    easy_k: float
    all_1: float
    all_k: float
    off_policy_share: float | None  # mean over the updates with interventions
    seconds: float  # wall-clock, of the whole run

    @classmethod
    def read(cls, folder: Path, updates: int) -> "Scores":
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        scores = next(line for line in lines if line["update"] == updates and "eval/pass@1" in line)
        shares = [line["off_policy_share"] for line in lines if "off_policy_share" in line]
        return cls(
            *(scores[f"eval/{subset}pass@{k}"] for subset in ("hard/", "easy/", "") for k in (1, SAMPLES)),
            off_policy_share=fmean(shares) if shares else None,
            seconds=float((folder / "seconds.txt").read_text()),
        )


def execute(run: Run, output: Path) -> None:
    """Train, unless this run is there already. Its log is kept beside its results.

    Raises:
        RuntimeError: The process failed; the message ends with the end of its log.
    """
    folder = run.folder(output)
    if (folder / "seconds.txt").exists():
        return
    shutil.rmtree(folder, ignore_errors=True)  # what an interrupted comparison left of it
    folder.mkdir(parents=True)
    flags = {
        "config": RECIPES / f"{run.recipe}.yaml",
        "output_dir": folder,
        "learning_rate": run.learning_rate,
        "seed": run.seed,
        "max_steps": run.updates,
        "eval_problems": PROBLEMS,
        "eval_samples": SAMPLES,
        "eval_every": UPDATES,
    }
    command = [sys.executable, str(RECIPES / "train_math.py"), *(f"--{name}={value}" for name, value in flags.items())]
    one_thread = {name: "1" for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    started = time.perf_counter()
    with open(folder / "log.txt", "w", encoding="utf-8") as log:
        code = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, env=os.environ | one_thread).returncode
    if code:
        end = (folder / "log.txt").read_text(encoding="utf-8")[-2000:]
        raise RuntimeError(f"{folder} failed with exit code {code}:\n{end}")
    (folder / "seconds.txt").write_text(f"{time.perf_counter() - started:.1f}\n")


def execute_all(runs: list[Run], output: Path, workers: int, console: Console) -> None:
    """Execute runs side by side, saying what is done and how long the rest will take."""
    runs = sorted(set(runs), key=lambda run: -run.updates)  # long ones first, so that no worker idles at the end
    started, done = time.perf_counter(), 0
    total = sum(run.updates for run in runs)
    with ThreadPoolExecutor(workers) as pool:
        futures = {pool.submit(execute, run, output): run for run in runs}
        for future in as_completed(futures):
            if future.exception() is not None:
                pool.shutdown(cancel_futures=True)
            future.result()
            run = futures[future]
            done += run.updates
            spent = time.perf_counter() - started
            left = spent / done * (total - done)
            console.print(
                f"{run.folder(output).name}: done · {done}/{total} updates, {spent / 60:.1f} min, "
                f"about {left / 60:.1f} min left",
                markup=False,
            )


def choose_learning_rates(output: Path) -> dict[Method, float]:
    """The grid's best for each method: Pass@16 over all problems, then Pass@1."""
    chosen = {}
    for method in METHODS:
        runs = {rate: Run(method.recipe, method.trained, rate, TUNING_SEED) for rate in LEARNING_RATES}
        scores = {rate: Scores.read(run.folder(output), method.updates) for rate, run in runs.items()}
        chosen[method] = max(scores, key=lambda rate, of=scores: (of[rate].all_k, of[rate].all_1))
    return chosen


def tuning_table(output: Path, chosen: dict[Method, float]) -> Table:
    table = Table(title=f"Pass@{SAMPLES} / Pass@1 over all problems on seed {TUNING_SEED}, by learning rate")
    table.add_column("method")
    for rate in LEARNING_RATES:
        table.add_column(f"{rate:g}", justify="right")
    for method in METHODS:
        cells = []
        for rate in LEARNING_RATES:
            run = Run(method.recipe, method.trained, rate, TUNING_SEED)
            scores = Scores.read(run.folder(output), method.updates)
            mark = " *" if rate == chosen[method] else ""
            cells.append(f"{scores.all_k:.1%} / {scores.all_1:.1%}{mark}")
        table.add_row(method.name, *cells)
    return table


def result_table(base: list[Scores], results: dict[Method, list[Scores]], chosen: dict[Method, float]) -> Table:
    table = Table(title=f"mean and spread (sample standard deviation) over seeds {', '.join(map(str, SEEDS))}")
    table.add_column("method")
    columns = ("updates", "lr", "hard @1", f"hard @{SAMPLES}", "easy @1", f"easy @{SAMPLES}", "off-policy", "seconds")
    for column in columns:
        table.add_column(column, justify="right")
    table.add_row("base model", "0", "-", *_spreads(base), "-", "-")
    for method, scores in results.items():
        shares = [score.off_policy_share for score in scores if score.off_policy_share is not None]
        part = method.updates / method.trained
        table.add_row(
            method.name,
            str(method.updates),
            f"{chosen[method]:g}",
            *_spreads(scores),
            f"{fmean(shares):.2%}" if shares else "-",
            f"{part * fmean(score.seconds for score in scores):.0f}",
        )
    return table


def _spreads(scores: list[Scores]) -> list[str]:
    return [_spread([getattr(score, name) for score in scores]) for name in ("hard_1", "hard_k", "easy_1", "easy_k")]


def _spread(values: list[float]) -> str:
    return f"{fmean(values):.1%} ± {stdev(values):.1%}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path("runs/compare"), help="where runs are kept")
    parser.add_argument("--workers", type=int, default=2, help="processes side by side, one thread each")
    options = parser.parse_args()
    console = Console(highlight=False, soft_wrap=True, width=140)
    started = time.perf_counter()

    trained = {(method.recipe, method.trained) for method in METHODS}
    tuning = [Run(*which, rate, TUNING_SEED) for which in trained for rate in LEARNING_RATES]
    execute_all(tuning, options.output, options.workers, console)
    chosen = choose_learning_rates(options.output)
    console.print(tuning_table(options.output, chosen))

    final = [Run(m.recipe, m.trained, chosen[m], seed) for m in METHODS for seed in SEEDS]
    execute_all(final, options.output, options.workers, console)

    def scores(method: Method, updates: int) -> list[Scores]:
        runs = [Run(method.recipe, method.trained, chosen[method], seed) for seed in SEEDS]
        return [Scores.read(run.folder(options.output), updates) for run in runs]

    results = {method: scores(method, method.updates) for method in METHODS}
    console.print(result_table(scores(METHODS[0], 0), results, chosen))
    console.print(f"wall {(time.perf_counter() - started) / 60:.1f} min")
    const, grpo = (fmean(score.hard_k for score in results[METHODS[index]]) for index in (0, 2))
    console.print(f"RATIO pass@{SAMPLES} const/grpo {const / grpo if grpo else float('inf'):.2f}")


if __name__ == "__main__":
    main()
