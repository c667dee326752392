"""The difficulty filter: what is dropped, what is written, and that its shares are those of a count by hand."""

import asyncio
import json
import logging
from pathlib import Path

import pytest

from mintrl_trl.cli import main
from mintrl_trl.data.chains import EOS_ID, World, base_model_path
from mintrl_trl.data.sources import load_rows
from mintrl_trl.errors import ConfigError
from mintrl_trl.eval_models import find_models, local_generator
from mintrl_trl.evaluation.difficulty import (
    Difficulty,
    DifficultyReport,
    default_drop_from,
    difficulties,
    write_kept,
)
from mintrl_trl.evaluation.results import EvalResult, ProblemResult
from mintrl_trl.evaluation.run import sample_row
from mintrl_trl.rollouts.schedule import request_seed

BASE = str(base_model_path())
MATH = [{"id": f"m/{n}", "problem": f"What is {n} + 1?", "answer": str(n + 1), "solution": "Count."} for n in range(3)]
CODE = [
    {
        "id": "c/0",
        "prompt": "Square a number.",
        "entry_point": "square",
        "compare": "default",
        "tests": [{"type": "call", "group": "base", "args": "[3]", "expected": "9"}],
        "reference_solution": "def square(x):\n    return x * x",
    }
]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    logger = logging.getLogger("mintrl_trl")
    level = logger.level
    yield
    logger.setLevel(level)


def write_lines(path: str, rows: list[dict]) -> str:
    Path(path).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def report(*solved: int, drop_from: int = 7, ids: list[str] | None = None) -> DifficultyReport:
    ids = ids or [f"m/{number}" for number in range(len(solved))]
    found = [Difficulty(name, count, 8, 0) for name, count in zip(ids, solved, strict=True)]
    return DifficultyReport("base", "rows.jsonl", drop_from, tuple(found))


@pytest.mark.parametrize(("samples", "least"), [(1, 1), (2, 2), (4, 4), (7, 7), (8, 7), (16, 14), (32, 28)])
def test_seven_of_eight_and_the_same_share_of_other_numbers(samples, least):
    assert default_drop_from(samples) == least


def test_what_is_solved_too_often_is_dropped():
    found = report(0, 6, 7, 8, 1)
    assert [one.id for one in found.kept] == ["m/0", "m/1", "m/4"]
    assert found.kept_share == 3 / 5
    assert found.histogram() == [1, 1, 0, 0, 0, 0, 1, 1, 1]
    assert found.pass_rate.value == pytest.approx(22 / 40)
    told = json.loads(found.as_json())
    assert (told["kept"], told["problems"][1]["solved"]) == (3, 6)


def test_a_response_without_reward_is_not_solved():
    result = EvalResult((ProblemResult(8, 6, 2, 0, 80, id="a"),))
    assert difficulties(result) == (Difficulty("a", 6, 8, 2),)


@pytest.mark.parametrize(("task", "raw"), [("math", MATH), ("code", CODE)])
def test_the_kept_file_reads_as_the_rows_that_were_sampled(task, raw):
    rows = load_rows(write_lines("rows.jsonl", raw), task=task)
    found = report(*[0] * (len(rows) - 1), 3, ids=[row["id"] for row in rows])
    assert write_kept("kept.jsonl", rows, found) == len(rows)
    assert load_rows("kept.jsonl", task=task) == rows
    rates = [json.loads(line)["base_pass_rate"] for line in Path("kept.jsonl").read_text().splitlines()]
    assert rates == [*[0.0] * (len(rows) - 1), 3 / 8]


def test_an_empty_file_is_never_written():
    with pytest.raises(ConfigError, match="a number that leaves a problem; all 2 were solved so often"):
        write_kept("kept.jsonl", load_rows(write_lines("rows.jsonl", MATH), task="math"), report(7, 8))
    assert not Path("kept.jsonl").exists()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--out", "kept.csv"], "`--out` is 'kept.csv'. Allowed: a .jsonl file"),
        (["--out", "rows.jsonl"], "other than the source"),
        (["--out", "kept.jsonl", "--drop-from", "9"], "from 1 to 8, the samples of a problem"),
        (["--out", "kept.jsonl", "--max-prompt-length", "0"], "`--max-prompt-length` is 0"),
        (["--out", "kept.jsonl", "--top-p", "0.5"], "`--top-p` is 0.5. Allowed: 1 in process"),
    ],
)
def test_refused_before_the_model_is_read(flags, message, capsys, monkeypatch):
    monkeypatch.setattr("mintrl_trl.evaluate_models.local_generator", None)
    write_lines("rows.jsonl", MATH)
    assert main(["filter-data", "rows.jsonl", "--model", BASE, *flags]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.slow
def test_the_kept_share_is_that_of_sampling_one_by_one_and_counting(capsys):
    count, samples, least = 10, 4, 3
    words = ["filter-data", "chains", "--limit", str(count), "--model", BASE, "--out", "kept.jsonl"]
    words += ["--samples", str(samples), "--drop-from", str(least), "--json", "rates.json"]
    assert main(words) == 0

    world, (model,) = World.load(), find_models([BASE])
    rows = load_rows("chains", task="chains", limit=count)
    run_seed = request_seed(0, 0, row=0, revisions=0, purpose="eval")

    async def solved_alone(generator, row: dict, number: int) -> bool:
        """One response, sampled by itself, and looked at by the table alone."""
        seed = request_seed(run_seed, 0, sample_row(row["id"], number), 0)
        stream = generator.stream(tuple(model.tokenizer(row["prompt"])["input_ids"]), 52, seed)
        ids = [token.id async for token in stream]
        digits = [int(sign) for sign in row["prompt"] if sign.isdigit()]
        value, answer = digits[0], ""
        for letter, operand in zip("BCDEFGHI", digits[1:], strict=True):
            value = int(world.table[value][operand])
            answer += f"{letter}{value}"
        return ids[-1] == EOS_ID and model.tokenizer.decode(ids[:-1]).endswith(f"#{answer}")

    async def counts() -> dict[str, int]:
        with local_generator(model, temperature=1.0, max_batch=1) as generator:
            return {
                row["id"]: sum([await solved_alone(generator, row, number) for number in range(samples)])
                for row in rows
            }

    by_hand = asyncio.run(counts())
    told = json.loads(Path("rates.json").read_text())
    assert {one["id"]: one["solved"] for one in told["problems"]} == by_hand
    kept = [name for name, solved in by_hand.items() if solved < least]
    assert 0 < len(kept) < count
    assert [row["id"] for row in load_rows("kept.jsonl", task="chains")] == kept
    assert told["kept_share"] == len(kept) / count
    assert f"Kept {len(kept)} of {count}" in capsys.readouterr().out

    written, before = Path("kept.jsonl").read_bytes(), list(Path("kept_samples").rglob("samples.jsonl"))
    lines = [path.read_bytes() for path in before]
    assert main(words) == 0  # nothing is sampled again
    assert [path.read_bytes() for path in before] == lines
    assert Path("kept.jsonl").read_bytes() == written
