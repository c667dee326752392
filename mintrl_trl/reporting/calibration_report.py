"""A calibration as a person reads it: a line per budget, the choice, and the judge.

It shows what `calibration` found and decides nothing. Invariant: a share or a difference stands with its interval.
"""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..calibration.judge_quality import Alarms, FirstErrors, Rescue
from ..calibration.pilot import Pilot
from ..calibration.result import Calibration
from ..evaluation.intervals import Interval
from .data_report import plain
from .grids import new_grid, print_fitting


def print_calibration(found: Calibration, console: Console) -> None:
    """Print all of a calibration."""
    console.print(Text.assemble((plain(found.measured_on), "bold")), soft_wrap=True)
    console.print(f"Without interventions {_share(found.controls)} are right.", markup=False)
    _print_gains(found, console)
    _print_work(found, console)
    _print_judge(found, console)
    chosen = found.choice.pilot
    if chosen is None:
        console.print(Text(f"No budget is chosen: {found.choice.why}.", "bold red"), soft_wrap=True)
        return
    budget = chosen.budget
    words = f"chunk {budget.chunk_tokens}, reviews {budget.max_reviews}, correction {budget.correction_tokens}"
    console.print(Text(f"Chosen: {words}: {found.choice.why}.", "bold green"), soft_wrap=True)
    if chosen.kappa is None:
        console.print("Kappa: this judge gives no log-probabilities of its corrections; keep the recipe's.")
    else:
        console.print(f"Kappa: {chosen.kappa:.4f} nats, the mean over {chosen.kappa_tokens:,} tokens of corrections.")


def _print_gains(found: Calibration, console: Console) -> None:
    rows = []
    for pilot in found.pilots:
        gain = pilot.gain.difference
        cells = [f"{pilot.reward.value:.1%}", gain.in_points(), f"{pilot.gain.p_value:.2g}", f"{pilot.rescued:.1%}"]
        kappa = "-" if pilot.kappa is None else f"{pilot.kappa:.4f}"
        rows.append([*cells, f"{pilot.off_policy_share:.2%}", kappa])
    title = "What interventions bring (rescued: problems without a right control; gain: with its 95 % interval)"
    _print(title, ("right", "gain in points", "p", "rescued", "judge's tokens", "kappa"), rows, found, console)


def _print_work(found: Calibration, console: Console) -> None:
    rows = []
    for pilot in found.pilots:
        metrics = pilot.metrics
        seconds = [metrics.get(f"seconds/{name}") for name in ("review", "correction")]
        cells = [f"{metrics['judge/reviews']:.2f}", f"{metrics['judge/revise_rate']:.1%}"]
        cells += [f"{metrics['judge/interventions']:.2f}", f"{pilot.thrown_away:.1%}"]
        rows.append([*cells, *("-" if value is None else f"{value:.2g}" for value in seconds)])
    title = "What they take, per rollout (revised: of reviews; wasted: policy tokens cut or read ahead in vain)"
    _print(title, ("reviews", "revised", "corrections", "wasted", "s / review", "s / correction"), rows, found, console)


def _print(
    title: str, heads: Sequence[str], rows: Sequence[Sequence[str]], found: Calibration, console: Console
) -> None:
    """A table of pilots: chunk, reviews and correction, as the paper writes budgets, and what was counted of each."""

    def draw(narrow: bool) -> Table:
        grid = new_grid([], ["budget", *heads], narrow=narrow)
        for pilot, row in zip(found.pilots, rows, strict=True):
            budget = pilot.budget
            name = f"({budget.chunk_tokens}, {budget.max_reviews}, {budget.correction_tokens})"
            grid.add_row(name, *row, style="bold green" if pilot is found.choice.pilot else None)
        return grid

    console.print(Text(title, "bold"))
    print_fitting((draw(narrow) for narrow in (False, True)), console)


def _print_cost(pilot: Pilot, console: Console) -> None:
    """What else was counted under the budget that the judge is measured at."""
    parts = [f"{name.removeprefix('judge/')} {value:,.4g}" for name, value in sorted(pilot.cost.items()) if value]
    parts = [f"  The judge's account per rollout: {', '.join(parts)}."] if parts else []
    if pilot.leak_rate is not None:
        parts.append(f"  Corrections that give the answer away, withheld ones included: {pilot.leak_rate:.1%}.")
    if no_verdict := pilot.metrics.get("judge/no_verdict"):
        parts.append(f"  Reviews without verdict: {no_verdict:.1%}.")
    for line in parts:
        console.print(plain(line), markup=False, soft_wrap=True)


def _print_judge(found: Calibration, console: Console) -> None:
    budget = found.judged
    words = f"chunk {budget.chunk_tokens}, reviews {budget.max_reviews}, correction {budget.correction_tokens}"
    console.print(Text(f"The judge, at {words}", "bold"))
    _print_cost(next(pilot for pilot in found.pilots if pilot.budget == budget), console)
    if found.alarms is not None:
        _print_alarms(found.alarms, console)
    if found.rescue is not None:
        _print_rescue(found.rescue, console)
    for name, one in found.first_errors.items():
        _print_first_errors(plain(name), one, console)


def _print_alarms(one: Alarms, console: Console) -> None:
    line = f"  Objections to {one.right:,} rollouts that end right (false alarms): {_share(one.false_alarms)}; to "
    line += f"{one.wrong:,} that end wrong: {_share(one.detections)}. {one.reviews:,} reviews, none acted upon."
    console.print(line, markup=False, soft_wrap=True)


def _print_rescue(one: Rescue, console: Console) -> None:
    line = f"  From {one.cases:,} cuts of {one.problems:,} problems, {one.continuations} continuations each way: "
    line += f"{one.without:.1%} right without the correction, {one.with_correction:.1%} with it, "
    line += f"{one.difference.difference.in_points(' points')}, p {one.difference.p_value:.2g}."
    console.print(line, markup=False, soft_wrap=True)


def _print_first_errors(name: str, one: FirstErrors, console: Console) -> None:
    line = f"  First error in whole solutions of {name} ({one.erroneous:,} wrong, {one.correct:,} right): precision "
    line += f"{_share(one.precision)}, recall {_share(one.recall)}, right ones kept {_share(one.correct_kept)}"
    line += "" if one.f1 is None else f", F1 {one.f1:.1%}"
    line += f"; {one.no_verdict:,} without verdict." if one.no_verdict else "."
    console.print(line, markup=False, soft_wrap=True)


def _share(interval: Interval | None) -> str:
    if interval is None:
        return "none"
    return f"{interval.value:.1%} [{interval.low:.1%}, {interval.high:.1%}]"
