"""The written rules by which a maths answer is found and compared, case by case."""

import json
from pathlib import Path

import pytest

from mintrl_trl.rewards.math import MathChecker

PAIRS = [
    json.loads(line)
    for line in (Path(__file__).parent / "fixtures" / "math_pairs.jsonl").read_text(encoding="utf-8").splitlines()
]


@pytest.fixture(scope="module")
def checker():
    checker = MathChecker(processes=2)
    yield checker
    checker.close()


def boxed(text):
    return rf"\boxed{{{text}}}"


@pytest.mark.parametrize(
    ("gold", "completion", "why"),
    [
        # The gold answer is read as LaTeX as a whole, not as the first number in it.
        (r"8\sqrt{10}", boxed(r"8\sqrt{10}"), "correct"),
        (r"8\sqrt{10}", boxed("8"), "wrong"),
        (r"1-\frac{2}{\pi}", boxed(r"1-\frac{2}{\pi}"), "correct"),
        (r"1-\frac{2}{\pi}", boxed("1"), "wrong"),
        (r"2^{25} \cdot 26!", boxed(r"2^{25} \cdot 26!"), "correct"),
        (r"2^{25} \cdot 26!", boxed("26"), "wrong"),
        (r"9\sqrt{15}", boxed("9"), "wrong"),
        (r"\sqrt{6}", boxed(r"\sqrt{6}"), "correct"),
        (r"\frac{9 \sqrt{23}}{23}", boxed(r"\frac{9 \sqrt{23}}{23}"), "correct"),
        (r"\dfrac{9}{7}", boxed(r"\dfrac{9}{7}"), "correct"),
        ("B", boxed("B"), "correct"),
        # Cut off: the last box is the answer, and it is not there.
        ("12", r"So we get \boxed{12} then \boxed{1", "unclosed"),
        ("12", r"So we get \boxed{12}, which", "correct"),
        # Thinking.
        ("7", r"<think> maybe \boxed{7}? let me check", "unfinished_thinking"),
        ("7", r"<think> maybe \boxed{8}? </think> It is \boxed{7}.", "correct"),
        ("7", r"<think> It is \boxed{7}. </think> So that is it.", "no_box"),
        ("7", r"maybe \boxed{7} </think> \boxed{8}", "wrong"),
        # Sets, pairs, intervals.
        ("$(1,2)$", boxed(r"\{1,2\}"), "wrong"),
        ("$(1,2)$", boxed("1,2"), "correct"),
        ("$(1,2)$", boxed("(2,1)"), "wrong"),
        ("$(1,2)$", boxed("[1,2]"), "wrong"),
        (r"\{1,2\}", boxed("(1,2)"), "wrong"),
        (r"\{1,2\}", boxed(r"\left\{2, 1\right\}"), "correct"),
        (r"\{1,2\}", boxed(r"\{1,2,\ldots\}"), "wrong"),
        ("[0,9)", boxed(r"\left[0, 9\right)"), "correct"),
        ("[0,9)", boxed("[0,9]"), "wrong"),
        ("(1,2),(3,4)", boxed("(3,4),(1,2)"), "correct"),
        # Lists.
        ("1, 2", boxed("1, 2"), "correct"),
        ("1, 2", boxed("2"), "wrong"),
        (r"a, b", r"\boxed{a} and \boxed{b}", "correct"),
        (r"1, 2", r"$y_1 = \boxed{1}$, $y_2 = \boxed{2}$", "correct"),
        # Legal LaTeX without braces.
        (r"$2\sqrt{3}$", boxed(r"2\sqrt3"), "correct"),
        (r"\frac{1}{2}", boxed(r"\frac12"), "correct"),
        # Trimmings around a number.
        ("118", boxed("118."), "correct"),
        ("118", r"\boxed {118}", "correct"),
        ("118", boxed(r"\approx 118"), "correct"),
        ("118", boxed(r"\text{The answer is } 118"), "correct"),
        ("118", boxed(r"118\ldots"), "correct"),
        ("118", boxed("N = 118"), "correct"),
        ("118", boxed(r"\mathbf{118}"), "correct"),
        ("118", boxed(r"\text{about } 119"), "wrong"),
        # Candidate lists earn nothing, later answers replace earlier ones.
        ("840", r"\boxed{840}., ... **Final Answer** \boxed{840}", "correct"),
        ("5", r"\boxed{3}. Checking again it is \boxed{5}.", "correct"),
        ("5", r"\boxed{5}. Checking again it is \boxed{3}.", "wrong"),
        ("5", r"\boxed{3} or \boxed{5}", "wrong"),
        ("5", r"\boxed{3 \text{ or } 5}", "wrong"),
        ("5", r"\boxed{1} " * 4000 + r"\boxed{5}", "wrong"),
        ("5", r"$\boxed{5}$ $\boxed{5}$", "correct"),
        # No box, no reward.
        ("73", "Final Answer: **73**", "no_box"),
        ("73", "", "no_box"),
        ("73", r"Put it within \boxed{}.", "empty_box"),
        ("73", boxed(r"\text{cannot be determined}"), "wrong"),
        ("73", boxed("73" + " + 0" * 700), "too_long"),
        ("73", boxed(r"\frac{73"), "unclosed"),
        ("73", boxed(r"\sqrt{}"), "answer_unparsed"),
        ("63", r"\fbox{63}", "correct"),
        # How people write the answers of word problems.
        ("18", boxed(r"\$18"), "correct"),
        ("18", boxed("$18$"), "correct"),
        ("18", boxed("18.00"), "correct"),
        ("18", boxed("18 dollars"), "correct"),
        ("18", boxed(r"18~\text{cm}"), "correct"),
        ("18", boxed(r"\text{18 apples}"), "correct"),
        ("18", boxed(r"18^\circ"), "correct"),
        ("12", boxed(r"12 \text{ dozen}"), "wrong"),
        ("70000", boxed("70,000"), "correct"),
        ("70000", boxed(r"\$70{,}000.00"), "correct"),
        ("70000", boxed("70 000"), "correct"),
        ("70000", boxed("x = 70,000"), "correct"),
        ("32349", boxed("32, 349"), "wrong"),
        ("(100,200)", boxed("(100,200)"), "correct"),
        (r"28\%", boxed("28"), "correct"),
        (r"28\%", boxed("0.28"), "correct"),
        ("28", boxed("0.28"), "wrong"),
        (r"\frac{1}{3}", boxed("0.333333"), "correct"),
        (r"\frac{1}{3}", boxed("0.33"), "wrong"),
        ("204_5", boxed("204_7"), "wrong"),
        ("204_5", boxed("204"), "correct"),
        ("east", boxed(r"\text{East}"), "correct"),
        ("east", boxed("seat"), "wrong"),
        ("C", boxed(r"\text{(C)}"), "correct"),
        (r"1-\frac{1}{\mathrm{e}}", boxed(r"1-e^{-1}"), "correct"),
        # Golds that start with a number or end with one, and are more than that.
        (r"\pi-3", boxed("-3"), "wrong"),
        ("[0, 25]", boxed("25"), "wrong"),
        ("x^2+5", boxed("5"), "wrong"),
        (r"\tfrac{3}{4}", boxed("0.75"), "correct"),
        (r"\varnothing", boxed(r"\emptyset"), "correct"),
        # Cut off at the command, before its brace.
        ("12", r"So we get \boxed{12} and then \boxed", "unclosed"),
        # Other marks of thinking.
        ("7", r"<thinking> maybe \boxed{7}?", "unfinished_thinking"),
        ("7", r"[THINK] maybe \boxed{7}?", "unfinished_thinking"),
        ("7", r"<Think>\boxed{8}</Think> \boxed{7}", "correct"),
        # Pairs without brackets, and what is not a pair.
        ("(1,1)", boxed("1,1"), "correct"),
        ("(3,4)", boxed("4,3"), "wrong"),
        ("(3,4)", boxed("x=3, y=4"), "correct"),
        ("(3,4)", boxed("-(3,4)"), "wrong"),
        ("(0,1]", boxed(r"0 < x \le 1"), "correct"),
        ("(0,1]", boxed("[0,1)"), "wrong"),
        ("1, 2, 3", boxed("1, 2"), "wrong"),
        # Both signs.
        (r"\frac{3+\sqrt{7}}{2}, \frac{3-\sqrt{7}}{2}", boxed(r"\frac{3\pm\sqrt7}{2}"), "correct"),
        (r"\{1\pm\sqrt{5},-2\}", boxed(r"\{1+\sqrt5, 1-\sqrt5, -2\}"), "correct"),
        ("5, -5", boxed(r"x = \pm 5"), "correct"),
        ("5", boxed(r"\pm 5"), "wrong"),
        (r"2+\sqrt3", boxed(r"2\pm\sqrt3"), "wrong"),
        (r"(\pm 1, 2)", boxed("(1, 2)"), "wrong"),
        # More arguments without braces.
        (r"\frac{\pi}{6}", boxed(r"\frac\pi6"), "correct"),
        (r"\binom{6}{3}", boxed(r"\binom63"), "correct"),
        (r"\frac{a}{b}", boxed(r"\frac ab"), "correct"),
        (r"\frac{1}{12}", boxed(r"\frac112"), "wrong"),
        (r"0.\overline{3}", boxed(r"\frac13"), "correct"),
        ("1 1/2", boxed("1.5"), "correct"),
        # Words before and after a number: announced, counted, changed.
        ("118", boxed("Answer $118$"), "correct"),
        ("118", boxed("The total number is 118."), "correct"),
        ("118", boxed("118 is the answer"), "correct"),
        (r"\begin{pmatrix}0\\1\end{pmatrix}", boxed(r"Here it is: $\begin{bmatrix}0\\1\end{bmatrix}$"), "correct"),
        ("-118", boxed(r"\text{negative } 118"), "correct"),
        ("118", boxed(r"\text{minus } 118"), "wrong"),
        ("118", boxed(r"\text{not } 118"), "wrong"),
        ("118", boxed("118 is not the answer"), "wrong"),
        ("118", boxed(r"\text{The answer is less than } 118"), "wrong"),
        ("118", boxed(r"\text{square root of } 118"), "wrong"),
        ("118", boxed(r"118 \text{ or more}"), "wrong"),
        ("5", boxed("5 more apples"), "correct"),
        ("5", boxed("5 tenths"), "wrong"),
        ("5", boxed(r"5 \text{ millions}"), "wrong"),
        ("25", boxed(r"25 \text{ pi}"), "wrong"),
        ("5", boxed(r"5 \text{ or six}"), "wrong"),
        ("5", boxed(r"5\text{ feet six inches}"), "wrong"),
        ("20", boxed(r"20\text{ each, so 40 total}"), "wrong"),
        ("5", boxed(r"5 \text{ base six}"), "wrong"),
        ("5", boxed(r"5\text{k}"), "wrong"),
        ("1500000", boxed(r"\$1.5 \text{ million}"), "correct"),
        ("144", boxed("12 dozen eggs"), "correct"),
        # Units.
        (r"5\text{ cm}", boxed(r"5\text{ m}"), "wrong"),
        (r"5\text{ cm}", boxed(r"5\text{ centimeters}"), "correct"),
        (r"15\mbox{ cm}^2", boxed("15 square centimeters"), "correct"),
        (r"90^\circ", boxed(r"90\text{ radians}"), "wrong"),
        ("125 miles", boxed("125 km"), "wrong"),
        (r"\$5", boxed("5 cents"), "wrong"),
        ("5", boxed(r"5 \text{ hours } 30 \text{ minutes}"), "wrong"),
        ("5 hours 30 minutes", boxed("5 hours and 30 minutes"), "correct"),
        ("mg", boxed("gm"), "correct"),
        # Times of day.
        ("4:30 p.m.", boxed(r"4:30 \text{ p.m.}"), "correct"),
        ("4:30 p.m.", boxed("4:30 a.m."), "wrong"),
        ("4:30 p.m.", boxed("4:30"), "correct"),
        # Dressing and typography.
        ("5", boxed(r"\large \textcolor{red}{5}"), "correct"),
        ("5", boxed(r"\mathbf{x = 5}"), "correct"),
        ("5", boxed("5 = x"), "correct"),
        (r"2\sqrt{3}\pi", boxed("2√3π"), "correct"),
        (r"x \le -5", boxed("x ≤ −5"), "correct"),
        ("x^2+1", boxed("x² + 1"), "correct"),
        (r"2\sqrt{3}", boxed("√23"), "wrong"),
        # More hedges.
        ("5", r"Either \boxed{3}, or perhaps \boxed{5}", "wrong"),
        ("5", r"\boxed{3} / \boxed{5}", "wrong"),
        ("5", boxed("1 = 2 = 3 = 4 = 5"), "wrong"),
        (r"\frac13", boxed(r"x = \frac{2}{6} = \frac13 \approx 0.33"), "correct"),
        ("(3,3), (1,1)", r"$\boxed{(3,3)} \text{ for part (a) and } \boxed{(1,1)}$", "correct"),
        # Equations, and products that look like a number with its unit.
        ("5", boxed("x + y = 5"), "correct"),
        ("5", boxed("2x = 5"), "wrong"),
        ("5", boxed("x^2 = 5"), "wrong"),
        ("5", boxed(r"-x = 5"), "wrong"),
        ("5", boxed(r"\frac{x}{2} = 5"), "wrong"),
        ("5", boxed(r"2x = 10 \implies x = 5"), "correct"),
        ("5", boxed("f(2) = 5"), "correct"),
        ("5", boxed("|S| = 5"), "correct"),
        ("5", boxed("5, 5"), "wrong"),
        ("5abc", boxed("5"), "wrong"),
        ("be + 3", boxed("3"), "wrong"),
        ("5abc", boxed("5bca"), "correct"),
        ("5", boxed("5 point five"), "wrong"),
        # Small numbers.
        ("0.0000001", boxed("0.0000002"), "wrong"),
        ("0", boxed("0.0000001"), "wrong"),
        ("0.25", boxed(r"25\%"), "correct"),
        # Golds as data sets have them.
        (r"\text{A and C}", boxed("A, C"), "correct"),
        ("Half of them left, then a third of the rest came back. " * 3, boxed("5"), "gold_unparsed"),
        (r"So it is \[ \boxed{11111111100} \]", boxed(r"11,\! 111,\! 111,\! 100"), "correct"),
        (r"$21,16$ or $11$", boxed("11, 16, 21"), "correct"),
        (r"\sqrt{}", boxed("3"), "gold_unparsed"),
    ],
    ids=lambda value: value if len(value) < 30 else value[:30] + "...",
)
def test_rule(checker, gold, completion, why):
    assert checker.check(completion, gold).why == why


def test_labelled_pairs(checker):
    checks = checker.check_all([pair["prediction"] for pair in PAIRS], [pair["gold"] for pair in PAIRS])
    wanted = [pair["equal"] and "boxed" in pair["prediction"] for pair in PAIRS]
    assert [pair["id"] for pair, check, want in zip(PAIRS, checks, wanted, strict=True) if check.correct != want] == []
    assert len(PAIRS) == 65
