"""The page of all settings, made from the fields' own help texts, which it reads without importing the package."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
SOURCES = {
    "config.py": "Training: `MInTRLConfig`",
    "config_judge.py": "The judge",
    "config_hub.py": "The hub",
    "recipe.py": "Recipes alone: task, data, evaluation",
    "recipe_evaluation.py": "Recipes alone: benchmarks",
    "recipe_method.py": "Recipes alone: the method and its teacher",
    "recipe_chains.py": "Recipes alone: the small world",
    "config_ablations.py": "Ablations",
}
HEAD = """# Settings

A recipe (YAML) or a flag (`--name value`) sets each of these; in Python they are arguments of `MInTRLConfig`, those of
recipes apart. All options of TRL's `GRPOConfig` are settings, too: [what they do here](trl_options.md).
"""
TABLE_HEAD = "| setting | default | what |\n|---|---|---|"


class Setting(NamedTuple):
    """A field: where it stands, its name, its default as written, and what it is."""

    line: int
    name: str
    default: str
    help: str


def settings_page() -> str:
    """The page as Markdown: a table for each group of fields."""
    parts = [HEAD]
    for file, title in SOURCES.items():
        text = (ROOT / "mintrl_trl" / file).read_text(encoding="utf-8")
        marks = [(i, line.strip()[6:]) for i, line in enumerate(text.splitlines(), 1) if line.startswith("    # --- ")]
        parts.append(f"## {title}\n")
        found, group = list(settings(text)), None
        if not found:
            raise ValueError(f"no field with a help text in {file}")
        for setting in found:
            heading = next((name for line, name in reversed(marks) if line < setting.line), "")
            if heading != group or setting is found[0]:
                group = heading
                parts.append((f"\n### {heading}\n\n" if heading else "") + TABLE_HEAD)
            parts.append(f"| `{setting.name}` | `{setting.default}` | {setting.help} |")
        parts.append("")
    return "\n".join(parts)


def settings(text: str) -> Iterator[Setting]:
    """The fields with a help text in a module's source."""
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.value, ast.Call):
            continue
        call, named = node.value, {word.arg: word.value for word in node.value.keywords}
        if ast.unparse(call.func).lstrip("_") == "setting":
            default, text_node = call.args[:2]  # further ones are the words that it allows
        elif {"default", "metadata"} <= named.keys():
            default, text_node = named["default"], named["metadata"].values[0]
        else:
            continue
        help_text = ast.literal_eval(text_node) if isinstance(text_node, ast.Constant) else ast.unparse(text_node)
        words = " ".join(str(help_text).split()).replace("|", "\\|").replace("<", "&lt;")
        yield Setting(node.lineno, ast.unparse(node.target), ast.unparse(default), words)
