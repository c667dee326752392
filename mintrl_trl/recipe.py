"""Reads a recipe: YAML, then flags, which win; unknown keys are refused with the nearest name.

It owns the settings that belong to a recipe and not to the trainer (task, data, evaluation), and turns a command line
into three dataclasses. It builds nothing and loads no model. YAML is hostile input: only plain values are read, and
only known keys are taken.
"""

import argparse
import difflib
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import yaml
from trl import ModelConfig, TrlParser
from yaml.composer import ComposerError
from yaml.constructor import ConstructorError

from .config import MInTRLConfig, check_keys
from .config_ablations import SWITCHES, AblationConfig
from .config_combinations import check_launch
from .errors import ConfigError, MInTRLError
from .recipe_chains import ChainsArguments
from .recipe_evaluation import EvaluationArguments
from .recipe_method import MethodArguments, check_method_config, implied_settings

TASKS = ("math", "code", "chains")
MAX_YAML_BYTES = 100_000  # a recipe has a few thousand; this bounds the time and memory that reading one takes

# Settings that are text, where YAML may read a number or a truth value (`dataset: 2024`).
_TEXT = (
    "task",
    "method",
    "world",
    "reward",
    "dataset",
    "dataset_split",
    "eval_dataset",
    "eval_data",
    "output_dir",
    "model_name_or_path",
    "model_revision",
    "attn_implementation",
)

# Beside YAMLError: text that is not UTF-8, dates and numbers that do not exist, lists in lists without end.
_YAML_ERRORS = (yaml.YAMLError, ValueError, ArithmeticError, RecursionError)


@dataclass
class RecipeArguments(EvaluationArguments, ChainsArguments, MethodArguments):
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
    drop_bad_rows: bool = field(
        default=False,
        metadata={"help": "Leave out rows that cannot be used, and say how many, instead of refusing the data set."},
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
        self.check_method()
        if self.task == "chains" and self.dataset is not None:
            raise ConfigError("dataset", self.dataset, "nothing for `task: chains`", "remove `dataset`")
        if self.task != "chains" and not self.dataset:
            fix = "set `dataset: recipes/data/gsm8k_train_200.jsonl`, or your own rows"
            raise ConfigError("dataset", self.dataset, "a JSONL file or a hub id", fix)
        if self.task == "chains" and self.dataset_limit is not None:
            raise ConfigError("dataset_limit", self.dataset_limit, "nothing for `task: chains`", "set `max_steps`")
        if self.task == "chains" and self.drop_bad_rows:
            raise ConfigError("drop_bad_rows", True, "false for `task: chains`", "remove `drop_bad_rows`")
        self.check_evaluation(self.task)
        self.check_chains(self.task)
        if self.task != "chains" and self.eval_problems:
            allowed = f"0 for `task: {self.task}`"
            raise ConfigError("eval_problems", self.eval_problems, allowed, "remove `eval_problems`")
        for name, least in (("dataset_limit", 1), ("eval_problems", 0), ("eval_samples", 1), ("eval_every", 0)):
            value = getattr(self, name)
            if value is None and name == "dataset_limit":
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ConfigError(name, value, f"a whole number of at least {least}", f"set `{name}: {least}` or more")


@dataclass
class PolicyArguments(ModelConfig):
    """TRL's model settings; adapter dropout is off, as rollouts need it."""

    lora_dropout: float = field(default=0.0, metadata={"help": "Must be 0: rollouts are sampled without dropout."})


class Recipe(NamedTuple):
    """A recipe, read and checked."""

    arguments: RecipeArguments
    config: MInTRLConfig
    policy: PolicyArguments

    def description(self) -> dict[str, Any]:
        """What the recipe adds to the trainer's settings, for the run folder."""
        return asdict(self.arguments) | asdict(self.policy)


def parse_recipe(argv: Sequence[str] | None = None, *, default: Path, **fixed: str) -> Recipe:
    """Read a command line: `--config FILE` and flags.

    Args:
        argv (`Sequence[str]`, *optional*): Arguments without the program's name. By default those of the process.
        default (`Path`): The recipe to run when no `--config` is given.
        **fixed (`str`): Keys with a default other than the dataclass's (`task="code"`).

    Returns:
        `Recipe`: Arguments of the recipe, of the trainer and of the policy. `output_dir` is `runs/<recipe>` if unset.
        How to load the policy (`dtype`, `model_revision`, ...) is in the trainer's `model_init_kwargs` as well.

    Raises:
        ConfigError: Names the key, its value, what is allowed and the fix.
        SystemExit: After `--help`.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    path, flags = _split_config(argv, default)
    values = {"output_dir": f"runs/{path.stem}"} | fixed | read_yaml(path)
    classes = (RecipeArguments, _config_class(values, flags), PolicyArguments)
    flags = _mappings_as_json(flags, classes[1]._VALID_DICT_FIELDS)
    parser = _Parser(classes)
    flag_values = _flag_values(flags, parser)
    for given in (values, flag_values):
        check_keys(given, *classes)
        _check_values(given, parser)
    values = implied_settings(flag_values.get("method", values.get("method"))) | values
    if not {"-h", "--help"} & set(flags) or path != default:  # else the help would show the default recipe's settings
        parser.set_defaults_with_config(**values)
    try:
        recipe = Recipe(*parser.parse_args_into_dataclasses(flags, look_for_args_file=False))
    except MInTRLError:
        raise
    except (TypeError, ValueError) as error:  # of checks upstream, which name no recipe
        allowed = f"settings that transformers and TRL accept ({_one_line(error)})"
        raise ConfigError(
            "config", str(path), allowed, "correct that setting in the file or on the command line"
        ) from error
    check_launch(recipe.config)
    check_method_config(recipe.arguments, recipe.config)
    loading = {
        "revision": recipe.policy.model_revision,
        "attn_implementation": recipe.policy.attn_implementation,
        "dtype": recipe.policy.dtype,
    }
    recipe.config.model_init_kwargs = loading | (recipe.config.model_init_kwargs or {})
    return recipe


def refused_keys(path: Path, flags: Sequence[str]) -> list[ConfigError]:
    """Every key of a recipe file and of flags that is unknown or has a value of another type; none hides another.

    Raises:
        ConfigError: The file, or the command line as a whole, cannot be read.
    """
    values = read_yaml(path)
    classes = (RecipeArguments, _config_class(values, flags), PolicyArguments)
    found = []
    for given in (values, _flag_values(flags, _Parser(classes))):
        for key, value in given.items():
            try:
                check_keys({key: value}, *classes)
            except ConfigError as error:
                found.append(error)
    return found


def _config_class(values: Mapping[str, Any], flags: Sequence[str]) -> type[MInTRLConfig]:
    """The trainer's settings; with the switches of ablations where the recipe or a flag names one of them."""
    named = {flag.removeprefix("--").partition("=")[0].replace("-", "_") for flag in flags if flag.startswith("--")}
    return AblationConfig if named.union(values) & set(SWITCHES) else MInTRLConfig


def read_yaml(path: Path) -> dict[str, Any]:
    """A recipe file as plain values.

    Raises:
        ConfigError: No such file, too long, not YAML, more than plain values, or not a mapping with text keys.
    """
    try:
        with path.open("rb") as file:
            content = file.read(MAX_YAML_BYTES + 1)
    except OSError as error:
        raise ConfigError("config", str(path), f"a readable YAML file ({error.strerror})", "check the path") from error
    if len(content) > MAX_YAML_BYTES:
        raise ConfigError("config", str(path), f"a YAML file of at most {MAX_YAML_BYTES:,} bytes", "check the path")
    try:
        values = yaml.load(content.decode("utf-8"), _PlainLoader)
    except _YAML_ERRORS as error:
        allowed = f"valid YAML ({_one_line(error)})"
        raise ConfigError("config", str(path), allowed, "correct the file") from error
    values = {} if values is None else values
    if not isinstance(values, dict) or not all(isinstance(key, str) for key in values):
        raise ConfigError("config", str(path), "a mapping of setting names to values", "write `name: value` lines")
    return values


class _PlainLoader(yaml.SafeLoader):
    """YAML of plain values: no tags, no aliases (which grow without bound when written out), no repeated keys."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event = self.peek_event()
        if event.anchor is not None or getattr(event, "tag", None) is not None:
            raise ComposerError(None, None, "anchors, aliases and tags are not read", event.start_mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.Node, deep: bool = False) -> dict:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise ConstructorError(None, None, f"`{key.value}` is there twice", key.start_mark)
                seen.add(key.value)
        return super().construct_mapping(node, deep)


class _Parser(TrlParser):
    """TRL's parser. What it cannot read is one message, not the usage of three hundred flags."""

    def error(self, message: str) -> NoReturn:
        flag, _, reason = message.partition(": ")
        allowed = f"flags as `--help` lists them ({reason})"
        raise ConfigError("command line", flag, allowed, "correct that flag")


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


def _mappings_as_json(flags: Sequence[str], names: Sequence[str]) -> list[str]:
    """Flags whose value is a mapping, in the JSON that upstream reads: on the command line as in a file, YAML will do.

    Raises:
        ConfigError: A mapping that is neither.
    """
    written, read = "", []
    for word in flags:
        flag, equals, value = word.partition("=") if word.startswith("--") else (written, "", word)
        written, name = flag if word.startswith("--") else "", flag[2:].replace("-", "_")
        if name in names and value.startswith("{") and not _is_json(value):
            try:
                value = json.dumps(yaml.load(value, _PlainLoader))
            except (*_YAML_ERRORS, TypeError) as error:
                allowed, fix = f"a mapping ({_one_line(error)})", f"""write it like {flag} '{{"name": "value"}}'"""
                raise ConfigError(name, value, allowed, fix) from error
            word = f"{flag}={value}" if equals else value
        read.append(word)
    return read


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _flag_values(flags: Sequence[str], parser: _Parser) -> dict[str, Any]:
    """What each flag sets: its text, a list of texts, or a truth value for a flag that stands alone.

    Raises:
        ConfigError: A flag without its value, or a word that belongs to no flag.
    """
    options = {option: action for action in parser._actions for option in action.option_strings}
    written: list[tuple[str, list[str]]] = []
    for word in flags:
        if word.startswith("--"):
            flag, equals, value = word.partition("=")
            written.append((flag, [value] if equals else []))
        elif written:
            written[-1][1].append(word)
        elif word != "-h":
            fix = f"write --config {word}" if word.endswith((".yaml", ".yml")) else f"remove {word!r}"
            raise ConfigError("command line", word, "flags and their values", fix)
    values: dict[str, Any] = {}
    for flag, words in written:
        action = options.get(flag)
        if action is None:
            values[flag[2:].replace("-", "_")] = words[0] if words else None
        elif not isinstance(action, argparse._HelpAction):
            values[action.dest] = _flag_value(flag, words, action)
    return values


def _flag_value(flag: str, words: list[str], action: argparse.Action) -> Any:
    least = 1 if action.nargs in (None, "+") else 0
    if len(words) < least:
        raise ConfigError(action.dest, None, f"a value after {flag}", f"write {flag} VALUE")
    if action.nargs == "+":
        return words
    most = 0 if action.nargs == 0 else 1
    if len(words) > most:
        surplus = " ".join(words[most:])
        raise ConfigError(action.dest, surplus, f"{('nothing', 'one value')[most]} after {flag}", f"remove {surplus!r}")
    return words[0] if words else action.const


def _check_values(values: Mapping[str, Any], parser: _Parser) -> None:
    """Refuse what argparse would take from YAML as it is: an unknown choice, a number where text belongs."""
    choices = {action.dest: action.choices for action in parser._actions if action.choices}
    for name, value in values.items():
        if value is not None and name in choices and value not in choices[name]:
            text = ("no", "yes")[value] if isinstance(value, bool) else str(value)  # YAML reads a bare `no` as false
            near = difflib.get_close_matches(text.lower(), choices[name], 1)
            fix = f'did you mean `{name}: "{near[0]}"`' if near else f'set `{name}: "{next(iter(choices[name]))}"`'
            raise ConfigError(name, value, " or ".join(map(repr, choices[name])), fix)
        if name in _TEXT and value is not None and not isinstance(value, str):
            raise ConfigError(name, value, "text", f'write it in quotes: `{name}: "{value}"`')


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
