"""The report on a data set as a person reads it: a line per check, lengths, and the rows in question.

It shows what `evaluation.check_data` found and decides nothing. Invariant: of each check, the number of findings is
exact even where only some of them are listed, and text of the data is never read as markup or terminal control.
"""

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..evaluation.check_data import Check, DataReport
from ..evaluation.prompt_lengths import PERCENTILES

_MEANING = {
    Check.UNREADABLE: "rows that cannot be used",
    Check.REPEATED_ID: "ids that an earlier row has",
    Check.GOLDS: "golds that do not equal themselves",
    Check.DUPLICATES: "texts that an earlier row has",
    Check.OVERLAP: "rows that stand in the files to keep apart",
    Check.LONG_PROMPTS: "prompts over the limit",
    Check.EMPTY_TESTS: "tests that a program that does nothing passes",
    Check.REFERENCES: "reference solutions that fail their tests",
}
_POINTS = {0: "shortest", 50: "median", 100: "longest"}


def print_report(report: DataReport, console: Console, examples: int) -> None:
    """Print a report, with at most `examples` rows of each check."""
    title = Text.assemble((plain(report.source), "bold"), f": {report.rows:,} rows of {report.task}")
    console.print(title, soft_wrap=True)
    summary = Table()
    summary.add_column("check")
    summary.add_column("looks for")
    summary.add_column("found", justify="right")
    for check, findings in report.findings.items():
        summary.add_row(check, _MEANING[check], Text(f"{len(findings):,}", style="bold red" if findings else "green"))
    console.print(summary)
    if report.lengths:
        lengths = Table()
        lengths.add_column("prompts in")
        for percent in PERCENTILES:
            lengths.add_column(_POINTS.get(percent, f"{percent} %"), justify="right")
        for length in report.lengths:
            lengths.add_row(length.unit, *(f"{value:,}" for value in length.percentiles))
        console.print(lengths)
    for check, findings in report.findings.items():
        if findings:
            console.print(Text(f"\n{check}: {_MEANING[check]}, {len(findings):,} in all", style="bold"))
        for finding in findings[:examples]:
            line = Text("  ").append(plain(finding.where), "cyan")
            line.append(plain(f" {finding.id}" if finding.id else "")).append(f": {plain(finding.detail)}")
            if finding.other:
                line.append(plain(f" ({finding.other})"), "dim")
            console.print(line, soft_wrap=True)
        if len(findings) > examples:
            console.print(Text(f"  and {len(findings) - examples:,} more", style="dim"))
    for note in report.notes:
        console.print(Text(plain(f"Note: {note}")), soft_wrap=True)
    total = sum(map(len, report.findings.values()))
    verdict = f"{total:,} finding{'' if total == 1 else 's'}." if total else "Nothing found."
    console.print(Text(f"{verdict} {report.seconds:.1f} s", style="bold"))


def plain(text: str) -> str:
    """Text of the data, with its control characters written out."""
    return "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in text)
