"""Agreement with labelled pairs of answers: `math_reward`'s checker, math-verify's default, TRL's `accuracy_reward`.

    python benchmarks/math_pairs.py PAIRS.jsonl

A line of the file is an object with `id`, `kind`, `gold`, `prediction`, `equal` (the label) and `contested` (left out
if not empty). All three checkers get the same two texts. The gold goes in as it stands, which is how a data set's
column reaches a reward. The prediction is read as what it is:

- a whole response (`response`, `model_output`, and whatever else is longer than 200 characters) as it stands;
- GSM8K's own answer line `A: 5` as `A: \\boxed{5}`, since its models were never asked for a box;
- a mere answer (`string_pair`, `constructed`) inside a box, unless it has one.

Printed are the shares that agree with the labels and the wrong answers that were paid, per kind; the same for the other
two with bare golds put into a box, which our checker does by itself; and each pair on which ours disagrees with its
label, with the reason. The last line is `AGREEMENT ours X math_verify Y trl Z`.
"""

import argparse
import json
import logging
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from math_verify import parse, verify
from trl.rewards import accuracy_reward

from mintrl_trl.rewards.math import MathCheck, MathChecker

WHOLE_RESPONSE_CHARS = 200
LABEL = "the label is wrong"
RULE = "a documented rule of ours differs"
NO_BOX = f"{RULE}: no box, no reward"
# By pair id, why we do not follow the label. A pair that is not listed is our fault.
REASONS = {
    "math_pair/003": f"{RULE}: decimals agree when rounded to 6 places; the label holds for 2",
    "math_pair/004": f"{RULE}: decimals agree when rounded to 6 places; the label holds for 2",
    "math_pair/040": f"{RULE}: the gold is a whole solution without a box, so it gives no reward at all",
    "math_pair/048": NO_BOX,
    "math_pair/049": f"{RULE}: the last box counts; it holds a step of the work, and the answer follows unboxed",
    "math_pair/051": NO_BOX,
    "math_pair/053": NO_BOX,
    "math_pair/059": NO_BOX,
    "math_pair/063": NO_BOX,
    "math_pair/084": f"{RULE}: numbers equated that differ (5+5+1 = 1/3) are no answer",
    "math_pair/094": f"{RULE}: the gold's last box counts, and +++ makes no list of two boxes",
    "math_pair/102": f"{RULE}: the gold's box is not closed and its commands are escaped twice, so it gives no reward",
    "math_pair/121": f"{LABEL}: 1 + 1/e is not 1 - 1/e",
}
NAMES = ("ours", "math_verify", "trl")


def as_box(text: str) -> str:
    return text if "boxed" in text else rf"\boxed{{{text.strip()}}}"


def as_completion(row: Mapping) -> str:
    """The prediction as the module's docstring says it is read."""
    text = row["prediction"]
    if "boxed" in text or row["kind"] == "response":
        return text
    if row["kind"] == "model_output":
        return re.sub(r"^A: (.*)\Z", r"A: \\boxed{\1}", text, flags=re.MULTILINE)
    return text if len(text) > WHOLE_RESPONSE_CHARS else as_box(text)


def others(completion: str, gold: str) -> tuple[bool, bool]:
    """What math-verify and TRL make of it, each with its defaults."""
    paid = accuracy_reward([[{"role": "assistant", "content": completion}]], [gold])[0]
    return verify(parse(gold), parse(completion)), paid == 1.0


def score(rows: Sequence[Mapping], verdicts: Sequence[Sequence[bool]], names: Sequence[str]) -> list[float]:
    """Print agreement per kind, one column a checker. Returns the shares of all rows together."""
    agree, paid, total = Counter(), Counter(), Counter()
    for row, verdict in zip(rows, verdicts, strict=True):
        for kind in (row["kind"], "all"):
            total[kind] += 1
            for name, correct in zip(names, verdict, strict=True):
                agree[kind, name] += correct == row["equal"]
                paid[kind, name] += correct and not row["equal"]
    print(f"{'kind':<14}{'pairs':>6}" + "".join(f"{name:>26}" for name in names))
    for kind in sorted(total, key=lambda kind: (kind == "all", kind)):
        cells = (f"{agree[kind, name] / total[kind]:.1%} ({paid[kind, name]} wrong paid)" for name in names)
        print(f"{kind:<14}{total[kind]:>6}" + "".join(f"{cell:>26}" for cell in cells))
    return [agree["all", name] / total["all"] for name in names]


def print_disagreements(rows: Sequence[Mapping], checks: Sequence[MathCheck]) -> None:
    print(f"{'pair':<15}{'label':<7}{'ours':<18}{'gold':<32}{'answer':<32}reason")
    for row, check in zip(rows, checks, strict=True):
        if check.correct != row["equal"]:
            gold, answer = (" ".join(text.split())[:30] for text in (row["gold"], check.boxed))
            reason = REASONS.get(row["id"], "our fault")
            print(f"{row['id']:<15}{row['equal']!s:<7}{check.why:<18}{gold:<32}{answer:<32}{reason}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pairs", type=Path, help="JSON Lines file of labelled pairs")
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)  # math-verify reports every text it cannot read

    lines = arguments.pairs.read_text(encoding="utf-8").splitlines()
    rows = [row for row in map(json.loads, lines) if not row["contested"]]
    completions, golds = [as_completion(row) for row in rows], [row["gold"] for row in rows]
    checker = MathChecker()
    try:
        checks = checker.check_all(completions, golds)
    finally:
        checker.close()
    ours = [check.correct for check in checks]

    print("All three, golds as they stand:")
    stand = [(own, *others(*texts)) for own, *texts in zip(ours, completions, golds, strict=True)]
    shares = score(rows, stand, NAMES)
    print("\nThe other two with bare golds in a box:")
    boxed = [gold if "$" in gold else as_box(gold) for gold in golds]
    score(rows, [others(*texts) for texts in zip(completions, boxed, strict=True)], NAMES[1:])
    print("\nDisagreements of ours with the labels:")
    print_disagreements(rows, checks)
    print("AGREEMENT", *(f"{name} {share:.3f}" for name, share in zip(NAMES, shares, strict=True)))


if __name__ == "__main__":
    main()
