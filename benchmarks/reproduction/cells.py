"""What one run of the reproduction is: a recipe, what differs from it, and a seed.

It owns the frozen descriptions and the key that names a run by its settings, the world and its base model. It starts
nothing. Invariant: two runs with the same settings have the same key, whatever experiments they belong to, so that none
is made twice.
"""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml

RECIPES = Path(__file__).parents[2] / "recipes"
WORLD = RECIPES.parent / "mintrl_trl" / "data" / "chains_base"  # the small world's table and its base model
Settings = tuple[tuple[str, Any], ...]  # names and values, as flags on the command line

# What no result depends on, so that it is no part of a run's key.
_NO_RESULT = ("set_aside_older_run", "save_strategy", "use_cpu", "local_max_batch")


def settings(**values: Any) -> Settings:
    """Settings by name, in the order they are written."""
    return tuple(values.items())


@dataclass(frozen=True)
class Cell:
    """One training run.

    Args:
        recipe (`str`): Name of a recipe, without folder and ending.
        overrides (`tuple`): Pairs of a setting's name and its value, which replace the recipe's.
        seed (`int`): Seed of the run.
        label (`str`): What the run's folder is called; no part of its key.
    """

    recipe: str
    overrides: Settings
    seed: int
    label: str

    @property
    def known(self) -> bool:
        """Whether the recipe exists."""
        return _recipe_path(self.recipe).is_file()

    @property
    def key(self) -> str:
        """16 hexadecimal digits: a hash of all settings a result may depend on, defaults apart, and of the world."""
        decisive = {name: value for name, value in self.resolved().items() if name not in _NO_RESULT}
        decisive["world and base model"] = digest(WORLD)
        return hashlib.blake2b(json.dumps(decisive, sort_keys=True).encode(), digest_size=8).hexdigest()

    def resolved(self) -> dict[str, Any]:
        """The recipe's values with the overrides and the seed in their place."""
        return _recipe(self.recipe) | dict(self.overrides) | {"seed": self.seed}

    @property
    def models(self) -> set[str]:
        """Folders of models that the run needs, made beforehand."""
        named = {self.resolved().get(name) for name in ("teacher_model", "judge_model", "model_name_or_path")}
        return {model for model in named if model is not None}

    @property
    def updates(self) -> int:
        """Optimizer steps of the run."""
        return int(self.resolved()["max_steps"])

    @property
    def folder_name(self) -> str:
        """Name of the run folder: readable, and no other run's."""
        words = "".join(letter if letter.isalnum() else "-" for letter in self.label.lower())
        return f"{'-'.join(filter(None, words.split('-')))}-seed{self.seed}-{self.key[:6]}"

    def command(self, output: Path) -> list[str]:
        """Arguments of the training program, without the interpreter."""
        flags = [f"--{name}={value}" for name, value in (*self.overrides, ("seed", self.seed), ("output_dir", output))]
        program = "train_code.py" if self.resolved().get("task") == "code" else "train_math.py"
        return [str(RECIPES / program), f"--config={_recipe_path(self.recipe)}", *flags]


@dataclass(frozen=True)
class Arm:
    """A row of an experiment's table: a way of training, on several seeds.

    Args:
        name (`str`): What the table calls it.
        recipe (`str`): Name of a recipe.
        overrides (`tuple`): What differs from the recipe.
        at (`int`, *optional*): Updates after which it is read off; by default after the last.
    """

    name: str
    recipe: str
    overrides: Settings = ()
    at: int | None = None

    def cell(self, seed: int) -> Cell:
        """The run on one seed."""
        return Cell(self.recipe, self.overrides, seed, self.name)


@dataclass(frozen=True)
class Experiment:
    """A table of the results page.

    Args:
        name (`str`): A word, for `--only` and for links.
        title (`str`): Heading.
        about (`str`): What is asked, in a sentence or two.
        arms (`tuple[Arm, ...]`): Rows.
        seeds (`tuple[int, ...]`): Of every arm.
        quick (`bool`, *optional*, defaults to `False`): Whether it belongs to the quick set.
    """

    name: str
    title: str
    about: str
    arms: tuple[Arm, ...]
    seeds: tuple[int, ...]
    quick: bool = False

    def cells(self) -> list[Cell]:
        """Every run, seed by seed."""
        return [arm.cell(seed) for seed in self.seeds for arm in self.arms]

    def only(self, pattern: str) -> "Experiment":
        """The arms that hold a pattern in their name, case apart."""
        return replace(self, arms=tuple(arm for arm in self.arms if pattern.lower() in arm.name.lower()))


@cache
def digest(folder: Path) -> str:
    """16 hexadecimal digits: a hash of a model's files. One that is made anew has to be asked for in a new process."""
    found = hashlib.blake2b(digest_size=8)
    for path in sorted(folder.iterdir()):
        if path.suffix in (".json", ".safetensors"):
            found.update(path.name.encode() + path.read_bytes())
    return found.hexdigest()


def distinct(cells: Iterable[Cell]) -> list[Cell]:
    """Cells by key, the first of each; order is kept."""
    return list({cell.key: cell for cell in cells}.values())


def _recipe_path(name: str) -> Path:
    return RECIPES / f"{name}.yaml"


@cache
def _recipe(name: str) -> dict[str, Any]:
    return yaml.safe_load(_recipe_path(name).read_text(encoding="utf-8"))
