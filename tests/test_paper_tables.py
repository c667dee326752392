"""The page of the paper's tables: averages belong to their scores, and every run of a line is made and evaluated."""

import re
from itertools import pairwise

import pytest

from mintrl_trl.cli import _parse
from mintrl_trl.evaluate_models import MAX_COMPLETION_LENGTH
from mintrl_trl.evaluation.benchmarks import BENCHMARKS, DOMAIN_AVERAGES
from mintrl_trl.recipe import parse_recipe
from mintrl_trl.serving import Machine, server_commands

from .commands import ROOT, VARIABLE, fenced_commands, joined

PAGE = ROOT / "docs" / "paper_tables.md"
TABLES = dict(re.findall(r"^## (Table \d): .*?\n(.*?)(?=^## |\Z)", PAGE.read_text(), re.DOTALL | re.MULTILINE))
DECIMALS = re.compile(r"\d+\.\d\d")
COMMANDS = fenced_commands(PAGE)


def lines_of(table: str) -> list[list[str]]:
    """Cells of the lines under a table's head."""
    lines = [line for line in TABLES[table].splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def groups(cells: list[str]) -> list[list[float]]:
    """The scores of a line: three benchmarks and their average, by domain."""
    numbers = [float(cell) for cell in cells if DECIMALS.fullmatch(cell)]
    return [numbers[start : start + 4] for start in range(0, len(numbers), 4)]


def runs_of(cells: list[str]) -> list[str]:
    """The runs that a line names, `{math,code}_x` being two."""
    names = [name for cell in cells for name in re.findall(r"`([^`]+)`", cell)]
    return [
        name.replace("{math,code}", domain)
        for name in names
        for domain in (("math", "code") if name.startswith("{math,code}") else ("",))
    ]


RUNS = sorted({run for table in TABLES for cells in lines_of(table) for run in runs_of(cells)})


def made_runs() -> dict[str, str]:
    """Runs that a command makes, with the domain that it trains on."""
    made = {}
    for words in COMMANDS:
        if words[0] == "accelerate":
            script = next(word for word in words if word.startswith("recipes/train_"))
            named = dict(pairwise(words))
            folder = named.get("--output_dir") or f"runs/{named['--config'].split('/')[-1].removesuffix('.yaml')}"
            made[folder.removeprefix("runs/")] = script.removeprefix("recipes/train_").removesuffix(".py")
    return made


@pytest.mark.parametrize(
    ("table", "methods", "scores"), [("Table 1", 15, 8), ("Table 2", 4, 4), ("Table 3", 12, 8), ("Table 4", 7, 8)]
)
def test_every_line_of_the_paper_is_there_with_an_empty_one_of_ours(table, methods, scores):
    paper, ours = lines_of(table)[::2], lines_of(table)[1::2]
    assert len(paper) == len(ours) == methods
    assert all(sum(map(len, groups(cells))) == scores and any("paper" in cell for cell in cells) for cells in paper)
    assert all("ours" in cells and len(cells) == len(paper[0]) for cells in ours)
    assert all(not any(cells[-scores:]) for cells in ours)


@pytest.mark.parametrize("table", TABLES)
def test_averages_are_those_of_their_scores(table):
    """A digit copied wrongly would show; the paper rounds from more digits than it prints."""
    for cells in lines_of(table)[::2]:
        for *scores, average in groups(cells):
            assert sum(scores) / 3 == pytest.approx(average, abs=0.0101), cells


def test_the_sum_of_all_numbers_of_the_paper():
    """As added up from the paper's own text: what cancels out in an average would show here."""
    numbers = [number for table in TABLES for cells in lines_of(table) for group in groups(cells) for number in group]
    assert (len(numbers), round(sum(numbers), 2)) == (288, 14121.71)


@pytest.mark.parametrize("run", RUNS)
def test_a_run_of_a_table_is_made_and_evaluated_on_its_domain(run):
    domain = run.partition("_")[0]
    assert made_runs()[run] == domain
    evaluation = next(words for words in COMMANDS if words[:2] == ["mintrl", "eval"] and f"runs/{run}" in words)
    assert evaluation[evaluation.index("--benchmarks") + 1] == domain


def test_columns_are_the_averaged_benchmarks_in_order():
    head = TABLES["Table 1"].split("\n| ---")[0]
    titles = [BENCHMARKS[name].title for names in DOMAIN_AVERAGES.values() for name in names]
    assert re.findall(r"AIME25|AIME26|HMMT25|LCB|HE\+|MBPP\+", head) == titles


@pytest.mark.parametrize("name", ["docs/evaluation.md", "docs/paper_tables.md"])
def test_an_evaluation_follows_a_server_with_room_for_its_responses(name, monkeypatch):
    monkeypatch.chdir(ROOT)
    served, evaluations = None, 0
    for words in fenced_commands(ROOT / name):
        if words[:3] == ["mintrl", "serve", "policy"]:
            served = _parse(words[1:])
        elif words[:2] == ["mintrl", "eval"] and "--base-url" in words:
            flags = ["--config", str(served.config), *served.settings]
            (command,) = server_commands(parse_recipe(flags, default=served.config), "policy", Machine())
            room = int(command.words[command.words.index("--max-model-len") + 1])
            assert room >= MAX_COMPLETION_LENGTH + 1024, words
            evaluations += 1
    assert evaluations


def test_no_gpu_trains_and_serves():
    """Each line says which GPUs it takes, but for those that take all of them."""
    text = PAGE.read_text()
    for block in re.findall(r"```bash\n(.*?)```", text, re.DOTALL):
        taken = {"serve": set(), "launch": set()}
        for line in joined(block):
            kind = next((kind for kind in taken if f" {kind} " in line), None)
            if kind is not None:
                gpus = re.match(rf"{VARIABLE.pattern}([\d,]+) ", line)
                taken[kind] |= set(gpus[1].split(",")) if gpus else set("01234567")
        assert not taken["serve"] & taken["launch"], block
