"""A recipe written from a run folder's files makes the run's settings again."""

from pathlib import Path

import pytest
import yaml

from mintrl_trl.recipe import parse_recipe
from mintrl_trl.reporting.run_folder import HIDDEN, jsonable
from mintrl_trl.sharing.recipe_file import _LEFT_OUT, recipe_yaml

ROOT = Path(__file__).parents[1]
OF_EACH_KIND = ("quickstart", "math_qwen3_1.7b", "mbpp_smollm2", "chains_self_judge", "chains_mentor")
RECIPES = [
    pytest.param(path, marks=() if path.stem in OF_EACH_KIND else pytest.mark.slow, id=path.stem)
    for path in sorted((ROOT / "recipes").glob("*.yaml"))
]


def kept(config) -> dict:
    return {name: value for name, value in jsonable(config).items() if not _LEFT_OUT.fullmatch(name)}


def written(recipe) -> str:
    return recipe_yaml(jsonable(recipe.config), jsonable(recipe.description()))


@pytest.mark.parametrize("path", RECIPES)
def test_every_recipe_comes_back(path, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    task = "code" if path.stem.startswith(("code", "mbpp")) else "math"
    first = parse_recipe(["--config", str(path)], default=path, task=task)
    again = tmp_path / "recipe.yaml"
    again.write_text(written(first))
    second = parse_recipe(["--config", str(again)], default=again)
    assert kept(second.config) == kept(first.config)
    assert second.description() == first.description()
    assert set(yaml.safe_load(again.read_text())) <= set(jsonable(first.config)) | set(first.description())


def test_a_recipe_is_short_and_has_what_was_chosen(monkeypatch):
    monkeypatch.chdir(ROOT)
    flags = ["--kappa", "-0.35", "--max_steps", "7", "--intervention_updates", "5", "--enable_thinking", "true"]
    quickstart = ROOT / "recipes" / "quickstart.yaml"
    values = yaml.safe_load(written(parse_recipe(["--config", str(quickstart), *flags], default=quickstart)))
    assert values["kappa"] == -0.35
    assert (values["max_steps"], values["intervention_updates"], values["enable_thinking"]) == (7, 5, True)
    assert "chat_template_kwargs" not in values
    assert len(values) < 25


def test_secrets_and_places_are_left_out():
    text = recipe_yaml({"hub_token": HIDDEN, "output_dir": "/home/me", "beta1": HIDDEN, "kappa": -0.5}, {})
    assert text == "kappa: -0.5\n"
