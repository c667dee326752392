"""Writes docs/reproduction.md from summaries: verdicts counted, claims with verdicts, a table for each experiment.

It reads summaries and draws figures; it runs nothing. Invariant: every number on the page comes from a summary that is
named there by commit, seeds, minutes and machine.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .cells import Cell, Experiment, distinct
from .claim_list import CLAIMS, QUESTION
from .claims import SHARE, Claim, Status, Verdict
from .figures import Drawn, draw_figures
from .scores import Results, Score
from .summary import SAMPLED, TAUGHT

COLUMNS = (
    ("hard Pass@1", "hard@1"),
    ("hard Pass@{k}", "hard@{k}"),
    ("easy Pass@1", "easy@1"),
    ("easy Pass@{k}", "easy@{k}"),
    ("all Pass@1", "all@1"),
    ("off-policy share", SHARE),
)
COSTS = (
    "step/seconds",
    "seconds/rollout",
    "passes/policy",
    "positions/policy",
    "passes/expert",
    "positions/expert",
    "judge/reviews",
    "judge/corrections",
    "judge/read",
    "judge/written",
)
_KINDS = ("Table", "Figure", "Section", "Lemma")  # of places in the paper, in the order they are counted
_ORDER = (Status.NOT_REPRODUCED, Status.NOT_TESTABLE, Status.REPRODUCED, Status.NOT_RUN)  # bad news first


def write_page(
    experiments: Sequence[Experiment],
    summaries: Mapping[str, Mapping[str, Any]],
    folder: Path,
    *,
    quick: bool,
    failed: Sequence[Cell] = (),
) -> Path:
    """Write `reproduction.md` and its figures.

    Args:
        experiments (`Sequence[Experiment]`): Tables of the page, in order.
        summaries (`Mapping`): By key; others are passed over.
        folder (`Path`): Where the page is written; figures go into its folder `reproduction`.
        quick (`bool`): Whether this is the small set, whose numbers say little.
        failed (`Sequence[Cell]`, *optional*): Runs that ended with an error.

    Returns:
        `Path`: The page.
    """
    results = Results(experiments, summaries)
    drawn = draw_figures(results, folder / "reproduction")
    parts = [_head(experiments, summaries, quick), *_failures(failed), _claims(results)]
    for experiment in experiments:
        parts.append(_experiment(experiment, results, summaries, [f for f in drawn if f.experiment == experiment.name]))
    parts.append(_provenance(experiments, summaries))
    path = folder / "reproduction.md"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n\n".join(part.strip() for part in parts) + "\n", encoding="utf-8")
    return path


def _head(experiments: Sequence[Experiment], summaries: Mapping[str, Mapping[str, Any]], quick: bool) -> str:
    cells, done = _cells(experiments), _kept(experiments, summaries)
    minutes = sum(summary["minutes"] for summary in done)
    world = "docs/small_world.md" if quick else "[small_world.md](small_world.md)"
    warning = "\nThis is the quick set: one seed and short runs. It shows that all runs; its numbers say little.\n"
    return f"""
# The paper's experiments in miniature

Written by `make reproduce{"-quick" if quick else ""}`; change nothing here by hand.
{warning if quick else ""}
The small world ({world}): chains of table look-ups, in which a base model of 0.13 million parameters has
some entries wrong and cannot find that out by itself. It can show a mechanism, not its size in models of billions of
parameters. {len(done)} of {len(cells)} runs are there, {minutes / 60:.1f} hours of one core together. Numbers are
means over seeds ± their sample standard deviation, of the policy alone, never of the judge.

Scores are those of the policy after a run's last update (after fewer, where a table's column `updates` says so, and
where costs are made equal), as in the paper's Table 3. No checkpoint is chosen by its score; the paper's Tables 1, 2
and 4 report the best one of a run, so that their numbers are no lower than those of a last update.

One mean is above another where their difference passes a one-sided Welch test at 95 %, its standard error taken as one
percentage point at least. Where both are above 98 % or below 2 %, nothing can be told. Where no difference passes, a
claim of a difference is not reproduced, which with two or three seeds does not say that there is none.
"""


def _cells(experiments: Sequence[Experiment]) -> list[Cell]:
    return distinct(cell for experiment in experiments for cell in experiment.cells() if cell.known)


def _kept(experiments: Sequence[Experiment], summaries: Mapping[str, Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Summaries of experiments' runs, as far as there are any."""
    return [summaries[cell.key] for cell in _cells(experiments) if cell.key in summaries]


def _failures(failed: Sequence[Cell]) -> list[str]:
    if not failed:
        return []
    runs = "; ".join(f"{cell.label}, seed {cell.seed}" for cell in failed)
    return [f"**{len(failed)} runs failed and are missing below:** {runs}. What needs them is not run."]


def _claims(results: Results) -> str:
    judged = [(claim, claim.rule(results)) for claim in CLAIMS]
    judged.sort(key=lambda pair: _ORDER.index(pair[1].status))
    counts = Counter(verdict.status for _, verdict in judged)
    counted = ", ".join(f"{counts[status]} {status.value}" for status in _ORDER if counts[status])
    lines = [
        "## What reproduces, and what does not",
        "",
        "Claims by where the paper makes them, the harder world's among them; each is below with its numbers.",
        "",
        *_counts(judged),
        "",
        "## Claims and verdicts",
        "",
        f"{counted}. `question` marks what the paper does not claim but a reader will ask: reproduced means true.",
        "",
        "| verdict | claim | where | numbers | rule |",
        "| --- | --- | --- | --- | --- |",
    ]
    for claim, verdict in judged:
        cells = (f"**{verdict.status.value}**", claim.text, claim.source, verdict.numbers, claim.rule_text)
        lines.append(f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |")
    return "\n".join(lines)


def _counts(judged: Sequence[tuple[Claim, Verdict]]) -> list[str]:
    """Claims by their place in the paper, in whichever world they are tested, and by what became of them."""
    found = Counter((_place(claim.source), verdict.status) for claim, verdict in judged)
    statuses = [status for status in Status if any(there is status for _, there in found)]
    lines = [
        f"| claims of | {' | '.join(status.value for status in statuses)} |",
        f"| --- {'| ---: ' * len(statuses)}|",
    ]
    for place in sorted({place for place, _ in found}, key=_order_of_place):
        name = "a reader's questions" if place == QUESTION else place
        lines.append(f"| {name} | {' | '.join(str(found[place, status] or '-') for status in statuses)} |")
    return lines


def _place(source: str) -> str:
    """A table, figure or section as a whole: without its part, and without the world that stands in for the paper's."""
    return source.partition(",")[0].rstrip("abc")


def _order_of_place(place: str) -> tuple[int, float]:
    kind, _, number = place.partition(" ")
    return (_KINDS.index(kind), float(number)) if number else (len(_KINDS), 0.0)


def _experiment(
    experiment: Experiment, results: Results, summaries: Mapping[str, Mapping[str, Any]], figures: Sequence[Drawn]
) -> str:
    found = [summary for arm in experiment.arms for summary in results.summaries(f"{experiment.name}/{arm.name}")]
    k = max((int(k) for summary in found for line in summary["evaluations"] for k in line["pass"]["all"]), default=16)
    columns = [(title.format(k=k), metric.format(k=k)) for title, metric in COLUMNS]
    heads = ["run", *(title for title, _ in columns), "updates", "tokens per update", "minutes"]
    lines = [
        f"## {experiment.title}",
        "",
        experiment.about,
        "",
        f"| {' | '.join(heads)} |",
        f"| --- {'| ---: ' * (len(heads) - 1)}|",
    ]
    if base := next((s for s in found if s["evaluations"] and s["evaluations"][0]["update"] == 0), None):
        lines.append(_base_row(base, columns))
    for arm in experiment.arms:
        name = f"{experiment.name}/{arm.name}"
        runs = results.summaries(name)
        scores = [results.score(name, metric) for _, metric in columns]
        updates = str(arm.at or runs[0]["updates"]) if runs else "-"
        tokens = Score(tuple(_tokens_per_update(summary) for summary in runs))
        minutes = Score(
            tuple(summary["minutes"] * (arm.at or summary["updates"]) / summary["updates"] for summary in runs)
        )
        shown = [score.percent() for score in scores]
        shown += [updates, f"{tokens.mean:,.0f}" if tokens else "-", f"{minutes.mean:.1f}" if minutes else "-"]
        missing = "" if len(runs) == len(experiment.seeds) else f" ({len(runs)} of {len(experiment.seeds)} seeds)"
        lines.append(f"| {arm.name}{missing} | {' | '.join(shown)} |")
    lines += ["", f"Seeds {', '.join(map(str, experiment.seeds))}. `--only {experiment.name}` runs these."]
    if experiment.name == "table5":
        lines += _cost(experiment, results)
    for figure in figures:
        lines += ["", f"![{figure.caption}](reproduction/{figure.file})", "", figure.caption]
    return "\n".join(lines)


def _base_row(summary: Mapping[str, Any], columns: Sequence[tuple[str, str]]) -> str:
    passes = summary["evaluations"][0]["pass"]
    shown = []
    for _, metric in columns:
        subset, _, k = metric.partition("@")
        value = passes.get(subset, {}).get(k) if k else None
        shown.append("-" if value is None else f"{100 * value:.1f} %")
    return f"| base model | {' | '.join(shown)} | 0 | - | - |"


def _tokens_per_update(summary: Mapping[str, Any]) -> float:
    """Tokens of the policy and of whoever helps it, over the updates of the whole run."""
    totals = summary["totals"]
    names = (*SAMPLED, *TAUGHT, "judge/read", "judge/written")
    return sum(totals.get(name, 0.0) for name in names) / summary["updates"]


def _cost(experiment: Experiment, results: Results) -> list[str]:
    """Seconds, and model calls and tokens by role, of runs that are compared for their cost."""
    heads = (
        "run",
        "seconds of all updates",
        "of these generating",
        "policy: passes",
        "policy: positions",
        "expert: passes",
        "expert: positions",
        "reviews + corrections",
        "judge: tokens read + written",
    )
    lines = ["", f"| {' | '.join(heads)} |", f"| --- {'| ---: ' * (len(heads) - 1)}|"]
    for arm in experiment.arms:
        name = f"{experiment.name}/{arm.name}"
        if not results.summaries(name):
            continue
        found = {metric: results.score(name, metric) for metric in COSTS}
        shown = [found["step/seconds"].number(".0f"), found["seconds/rollout"].number(".0f")]
        roles = ("passes/policy", "positions/policy", "passes/expert", "positions/expert")
        shown += [f"{found[role].mean:,.0f}" if found[role] else "-" for role in roles]
        for first, second in (("judge/reviews", "judge/corrections"), ("judge/read", "judge/written")):
            shown.append(f"{found[first].mean:,.0f} + {found[second].mean:,.0f}" if found[first].mean else "-")
        lines.append(f"| {arm.name} | {' | '.join(shown)} |")
    lines += [
        "",
        "A pass is one forward of a model over a batch while tokens are made, a position one token in it. A judge that "
        "is a program is counted as a language model would be.",
    ]
    return lines


def _provenance(experiments: Sequence[Experiment], summaries: Mapping[str, Mapping[str, Any]]) -> str:
    lines = [
        "## Where the numbers come from",
        "",
        "`tokens per update` counts what the policy sampled, kept or not; what a judge, as a language model without "
        "a cache, would have read and written; what MENTOR's expert read; what the teacher of SFT+GRPO wrote; what a "
        "teacher read in distillation. `minutes` is the "
        "wall-clock of a process of one thread, evaluations included, with another one beside it.",
        "",
        "| experiment | runs | seeds | commits | minutes | machine |",
        "| --- | ---: | --- | --- | ---: | --- |",
    ]
    for experiment in experiments:
        runs = _kept([experiment], summaries)
        if not runs:
            continue
        commits = ", ".join(sorted({_commit(summary["commit"]) for summary in runs}))
        machines = "; ".join(
            sorted({f"{m['processor']}, {m['cores']} cores, torch {m['torch']}" for m in (s["machine"] for s in runs)})
        )
        seeds = ", ".join(map(str, sorted({summary["seed"] for summary in runs})))
        minutes = sum(summary["minutes"] for summary in runs)
        row = (experiment.title, str(len(runs)), seeds, commits, f"{minutes:.0f}", machines)
        lines.append(f"| {' | '.join(row)} |")
    lines += _models(_kept(experiments, summaries))
    return "\n".join(lines)


def _models(summaries: Sequence[Mapping[str, Any]]) -> list[str]:
    """Which weights teachers, experts and judges had; more than one of a name is bad news."""
    counts = Counter(made_with for summary in summaries for made_with in summary.get("models", {}).items())
    lines = [f"{model} with hash {found} in {number} runs" for (model, found), number in sorted(counts.items())]
    if not lines:
        return []
    mixed = "" if len({model for model, _ in counts}) == len(counts) else " **Not all runs had the same teacher.**"
    return ["", f"Teacher, expert and judge: {'; '.join(lines)}.{mixed}"]


def _commit(described: str | None) -> str:
    """Ten digits of a commit, and whether there were local changes."""
    if described is None:
        return "no checkout"
    return described[:10] + (" with changes" if described.endswith("-dirty") else "")
