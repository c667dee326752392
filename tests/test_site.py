"""Notebooks without outputs and pages that are whole: what can be told without building the site or running a cell."""

import json
import re
import sys
from dataclasses import fields
from inspect import get_annotations
from pathlib import Path

import pytest
import yaml

from mintrl_trl import MInTRLConfig
from mintrl_trl.recipe import RecipeArguments

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
SITE = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
# Those of the hook in scripts/site_pages.py
MADE_PAGES = {"index.md", "commands.md", "settings.md", "architecture.md", "changelog.md", "contributing.md"}
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
LINK = re.compile(r"\]\(([^)\s#:]+)(?:#[^)\s]*)?\)")
FENCED = re.compile(r"^(`{3,}).*?^\1", re.DOTALL | re.MULTILINE)


def cells(path: Path) -> list[dict]:
    return json.loads(path.read_text(encoding="utf-8"))["cells"]


def entries(nav: list) -> list[str]:
    """The pages of a navigation, from all its levels."""
    found = []
    for item in nav:
        value = next(iter(item.values())) if isinstance(item, dict) else item
        found += [value] if isinstance(value, str) else entries(value)
    return found


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_has_no_outputs(path):
    for cell in cells(path):
        if cell["cell_type"] == "code":
            assert (cell["outputs"], cell["execution_count"]) == ([], None)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_rendered_copy_is_of_this_notebook(path):
    page = (ROOT / "docs" / "notebooks" / f"{path.stem}.md").read_text(encoding="utf-8")
    for cell in cells(path):
        if cell["cell_type"] == "code":
            assert "".join(cell["source"]) in page, "run `make notebooks ARGS=--render`"


def test_there_are_four_notebooks():
    assert len(NOTEBOOKS) == 4


def test_every_page_is_in_the_navigation_once():
    listed = entries(SITE["nav"])
    assert len(set(listed)) == len(listed)
    assert set(listed) - MADE_PAGES == {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    text = FENCED.sub("", page.read_text(encoding="utf-8"))
    lost = [link for link in LINK.findall(text) if not (page.parent / link).exists()]
    assert lost == [], "a page that only the site has: link to what it is made of, see MADE in scripts/site_pages.py"


def test_the_page_of_settings_has_every_setting(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "scripts")
    from site_settings import settings_page

    page = settings_page()
    sys.modules.pop("site_settings")
    own = {name for config in (MInTRLConfig, RecipeArguments) for base in config.__mro__ for name in _own_fields(base)}
    named = set(re.findall(r"^\| `(\w+)` ", page, re.MULTILINE))
    assert own - named == set()
    assert {"chunk_tokens", "judge_keep_bias", "eval_problems", "teacher_model", "phase1_loss"} <= named


def test_the_page_of_commands_has_every_command(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "scripts")
    monkeypatch.setenv("COLUMNS", "80")  # put back afterwards, and so is NO_COLOR
    monkeypatch.setenv("NO_COLOR", "1")
    from site_commands import commands_page

    page = commands_page()
    sys.modules.pop("site_commands")
    named = re.findall(r"^## mintrl (\S+)$", page, re.MULTILINE)
    modules = {path.stem.replace("_", "-") for path in (ROOT / "mintrl_trl" / "commands").glob("[a-z]*.py")}
    assert set(named) == modules
    assert all(f"(#mintrl-{name})" in page and f"usage: mintrl {name} " in page for name in named)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_links_of_notebooks_lead_somewhere(path):
    text = "".join("".join(cell["source"]) + "\n" for cell in cells(path) if cell["cell_type"] == "markdown")
    assert [link for link in LINK.findall(FENCED.sub("", text)) if not (path.parent / link).exists()] == []


def _own_fields(config: type) -> set[str]:
    """The fields that one of our classes adds, or gives another default and help text."""
    if not config.__module__.startswith("mintrl_trl"):
        return set()
    return {f.name for f in fields(config) if f.name in get_annotations(config)}
