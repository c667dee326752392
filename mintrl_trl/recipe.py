"""Reads a recipe: YAML, then flags, which win; unknown keys are refused with the nearest name.

It owns the settings that belong to a recipe and not to the trainer (task, data, evaluation), and turns a command line
into three dataclasses. It builds nothing and loads no model. YAML is hostile input: only plain values are read, and
only known keys are taken.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import yaml
from trl import ModelConfig, TrlParser

from .config import MInTRLConfig, check_keys
from .errors import ConfigError

TASKS = ("math", "code", "chains")


@dataclass
class RecipeArguments:
    """What a recipe adds to the trainer's settings."""

    task: str = field(
        default="math",
        metadata={"help": "What to train on: `math` problems, `code` problems, or `chains`, the small world."},
    )
    dataset: str | None = field(
        default=None,
        metadata={"help": "Training rows: a JSONL file or a hub id. Not for `chains`, which draws fresh problems."},
    )
    dataset_split: str = field(default="train", metadata={"help": "Split of a hub data set."})
    dataset_limit: int | None = field(default=None, metadata={"help": "Use only this many rows (at least 1)."})
    judge_error_rate: float = field(
        default=0.0,
        metadata={"help": "`chains` with the exact judge: chance in [0, 1] that a review goes wrong."},
    )
    eval_problems: int = field(
        default=0,
        metadata={"help": "`chains`: problems of the fixed evaluation, half easy, half hard. 0 = no evaluation."},
    )
    eval_samples: int = field(default=16, metadata={"help": "Samples per evaluation problem (k of Pass@k)."})
    eval_every: int = field(
        default=0, metadata={"help": "Evaluate every this many updates; 0 = before and after training only."}
    )

    def __post_init__(self):
        if self.task not in TASKS:
            raise ConfigError("task", self.task, f"one of {', '.join(TASKS)}", "pick one of them")
        if self.task == "chains" and self.dataset is not None:
            raise ConfigError("dataset", self.dataset, "nothing for `task: chains`", "remove `dataset`")
        if self.task != "chains" and not self.dataset:
            fix = "set `dataset: recipes/data/gsm8k_train_200.jsonl`, or your own rows"
            raise ConfigError("dataset", self.dataset, "a JSONL file or a hub id", fix)
        if self.task != "chains" and self.eval_problems:
            raise ConfigError("eval_problems", self.eval_problems, f"0 for `task: {self.task}`", "remove it")
        for name, least in (("dataset_limit", 1), ("eval_problems", 0), ("eval_samples", 1), ("eval_every", 0)):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
                raise ConfigError(name, value, f"a whole number of at least {least}", f"set `{name}: {least}` or more")
        if not isinstance(self.judge_error_rate, float | int) or not 0 <= self.judge_error_rate <= 1:
            raise ConfigError("judge_error_rate", self.judge_error_rate, "a number from 0 to 1", "use 0.0")


@dataclass
class PolicyArguments(ModelConfig):
    """TRL's model settings; adapter dropout is off, as rollouts need it."""

    lora_dropout: float = field(default=0.0, metadata={"help": "Must be 0: rollouts are sampled without dropout."})


class Recipe(NamedTuple):
    """A recipe, read and checked."""

    arguments: RecipeArguments
    config: MInTRLConfig
    policy: PolicyArguments


def parse_recipe(argv: Sequence[str] | None = None, *, default: Path, **fixed: str) -> Recipe:
    """Read a command line: `--config FILE` and flags.

    Args:
        argv (`Sequence[str]`, *optional*): Arguments without the program's name. By default those of the process.
        default (`Path`): The recipe to run when no `--config` is given.
        **fixed (`str`): Keys with a default other than the dataclass's (`task="code"`).

    Returns:
        `Recipe`: Arguments of the recipe, of the trainer and of the policy. `output_dir` is `runs/<recipe>` if unset.

    Raises:
        ConfigError: Names the key, its value, what is allowed and the fix.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    path, flags = _split_config(argv, default)
    values = {"output_dir": f"runs/{path.stem}"} | fixed | read_yaml(path)
    classes = (RecipeArguments, MInTRLConfig, PolicyArguments)
    check_keys(values, *classes)
    parser = TrlParser(classes)
    negated = {action.dest for action in parser._actions for option in action.option_strings if "--no_" in option}
    names = [flag[2:].split("=")[0].replace("-", "_") for flag in flags if flag.startswith("--")]
    names = [name.removeprefix("no_") if name.removeprefix("no_") in negated else name for name in names]
    check_keys(dict.fromkeys(names), *classes)
    parser.set_defaults_with_config(**values)
    return Recipe(*parser.parse_args_into_dataclasses(args=flags))


def read_yaml(path: Path) -> dict:
    """A recipe file as plain values.

    Raises:
        ConfigError: No such file, not YAML, or not a mapping with text keys.
    """
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError("config", str(path), f"a readable YAML file ({error.strerror})", "check the path") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError("config", str(path), f"valid YAML ({error})", "correct the file") from error
    values = {} if values is None else values
    if not isinstance(values, dict) or not all(isinstance(key, str) for key in values):
        raise ConfigError("config", str(path), "a mapping of setting names to values", "write `name: value` lines")
    return values


def _split_config(argv: list[str], default: Path) -> tuple[Path, list[str]]:
    """Take `--config FILE` or `--config=FILE` out of the flags."""
    flags, path = [], default
    arguments = iter(argv)
    for argument in arguments:
        if argument == "--config":
            value = next(arguments, None)
            if value is None:
                raise ConfigError("config", None, "a YAML file", "write --config recipes/quickstart.yaml")
            path = Path(value)
        elif argument.startswith("--config="):
            path = Path(argument.removeprefix("--config="))
        else:
            flags.append(argument)
    return path, flags
