"""Runs as one HTML page that needs nothing else: no network, no server, no file beside it.

Reads run folders and writes the page. Invariant: what a model, a data set or a setting says is text on the page, never
markup or script: it stands in a JSON block in which no `<` is left, reaches elements as text alone, and the page's
policy runs only its own script and loads nothing.
"""

import base64
import hashlib
import html
import json
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime
from importlib import resources
from itertools import chain, count
from pathlib import Path
from typing import Any, NamedTuple

from ..analysis.runs import Group, Run, read_groups, split_name
from ..errors import ConfigError
from ..reporting.colours import visible
from ..reporting.rollout_index import RolloutIndex
from .advice import ACT, findings_of
from .charts import charts_for
from .costs import cost_of
from .numbers import MOST_POINTS, numbers_of
from .rollouts import MOST_CHARACTERS, Survey, shown_rollouts, survey_of
from .settings import settings_table
from .tiles import tiles_of

NAME = "report.html"
_FILE = "rollouts.jsonl"
_STYLES = ("style.css", "overview.css", "charts.css", "rollouts.css", "cost.css")
_SCRIPTS = (  # in this order
    *("base.js", "series.js", "charts.js", "rollouts.js"),
    *("rollout.js", "overview.js", "cost.js", "page.js"),
)
_LONGEST_NAME = 60  # characters, of what groups are called by their settings
_TITLES = 4  # groups of runs that a title names


class _Rollouts(NamedTuple):
    """A run's rollouts: what they say together, and those that the page shows."""

    survey: Survey | None
    shown: list[dict[str, Any]]


def write_report(
    runs: Sequence[str],
    output: str | Path | None = None,
    *,
    rollouts: int = 300,
    on_progress: Callable[[str, int, int], None] | None = None,
) -> Path:
    """Write the page.

    Args:
        runs (`Sequence[str]`): Run folders, or `NAME=FOLDER`. Those that differ by their seed alone become one curve
            with its spread.
        output (`str` or `Path`, *optional*): The file. Defaults to `report.html` in the first folder.
        rollouts (`int`, *optional*, defaults to 300): Rollouts in the page, shared out evenly among runs.
        on_progress (`Callable`, *optional*): Called with a run's name, bytes of its rollouts that were read, and all.

    Returns:
        `Path`: The file.

    Raises:
        DataError: A folder is no run, or holds something else than a run writes.
        ConfigError: `rollouts` is below 0, or the file cannot be written.
    """
    if rollouts < 0:
        raise ConfigError("rollouts", rollouts, "0 or more", "0 leaves rollouts out")
    groups = read_groups(runs)
    path = Path(output) if output is not None else split_name(runs[0])[1] / NAME
    _write(path, render(page_data(groups, rollouts, on_progress or (lambda name, done, total: None))))
    return path


def page_data(groups: Sequence[Group], rollouts: int, on_progress: Callable[[str, int, int], None]) -> dict[str, Any]:
    """What the page shows, as plain values; `assets/base.js` and its neighbours read it.

    Args:
        groups (`Sequence[Group]`): The runs.
        rollouts, on_progress: As in [`write_report`].
    """
    labels = _labels(groups)
    named = [
        (label, run, name)
        for group, label in zip(groups, labels, strict=True)
        for run, name in zip(group.runs, _names(group, label), strict=True)
    ]
    having = sum((run.folder / _FILE).is_file() for _, run, _ in named) or 1
    share, characters = -(-rollouts // having), MOST_CHARACTERS // having
    entries, findings, metrics = [], [], set()
    for place, (label, run, name) in enumerate(named):
        found = _rollouts(run, share, characters, lambda *read, name=name: on_progress(name, *read))
        numbers = numbers_of(run)
        metrics |= numbers.columns.keys()
        findings += [finding.to_json(place) for finding in findings_of(run, found.survey)]
        entries.append(
            {
                "name": visible(name),
                "group": visible(label),
                "folder": visible(str(run.folder)),
                "switch": run.switch,
                "tiles": tiles_of(run),
                "updates": numbers.updates,
                "clock": numbers.clock,
                "metrics": numbers.columns,
                "cost": cost_of(run, found.survey.reviews if found.survey else 0),
                "rollouts": {
                    "total": found.survey.total if found.survey else 0,
                    "counts": found.survey.counts if found.survey else {},
                    "shown": found.shown,
                },
            }
        )
    return {
        "title": _title(labels),
        "lead": _lead([run for _, run, _ in named]),
        "footer": f"Written by mintrl report on {datetime.now().astimezone():%Y-%m-%d %H:%M %Z}. "
        f"Curves are drawn from at most {MOST_POINTS:,} points a run; longer runs are averaged over neighbours.",
        "runs": entries,
        "charts": [chart.to_json() for chart in charts_for(metrics)],
        "warnings": sorted(findings, key=lambda finding: finding["level"] != ACT),
        "settings": settings_table([run for _, run, _ in named]),
    }


def render(data: dict[str, Any]) -> str:
    """The page with its data, style and script inside."""
    style = "".join(_asset(name) for name in _STYLES)
    script = "(() => {\n" + "".join(_asset(name) for name in _SCRIPTS) + "})();\n"
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    parts = {
        "policy": policy,
        "title": html.escape(data["title"]),
        "style": style,
        # In the page's JSON block only `<` could end it; these escapes are the same strings to JSON.
        "data": text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029"),
        "script": script,
    }
    first, *others = _asset("page.html").split("{{")  # filled in one pass: no value is searched for places
    pieces = (other.split("}}", 1) for other in others)
    return first + "".join(parts[name] + rest for name, rest in pieces)


def _rollouts(run: Run, share: int, characters: int, on_progress: Callable[[int, int], None]) -> _Rollouts:
    if not (run.folder / _FILE).is_file():
        return _Rollouts(None, [])
    with RolloutIndex(run.folder, on_progress) as index:
        survey, chosen = survey_of(index, share)
        return _Rollouts(survey, shown_rollouts(index, chosen, characters, share))


def _labels(groups: Sequence[Group]) -> list[str]:
    """What groups are called, each differently: where many settings make a long name, by their first run's folder."""
    labels: list[str] = []
    for group in groups:
        folder = group.runs[0].folder
        named = group.name if len(group.name) <= _LONGEST_NAME else f"{group.method}, {folder.resolve().name}"
        ways = chain((named, f"{named} ({folder})"), (f"{named} ({number})" for number in count(2)))
        labels.append(next(way for way in ways if way not in labels))
    return labels


def _names(group: Group, label: str) -> list[str]:
    """What the runs of a group are called: as the group, with seeds or else folders where there are several."""
    if len(group.runs) == 1:
        return [label]
    seeds = [run.settings.get("seed") for run in group.runs]
    told = len(set(seeds)) == len(seeds)
    return [
        f"{label}, seed {seed}" if told else f"{label}, {run.folder.resolve().name}"
        for run, seed in zip(group.runs, seeds, strict=True)
    ]


def _title(names: Sequence[str]) -> str:
    more = len(names) - _TITLES
    return visible(" · ".join(names[:_TITLES]) + (f" and {more} more" if more > 0 else ""))


def _lead(runs: Sequence[Run]) -> str:
    first = runs[0]
    if len(runs) > 1:
        return f"{len(runs)} runs side by side. What differs between them stands under Settings."
    facts = [str(first.folder)]
    facts += [f"model {model}" for model in [first.settings.get("model_name_or_path")] if model]
    facts += [f"task {task}" for task in [first.settings.get("task")] if task]
    judge = first.settings.get("judge_model") or first.settings.get("judge")
    facts += [f"judge {judge}"] if judge and first.series("rewards/intervened") else []
    return visible(" · ".join(facts))


def _asset(name: str) -> str:
    return (resources.files(__package__) / "assets" / name).read_text(encoding="utf-8")


def _hash(content: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()


def _write(path: Path, text: str) -> None:
    """Write whole or not at all: a page that someone has open is never half a page."""
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}-{os.getpid()}")
        temporary.write_text(text, encoding="utf-8", errors="backslashreplace")
        temporary.replace(path)
    except OSError as error:
        if temporary is not None:
            with suppress(OSError):
                temporary.unlink()
        raise ConfigError("output", str(path), f"a file that can be written ({error})", "name another") from error
