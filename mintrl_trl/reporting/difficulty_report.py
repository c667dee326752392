"""How hard problems are as a person reads it: how many were solved how often, and what is kept.

It shows what `evaluation.difficulty` found and decides nothing. Invariant: all problems are in one of its lines.
"""

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..evaluation.difficulty import DifficultyReport
from .data_report import plain

_BAR = 40  # characters of the longest bar


def print_difficulties(report: DifficultyReport, console: Console) -> None:
    """Print the distribution of solved responses and the kept share."""
    counts = report.histogram()
    grid = Table()
    grid.add_column("solved", justify="right")
    grid.add_column("problems", justify="right")
    grid.add_column("")
    for solved, count in enumerate(counts):
        dropped = solved >= report.drop_from
        bar = "█" * -(-_BAR * count // max(counts))
        grid.add_row(f"{solved} of {len(counts) - 1}", f"{count:,}", Text(bar, "dim" if dropped else "green"))
    title = Text.assemble((plain(report.source), "bold"), " under ", (plain(report.model), "bold"))
    console.print(title, grid, sep="\n", soft_wrap=True)
    rate = report.pass_rate
    console.print(f"Mean pass rate {rate.value:.1%} [{rate.low:.1%}, {rate.high:.1%}].")
    unscored, samples = (sum(getattr(one, name) for one in report.problems) for name in ("unscored", "samples"))
    if unscored:
        console.print(f"Note: {unscored:,} of {samples:,} responses got no reward and count as not solved.")
    if report.too_long:
        console.print(f"Left out: {len(report.too_long):,} rows with longer prompts than training takes.")
    kept, dropped = len(report.kept), len(report.problems) - len(report.kept)
    verdict = f"Kept {kept:,} of {len(report.problems):,} ({report.kept_share:.1%}); dropped {dropped:,} that were "
    console.print(
        Text(f"{verdict}solved at least {report.drop_from} times of {len(counts) - 1}.", "bold"), soft_wrap=True
    )
