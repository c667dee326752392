"""What the judge that runs public examples finds, on data sets of programming tasks.

    python benchmarks/public_examples.py DATA.jsonl ... [--programs PROGRAMS.jsonl]

For each data set: the share of rows whose question shows an example, and how often the judge rejects a reference
solution written as a response (target: never). `--programs` takes programs with a known verdict (`task_id`, `program`
and `plus`: pass or fail), and counts how many wrong ones are rejected and how many right ones.
"""

import argparse
import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from mintrl_trl.data.sources import load_rows
from mintrl_trl.errors import NoVerdict
from mintrl_trl.judges.public_tests import PublicTestsJudge
from mintrl_trl.rewards.runner import Runner
from mintrl_trl.rollouts.doors import Revise
from mintrl_trl.rollouts.rollout import Problem

CHUNK_CHARS = 600


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="+", type=Path, help="JSON Lines files of programming tasks")
    parser.add_argument("--programs", type=Path, help="JSON Lines file of programs with verdicts, for the first file")
    arguments = parser.parse_args()
    console = Console()
    table = Table("file", "rows", "with an example", "references rejected")
    with Runner() as runner:
        for path in arguments.data:
            rows = load_rows(str(path), task="code")
            judge = PublicTestsJudge(rows, sandbox=runner)
            shown = [row for row in rows if judge.has_example(row["question"])]
            solved = [row for row in shown if row["privileged_context"]]
            verdicts = asyncio.run(_verdicts(judge, [(row["question"], row["privileged_context"]) for row in solved]))
            rejected = [row["id"] for row, verdict in zip(solved, verdicts, strict=True) if verdict is not None]
            counted = f"{len(rejected)} of {len(solved)}" if solved else "no references"
            table.add_row(path.name, str(len(rows)), f"{len(shown)} ({len(shown) / len(rows):.0%})", counted)
            for row, verdict in zip(solved, verdicts, strict=True):
                if verdict is not None:
                    console.print(f"{row['id']}: {verdict}", markup=False)
        console.print(table)
        if arguments.programs:
            console.print(_programs(arguments.data[0], arguments.programs, runner))


def _programs(data: Path, programs: Path, runner: Runner) -> Table:
    rows = {row["id"]: row for row in load_rows(str(data), task="code")}
    judge = PublicTestsJudge(rows.values(), sandbox=runner)
    written = [json.loads(line) for line in programs.read_text(encoding="utf-8").splitlines()]
    judged = [one for one in written if judge.has_example(rows[one["task_id"]]["question"])]
    cases = [(rows[one["task_id"]]["question"], one["program"]) for one in judged]
    verdicts = asyncio.run(_verdicts(judge, cases))
    table = Table("programs", "number", "with an example", "rejected")
    for label in ("fail", "pass"):
        found = [verdict for one, verdict in zip(judged, verdicts, strict=True) if one["plus"] == label]
        number = sum(one["plus"] == label for one in written)
        table.add_row(label, str(number), str(len(found)), str(sum(isinstance(one, Revise) for one in found)))
    return table


async def _verdicts(judge: PublicTestsJudge, cases: Sequence[tuple[str, str]]) -> list[Revise | str | None]:
    """For each question and program its rejection, the reason why there is no verdict, or `None`."""
    return await asyncio.gather(*(_verdict(judge, question, program) for question, program in cases))


async def _verdict(judge: PublicTestsJudge, question: str, program: str) -> Revise | str | None:
    response = f"Let me write it.\n\n```python\n{program.strip()}\n```\n"
    ends = [*range(CHUNK_CHARS, len(response), CHUNK_CHARS), len(response)]
    steps: list[str] = []
    for end in ends:  # as a policy writes it, chunk by chunk
        first_new = len(steps)
        steps += response[sum(map(len, steps)) : end].splitlines(keepends=True)
        try:
            verdict = await judge.review(Problem(question), steps, first_new, seed=0)
        except NoVerdict as failure:
            return failure.reason
        if isinstance(verdict, Revise):
            return verdict
    return None


if __name__ == "__main__":
    main()
