"""Benchmarks by name: which file is taken, what its score is worth, what is said where there is none."""

import gzip
import json
import re
from pathlib import Path

import pytest

from mintrl_trl.data.chains import EOS_ID, World
from mintrl_trl.data.sources import load_rows
from mintrl_trl.errors import ConfigError, DataError
from mintrl_trl.evaluation.benchmarks import (
    BENCHMARKS,
    DATA_VARIABLE,
    DOMAIN_AVERAGES,
    load_benchmark,
    load_benchmarks,
    reward_of,
    spelled_out,
)

PROBLEMS = [{"id": f"p{number}", "problem": f"What is {number}+1?", "answer": str(number + 1)} for number in range(30)]
PROGRAM = {
    "prompt": "Add one.",
    "entry_point": "plus_one",
    "compare": "default",
    "tests": [{"type": "call", "group": "plus", "args": "[1]", "expected": "2"}],
}
PUBLIC = PROGRAM | {"tests": [PROGRAM["tests"][0] | {"group": "public"}]}


@pytest.fixture(autouse=True)
def no_data_folder(monkeypatch):
    monkeypatch.delenv(DATA_VARIABLE, raising=False)


def write(path, *rows):
    path.parent.mkdir(exist_ok=True)
    text = "".join(json.dumps(row) + "\n" for row in rows).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


def test_a_name_finds_its_file_in_the_folder_or_in_its_eval(tmp_path):
    write(tmp_path / "aime_2025.jsonl", *PROBLEMS)
    write(tmp_path / "eval" / "hmmt_feb_2025.jsonl.gz", *PROBLEMS)
    aime, hmmt = load_benchmarks(["aime_2025", "hmmt_feb_2025"], data=tmp_path)
    assert (aime.source, hmmt.source) == ("aime_2025.jsonl", "hmmt_feb_2025.jsonl.gz")
    assert (aime.title, aime.domain, aime.notes) == ("AIME25", "math", ())
    assert list(aime.rows) == load_rows(tmp_path / "aime_2025.jsonl", task="math")  # as training reads it


def test_the_environment_names_the_folder_unless_an_argument_does(tmp_path, monkeypatch):
    write(tmp_path / "a" / "aime_2025.jsonl", *PROBLEMS)
    write(tmp_path / "b" / "aime_2025.jsonl", *PROBLEMS[:1])
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path / "a"))
    assert len(load_benchmark("aime_2025").rows) == 30
    assert len(load_benchmark("aime_2025", data=tmp_path / "b").rows) == 1


def test_the_full_tests_win_over_the_few_and_the_few_are_said_to_be(tmp_path):
    write(tmp_path / "humaneval_plus.jsonl", PROGRAM)
    few = load_benchmark("humaneval_plus", data=tmp_path)
    assert few.notes == (
        "a few of the plus tests, so it passes some programs that the full set fails",
        "1 of its 164 problems",
    )
    write(tmp_path / "humaneval_plus_full.jsonl.gz", *({**PROGRAM, "id": f"H/{n}"} for n in range(164)))
    full = load_benchmark("humaneval_plus", data=tmp_path)
    assert (full.source, full.notes) == ("humaneval_plus_full.jsonl.gz", ())


def test_a_benchmark_of_two_files_needs_both(tmp_path):
    write(tmp_path / "livecodebench_v1_stdin.jsonl", PUBLIC | {"id": "a"})
    with pytest.raises(ConfigError, match=r"livecodebench_v1_stdin.jsonl \+ livecodebench_v1_leetcode.jsonl"):
        load_benchmark("livecodebench", data=tmp_path)
    write(tmp_path / "livecodebench_v1_leetcode.jsonl", PUBLIC | {"id": "b"}, PUBLIC | {"id": "c"})
    write(tmp_path / "livecodebench_v1_leetcode.jsonl.gz", PUBLIC | {"id": "d"})  # the plain one wins
    both = load_benchmark("livecodebench", data=tmp_path)
    assert [row["id"] for row in both.rows] == ["a", "b", "c"]
    assert both.notes == ("public tests alone, which wrong programs pass",)
    assert load_benchmark("livecodebench", data=tmp_path, limit=1).notes[0] == "limited to 1 of its problems"
    assert [row["id"] for row in load_benchmark("livecodebench", data=tmp_path, limit=2).rows] == ["a", "b"]


@pytest.mark.parametrize("name", BENCHMARKS)
def test_a_missing_file_is_named_with_where_to_have_it_and_its_licence(name, tmp_path):
    benchmark = BENCHMARKS[name]
    for data, where in ((None, "--data"), (tmp_path, str(tmp_path))):
        with pytest.raises(ConfigError) as raised:
            load_benchmark(name, data=data)
        for said in (benchmark.files[0][0], benchmark.hub.repository, f"hub:{name}", benchmark.licence, where):
            assert said in str(raised.value)


@pytest.mark.parametrize("name", ["aime25", "hub:aime25", "rows.csv", ""])
def test_an_unknown_name_lists_the_known_ones(name):
    with pytest.raises(ConfigError, match=r"aime_2025.*livecodebench.*chains"):
        load_benchmark(name)


def test_a_data_folder_that_is_none_is_refused(tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match="`data`"):
        load_benchmark("aime_2025", data=tmp_path / "none")
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path / "none"))
    with pytest.raises(ConfigError, match=f"`{DATA_VARIABLE}`"):
        load_benchmark("aime_2025")


def test_any_file_of_ours_by_its_path(tmp_path):
    maths = load_benchmark(str(write(tmp_path / "mine.jsonl", *PROBLEMS[:3])), limit=2)
    programs = load_benchmark(str(write(tmp_path / "theirs.jsonl.gz", PROGRAM)))
    assert [(one.name, one.domain, len(one.rows)) for one in (maths, programs)] == [
        ("mine", "math", 2),
        ("theirs", "code", 1),
    ]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"problem": "p", "answer": r"\frac{"}, "equals itself"),
        (PROGRAM | {"compare": "assert", "tests": [{"type": "assert", "code": "pass"}]}, "does nothing"),
    ],
    ids=["answer", "tests"],
)
def test_rows_that_no_response_could_be_judged_by_are_refused(row, said, tmp_path):
    with pytest.raises(DataError, match=said):
        load_benchmark(str(write(tmp_path / "rows.jsonl", row)))


def test_domains_stand_for_their_three_benchmarks(tmp_path):
    for name in DOMAIN_AVERAGES["math"]:
        write(tmp_path / f"{name}.jsonl", *PROBLEMS)
    loaded = load_benchmarks(["math"], data=tmp_path)
    assert [one.title for one in loaded] == ["AIME25", "AIME26", "HMMT25"]
    with pytest.raises(ConfigError, match=r"'aime_2025'.*each name once"):
        load_benchmarks(["math", "aime_2025"], data=tmp_path)
    with pytest.raises(ConfigError, match="at least one"):
        load_benchmarks([])


def test_chains_are_half_easy_half_hard_and_scored_by_their_rule():
    chains = load_benchmark("chains", limit=5)
    assert [chains.subset(row) for row in chains.rows] == ["easy"] * 3 + ["hard"] * 2
    assert len({row["id"] for row in chains.rows}) == 5
    assert len(load_benchmark("chains").rows) == 128
    texts = [row["privileged_context"] for row in chains.rows]
    answers = [row["answer"] for row in chains.rows]
    rewards = chains.reward(prompts=texts, completions=texts, answer=answers, completion_ids=[[EOS_ID]] * 5)
    assert rewards == [1.0] * 5
    assert chains.rows[0]["prompt"] == World.load().evaluation_rows(3, 2)[0]["prompt"]


def test_limits_and_domains_out_of_range_are_refused():
    with pytest.raises(ConfigError, match="`limit`"):
        load_benchmark("chains", limit=0)
    with pytest.raises(ConfigError, match="`domain`"):
        reward_of("maths")


def test_the_page_has_every_benchmark_with_its_files_and_its_place_on_the_hub():
    page = (Path(__file__).parents[1] / "docs" / "evaluation.md").read_text()
    lines = dict(re.findall(r"^\| `(\w+)` (\|.*)$", page, re.MULTILINE))
    assert set(lines) == {*BENCHMARKS, "chains"}
    for name, benchmark in BENCHMARKS.items():
        said = [f"`{file}`" for files in benchmark.files for file in files]
        positions = [lines[name].index(text) for text in (*said, benchmark.hub.repository)]
        assert positions == sorted(positions)
        assert benchmark.problems is None or f"| {benchmark.problems:,} |" in lines[name]


def test_a_domain_is_its_three_benchmarks_from_the_hub_too():
    math, code = (list(DOMAIN_AVERAGES[domain]) for domain in ("math", "code"))
    assert spelled_out(["hub:code", "gsm8k", "math"]) == [*(f"hub:{name}" for name in code), "gsm8k", *math]
    with pytest.raises(ConfigError, match="math, code, aime_2025"):
        load_benchmark("maths")
