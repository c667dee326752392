"""What of a run is worth acting on, with the numbers that say so and what to do about it.

Rules read the logged numbers and the survey of all rollouts; limits lie in `limits.py`. A rule that has nothing to go
by says nothing. Text in backticks is a setting or a command.
"""

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from ..analysis.runs import Run
from . import limits
from .charts import ENTROPY, REWARD
from .costs import total_of
from .rollouts import Survey
from .tiles import tenths

ACT, NOTE = "act", "note"
_ENOUGH = 10  # updates, before which a trend is noise
_BUDGET = ("max_reviews", "correction_tokens", "chunk_tokens")

_NO_VERDICT = {
    "length": "raise `judge_max_tokens`: replies are cut before their verdict",
    "timeout": "raise `review_timeout_seconds`, or give the judge more servers",
    "context_length": "serve the judge with a longer context, or shorten `max_completion_length`",
    "unparsable": "set `judge_constrain_reply: true`, so that the server holds the judge to the reply's form",
    "inconsistent": "set `judge_constrain_reply: true`, or take a stronger judge",
    "out_of_range": "set `judge_constrain_reply: true`, or take a stronger judge: it names steps that do not exist",
    "no_public_example": "give the judge of code an inner judge for questions without examples",
    "sandbox_busy": "lower `max_concurrent_reviews`, or give the machine more cores",
}


@dataclass(frozen=True)
class Finding:
    """One finding.

    Args:
        level (`str`): `act` or `note`.
        title (`str`): What it is.
        evidence (`str`): The numbers.
        advice (`str`): What to do.
        chart (`str`, *optional*): Id of the chart that shows it.
        filter (`str`, *optional*): Filter of the rollouts that show it.
    """

    level: str
    title: str
    evidence: str
    advice: str
    chart: str | None = None
    filter: str | None = None

    def to_json(self, run: int) -> dict[str, Any]:
        """As the page reads it; `run` is the run's place on the page."""
        return vars(self) | {"run": run}


def findings_of(run: Run, survey: Survey | None) -> list[Finding]:
    """All findings about a run, those to act on first.

    Args:
        run ([`Run`]): The run.
        survey ([`Survey`], *optional*): What its rollouts say; `None` where none were recorded.
    """
    rules: list[Callable[[Run, Survey], Finding | None]] = [
        *(_not_finite, _off_policy, _no_verdict, _no_gain, _bonus, _dead, _entropy, _mismatch, _unscored),
        *(_truncated, _held_up, _silent, _paused, _unfinished),
    ]
    found = [rule(run, survey or Survey()) for rule in rules]
    return sorted((one for one in found if one is not None), key=lambda one: one.level != ACT)


def _not_finite(run: Run, survey: Survey) -> Finding | None:
    broken = [
        line["update"] for line in run.metrics if any(line.get(name, 0) is None for name in ("loss", "grad_norm"))
    ]
    if not broken:
        return None
    command = f"mintrl replay {shlex.quote(str(run.folder))} --step {broken[0]}"
    return Finding(
        ACT,
        "Loss or gradient norm is not a number",
        f"In {len(broken)} updates, the first of them {broken[0]}.",
        f"See where it comes from with `{command}`; a lower `learning_rate` or `dtype: float32` often ends it.",
        "loss",
    )


def _off_policy(run: Run, survey: Survey) -> Finding | None:
    series = run.series("off_policy_share")
    if not series:
        return None
    mean, above = fmean(v for _, v in series), sum(v > limits.MOST_OFF_POLICY for _, v in series)
    if mean <= limits.MOST_OFF_POLICY and above <= len(series) / 10:
        return None
    now = ", ".join(f"{name} {run.settings[name]}" for name in _BUDGET if name in run.settings)
    return Finding(
        ACT if mean > limits.MOST_OFF_POLICY else NOTE,
        f"Off-policy share above {limits.MOST_OFF_POLICY:.0%} in {above} of {len(series)} updates",
        f"Mean {mean:.1%}." + (f" Now: {now}." if now else ""),
        "The policy learns to continue text that it would not write. Lower `max_reviews` or `correction_tokens`, or "
        "raise `chunk_tokens`; `mintrl calibrate` tries budgets before a run.",
        "off-policy",
        "revised",
    )


def _no_verdict(run: Run, survey: Survey) -> Finding | None:
    series = run.series("judge/no_verdict")
    if not series or (mean := fmean(v for _, v in series)) <= limits.MOST_NO_VERDICT:
        return None
    prefix = "judge/no_verdict/"
    names = {name for line in run.metrics for name in line if name.startswith(prefix)}
    reasons = {name.removeprefix(prefix): total_of(run, name) or 0.0 for name in names}
    ranked = sorted(reasons, key=lambda reason: (-reasons[reason], reason))[:3]
    causes = ", ".join(f"{reason} ({reasons[reason]:,.0f})" for reason in ranked)
    advice = next((_NO_VERDICT[reason] for reason in ranked if reason in _NO_VERDICT), "read what the judge replied")
    return Finding(
        ACT,
        f"No verdict in more than {limits.MOST_NO_VERDICT:.0%} of the reviews",
        f"Mean {mean:.1%}, most at one update {max(v for _, v in series):.1%}."
        + (f" Causes: {causes}." if causes else ""),
        f"{advice[0].upper()}{advice[1:]}. `mintrl doctor` asks the judge an easy review.",
        "no-verdict",
        "no_verdict",
    )


def _no_gain(run: Run, survey: Survey) -> Finding | None:
    series = run.series("reward_gap")
    if len(series) < _ENOUGH or (mean := fmean(v for _, v in series)) > 0:
        return None
    counts = survey.counts
    more = f" {counts['rescued']:,} rollouts rescued, {counts['derailed']:,} derailed." if counts else ""
    return Finding(
        ACT,
        "Interventions do not raise the reward",
        f"Intervened minus control: {mean:+.3f} on average.{more}",
        "The judge does not know better than the policy, or its corrections do not fit in: `mintrl calibrate` says "
        "which. A stronger judge, or privileged context, is the usual cure.",
        "gap",
        "derailed",
    )


def _bonus(run: Run, survey: Survey) -> Finding | None:
    series = run.series("imitation_bonus")
    if not series or not survey.advantage_scale:
        return None
    mean = fmean(abs(v) for _, v in series)
    if mean <= survey.advantage_scale:
        return None
    return Finding(
        ACT,
        "The anchor's bonus is larger than the advantages",
        f"Mean bonus {mean:.3g}, mean advantage of corrected rollouts {survey.advantage_scale:.3g}.",
        "Imitating the judge outweighs being right. Lower `beta2`, set `kappa` further below 0 (`mintrl calibrate` "
        "measures it), or train with `anchor: proxy`, which has no bonus.",
        "bonus",
        "revised",
    )


def _dead(run: Run, survey: Survey) -> Finding | None:
    series = run.series("groups/dead", "frac_reward_zero_std")
    if not series or (mean := fmean(v for _, v in series)) <= limits.MOST_DEAD:
        return None
    counted, kinds = survey.dead["groups"], ""
    if counted:
        right, wrong = survey.dead["right"] / counted, survey.dead["wrong"] / counted
        kinds = f" All right: {right:.0%} of the groups, all wrong: {wrong:.0%}."
    too_easy = survey.dead["right"] > survey.dead["wrong"]
    advice = (
        "The problems are too easy: `mintrl filter-data` leaves out those that the base model solves."
        if too_easy
        else "The problems are too hard for the policy alone: interventions (`num_intervened`), a judge that knows the "
        "reference, or easier problems make rewards differ."
    )
    return Finding(
        ACT, "Most groups are dead", f"All rewards are equal in {mean:.0%} of the groups.{kinds}", advice, "groups"
    )


def _entropy(run: Run, survey: Survey) -> Finding | None:
    series = run.series(*ENTROPY)
    if len(series) < _ENOUGH:
        return None
    first, last = tenths(series)
    if first <= 0 or last > limits.LEAST_ENTROPY_KEPT * first:
        return None
    rewards = run.series(*REWARD)
    solved = bool(rewards) and tenths(rewards)[1] >= limits.SOLVED
    return Finding(
        NOTE if solved else ACT,
        "Entropy has collapsed",
        f"From {first:.3g} to {last:.3g} nats per token" + (", with the problems solved." if solved else "."),
        "New solutions are hardly sampled any more. End the run earlier, lower `learning_rate`, or lengthen "
        "`intervention_updates`: interventions bring in what the policy does not sample.",
        "entropy",
    )


def _mismatch(run: Run, survey: Survey) -> Finding | None:
    series, limit = run.series("mismatch/kl"), run.settings.get("mismatch_limit") or limits.MOST_MISMATCH
    above = [update for update, value in series if value > limit]
    if not above:
        return None
    return Finding(
        ACT,
        "Trainer and sampler disagree",
        f"KL above {limit:g} nats per token in {len(above)} of {len(series)} updates, the first of them {above[0]}.",
        "Stale weights, another temperature or another adapter on the server: `mintrl doctor` compares them.",
        "mismatch",
    )


def _unscored(run: Run, survey: Survey) -> Finding | None:
    series = run.series("rewards/unscored")
    if not series or (mean := fmean(v for _, v in series)) <= limits.MOST_UNSCORED:
        return None
    return Finding(
        ACT,
        "Rollouts without a reward",
        f"{mean:.1%} on average; they train nothing.",
        "`mintrl check-data` finds rows that cannot be scored; rewards that fail are in the log.",
    )


def _truncated(run: Run, survey: Survey) -> Finding | None:
    series = run.series("lengths/truncated", "completions/clipped_ratio")
    if not series or (last := tenths(series)[1]) <= limits.MOST_TRUNCATED:
        return None
    return Finding(
        NOTE,
        "Many rollouts are cut at the length limit",
        f"{last:.0%} in the last tenth of the run; the limit is {run.settings.get('max_completion_length')} tokens.",
        "Raise `max_completion_length` if memory allows (`dry_run_worst_case: true` says so).",
        "truncated",
        "truncated",
    )


def _held_up(run: Run, survey: Survey) -> Finding | None:
    series = run.series("share/review")
    if not series or (mean := fmean(v for _, v in series)) <= limits.MOST_HELD_UP:
        return None
    return Finding(
        NOTE,
        "Rollouts wait for the judge",
        f"{mean:.0%} of the updates' time.",
        "Give the judge more GPUs or servers, raise `max_concurrent_reviews`, or leave `overlap_reviews` on.",
    )


def _silent(run: Run, survey: Survey) -> Finding | None:
    series = run.series("judge/revise_rate")
    if not series or (mean := fmean(v for _, v in series)) >= limits.LEAST_REVISIONS:
        return None
    return Finding(
        NOTE,
        "The judge hardly ever rejects a step",
        f"In {mean:.2%} of the reviews.",
        "There is little to learn from it. `mintrl calibrate` says how good the judge is at finding mistakes.",
        "revise",
    )


def _paused(run: Run, survey: Survey) -> Finding | None:
    paused = [update for update, value in run.series("judge/paused") if value > 0]
    if not paused:
        return None
    return Finding(
        NOTE,
        "The judge was left out for a while",
        f"In {len(paused)} updates, from update {paused[0]} on.",
        "Its budget was spent (`judge_budget_tokens`, `judge_budget_cost`), or it failed and the run went on without "
        "it (`judge_failure`).",
    )


def _unfinished(run: Run, survey: Survey) -> Finding | None:
    planned = run.settings.get("max_steps") or 0
    if planned <= run.num_updates:
        return None
    return Finding(
        NOTE,
        "The run has not reached its end",
        f"{run.num_updates:,} of {planned:,} updates.",
        "It is running, or was stopped; `--resume_from_checkpoint last` goes on.",
    )
