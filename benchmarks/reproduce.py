"""The paper's experiments on the small world: every cell a training run, and a page of verdicts from what came of them.

    python benchmarks/reproduce.py                 # all that is missing, two side by side; then the page
    python benchmarks/reproduce.py --quick         # a small set with short runs: about four minutes
    python benchmarks/reproduce.py --only table1   # experiments or arms whose name holds this, case apart
    python benchmarks/reproduce.py --page          # the page alone, from the summaries there are

A finished cell leaves a summary under docs/reproduction/, keyed by its settings, and is not run again. Run folders
stand under runs/reproduce/. Interrupt it as you like and start it again. It prints a table of minutes first.
"""

import argparse
import signal
import sys

from reproduction.cells import Experiment, distinct
from reproduction.experiments import EXPERIMENTS
from reproduction.page import write_page
from reproduction.quick import quick_experiments
from reproduction.runner import ROOT, execute_all, expected_minutes, make_models, plan_table
from reproduction.summary import read_summaries, with_other_models
from rich.console import Console


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a small set with short runs, apart from the full one")
    parser.add_argument("--only", metavar="PATTERN", help="experiments or arms whose name holds this")
    parser.add_argument("--jobs", type=int, default=2, help="processes side by side, one thread each (default: 2)")
    parser.add_argument("--page", action="store_true", help="run nothing, write the page")
    parser.add_argument("--plan", action="store_true", help="run nothing, print the minutes per cell")
    options = parser.parse_args()
    console = Console(highlight=False, soft_wrap=True, width=140)
    if options.jobs < 1:
        parser.error(f"--jobs {options.jobs}: at least 1 process")

    experiments = quick_experiments() if options.quick else EXPERIMENTS
    runs = ROOT / "runs" / ("reproduce-quick" if options.quick else "reproduce")
    docs = runs if options.quick else ROOT / "docs"
    summaries = docs / ("summaries" if options.quick else "reproduction")

    chosen = [cell for experiment in _chosen(experiments, options.only) for cell in experiment.cells()]
    if not chosen:
        parser.error(f"--only {options.only}: no such experiment or arm; experiments: {_names(experiments)}")
    for recipe in sorted({cell.recipe for cell in chosen if not cell.known}):
        console.print(f"left out: there is no recipes/{recipe}.yaml")
    cells = distinct(cell for cell in chosen if cell.known)
    failed = []
    if not options.page:
        kept = read_summaries(summaries)
        if others := with_other_models(kept):
            console.print(
                f"{len(others)} summaries are of another teacher than the one in models/, and are kept. To compare all "
                "methods with one teacher, delete them; the page names both."
            )
        minutes = expected_minutes(cells, kept)
        missing = [cell for cell in cells if cell.key not in kept]
        console.print(plan_table(cells, kept, minutes))
        wall = sum(minutes[cell.key] for cell in missing) / options.jobs
        console.print(f"{len(missing)} of {len(cells)} cells to run: about {wall:.0f} min, {options.jobs} side by side")
        if options.plan:
            return 0
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends the runs, too
        try:
            make_models(missing, console)
            failed = execute_all(missing, runs, summaries, options.jobs, minutes, console)
        except KeyboardInterrupt:
            console.print("Interrupted. Finished cells are kept; start again to go on with the others.")
            return 130

    page = write_page(experiments, read_summaries(summaries), docs, quick=options.quick, failed=failed)
    console.print(f"{page}: claims, verdicts and tables")
    for cell in failed:
        console.print(f"failed: {cell.label}, seed {cell.seed}: {runs / cell.folder_name / 'log.txt'}", markup=False)
    if failed:
        console.print("Mend what the logs say and start again: cells that are done are not repeated.")
    return 1 if failed else 0


def _chosen(experiments: tuple[Experiment, ...], pattern: str | None) -> list[Experiment]:
    """Experiments with the pattern in their name, else those arms that have it in theirs."""
    if pattern is None:
        return list(experiments)
    wanted = pattern.lower()
    if whole := [experiment for experiment in experiments if wanted in experiment.name.lower()]:
        return whole
    return [experiment.only(wanted) for experiment in experiments if experiment.only(wanted).arms]


def _names(experiments: tuple[Experiment, ...]) -> str:
    return ", ".join(experiment.name for experiment in experiments)


if __name__ == "__main__":
    sys.exit(main())
