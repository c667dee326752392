"""Which budget to train with, and the lines of a recipe that say so.

Owns the rule: of the budgets whose interventions stay sparse, the largest gain, and of those that gain as much within
one standard error, the sparsest. The paper chose by hand, on the same two numbers. Invariant: a budget without a gain
is never chosen.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from .pilot import Pilot

MAX_OFF_POLICY_SHARE = 0.05  # the paper's runs stay between 2 and 4 %

_LEAST_KAPPA = 1e-4


@dataclass(frozen=True)
class Choice:
    """What was chosen.

    Args:
        pilot ([`Pilot`], *optional*): `None` where no budget will do.
        why (`str`): In words.
    """

    pilot: Pilot | None
    why: str


def choose(pilots: Sequence[Pilot], max_off_policy_share: float = MAX_OFF_POLICY_SHARE) -> Choice:
    """Choose a budget by gain and off-policy share.

    Args:
        pilots (`Sequence[Pilot]`): At least one, of the same problems.
        max_off_policy_share (`float`, *optional*, defaults to 0.05): More is too far from the policy, in (0, 1].
    """
    sparse = [pilot for pilot in pilots if pilot.off_policy_share <= max_off_policy_share]
    gaining = [pilot for pilot in sparse if pilot.gain.difference.value > 0]
    if not sparse:
        return Choice(None, f"every budget makes more than {max_off_policy_share:.1%} of the tokens the judge's")
    if not gaining:
        return Choice(None, "no budget with so few tokens of the judge improves the reward")
    best = max(gaining, key=lambda pilot: pilot.gain.difference.value)
    close = [pilot for pilot in gaining if _as_good(pilot, best)]
    chosen = min(close, key=lambda pilot: pilot.off_policy_share)
    if chosen is best:
        return Choice(best, f"the largest gain of those with at most {max_off_policy_share:.1%} of the judge's tokens")
    gain = best.gain.difference.value
    return Choice(chosen, f"sparsest of those within one standard error of the largest gain, {100 * gain:+.1f} points")


def _as_good(pilot: Pilot, best: Pilot) -> bool:
    """Whether a pilot gains as much as the best, up to the standard error of their difference over problems."""
    behind = [a - b for a, b in zip(best.gains, pilot.gains, strict=True)]
    error = stdev(behind) / len(behind) ** 0.5 if len(behind) > 1 else 0.0
    return fmean(behind) <= error


def recipe_fragment(pilot: Pilot, measured_on: str) -> str:
    """Lines for a recipe: the budget, and `kappa` where it is known.

    Args:
        pilot ([`Pilot`]): The chosen one.
        measured_on (`str`): Model, judge and problems, in words.
    """
    lines = [
        f"# Measured by mintrl calibrate: {measured_on}",
        f"# Reward gain {pilot.gain.difference.in_points(' points')}, p {pilot.gain.p_value:.2g}; "
        f"off-policy share {pilot.off_policy_share:.2%}; revise rate {pilot.metrics['judge/revise_rate']:.1%}",
        f"chunk_tokens: {pilot.budget.chunk_tokens}",
        f"max_reviews: {pilot.budget.max_reviews}",
        f"correction_tokens: {pilot.budget.correction_tokens}",
    ]
    if pilot.kappa is None:
        lines.append("# kappa: this judge gives no log-probabilities; keep the recipe's")
    else:
        kappa = min(pilot.kappa, -_LEAST_KAPPA)  # it has to be below 0
        lines.append(f"kappa: {kappa:.4f}  # mean over {pilot.kappa_tokens:,} tokens")
    return "\n".join(lines) + "\n"
