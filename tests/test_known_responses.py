"""Known responses: right ones of every domain score 100, empty ones 0, by the way that sampled responses take."""

import io
import json

import pytest
from rich.console import Console

from mintrl_trl import cli
from mintrl_trl.data.chains import EOS_ID
from mintrl_trl.evaluation.benchmarks import LoadedBenchmark, load_benchmark
from mintrl_trl.evaluation.known_responses import ScoringCheck, check_scoring, right_response
from mintrl_trl.evaluation.samples import Score
from mintrl_trl.reporting.scoring_report import print_scoring

MATHS = [{"id": "a", "problem": "p", "answer": r"\frac{1}{2}"}, {"id": "b", "problem": "q", "answer": "3, 4"}]


def program(name, prompt, solution, tests, **more):
    row = {"id": name, "prompt": prompt, "entry_point": "f", "compare": "default", "reference_solution": solution}
    return row | {"tests": [{"type": "call", "args": args, "expected": value} for args, value in tests]} | more


HEAD = 'def f(x: int) -> int:\n    """ Add one. """\n'
SHARED = '"""\nShared.\nassert f((1, 2), (2,)) == (2,)\n"""'
SOLUTION = "def f(a, b):\n    return tuple(set(a) & set(b))"
PROGRAMS = [
    program("HumanEval/0", HEAD, "    return x + 1\n", [("[1]", "2"), ("[-1]", "0")]),
    program("Mbpp/2", SHARED, SOLUTION, [("[(3, 4), (4,)]", "(4,)")], compare="set_equal"),
    program("none", HEAD, None, [("[1]", "2")]),
]
BROKEN = program("broken", HEAD, "    return x\n", [("[1]", "2")])


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_right_responses_by_domain():
    chains = load_benchmark("chains", limit=1).rows[0]
    text, ids = right_response("chains", chains)
    assert text == chains["privileged_context"] and ids[-1] == EOS_ID
    assert right_response("math", {"answer": "7"}) == (r"\boxed{7}", ())
    assert right_response("code", {"privileged_context": "x = 1"}) == ("```python\nx = 1\n```", ())
    assert right_response("code", {"privileged_context": None}) is None


@pytest.mark.parametrize("kind", ["math", "chains"])
def test_right_ones_score_all_and_empty_ones_nothing(kind, tmp_path):
    name = "chains" if kind == "chains" else write(tmp_path / "rows.jsonl", MATHS)
    told = []
    check = check_scoring(load_benchmark(name, limit=2), lambda done, total: told.append((done, total)))
    assert (check.problems, check.right, check.right_solved, check.empty_solved) == (2, 2, 2, 0)
    assert check.passed and check.wrong_scores == ()
    assert (told[0], told[-1]) == ((0, 4), (4, 4))


def test_what_is_scored_wrong_is_found_and_named():
    def always(completions, **columns):
        return [1.0] * len(completions)

    class Generous(LoadedBenchmark):
        reward = staticmethod(always)

    rows = ({"id": "a", "prompt": "p", "answer": "1"}, {"id": "b", "prompt": "p", "answer": "2"})
    benchmark = Generous("kind", "kind", "math", rows, "nowhere", ("a part of it",))
    check = check_scoring(benchmark)
    assert (check.right_solved, check.empty_solved, check.passed) == (2, 2, False)
    assert [(score.problem, score.sample) for score in check.wrong_scores] == [("a", 1), ("b", 1)]

    console = Console(file=io.StringIO(), width=120)
    print_scoring([benchmark], [check], console, examples=1)
    shown = console.file.getvalue()
    for text in ("2 of 2, 100.0%", "kind a, empty response: reward 1.0", "and 1 more of kind", "a part of it"):
        assert text in shown
    assert "Scored wrong: kind." in shown


def test_a_benchmark_without_references_is_said_to_have_none():
    benchmark = LoadedBenchmark("lcb", "LCB", "code", (), "[red]file\x1b", ())
    console = Console(file=io.StringIO(), width=120)
    print_scoring([benchmark], [ScoringCheck("lcb", 3, 0, 0, 0, ())], console, examples=5)
    shown = console.file.getvalue()
    assert "there are none" in shown and "[red]file\\x1b" in shown
    assert "Scored right. Without a right response to try:" in shown
    print_scoring([benchmark], [ScoringCheck("lcb", 3, 1, 0, 0, (Score("x", 0, None, "error"),))], console, examples=5)
    assert "lcb x, right response: reward None, error" in console.file.getvalue()


def test_the_command_checks_and_says_so_in_its_exit_code(tmp_path, capsys):
    assert cli.main(["check-benchmarks", write(tmp_path / "rows.jsonl", MATHS), "chains", "--limit", "2"]) == 0
    shown = capsys.readouterr().out
    assert shown.count("2 of 2, 100.0%") == 2 and "Scored right." in shown
    assert cli.main(["check-benchmarks", "aime_2025"]) == 2
    assert "`BENCHMARK` is 'aime_2025'" in capsys.readouterr().err


@pytest.mark.slow
def test_programs_pass_and_empty_responses_do_not(tmp_path, capsys):
    path = write(tmp_path / "programs.jsonl", PROGRAMS)
    check = check_scoring(load_benchmark(path))
    assert (check.problems, check.right, check.right_solved, check.empty_solved, check.passed) == (3, 2, 2, 0, True)
    assert cli.main(["check-benchmarks", write(tmp_path / "broken.jsonl", [*PROGRAMS, BROKEN])]) == 1
    shown = capsys.readouterr().out
    assert "broken broken, right response: reward 0.0, wrong" in shown and "2 of 3" in shown
