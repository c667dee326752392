"""The scores of a benchmark's known responses as a person reads them: a line per benchmark, and what is scored wrong.

It shows what `evaluation.known_responses` found and decides nothing. Invariant: counts are exact even where only some
wrong scores are listed, and text of responses is never read as markup or terminal control.
"""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..evaluation.benchmarks import LoadedBenchmark
from ..evaluation.known_responses import ScoringCheck
from .data_report import plain
from .grids import in_parts, new_grid, print_fitting


def print_scoring(
    benchmarks: Sequence[LoadedBenchmark], checks: Sequence[ScoringCheck], console: Console, examples: int
) -> None:
    """Print what became of known responses, with at most `examples` wrong scores of each benchmark."""

    def draw(narrow: bool) -> Table:
        heads = (["benchmark", "from"], ["problems", "right solved", "empty solved"])
        grid = new_grid(*heads, narrow=narrow)
        for benchmark, check in zip(benchmarks, checks, strict=True):
            grid.add_row(
                Text(plain(check.name)),
                in_parts(benchmark.source) if narrow else Text(plain(benchmark.source)),
                f"{check.problems:,}",
                _share(check.right_solved, check.right, wanted=check.right),
                _share(check.empty_solved, check.problems, wanted=0),
            )
        return grid

    print_fitting((draw(narrow) for narrow in (False, True)), console)
    for check in checks:
        for score in check.wrong_scores[:examples]:
            line = Text(f"  {check.name} ").append(plain(score.problem), "cyan")
            line.append(f", {'empty' if score.sample else 'right'} response: reward {score.reward}, ")
            console.print(line.append(plain(f"{score.why} {score.detail}".strip())), soft_wrap=True)
        if len(check.wrong_scores) > examples:
            console.print(Text(f"  and {len(check.wrong_scores) - examples:,} more of {check.name}", style="dim"))
    for benchmark in benchmarks:
        for note in benchmark.notes:
            console.print(Text(plain(f"Note: {benchmark.title}: {note}")), soft_wrap=True)
    failed = [check.name for check in checks if not check.passed]
    untried = [check.name for check in checks if not check.right]
    verdict = f"Scored wrong: {', '.join(failed)}." if failed else "Scored right."
    verdict += f" Without a right response to try: {', '.join(untried)}." if untried else ""
    verdict += "" if failed else " Next: mintrl eval MODEL --benchmarks ..."
    console.print(Text(plain(verdict), style="bold red" if failed else "bold green"), soft_wrap=True)


def _share(count: int, of: int, *, wanted: int) -> Text:
    shown = f"{count:,} of {of:,}, {count / of:.1%}" if of else "there are none"
    return Text(shown, style="green" if count == wanted else "bold red")
