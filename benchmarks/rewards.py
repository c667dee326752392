"""Speed of the rewards: the math checker and math-verify in a loop, the code checker and bare `subprocess.run`.

    python benchmarks/rewards.py             # 512 rows of each, 3 rounds, then one with 16 poison rows
    python benchmarks/rewards.py --rounds 5 --rows 256

The two of a pair take turns within one run, on new rows in every round, so that neither a busy machine nor a cache
favours one. Maths: completions in the manner of GSM8K, where every gold is a whole number; a quarter of the answers is
wrong, and three in ten are written with a comma, a dollar sign or decimals. A poison row's answer keeps math-verify
busy until its own limit of 5 s. Code: small programs that read and print, as many at once as this process has CPUs;
`subprocess.run` starts a plain Python for each, without limits or confinement.

Printed are seconds. The last line is `RATIO math X code Y`: X, how many times faster the math checker is than the loop;
Y, the time of the code checker as a multiple of `subprocess.run`'s.
"""

import argparse
import asyncio
import logging
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from math_verify import parse, verify

from mintrl_trl.rewards.code import CodeChecker
from mintrl_trl.rewards.math import MathChecker

POISON_ROWS = 16
Rows = list[tuple[str, str]]


def math_rows(count: int, seed: int) -> Rows:
    """Completions and golds; a quarter of the answers is off by one."""
    rng = random.Random(seed)
    rows = []
    for _ in range(count):
        price, number, paid = rng.randint(2, 99), rng.randint(2, 99), rng.randint(100, 9999)
        total = price * number + paid
        answer = total if rng.random() < 0.75 else total + 1
        shown = rng.choices((f"{answer}", f"{answer:,}", f"\\${answer}", f"{answer}.00"), (7, 1, 1, 1))[0]
        text = (
            f"Each of the {number} boxes costs ${price}, so together they cost {number} * {price} = {number * price} "
            f"dollars. With the {paid} dollars for the ride we add both numbers: {number * price} + {paid} = {answer}. "
            f"That is what is asked for. The answer is $\\boxed{{{shown}}}$."
        )
        rows.append((text, str(total)))
    return rows


def poisoned(rows: Rows) -> Rows:
    """The same rows, some of them with an answer that does not end when it is computed."""
    rows = list(rows)
    for index in range(POISON_ROWS):
        rows[index * len(rows) // POISON_ROWS] = (rf"So it is $\boxed{{9^{{9^{{9^{{{index + 2}}}}}}}}}$.", "7")
    return rows


def math_loop(rows: Rows) -> list[bool]:
    """What one writes without this package."""
    return [verify(parse(f"${gold}$"), parse(completion)) for completion, gold in rows]


def code_rows(count: int, seed: int) -> Rows:
    """Programs and what they have to print for the input `5`."""
    rng = random.Random(seed)
    rows = []
    for _ in range(count):
        factor, add = rng.randint(2, 10**6), rng.randint(2, 10**6)
        rows.append((f"n = int(input())\nprint(sum(i * {factor} + {add} for i in range(n)))\n", 10 * factor + 5 * add))
    return [(program, f"{total}\n") for program, total in rows]


def bare(rows: Rows, slots: int) -> list[bool]:
    """Every program in a Python of its own."""

    def one(row: tuple[str, str]) -> bool:
        program, wanted = row
        done = subprocess.run(
            [sys.executable, "-c", program], input="5\n", capture_output=True, text=True, timeout=6, check=False
        )
        return done.stdout == wanted

    with ThreadPoolExecutor(slots) as pool:
        return list(pool.map(one, rows))


def code_checked(checker: CodeChecker, rows: Rows) -> list[bool]:
    """The reward function, as a trainer calls it."""
    completions = [f"```python\n{program}```" for program, _ in rows]
    tests = [[{"type": "stdin", "stdin": "5\n", "stdout": wanted}] for _, wanted in rows]
    rewards = asyncio.run(checker.reward([""] * len(rows), completions, tests))
    return [reward == 1.0 for reward in rewards]


def compare(names: tuple[str, str], runs: tuple[Callable, Callable], rounds: list[Rows]) -> list[float]:
    """Median seconds of two ways to do the same, which have to agree."""
    seconds: tuple[list[float], list[float]] = ([], [])
    for rows in rounds:
        results = []
        for run, into in zip(runs, seconds, strict=True):
            start = time.perf_counter()
            results.append(run(rows))
            into.append(time.perf_counter() - start)
        if results[0] != results[1]:
            index = next(i for i, (a, b) in enumerate(zip(*results, strict=True)) if a != b)
            raise SystemExit(f"{names} disagree: {results[0][index]} {results[1][index]} on {rows[index]}")
    for name, taken in zip(names, seconds, strict=True):
        print(f"  {name:28} {statistics.median(taken):8.2f} s  (from {min(taken):.2f} to {max(taken):.2f})", flush=True)
    return [statistics.median(taken) for taken in seconds]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    logging.getLogger("math_verify").setLevel(logging.CRITICAL)  # it would warn of each poison row
    slots = len(os.sched_getaffinity(0))

    maths = MathChecker(processes=min(slots, 4))
    math_runs = math_loop, lambda rows: [check.correct for check in maths.check_all(*zip(*rows, strict=True))]
    math_names = "math-verify in a loop", "math checker"
    for run in math_runs:  # imports and starts what has to be started once
        run(math_rows(8, -1))
    print(f"{arguments.rows} rows of maths")
    loop, checked = compare(
        math_names, math_runs, [math_rows(arguments.rows, seed) for seed in range(arguments.rounds)]
    )
    print(f"{arguments.rows} rows of maths, {POISON_ROWS} of them poison")
    poison_loop, poison_checked = compare(math_names, math_runs, [poisoned(math_rows(arguments.rows, 1000))])
    maths.close()
    print(f"  the checker takes {poison_checked / poison_loop:.2f} times what the loop takes,")
    print(f"  and {poison_checked / checked:.2f} times what it takes without poison")

    with_code = CodeChecker(slots=slots)
    print(f"{arguments.rows} programs, {slots} at once, in {with_code.start()}")
    code_runs = lambda rows: bare(rows, slots), lambda rows: code_checked(with_code, rows)
    code_checked(with_code, code_rows(8, -1))
    plain, confined = compare(
        ("subprocess.run", "code checker"),
        code_runs,
        [code_rows(arguments.rows, seed) for seed in range(arguments.rounds)],
    )
    with_code.close()
    print(f"RATIO math {loop / checked:.2f} code {confined / plain:.2f}")


if __name__ == "__main__":
    main()
