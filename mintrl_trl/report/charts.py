"""Which curves the page draws, what they say in a line, and where a limit lies. Reads no number.

A chart appears where one of the runs logged one of its metrics; a series takes the first of its names that a run has.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from .limits import MOST_NO_VERDICT, MOST_OFF_POLICY

_PASS_AT = re.compile(r"eval/(?:(?P<subset>[^/]+)/)?pass@(?P<k>\d+)")


@dataclass(frozen=True)
class Series:
    """One curve: its name in the key, empty where the chart's title says it, and the metrics it may be read from."""

    label: str
    metrics: tuple[str, ...]


@dataclass(frozen=True)
class Chart:
    """A chart.

    Args:
        id (`str`): How the page and the warnings name it.
        title (`str`): With the unit.
        about (`str`): What it says, in a line.
        series (`tuple[Series, ...]`): Its curves.
        form (`str`, *optional*, defaults to `"number"`): How values are written: `number`, `share`, `count`, `seconds`.
        limit (`tuple[float, str]`, *optional*): A value that is drawn as a line, and what it is called.
    """

    id: str
    title: str
    about: str
    series: tuple[Series, ...]
    form: str = "number"
    limit: tuple[float, str] | None = None

    def to_json(self) -> dict[str, Any]:
        """As the page reads it."""
        limit = None if self.limit is None else {"value": self.limit[0], "name": self.limit[1]}
        return vars(self) | {"series": [vars(series) for series in self.series], "limit": limit}


REWARD = ("rewards/control", "reward")
ENTROPY = ("entropy/sample", "entropy/policy", "entropy")
LENGTH = ("lengths/control", "completions/mean_length")

_CHARTS = (
    Chart(
        "reward",
        "Reward in training",
        "Mean reward of the policy alone, and of rollouts that the judge may correct.",
        (Series("control", REWARD), Series("intervened", ("rewards/intervened",))),
    ),
    Chart(
        "gap",
        "Reward gap",
        "Intervened minus control: what interventions are worth. It closes as the policy learns.",
        (Series("", ("reward_gap",)),),
    ),
    Chart(
        "groups",
        "Groups",
        "Rescued: every control wrong, an intervened rollout right. Dead: all rewards equal.",
        (
            Series("rescued", ("groups/rescued",)),
            Series("dead", ("groups/dead", "frac_reward_zero_std")),
        ),
        "share",
    ),
    Chart(
        "off-policy",
        "Off-policy share",
        "Tokens by the judge among the response tokens of intervened rollouts.",
        (Series("", ("off_policy_share",)),),
        "share",
        (MOST_OFF_POLICY, "6 %"),
    ),
    Chart("entropy", "Entropy (nats per token)", "Of the policy alone.", (Series("", ENTROPY),)),
    Chart(
        "length",
        "Response length (tokens)",
        "Mean over rollouts.",
        (Series("control", LENGTH), Series("intervened", ("lengths/intervened",))),
        "count",
    ),
    Chart(
        "truncated",
        "Cut at the length limit",
        "Share of rollouts that did not end by themselves.",
        (Series("", ("lengths/truncated", "completions/clipped_ratio")),),
        "share",
    ),
    Chart(
        "revise",
        "Reviews that reject a step",
        "Per review of the judge.",
        (Series("", ("judge/revise_rate",)),),
        "share",
    ),
    Chart(
        "no-verdict",
        "Reviews without a verdict",
        "What the judge could not answer; the chunk is kept.",
        (Series("", ("judge/no_verdict",)),),
        "share",
        (MOST_NO_VERDICT, "5 %"),
    ),
    Chart(
        "nll",
        "How unlikely the judge's tokens are to the policy (nats)",
        "Minus the policy's log-probability; it falls as the policy learns from the judge.",
        (Series("", ("intervention/nll",)),),
    ),
    Chart(
        "kl",
        "Judge from policy (nats)",
        "The judge's minus the policy's log-probability per intervention token.",
        (Series("", ("intervention/kl",)),),
    ),
    Chart(
        "bonus",
        "The anchor's bonus",
        "What intervention tokens add to the advantage of their rollout.",
        (Series("", ("imitation_bonus",)),),
    ),
    Chart(
        "loss",
        "Loss",
        "Each phase has a loss of its own; compare values within one.",
        (Series("", ("loss",)),),
    ),
    Chart("grad-norm", "Gradient norm", "Before it is clipped.", (Series("", ("grad_norm",)),)),
    Chart(
        "mismatch",
        "Trainer against sampler (nats)",
        "KL per token of the policy: stale weights or another temperature show here.",
        (Series("", ("mismatch/kl",)),),
    ),
    Chart(
        "seconds",
        "Seconds per update",
        "Without evaluations and checkpoints.",
        (Series("", ("step/seconds", "step_time")),),
        "seconds",
    ),
)


def charts_for(metrics: Collection[str]) -> list[Chart]:
    """The charts that metrics allow, those of evaluations behind the reward.

    Args:
        metrics (`Collection[str]`): Names that were logged by any of the runs.
    """
    charts = [chart for chart in _CHARTS if any(name in metrics for one in chart.series for name in one.metrics)]
    return charts[:1] + _pass_charts(metrics) + charts[1:]


def pass_metrics(metrics: Collection[str]) -> dict[int, list[tuple[str, str]]]:
    """k -> (subset, metric) of the evaluations on fixed problems, all problems (the empty subset) first."""
    found: dict[int, list[tuple[str, str]]] = {}
    for name in sorted(metrics):
        match = _PASS_AT.fullmatch(name)
        if match:
            found.setdefault(int(match["k"]), []).append((match["subset"] or "", name))
    return {k: sorted(names) for k, names in sorted(found.items())}


def _pass_charts(metrics: Collection[str]) -> list[Chart]:
    """One chart for the smallest and one for the largest k."""
    found = pass_metrics(metrics)
    return [
        Chart(
            f"pass-{k}",
            f"Pass@{k} on fixed problems",
            "The policy alone, without any intervention.",
            tuple(Series(subset or "all", (name,)) for subset, name in found[k]),
            "share",
        )
        for k in sorted({min(found), max(found)} if found else ())
    ]
