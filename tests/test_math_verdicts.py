"""Pairs of a gold answer and an answer with the verdict that a careful person gives, by kind."""

from pathlib import Path

import pytest

from mintrl_trl.rewards.equivalence import grade

LINES = (Path(__file__).parent / "fixtures" / "math_verdicts.txt").read_text(encoding="utf-8").splitlines()
VERDICTS = [line for line in LINES if line.startswith(("+ ", "- "))]


@pytest.mark.parametrize("line", VERDICTS)
def test_verdict(line):
    gold, answer = line[2:].split(" | ", 1)
    verdict = grade({"gold": gold, "answer": answer})
    assert verdict == "correct" if line[0] == "+" else verdict in ("wrong", "answer_unparsed")


def test_all_lines_are_verdicts_or_headings():
    assert len(VERDICTS) > 450
    assert [line for line in LINES[1:] if line and line not in VERDICTS and not line.startswith("# ")] == []
