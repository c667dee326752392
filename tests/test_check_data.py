"""Checks of a data set: what each finds, what it lets pass, and what the report says about both."""

import io
import json
import random
import time

import pytest
from rich.console import Console

from mintrl_trl.errors import ConfigError
from mintrl_trl.evaluation.check_data import Check, check_data
from mintrl_trl.evaluation.overlap import GRAM_WORDS, MAX_HOLDERS, Overlap, same_texts, text_key
from mintrl_trl.evaluation.prompt_lengths import percentiles, prompt_lengths
from mintrl_trl.reporting.data_report import print_report
from tests.tiny import tiny_tokenizer

WORDS = [f"word{number}" for number in range(40)]
PHRASE = [f"phrase{number}" for number in range(18)]


def write(path, *rows):
    path.write_text("".join(row if isinstance(row, str) else json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def problem(text, answer="1", **more):
    return {"problem": text, "answer": answer} | more


def program(text, solution, **more):
    tests = [{"type": "call", "args": "[2]", "expected": "4"}]
    row = {"prompt": text, "entry_point": "f", "compare": "default", "tests": tests, "reference_solution": solution}
    return row | more


def found(report, check):
    return [(finding.where.rpartition(":")[2], finding.id) for finding in report.findings[check]]


# The same text


@pytest.mark.parametrize(
    "other",
    ["what is $x+1$?", "What  is\n$x + 1$ ?", "WHAT IS x+1", "What is \uff58+1?"],
    ids=["case", "blanks", "no dollars, no mark", "full width"],
)
def test_same_text(other):
    assert text_key("What is $x+1$?") == text_key(other)


@pytest.mark.parametrize("other", ["What is $x-1$?", "What is $x+11$?", "What is x 1?", "What is -x+1?"])
def test_another_text(other):
    assert text_key("What is $x+1$?") != text_key(other)


def test_each_text_is_paired_with_the_first_like_it():
    assert same_texts(["a b", "c", "A  b.", "c?", "a b!", "d"]) == [(2, 0), (3, 1), (4, 0)]
    assert same_texts([]) == []


# Passages in common


def test_share_is_of_the_shorter_text():
    # 40 words have 28 passages of 13; their first 27 words have 15, of which all stand in the 40.
    match = Overlap([" ".join(WORDS)]).find(" ".join(WORDS[:27]))
    assert (match.other, match.share, match.same) == (0, 1.0, False)
    assert match.passage == " ".join(WORDS[:GRAM_WORDS])
    # 20 words of its own before them: 35 passages, 15 shared, and 28 is the lesser number.
    mixed = " ".join([*(f"own{number}" for number in range(20)), *WORDS[:27]])
    assert Overlap([" ".join(WORDS)]).find(mixed).share == pytest.approx(15 / 28)


def test_neither_signs_nor_case_hide_a_passage():
    disguised = "; ".join(WORDS[:39]).upper() + "!"
    assert Overlap([" ".join(WORDS)]).find(disguised).share == 1.0


def test_a_number_changed_in_the_middle_is_still_a_copy():
    changed = [*WORDS[:30], "7", *WORDS[31:]]
    # Passages that hold word 30 are lost: those that begin at 18 to 27, 10 of 28.
    assert Overlap([" ".join(WORDS)]).find(" ".join(changed)).share == pytest.approx(18 / 28)


def test_a_phrase_in_common_is_no_copy():
    mine, theirs = (" ".join([*(f"{name}{number}" for number in range(40)), *PHRASE]) for name in "ab")
    assert Overlap([theirs]).find(mine) is None
    # 58 words: 46 passages, of which the phrase of 18 words makes 6.
    assert Overlap([theirs], least_share=0.1).find(mine).share == pytest.approx(6 / 46)


def test_twelve_words_are_no_passage():
    text = " ".join(WORDS[: GRAM_WORDS - 1])
    assert Overlap([text + " more"]).find(text) is None
    assert Overlap([text]).find(text).same


def test_of_several_the_one_that_shares_most_and_of_equals_the_first_is_named():
    texts = [" ".join(WORDS[:20]), " ".join(WORDS[5:35]), " ".join(WORDS[:20]) + " end"]
    assert Overlap(texts).find(" ".join(WORDS[4:34])).other == 1
    assert Overlap(texts).find(" ".join(WORDS[:19])).other == 0


def test_a_passage_that_stands_everywhere_costs_no_time():
    others = [" ".join([*WORDS, f"own{number}"]) for number in range(MAX_HOLDERS + 1)]
    assert Overlap(others).find(" ".join(WORDS)) is None
    assert Overlap(others[:-1]).find(" ".join(WORDS)).share == 1.0


def test_texts_without_words():
    overlap = Overlap(["", "?!"])
    assert overlap.find("") == overlap.find("...")
    assert overlap.find("a") is None
    assert Overlap([]).find("a") is None


def test_ten_thousand_rows_take_a_few_seconds():
    rng = random.Random(0)
    texts = [" ".join(rng.choices(WORDS, k=100)) for _ in range(2500)]
    begun = time.process_time()
    overlap = Overlap(texts[:500])
    matches = [overlap.find(text) for text in texts]
    assert time.process_time() - begun < 1.5  # a quarter of the rows; 0.4 s on one core
    assert [match is not None for match in matches] == [True] * 500 + [False] * 2000


# Lengths of prompts


def test_percentiles():
    assert percentiles([5]) == (5, 5, 5, 5, 5)
    assert percentiles([30, 10, 20]) == (10, 20, 30, 30, 30)
    assert percentiles(list(range(200, 0, -1))) == (1, 100, 180, 198, 200)


def test_lengths_without_a_tokenizer():
    prompts = ["one two", [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "six times 7"}]]
    assert prompt_lengths(prompts, None) == {"words": [2, 5], "characters": [7, 22]}


def test_lengths_in_tokens_are_those_of_the_trainer():
    tokenizer = tiny_tokenizer()  # one token per character, <bos> before texts
    messages = [{"role": "user", "content": "1+1"}]
    assert prompt_lengths([messages, "1+1", messages], tokenizer) == {"tokens": [8, 4, 8]}  # u:1+1\na:
    tokenizer.chat_template = None
    assert prompt_lengths([messages, "1+1"], tokenizer) == {"tokens": [4, 4]}
    assert prompt_lengths([], tokenizer) == {"tokens": []}


def test_a_chat_template_that_refuses_the_prompts():
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = "{{ raise_exception('no such role') }}"
    with pytest.raises(ConfigError, match="no such role"):
        prompt_lengths([[{"role": "tool", "content": "1"}]], tokenizer)


# Data sets


def test_a_clean_file(tmp_path):
    report = check_data(write(tmp_path / "rows.jsonl", problem("What is 1+1?", "2"), problem("What is 2+2?", "4")))
    assert report.clean
    assert (report.task, report.rows, report.notes, report.against) == ("math", 2, (), ())
    assert report.findings == {
        check: () for check in (Check.UNREADABLE, Check.REPEATED_ID, Check.GOLDS, Check.DUPLICATES)
    }
    assert [length.unit for length in report.lengths] == ["words", "characters"]


def test_every_bad_row_is_found_not_only_the_first(tmp_path):
    path = write(
        tmp_path / "rows.jsonl",
        problem("What is 1+1?", "2", id="a"),
        "not json\n",
        "\n",
        problem("What is 2+2?", "4", id="a"),
        problem("No answer", None),
        '{"problem": "half a character \\ud83d", "answer": "1"}\n',
        "[" * 100_000 + "\n",
        '{"problem": "p", "answer": ' + "1" * 5000 + "}\n",
        problem("What is one third?", "\\frac{1", id="b"),
        problem("what is 1 + 1", "3", id="c"),
        '{"problem": "What is 3+3?", "answer": "6", "answer": "7"}\n',
    )
    report = check_data(path)
    assert not report.clean
    assert report.rows == 10
    assert found(report, Check.UNREADABLE) == [(line, "") for line in ("2", "5", "6", "7", "8", "11")]
    assert "the key 'answer' stands in an object twice" in report.findings[Check.UNREADABLE][-1].detail
    assert "`answer` is None" in report.findings[Check.UNREADABLE][1].detail
    assert found(report, Check.REPEATED_ID) == [("4", "a")]
    assert f"{path}:1 has it" in report.findings[Check.REPEATED_ID][0].detail
    assert found(report, Check.GOLDS) == [("9", "b")]
    (duplicate,) = report.findings[Check.DUPLICATES]
    assert (duplicate.id, duplicate.other) == ("c", f"{path}:1")
    assert duplicate.detail == "the text of a, but with the answer '3' instead of '2'"


def test_overlap_with_several_files(tmp_path):
    long = " ".join(WORDS)
    first = write(tmp_path / "first.jsonl", problem("What is 1+1?", id="e1"), "broken\n")
    second = write(tmp_path / "second.jsonl", problem(long, id="e1"), problem("unrelated", id="e2"))
    rows = [problem(long + " 5", id="near"), problem("what is 1 + 1?", id="same"), problem("new", id="new")]
    report = check_data(write(tmp_path / "rows.jsonl", *rows), against=[first, second], skip=[Check.GOLDS])
    near, same = report.findings[Check.OVERLAP]
    assert (near.id, near.other, same.id, same.other) == ("near", f"{second}:1", "same", f"{first}:1")
    assert near.detail == f'100% of the passages of e1, such as "{" ".join(WORDS[:GRAM_WORDS])}"'
    assert same.detail == "the text of e1"
    assert report.notes[0].startswith(f"1 rows of {first} cannot be read and were not compared")
    assert Check.GOLDS not in report.findings


def test_reference_solutions_are_put_to_their_tests(tmp_path):
    path = write(
        tmp_path / "rows.jsonl",
        program("Square a number.", "def f(x):\n    return x * x", id="good"),
        program("Square it.", "def f(x):\n    return x * 3", id="wrong"),
        program("Square this.", None, id="none"),
        program("Square that.", "def g(x):\n    return 4", id="name"),
    )
    seen = []
    report = check_data(path, on_progress=lambda *call: seen.append(call))
    assert report.task == "code"
    assert found(report, Check.REFERENCES) == [("2", "wrong"), ("4", "name")]
    assert "does not pass: wrong" in report.findings[Check.REFERENCES][0].detail
    assert report.notes == ("1 of 4 rows have no reference solution.",)
    assert seen[:2] == [(Check.EMPTY_TESTS, 0, 4), (Check.EMPTY_TESTS, 4, 4)]
    assert seen[2:] == [(Check.REFERENCES, 0, 3), (Check.REFERENCES, 3, 3)]
    assert Check.REFERENCES not in check_data(path, skip=[Check.REFERENCES]).findings


def test_tests_that_ask_nothing(tmp_path):
    def asserting(text, code, **more):
        return program(text, None, compare="assert", tests=[{"type": "assert", "code": code}], **more)

    path = write(
        tmp_path / "rows.jsonl",
        asserting("Square a number.", "assert f(2) == 4", id="good"),
        asserting("Square it.", "f(2) == 4", id="thrown away"),
        asserting("Square this.", "try:\n    assert f(2) == 4\nexcept AssertionError:\n    pass", id="swallowed"),
        program(
            "Square that.",
            "def f(x):\n    pass",
            id="nothing",
            tests=[dict(program("", "")["tests"][0], expected="None")],
        ),
        asserting("Square all.", "assert f(2) =", id="no code"),
    )
    report = check_data(path)
    assert found(report, Check.EMPTY_TESTS) == [("2", "thrown away"), ("3", "swallowed"), ("4", "nothing")]
    detail = report.findings[Check.EMPTY_TESTS][0].detail
    assert detail == "a program that does nothing passes its tests; the first of them is 'f(2) == 4'"
    assert found(report, Check.REFERENCES) == []
    assert found(report, Check.UNREADABLE) == [("5, test 0", "")]
    assert "Python code that compiles" in report.findings[Check.UNREADABLE][0].detail
    assert Check.EMPTY_TESTS not in check_data(path, skip=[Check.EMPTY_TESTS, Check.REFERENCES]).findings


def test_prompts_over_the_limit(tmp_path):
    path = write(tmp_path / "rows.jsonl", {"prompt": "1+1=", "answer": "2"}, {"prompt": "1+1+1+1+1=", "answer": "5"})
    tokenizer = tiny_tokenizer()
    report = check_data(path, tokenizer=tokenizer, max_prompt_tokens=10)
    assert found(report, Check.LONG_PROMPTS) == [("2", "rows/2")]
    assert report.findings[Check.LONG_PROMPTS][0].detail == "11 tokens, 10 allowed"
    assert check_data(path, tokenizer=tokenizer, max_prompt_tokens=11).clean


def test_the_task_is_that_of_the_first_rows_that_can_be_read(tmp_path):
    path = write(tmp_path / "rows.jsonl", "broken\n", program("Square a number.", None))
    assert check_data(path).task == "code"
    assert len(check_data(path, task="math").findings[Check.UNREADABLE]) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"task": "chains"}, "`task` is 'chains'"),
        ({"least_share": 0}, "`least_share` is 0"),
        ({"least_share": float("nan")}, "`least_share` is nan"),
        ({"max_prompt_tokens": 5}, "together with a tokenizer"),
        ({"limit": 0}, "`limit` is 0"),
        ({"against": ["none.jsonl"]}, "`against` is 'none.jsonl'"),
        ({"against": ["rows.jsonl"]}, "a file other than the one that is checked"),
        ({"against": ["broken.jsonl"]}, "at least one usable row"),
    ],
)
def test_arguments_that_cannot_work(tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "rows.jsonl", problem("What is 1+1?", "2"))
    write(tmp_path / "broken.jsonl", "broken\n")
    with pytest.raises(ConfigError) as caught:
        check_data("rows.jsonl", **arguments)
    assert message in str(caught.value)


@pytest.mark.parametrize("source", ["", "none.jsonl", ".", "a\0b", "x" * 5000, "chains", "empty.jsonl", "no.jsonl.gz"])
def test_sources_that_are_none(tmp_path, monkeypatch, source):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "empty.jsonl", "\n\n")
    write(tmp_path / "no.jsonl.gz", problem("What is 1+1?", "2"))
    with pytest.raises(ConfigError, match=r"^`source` is "):
        check_data(source)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be"])
def test_files_in_another_encoding(tmp_path, encoding):
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(problem("What is 1+1?", "2")) + "\n", encoding=encoding)
    with pytest.raises(ConfigError, match=rf"text in UTF-8, not {encoding[:6].upper()}.*iconv -f UTF-"):
        check_data(path)
    path.write_text(json.dumps(problem("What is 1+1?", "2")) + "\n", encoding="utf-8-sig")
    assert check_data(path).clean


# The report


def printed(report, examples=5):
    console = Console(record=True, width=100, file=io.StringIO())
    print_report(report, console, examples)
    return console.export_text()


def test_the_report_lists_so_many_rows_of_each_check_and_counts_all(tmp_path):
    path = write(tmp_path / "rows.jsonl", *[problem(f"[red]{n}[/red]", r"\frac{1", id=f"[b]{n}\x1b") for n in range(7)])
    text = printed(check_data(path), examples=3)
    assert text.count("does not equal itself (unclosed)") == 3
    assert f"{path}:1 [b]0\\x1b: the answer" in text
    assert "and 4 more" in text
    assert "7 findings." in text
    assert "\x1b" not in text


def test_the_report_as_json(tmp_path):
    path = write(tmp_path / "rows.jsonl", problem("What is 1/3?", r"\frac{1", id="ü"))
    values = json.loads(check_data(path).as_json())
    assert values["clean"] is False
    assert [finding["id"] for finding in values["findings"]["golds"]] == ["ü"]
    assert values["findings"]["duplicates"] == []
    assert set(values["lengths"]["words"]) == {"p0", "p50", "p90", "p99", "p100"}
