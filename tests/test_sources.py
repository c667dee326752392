import gzip
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mintrl_trl.data.rows import CODE_INSTRUCTION, COMPARE_RULES, MATH_INSTRUCTION, STDIN_NOTE
from mintrl_trl.data.sources import load_rows, read_rows, to_dataset
from mintrl_trl.errors import ConfigError, DataError

RECIPE_DATA = Path(__file__).parents[1] / "recipes" / "data"
MATH = {"id": "m/1", "problem": "What is 6 times 7?", "answer": "42", "solution": "6 times 7 is 42."}
CODE = {
    "id": "c/1",
    "prompt": "Write a function to add two numbers.",
    "entry_point": "add",
    "compare": "assert",
    "test_setup": "",
    "tests": [{"type": "assert", "group": "base", "code": "assert add(1, 2) == 3"}],
    "reference_solution": "def add(a, b):\n    return a + b",
}
CALL = {"type": "call", "args": "[1, (2, 3)]", "expected": "{4}"}


def write(folder, *rows, name="rows.jsonl"):
    path = folder / name
    path.write_text("".join(row if isinstance(row, str) else json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def without(row, *keys):
    return {key: value for key, value in row.items() if key not in keys}


# Files


def test_math_row(tmp_path):
    (row,) = load_rows(write(tmp_path, MATH), task="math")
    assert row == {
        "prompt": [{"role": "user", "content": f"What is 6 times 7?\n\n{MATH_INSTRUCTION}"}],
        "question": "What is 6 times 7?",
        "answer": "42",
        "privileged_context": "6 times 7 is 42.",
        "id": "m/1",
    }
    assert r"\boxed{}" in MATH_INSTRUCTION


def test_optional_columns_of_a_math_row(tmp_path):
    row = load_rows(
        write(tmp_path, without(MATH, "id", "solution") | {"level": 3}), task="math", instruction="Box it."
    )[0]
    assert row["id"] == "rows/1"
    assert row["privileged_context"] is None
    assert row["prompt"][0]["content"] == "What is 6 times 7?\n\nBox it."
    assert "level" not in row


def test_row_in_the_trainers_form_keeps_its_prompt(tmp_path):
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "6 times 7?"}]
    path = write(
        tmp_path,
        {"prompt": "6 times 7?\n", "answer": "42", "privileged_context": "It is 42."},
        {"prompt": messages, "answer": "42", "question": "What is 6 times 7?"},
        {"prompt": messages, "answer": "42"},
    )
    text, asked, unasked = load_rows(path, task="math")
    assert (text["prompt"], text["question"], text["privileged_context"]) == ("6 times 7?\n", "6 times 7?", "It is 42.")
    assert (asked["prompt"], asked["question"]) == (messages, "What is 6 times 7?")
    assert unasked["question"] == "6 times 7?"


@pytest.mark.parametrize(("number", "text"), [(42, "42"), (-7, "-7"), (0, "0"), (10**400, f"1{'0' * 400}")])
def test_a_whole_number_is_an_answer(tmp_path, number, text):
    path = write(tmp_path, MATH | {"answer": number}, {"prompt": "6 times 7?", "answer": number})
    assert [row["answer"] for row in load_rows(path, task="math")] == [text, text]


def test_code_row(tmp_path):
    (row,) = load_rows(write(tmp_path, CODE), task="code")
    assert row["question"].endswith("tests such as:\n```python\nassert add(1, 2) == 3\n```")
    assert row["prompt"] == [{"role": "user", "content": f"{row['question']}\n\n{CODE_INSTRUCTION}"}]
    assert row["privileged_context"] == CODE["reference_solution"]
    assert row["tests"] == CODE["tests"]
    assert (row["answer"], row["entry_point"], row["compare"], row["test_setup"]) == (None, "add", "assert", "")


@pytest.mark.parametrize(
    ("change", "shown"),
    [
        (
            {"starter_code": "class Solution:\n    pass\n"},
            "Begin with this code:\n```python\nclass Solution:\n    pass\n```",
        ),
        ({"prompt": "def add(a, b):\n", "tests": [CALL]}, "Complete this function:\n```python\ndef add(a, b):\n```"),
        ({"entry_point": "stdin", "tests": [{"type": "stdin", "stdin": "1", "stdout": "1"}]}, STDIN_NOTE),
        ({"tests": [CALL]}, "Name the function `add`."),
        ({"entry_point": "Solution.add", "tests": [CALL]}, "Name the function `add`."),
    ],
    ids=["starter", "head", "stdin", "name", "method"],
)
def test_code_question_says_what_a_solver_has_to_know(tmp_path, change, shown):
    base = CODE | {"prompt": "Sum two numbers."} | change
    (row,) = load_rows(write(tmp_path, base), task="code")
    assert row["question"].endswith(shown)


def test_body_of_a_function_becomes_a_whole_reference(tmp_path):
    row = CODE | {"prompt": "def add(a, b):\n", "reference_solution": "    return a + b\n", "tests": [CALL]}
    assert load_rows(write(tmp_path, row), task="code")[0]["privileged_context"] == "def add(a, b):\n    return a + b"


def test_blank_lines_limit_and_gzip(tmp_path):
    path = tmp_path / "rows.jsonl.gz"
    with gzip.open(path, "wt", encoding="utf-8") as file:
        for number in range(5):
            file.write(json.dumps(MATH | {"id": f"m/{number}"}) + "\n\n")
    assert [row["id"] for row in load_rows(path, task="math")] == [f"m/{number}" for number in range(5)]
    assert [row["id"] for row in load_rows(str(path), task="math", limit=2)] == ["m/0", "m/1"]


@pytest.mark.parametrize(
    ("row", "field", "message"),
    [
        (without(MATH, "problem"), "problem", "None. Allowed: text that is not empty. Fix: add `problem` or drop"),
        (MATH | {"problem": "  "}, "problem", "'  '. Allowed: text that is not empty. Fix: fill it in"),
        (without(MATH, "answer"), "answer", "None. Allowed"),
        (MATH | {"answer": ""}, "answer", "''. Allowed"),
        (
            MATH | {"answer": 4.5},
            "answer",
            '4.5. Allowed: text that is not empty. Fix: write it as text, such as "4.5',
        ),
        (MATH | {"answer": True}, "answer", "True. Allowed: text that is not empty"),
        ({"prompt": "p", "answer": False}, "answer", "False. Allowed: text that is not empty"),
        (MATH | {"answer": ["42"]}, "answer", "['42']"),
        (MATH | {"solution": ["step"]}, "solution", "['step']. Allowed: text or nothing"),
        (MATH | {"id": 7}, "id", '7. Allowed: text that is not empty. Fix: write it as text, such as "rows/2"'),
        (MATH | {"id": "first"}, "id", "'first'. Allowed: an id of its own; "),
        ({"prompt": "p", "answer": "1", "privileged_context": 5}, "privileged_context", "5. Allowed: text or nothing"),
        ({"prompt": "p", "answer": "1", "question": 5}, "question", "5. Allowed: text or nothing"),
        ({"prompt": "", "answer": "1"}, "prompt", "''. Allowed"),
        ({"prompt": [], "answer": "1"}, "prompt", "[]. Allowed: messages that end with the user's"),
        ({"prompt": [{"role": "assistant", "content": "x"}], "answer": "1"}, "prompt", "end with the user's"),
        ({"prompt": [{"role": "user"}], "answer": "1"}, "prompt", "an object with text in `role` and `content`"),
        ('{"problem": "x", \n', "line", "Allowed: one JSON object in UTF-8. Fix: correct the line: "),
        ("[1, 2]\n", "line", "[1, 2]. Allowed: one JSON object"),
    ],
)
def test_bad_math_row_is_refused_by_place_field_and_fix(tmp_path, row, field, message):
    path = write(tmp_path, MATH | {"id": "first"}, row)
    with pytest.raises(DataError) as refused:
        load_rows(path, task="math")
    assert str(refused.value).startswith(f"{path}:2")
    assert refused.value.field == field
    assert message in str(refused.value)
    assert "Fix: " in str(refused.value)


@pytest.mark.parametrize(
    ("change", "where", "field", "message"),
    [
        ({"prompt": None}, "", "prompt", "Fix: add `prompt`"),
        ({"entry_point": None}, "", "entry_point", "Fix: add `entry_point`"),
        ({"compare": "exact"}, "", "compare", " | ".join(COMPARE_RULES)),
        ({"compare": None}, "", "compare", "name the rule"),
        ({"compare_atol": -1}, "", "compare_atol", "0 or more"),
        ({"tests": []}, "", "tests", "at least one test"),
        ({"tests": "assert True"}, "", "tests", "at least one test"),
        ({"tests": ["assert True"]}, ", test 0", "tests", "an object with `type`"),
        ({"tests": [*CODE["tests"], {"type": "regex"}]}, ", test 1", "type", "'regex'. Allowed: stdin | assert | call"),
        ({"tests": [{"type": "assert"}]}, ", test 0", "code", "text, for a test of type assert"),
        ({"tests": [CALL | {"group": "private"}]}, ", test 0", "group", "base | plus | public | hidden"),
        ({"tests": [CALL | {"kwargs": "{}"}]}, ", test 0", "args", "either `args` or `kwargs`"),
        ({"tests": [without(CALL, "args")]}, ", test 0", "args", "either `args` or `kwargs`"),
        ({"tests": [CALL | {"args": "[1, x]"}]}, ", test 0", "args", "literal of type list"),
        ({"tests": [CALL | {"args": "(1, 2)"}]}, ", test 0", "args", "literal of type list"),
        ({"tests": [CALL | {"args": [1, 2]}]}, ", test 0", "args", "write `args` as repr(value)"),
        ({"tests": [CALL | {"expected": 3}]}, ", test 0", "expected", "text, for a test of type call"),
        ({"tests": [CALL | {"expected": "open('x')"}]}, ", test 0", "expected", "the text of a Python literal"),
        ({"entry_point": "stdin"}, ", test 0", "entry_point", "`stdin` for tests of type stdin"),
        ({"reference_solution": 5}, "", "reference_solution", "text or nothing"),
        ({"starter_code": 5}, "", "starter_code", "text or nothing"),
        ({"test_setup": ["import os"]}, "", "test_setup", "text or nothing"),
    ],
)
def test_bad_code_row_is_refused_by_place_field_and_fix(tmp_path, change, where, field, message):
    path = write(tmp_path, CODE | change)
    with pytest.raises(DataError) as refused:
        load_rows(path, task="code")
    assert refused.value.where == f"{path}:1{where}"
    assert refused.value.field == field
    assert message in str(refused.value)


def test_line_that_is_no_utf8_is_refused(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(json.dumps(MATH).encode() + b'\n{"problem": "\xff"}\n')
    with pytest.raises(DataError, match=r"rows\.jsonl:2: `line`"):
        load_rows(path, task="math")


def test_bad_rows_can_be_left_out_with_a_warning(tmp_path, caplog):
    path = write(tmp_path, MATH, MATH | {"id": "m/2", "answer": ""}, MATH, MATH | {"id": "m/4"})
    assert [row["id"] for row in load_rows(path, task="math", skip_bad_rows=True)] == ["m/1", "m/4"]
    assert "Left out 2 rows" in caplog.text
    assert f"{path}:2: `answer`" in caplog.text


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"source": "no/such.jsonl", "task": "math"}, "source"),
        ({"source": "some/dataset", "task": "math"}, "source"),
        ({"source": "chains", "task": "maths"}, "task"),
        ({"source": "chains", "task": "math"}, "task"),
        ({"source": "chains", "task": "chains"}, "limit"),
        ({"source": "chains", "task": "chains", "limit": 0}, "limit"),
        ({"source": "chains", "task": "chains", "limit": 1, "split": "dev"}, "split"),
        ({"source": "nvidia/AceReason-Math", "task": "code"}, "task"),
        ({"source": "nvidia/AceReason-Math", "task": "math", "split": "test"}, "split"),
        ({"source": "agentica-org/DeepCoder-Preview-Dataset", "task": "code", "split": "dev"}, "split"),
    ],
)
def test_impossible_request_is_refused(arguments, field):
    with pytest.raises(ConfigError) as refused:
        load_rows(**arguments)
    assert refused.value.field == field


def test_empty_file_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="at least one usable row"):
        load_rows(write(tmp_path, "\n\n"), task="math")


# The hub


CODEFORCES = {"problem": "Print one.", "tests": json.dumps([{"input": "", "output": "1"}])}


def test_hub_is_asked_for_the_subsets_of_a_split(monkeypatch):
    asked = []

    def load_dataset(name, subset, *, split, streaming):
        asked.append((name, subset, split, streaming))
        return [CODEFORCES] * 2 if subset else [{"problem": "p", "answer": "1"}] * 2

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    deepcoder = "agentica-org/DeepCoder-Preview-Dataset"
    rows = load_rows(deepcoder, task="code")
    assert [row["id"] for row in rows] == [f"{s}/{i}" for s in ("primeintellect", "taco", "lcbv5") for i in (0, 1)]
    assert [row["id"] for row in load_rows(deepcoder, task="code", split="test", limit=3)] == [
        "codeforces/0",
        "codeforces/1",
        "lcbv5/0",
    ]
    assert [row["id"] for row in load_rows("nvidia/AceReason-Math", task="math")] == ["acereason/0", "acereason/1"]
    assert asked == [
        *((deepcoder, subset, "train", False) for subset in ("primeintellect", "taco", "lcbv5")),
        *((deepcoder, subset, "test", True) for subset in ("codeforces", "lcbv5")),
        ("nvidia/AceReason-Math", None, "train", False),
    ]


# The small world, prompts that do not fit, the trainer's data set


def test_rows_of_the_small_world():
    rows = load_rows("chains", task="chains", limit=3)
    assert [row["id"] for row in rows] == ["chains/train/0", "chains/train/1", "chains/train/2"]
    assert all(row["prompt"] == row["question"] and row["privileged_context"].endswith(row["answer"]) for row in rows)
    assert len(load_rows("chains", task="chains", split="test")) == 200


def test_chains_file(tmp_path):
    (row,) = load_rows(write(tmp_path, {"prompt": "8B7?", "answer": "B0"}), task="chains")
    assert row["prompt"] == "8B7?"
    with pytest.raises(DataError, match="`prompt`"):
        load_rows(write(tmp_path, MATH), task="chains")


def test_rows_of_every_kind_of_test_fit_one_dataset(tmp_path):
    stdin = {"type": "stdin", "stdin": "1", "stdout": "1"}
    kwargs = {"type": "call", "kwargs": "{'a': 1}", "expected": "1", "atol": 1}
    path = write(
        tmp_path,
        CODE,
        CODE | {"id": "c/2", "entry_point": "stdin", "compare": "stdout", "tests": [stdin]},
        CODE | {"id": "c/3", "compare": "default", "tests": [CALL, kwargs], "reference_solution": None},
    )
    dataset = to_dataset(load_rows(path, task="code"))
    assert dataset["id"] == ["c/1", "c/2", "c/3"]
    assert dataset[2]["tests"][1]["kwargs"] == "{'a': 1}"
    assert dataset[2]["tests"][1]["args"] is None
    assert dataset[0]["prompt"][0]["role"] == "user"


@pytest.mark.parametrize(
    ("file", "task", "number"), [("gsm8k_train_200.jsonl", "math", 200), ("mbpp_train_100.jsonl", "code", 100)]
)
def test_data_of_the_recipes_loads(file, task, number):
    rows = load_rows(RECIPE_DATA / file, task=task)
    assert len(rows) == number
    assert all(row["privileged_context"] for row in rows)


def test_gold_answers_of_the_recipe_equal_themselves():
    from mintrl_trl.rewards.math import MathChecker

    checker = MathChecker(processes=1)
    assert checker.check_golds(load_rows(RECIPE_DATA / "gsm8k_train_200.jsonl", task="math")) == []
    checker.close()


# Reading to the end


def test_all_rows_that_cannot_be_used_are_named(tmp_path):
    path = write(tmp_path, MATH, "{\n", MATH | {"problem": 1, "id": "m/2"}, MATH, MATH | {"id": "m/3"})
    read = read_rows(path, task="math")
    assert [row["id"] for row in read.rows] == ["m/1", "m/3"]
    assert read.places == [f"{path}:1", f"{path}:5"]
    assert [(error.where, error.field) for error in read.errors] == [
        (f"{path}:2", "line"),
        (f"{path}:3", "problem"),
        (f"{path}:4", "id"),
    ]


def test_an_empty_file_has_no_rows_and_no_errors(tmp_path):
    read = read_rows(write(tmp_path, "\n \n"), task="math")
    assert (read.rows, read.places, read.errors) == ([], [], [])


@pytest.mark.parametrize(
    "line",
    ["[" * 100_000, '{"problem": ' + "1" * 5000 + "}", '{"problem": "\\ud83d", "answer": "1"}', "NaN"],
    ids=["nested", "long number", "half a surrogate pair", "a number"],
)
def test_lines_that_are_no_row(tmp_path, line):
    (error,) = read_rows(write(tmp_path, line + "\n"), task="math").errors
    assert error.field == "line"


def test_a_whole_surrogate_pair_is_a_character(tmp_path):
    (row,) = load_rows(write(tmp_path, '{"problem": "\\ud83d\\ude00", "answer": "1"}\n'), task="math")
    assert row["question"] == "\N{GRINNING FACE}"


def test_a_file_that_breaks_off(tmp_path):
    path = tmp_path / "rows.jsonl.gz"
    path.write_bytes(gzip.compress(json.dumps(MATH).encode() * 1000)[:-20])
    with pytest.raises(ConfigError, match="a file that can be read to its end"):
        read_rows(path, task="math")


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-2, 2)
    | st.floats(allow_nan=True)
    | st.sampled_from(["", "1", "call", "f"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["type", "args", "role"]), inner),
    max_leaves=4,
)


@given(
    base=st.sampled_from(
        [("math", MATH), ("code", CODE), ("code", CODE | {"tests": [CALL]}), ("math", {"prompt": ""})]
    ),
    place=st.sampled_from(["", "tests"]),
    key=st.sampled_from([*CODE, *MATH, "type", "group", "args", "kwargs", "expected", "atol", "code", "starter_code"]),
    value=json_values,
)
def test_any_value_anywhere_gives_a_row_or_a_data_error(tmp_path_factory, base, place, key, value):
    task, row = base
    if place == "tests" and task == "code":
        row = row | {"tests": [row["tests"][0] | {key: value}]}
    else:
        row = row | {key: value}
    read = read_rows(write(tmp_path_factory.getbasetemp(), row), task=task)
    assert len(read.rows) + len(read.errors) == 1
