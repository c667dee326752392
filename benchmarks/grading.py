"""Whether the code reward grades right, on the data folder of this project's tasks.

    python benchmarks/grading.py DATA              # verify/code_programs.jsonl and eval/{humaneval,mbpp}_plus.jsonl
    python benchmarks/grading.py DATA --mutants 5  # more changed programs per reference solution

Programs that a model wrote have to get the verdicts of their labels, reference solutions have to pass, and the same
solutions have to fail once they return something else, in three ways: nothing, a little more, and what comes out after
one random change of their source. A changed source counts only if some test input shows the change, which a Python
process of its own finds out by the task's rule, without any code of the reward. The last line counts, and the exit code
is 1 unless everything is right.
"""

import argparse
import ast
import gzip
import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from mintrl_trl.rewards.code import CodeChecker
from mintrl_trl.rewards.verdicts import NO_REWARD

EVALUATIONS = ("humaneval_plus", "mbpp_plus")
ORACLE_SECONDS = 20
ORACLE = """
import ast, contextlib, json, resource, sys
import numpy
resource.setrlimit(resource.RLIMIT_AS, (2**31, 2**31))
resource.setrlimit(resource.RLIMIT_CPU, (20, 20))
given = json.load(sys.stdin)

def function(source):
    names = {"__name__": "program"}
    exec(source, names)
    return names[given["entry_point"]]

def same(a, b, args, atol):
    rule = given["compare"]
    if rule == "set_equal":
        return set(a) == set(b)
    if rule == "is_not_none":
        return a == b if isinstance(a, bool) else (a is None) == (b is None)
    if rule == "poly_root":
        return abs(sum(c * a**power for power, c in enumerate(args[0]))) < 1e-3
    with contextlib.suppress(Exception):
        if atol and numpy.allclose(a, b, rtol=1e-7, atol=atol):
            return True
    return bool(a == b)

def differs():
    reference, changed = function(given["reference"]), None
    for test in given["tests"]:
        args = lambda: ast.literal_eval(test["args"])
        wanted = reference(*args())
        try:
            changed = changed or function(given["changed"])
            if not same(changed(*args()), wanted, args(), test.get("atol")):
                return True
        except Exception:
            return True
    return False

with contextlib.redirect_stdout(sys.stderr):
    result = differs()
print(int(result))
"""
# What a function returns instead of `value`: nothing (or something, where that is right), and a little more.
ENDS = {
    "nothing": "not value if isinstance(value, bool) else 0 if value is None else None",
    "a little more": (
        "not value if isinstance(value, bool) else value * 2 + 1 if isinstance(value, (int, float, complex)) else "
        "value + 'x' if isinstance(value, str) else type(value)([*value, None]) if type(value) in (list, tuple, set) "
        "else 0 if value is None else None"
    ),
}
SWAPS = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.Mod: ast.FloorDiv,
    ast.FloorDiv: ast.Mod,
    ast.And: ast.Or,
    ast.Or: ast.And,
}


def wrapped(row: dict, end: str) -> str:
    """The reference solution, its function returning something else."""
    name = row["entry_point"]
    around = f"_right = {name}\ndef {name}(*args):\n    value = _right(*args)\n    return {end}\n"
    return f"{row['privileged_context']}\n{around}"


def mutants(source: str, rng: random.Random) -> Iterator[str]:
    """Sources with one operator, number or condition changed, in random order."""
    places = range(sum(1 for _ in ast.walk(ast.parse(source))))
    for place in rng.sample(places, len(places)):
        tree = ast.parse(source)
        node = next(node for index, node in enumerate(ast.walk(tree)) if index == place)
        match node:
            case ast.Compare(ops=[op, *_]) if type(op) in SWAPS:
                node.ops[0] = SWAPS[type(op)]()
            case ast.BinOp() | ast.BoolOp() | ast.AugAssign() if type(node.op) in SWAPS:
                node.op = SWAPS[type(node.op)]()
            case ast.Constant(value=bool()):
                node.value = not node.value
            case ast.Constant(value=int()):
                node.value += rng.choice((-1, 1))
            case ast.If() | ast.While() | ast.IfExp():
                node.test = ast.UnaryOp(ast.Not(), node.test)
            case _:
                continue
        yield ast.unparse(ast.fix_missing_locations(tree))


def shows(row: dict, changed: str) -> bool:
    """Whether a test input tells a changed program from the reference solution, as far as time allows to say."""
    given = {key: row[key] for key in ("entry_point", "compare", "tests")}
    given |= {"reference": row["privileged_context"], "changed": changed}
    try:
        done = subprocess.run(
            [sys.executable, "-c", ORACLE],
            input=json.dumps(given),
            capture_output=True,
            text=True,
            timeout=ORACLE_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return False
    return done.stdout.strip() == "1"


def some_mutants(row: dict, count: int, seed: int) -> list[str]:
    """Up to `count` changed programs that show on the row's tests."""
    if row["compare"].startswith("alt_"):  # a second reading of the task is right too, so a change may stay right
        return []
    rng = random.Random(f"{seed} {row['id']}")
    found: list[str] = []
    for tried, changed in enumerate(mutants(row["privileged_context"], rng)):
        if len(found) == count or tried == 4 * count:
            break
        if shows(row, changed):
            found.append(changed)
    return found


def read_rows(path: Path) -> list[dict]:
    """Rows of a JSONL file, with the solution where the checker looks for it."""
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    rows = [json.loads(line) for line in text.splitlines()]
    for row in rows:
        if "reference_solution" in row:
            head = row["prompt"] if row["id"].startswith("HumanEval") else ""
            row["privileged_context"] = head + row["reference_solution"]
    return rows


def passing(checker: CodeChecker, rows: list[dict]) -> list[bool]:
    """Verdicts of the reward."""
    bad = dict(checker.check_references(rows))
    unjudged = [
        f"{rows[index]['id']}: {check.why} {check.detail}" for index, check in bad.items() if check.why in NO_REWARD
    ]
    if unjudged:
        raise SystemExit(f"not judged: {unjudged}")
    return [index not in bad for index in range(len(rows))]


def count(title: str, wanted: list[bool], got: list[bool], names: list[str]) -> str:
    """One result, for the last line; exceptions are named at once."""
    wrong = [name for name, want, have in zip(names, wanted, got, strict=True) if want != have]
    print(f"{title}: {len(wanted) - len(wrong)} of {len(wanted)} right", *wrong[:20], sep="\n  ", flush=True)
    return f"{title} {len(wanted) - len(wrong)}/{len(wanted)}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="folder with eval/ and verify/")
    parser.add_argument("--mutants", type=int, default=2, help="changed programs per reference solution, at most")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    checker = CodeChecker(row_seconds=30.0)
    print(checker.start())
    counts = []

    full = {row["id"]: row for row in read_rows(arguments.data / "eval" / "humaneval_plus_full.jsonl.gz")}
    programs = read_rows(arguments.data / "verify" / "code_programs.jsonl")
    for label in ("base", "plus"):
        rows = []
        for program in programs:
            task = full[program["task_id"]]
            tests = [test for test in task["tests"] if label in ("plus", test["group"])]
            rows.append({**task, "tests": tests, "privileged_context": program["program"]})
        wanted = [program[label] == "pass" for program in programs]
        counts.append(count(f"programs_{label}", wanted, passing(checker, rows), [row["id"] for row in programs]))

    rows = [row for name in EVALUATIONS for row in read_rows(arguments.data / "eval" / f"{name}.jsonl")]
    names = [row["id"] for row in rows]
    counts.append(count("references", [True] * len(rows), passing(checker, rows), names))
    for title, end in ENDS.items():
        others = [{**row, "privileged_context": wrapped(row, end)} for row in rows]
        if title != "nothing":  # where anything but None is right, more is right too
            others = [row for row in others if row["compare"] != "is_not_none"]
        names = [row["id"] for row in others]
        counts.append(count(title.replace(" ", "_"), [False] * len(others), passing(checker, others), names))

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        found = list(pool.map(lambda row: some_mutants(row, arguments.mutants, arguments.seed), rows))
    changed = [{**row, "privileged_context": text} for row, texts in zip(rows, found, strict=True) for text in texts]
    names = [f"{row['id']}\n{row['privileged_context']}" for row in changed]
    counts.append(count("mutants", [False] * len(changed), passing(checker, changed), names))
    checker.close()
    print("GRADING", *counts)
    return int(any(len(set(entry.rpartition(" ")[2].split("/"))) > 1 for entry in counts))


if __name__ == "__main__":
    sys.exit(main())
