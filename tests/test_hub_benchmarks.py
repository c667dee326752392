"""Benchmarks as the hub publishes them: every column finds its place, tests stay out of prompts, nothing runs."""

import base64
import json
import pickle
import sys
import zlib
from types import SimpleNamespace

import pytest

from mintrl_trl.data.hub_benchmarks import (
    HubBenchmark,
    hub_benchmark_rows,
    map_gsm8k,
    map_humaneval_plus,
    map_livecodebench,
    map_matharena,
    map_mbpp_plus,
)
from mintrl_trl.errors import ConfigError, DataError
from mintrl_trl.rewards import code

CHECK = """
import numpy as np

def assertion(out, exp, atol):
    assert out == exp or atol and np.allclose(out, exp, atol=atol)


def check(candidate):
    inputs = [[3], [-4]]
    results = [4, -3]
    for i, (inp, exp) in enumerate(zip(inputs, results)):
        assertion(candidate(*inp), exp, 0)
"""
HUMANEVAL = {
    "task_id": "HumanEval/7",
    "prompt": 'def plus_one(x: int) -> int:\n    """ Add one.\n    >>> plus_one(1)\n    2\n    """\n',
    "canonical_solution": "\n    return x + 1\n",
    "entry_point": "plus_one",
    "test": CHECK,
}
MBPP = {
    "task_id": 2,
    "prompt": "Write a function to find the shared elements from the given two lists.",
    "code": "\ndef similar(a, b):\n    return tuple(set(a) & set(b))\n",
    "test_imports": [],
    "test_list": ["assert set(similar((3, 4, 5), (5, 7, 4))) == set((4, 5))", "assert similar((1,), (2,)) == ()"],
    "test": "inputs = [[(3, 4), (4,)], [(1,), (2,)]]\nresults = [(4,), ()]\n"
    "for i, (inp, exp) in enumerate(zip(inputs, results)):\n    assert set(similar(*inp)) == set(exp)\n",
}


def packed(tests) -> str:
    return base64.b64encode(zlib.compress(pickle.dumps(json.dumps(tests)))).decode()


STDIN = {
    "question_id": "abc301_a",
    "question_content": "Print the number plus one.",
    "starter_code": "",
    "public_test_cases": json.dumps([{"input": "1\n", "output": "2\n", "testtype": "stdin"}]),
    "private_test_cases": packed([{"input": "41\n", "output": "42\n", "testtype": "stdin"}]),
    "metadata": "{}",
}
METHOD = STDIN | {
    "question_id": "2727",
    "starter_code": "class Solution:\n    def add(self, a: int, b: int) -> int:\n        ",
    "public_test_cases": json.dumps([{"input": "1\n2", "output": "3", "testtype": "functional"}]),
    "private_test_cases": packed([{"input": "5\n-5", "output": "0", "testtype": "functional"}]),
    "metadata": '{"func_name": "add"}',
}


def test_matharena_answers_may_be_numbers():
    row = map_matharena({"problem_idx": 3, "problem": "What is $1+1$?", "answer": 2})
    assert (row["id"], row["answer"], row["question"]) == ("matharena/3", "2", "What is $1+1$?")
    assert map_matharena({"problem": "p", "answer": r"\frac{1}{2}"}, 4)["answer"] == r"\frac{1}{2}"


def test_gsm8k_answer_is_cut_off_its_solution():
    row = map_gsm8k({"question": "How many?", "answer": "It is 2*600=<<2*600=1200>>1200.\n#### 1,200"}, 6)
    assert (row["id"], row["answer"]) == ("gsm8k_test/0007", "1200")
    assert row["privileged_context"] == "It is 2*600=1200."


def test_humaneval_plus_is_a_head_to_complete_and_its_own_program():
    row = map_humaneval_plus(HUMANEVAL)
    assert (row["id"], row["entry_point"], row["compare"]) == ("HumanEval/7", "plus_one", "assert")
    (test,) = row["tests"]
    assert test["code"].endswith(
        "assertion(candidate(*inp), exp, 0)\n\ncheck(plus_one)".replace("\n\ncheck", "\n\ncheck")
    )
    assert (
        map_humaneval_plus(HUMANEVAL | {"test": f"{CHECK}\ncheck(plus_one)"})["tests"][0]["code"].count("check(") == 2
    )
    prompt = row["prompt"][0]["content"]
    assert "def plus_one(x: int)" in prompt and "results = [4, -3]" not in prompt


def test_the_task_that_no_right_program_passes_is_left_out():
    assert map_humaneval_plus(HUMANEVAL | {"task_id": "HumanEval/32"}) is None


def test_mbpp_plus_prompt_is_sentence_and_first_assertion():
    row = map_mbpp_plus(MBPP)
    assert (row["id"], row["entry_point"]) == ("Mbpp/2", "similar")
    assert row["question"] == f'"""\n{MBPP["prompt"]}\n{MBPP["test_list"][0]}\n"""'
    prompt = row["prompt"][0]["content"]
    assert prompt.startswith(row["question"]) and "inputs = " not in prompt and MBPP["test_list"][1] not in prompt


def test_livecodebench_joins_public_and_private_tests():
    row = map_livecodebench(STDIN)
    assert (row["id"], row["entry_point"], row["compare"]) == ("lcb/abc301_a", "stdin", "stdout")
    assert [(test["stdin"], test["stdout"]) for test in row["tests"]] == [("1\n", "2\n"), ("41\n", "42\n")]
    row = map_livecodebench(METHOD)
    assert (row["entry_point"], [test["args"] for test in row["tests"]]) == ("Solution.add", ["[1, 2]", "[5, -5]"])
    plain = map_livecodebench(STDIN | {"private_test_cases": STDIN["public_test_cases"]})
    assert len(plain["tests"]) == 2


class Evil:
    def __reduce__(self):
        return print, ("run!",)


@pytest.mark.parametrize(
    ("private", "said"),
    [
        (base64.b64encode(zlib.compress(pickle.dumps(Evil()))).decode(), "wants to load builtins.print"),
        (base64.b64encode(zlib.compress(b"no pickle")).decode(), "packed tests"),
        (base64.b64encode(b"no zlib").decode(), "packed tests"),
        ("no base64!", "packed tests"),
        (None, "packed tests"),
        (packed({"input": "1"}), "a list of tests"),
    ],
    ids=["names a function", "no pickle", "no zlib", "no base64", "nothing", "no list"],
)
def test_packed_tests_are_read_and_never_run(private, said, capsys):
    with pytest.raises(DataError, match=said):
        map_livecodebench(STDIN | {"private_test_cases": private})
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("mapper", "row", "field"),
    [
        (map_matharena, {"problem": "p"}, "answer"),
        (map_gsm8k, {"question": "q", "answer": "no mark"}, "answer"),
        (map_gsm8k, {"question": "q", "answer": "#### "}, "answer"),
        (map_humaneval_plus, HUMANEVAL | {"test": "def check("}, "code"),
        (map_humaneval_plus, HUMANEVAL | {"prompt": ""}, "prompt"),
        (map_mbpp_plus, MBPP | {"test_list": []}, "test_list"),
        (map_mbpp_plus, MBPP | {"test_list": ["assert other(1)"]}, "test_list"),
        (map_mbpp_plus, MBPP | {"test_list": ["assert ("]}, "test_list"),
        (map_livecodebench, STDIN | {"public_test_cases": "{"}, "public_test_cases"),
    ],
)
def test_a_row_that_is_not_as_expected_is_named(mapper, row, field):
    with pytest.raises(DataError, match=f"row 5.*`{field}`"):
        mapper(row, 5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("row", "wrong"),
    [
        (map_humaneval_plus(HUMANEVAL), HUMANEVAL["prompt"] + "    return x + 2\n"),
        (map_mbpp_plus(MBPP), "def similar(a, b):\n    return a\n"),
    ],
    ids=["humaneval_plus", "mbpp_plus"],
)
def test_solutions_pass_and_wrong_programs_fail_their_programs(row, wrong):
    assert code.check_references([row]) == []
    ((_, check),) = code.check_references([row | {"privileged_context": wrong}])
    assert check.why == "wrong"


def test_the_hub_is_asked_for_a_split(monkeypatch):
    asked = []

    def load_dataset(name, *config, **arguments):
        asked.append((name, *config, arguments))
        return [HUMANEVAL | {"task_id": f"HumanEval/{number}"} for number in (31, 32, 33, 34)]

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    plus = HubBenchmark("evalplus/humanevalplus", map_humaneval_plus)
    rows = hub_benchmark_rows(plus, limit=2, instruction="Go.")
    assert [row["id"] for row in rows] == ["HumanEval/31", "HumanEval/33"]
    assert rows[0]["prompt"][0]["content"].endswith("\n\nGo.")
    assert len(hub_benchmark_rows(plus)) == 3
    assert asked == [(plus.repository, None, {"split": "test", "streaming": limited}) for limited in (True, False)]


def test_the_hub_is_asked_for_a_file(monkeypatch, tmp_path):
    asked = []

    def hf_hub_download(repository, file, *, repo_type):
        asked.append((repository, file, repo_type))
        (tmp_path / file).write_text("".join(json.dumps(row) + "\n" for row in (STDIN, METHOD)))
        return str(tmp_path / file)

    monkeypatch.setitem(sys.modules, "huggingface_hub", SimpleNamespace(hf_hub_download=hf_hub_download))
    benchmark = HubBenchmark("livecodebench/code", map_livecodebench, file="test6.jsonl")
    assert [row["id"] for row in hub_benchmark_rows(benchmark)] == ["lcb/abc301_a", "lcb/2727"]
    assert asked == [("livecodebench/code", "test6.jsonl", "dataset")]


def test_a_hub_that_cannot_be_reached_is_said_to_be(monkeypatch):
    def load_dataset(*names, **arguments):
        raise ConnectionError("no route")

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    with pytest.raises(ConfigError, match=r"MathArena/aime_2025, split train.*no route.*--data"):
        hub_benchmark_rows(HubBenchmark("MathArena/aime_2025", map_matharena, split="train"))
