"""The settings and versions of runs side by side, and which of them differ. Reads nothing but what a run wrote down."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..analysis.runs import Run, decides_results
from ..reporting.colours import visible

_LONGEST = 400  # characters of a value; what is longer is a listing that nobody compares by eye


def settings_table(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """One row a setting: its name, its value in every run, whether they differ, whether it decides results.

    A setting that a run does not have is `None` there. Those that differ and decide results come first.
    """
    values = [dict(run.settings) | _versions(run.folder) for run in runs]
    rows = []
    for name in sorted({name for own in values for name in own}):
        words = [_text(own[name]) if name in own else None for own in values]
        rows.append({"name": name, "values": words, "differs": len(set(words)) > 1, "decides": decides_results(name)})
    return sorted(rows, key=lambda row: (not (row["differs"] and row["decides"]), not row["differs"], row["name"]))


def _versions(folder: Path) -> Mapping[str, Any]:
    """Versions as settings, `version: torch`; none where the file is missing or broken."""
    try:
        versions = json.loads((folder / "versions.json").read_text(encoding="utf-8"))
        flat = {"git commit": versions["git_commit"], "python": versions["python"], **versions["packages"]}
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return {f"version: {name}": value for name, value in flat.items()}


def _text(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return visible(text if len(text) <= _LONGEST else f"{text[:_LONGEST]} …")
