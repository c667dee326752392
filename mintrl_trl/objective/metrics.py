"""Rollouts, rewards and loss terms as named numbers.

Owns the names of the metrics and what each is divided by. It averages nothing early: `Totals` hold sums and counts,
which are added up over micro-batches and processes and divided once. A number that cannot be known is absent, never 0.

| name | meaning |
| --- | --- |
| `rewards/control`, `rewards/intervened` | mean reward of the rows that have one |
| `reward_gap` | the second minus the first |
| `rewards/unscored` | share of rows without a reward |
| `groups/dead`, `groups/dead_control` | share of groups whose rewards (whose controls' rewards) are all equal |
| `groups/rescued` | share of groups with every control wrong (reward <= 0) and an intervened rollout right (> 0) |
| `groups/dropped` | share of groups that leave the loss, because no control has a reward |
| `off_policy_share`, `off_policy_share/all` | intervention tokens over response tokens: intervened rollouts, all |
| `judge/reviews`, `judge/interventions` | per intervened rollout |
| `judge/revise_rate`, `judge/no_verdict` | per review |
| `judge/no_verdict/<reason>` | reviews, as a plain number |
| `judge/empty_correction` | per rejection that led to a correction request |
| `judge/kept_share` | kept tokens over tokens of the corrected chunks |
| `lengths/control`, `lengths/intervened` | response tokens per rollout |
| `lengths/correction` | tokens per correction |
| `lengths/truncated` | share of rollouts that reached the length limit |
| `seconds/review`, `seconds/correction` | per call of the judge |
| `tokens/policy`, `tokens/intervention` | response tokens by author, plain numbers |
| `tokens/intervention_with_logps` | intervention tokens whose log-probability under the judge is known, plain number |
| `tokens/discarded`, `tokens/lookahead` | sampled tokens that were cut or read ahead in vain, plain numbers |
| `passes/policy`, `passes/judge`, `passes/expert` | forward passes that made rollouts, of models in process, numbers |
| `positions/policy`, `positions/judge`, `positions/expert` | tokens in them, prompts and padding too, numbers |
| `intervention/kl` | judge's minus policy's log-probability per intervention token where both are known, in nats |
| `intervention/nll` | minus the policy's log-probability per intervention token, in nats |
| `entropy/sample` | policy entropy per response token, in nats, of control rollouts in fixed places of the batch |
| `entropy/live` | the same of all rollouts that the update forwarded whole: those without gradient may be missing |
| `imitation_bonus` | what intervention tokens add to the advantage, per row that holds some |
| `log_ratio`, `squared_residual` | per scored row |
| `mismatch/kl` | KL from the sampler to the trainer per token of the policy, in nats, on rows forwarded whole |
| `mismatch/max` | the largest difference of the two log-probabilities of one token, in nats |
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import torch

from ..rollouts.rollout import Author, Decision, Role, Rollout, StopReason
from .loss import RegressionLoss


class Totals:
    """Named sums with their counts; merge first, divide once.

    A mean holds a count above 0, a plain number (a sum that nothing divides) holds the count 0.

    Example:

    ```python
    >>> first, second = Totals(), Totals()
    >>> first.add("reward", 3.0, count=4)
    >>> second.add("reward", 0.0, count=2)
    >>> second.add_number("tokens", 7)
    >>> Totals.merge([first, second]).means()
    {'reward': 0.5, 'tokens': 7.0}

    ```
    """

    def __init__(self):
        self._entries: dict[str, tuple[float, int]] = {}

    def __repr__(self) -> str:
        return f"Totals({dict(sorted(self._entries.items()))})"

    def add(self, name: str, total: float, count: int = 1) -> None:
        """Add `total`, a sum over `count` things. Without any thing there is nothing to know, and no entry."""
        if count:
            self._put(name, float(total), int(count))

    def add_number(self, name: str, value: float) -> None:
        """Add to a plain number."""
        self._put(name, float(value), 0)

    @classmethod
    def merge(cls, parts: Iterable["Totals"]) -> "Totals":
        """The totals of all parts together: micro-batches, or processes."""
        merged = cls()
        for part in parts:
            for name, (total, count) in part._entries.items():
                merged._put(name, total, count)
        return merged

    def means(self) -> dict[str, float]:
        """Name to sum over count, or to the sum where it is a plain number."""
        return {name: total / (count or 1) for name, (total, count) in sorted(self._entries.items())}

    def _put(self, name: str, total: float, count: int) -> None:
        old_total, old_count = self._entries.get(name, (0.0, 0))
        self._entries[name] = (old_total + total, old_count + count)


def counter_totals(before: Mapping[str, float], now: Mapping[str, float]) -> Totals:
    """What counters that only grow gained between two readings, as plain numbers."""
    totals = Totals()
    for name, value in now.items():
        totals.add_number(name, value - before.get(name, 0.0))
    return totals


def rollout_totals(rollouts: Sequence[Rollout]) -> Totals:
    """Lengths, authorship and the judge's work over the rollouts of one process.

    Args:
        rollouts (`Sequence[Rollout]`): Finished rollouts of any roles.

    Returns:
        [`Totals`].
    """
    totals = Totals()
    tokens: Counter[str] = Counter(policy=0, intervention=0, intervention_with_logps=0, discarded=0, lookahead=0)
    for rollout in rollouts:
        length = sum(len(span) for span in rollout.spans)
        foreign = rollout.intervention_tokens
        by_judge = (span for span in rollout.spans if span.author is Author.INTERVENTION)
        known = sum(len(span) for span in by_judge if span.logps is not None)
        tokens.update(policy=length - foreign, intervention=foreign, intervention_with_logps=known)
        totals.add(f"lengths/{rollout.request.role.value}", length)
        totals.add("lengths/truncated", rollout.stop is StopReason.LENGTH)
        totals.add("off_policy_share/all", foreign, length)
        if rollout.request.role is Role.INTERVENED:
            totals.add("off_policy_share", foreign, length)
            totals.add("judge/reviews", len(rollout.reviews))
            totals.add("judge/interventions", rollout.num_interventions)
        for review in rollout.reviews:
            tokens.update(discarded=len(review.discarded_ids), lookahead=review.lookahead_tokens)
            totals.add("seconds/review", review.review_seconds)
            totals.add("judge/revise_rate", review.decision is Decision.REVISE)
            totals.add("judge/no_verdict", review.decision is Decision.NO_VERDICT)
            if review.decision is Decision.NO_VERDICT:
                totals.add_number(f"judge/no_verdict/{review.reason}", 1)
            elif review.decision is Decision.REVISE and (review.intervened or not review.cuts):
                totals.add("judge/empty_correction", not review.intervened)
                totals.add("seconds/correction", review.correction_seconds)
            if review.intervened:
                totals.add("lengths/correction", review.correction_tokens)
                totals.add("judge/kept_share", review.kept_tokens, review.chunk_tokens)
    for name, number in tokens.items():
        totals.add_number(f"tokens/{name}", number)
    return totals


def reward_metrics(rewards: torch.Tensor, is_control: torch.Tensor, group_size: int) -> dict[str, float]:
    """Rewards by role, and groups that teach nothing or were rescued.

    Every process holds the rewards of all, so the result needs no reduction.

    Args:
        rewards (`torch.Tensor`): (N,) rewards; NaN means no reward.
        is_control (`torch.Tensor`): (N,) bool, true for pure on-policy rollouts.
        group_size (`int`): G, rows per prompt. Groups are neighbouring rows.

    Returns:
        `dict[str, float]`: Names that cannot be known (no row of the kind) are absent.
    """
    rewards = rewards.detach().double().cpu().view(-1, group_size)  # (N/G, G)
    control = is_control.cpu().view(-1, group_size)
    has_reward = ~rewards.isnan()
    controls, intervened = has_reward & control, has_reward & ~control  # (N/G, G) bool
    has_control, has_intervened = controls.any(dim=1), intervened.any(dim=1)  # (N/G,) bool

    totals = Totals()
    for role, rows in ((Role.CONTROL, controls), (Role.INTERVENED, intervened)):
        totals.add(f"rewards/{role.value}", rewards[rows].sum().item(), rows.sum().item())
    totals.add("rewards/unscored", (~has_reward).sum().item(), has_reward.numel())
    wrong = ~(controls & (rewards > 0)).any(dim=1)  # (N/G,) bool, true where no control is right
    right = (intervened & (rewards > 0)).any(dim=1)  # (N/G,) bool, true where an intervened rollout is right
    for name, true, among in (
        ("groups/dead", _all_equal(rewards, has_reward), has_reward.any(dim=1)),
        ("groups/dead_control", _all_equal(rewards, controls), has_control),
        ("groups/rescued", wrong & right, has_control & has_intervened),
        ("groups/dropped", ~has_control, control.any(dim=1)),
    ):
        totals.add(name, (true & among).sum().item(), among.sum().item())
    means = totals.means()
    if "rewards/control" in means and "rewards/intervened" in means:
        means["reward_gap"] = means["rewards/intervened"] - means["rewards/control"]
    return means


def loss_totals(
    regression: RegressionLoss,
    *,
    logps: torch.Tensor,
    old_logps: torch.Tensor | None,
    response_mask: torch.Tensor,
    policy_authored: torch.Tensor,
    intervention_logps: torch.Tensor | None,
) -> Totals:
    """Terms of the loss over the scored rows of one micro-batch. Waits for the device once.

    Args:
        regression ([`RegressionLoss`]): What `regression_loss` returned.
        logps (`torch.Tensor`): (B, C) log-probabilities under the policy in training.
        old_logps (`torch.Tensor`, *optional*): (B, C) the same under the policy that generated the batch; `None` where
            both are the same.
        response_mask (`torch.Tensor`): (B, C) bool, true for response tokens.
        policy_authored (`torch.Tensor`): (B, C) bool, true where the policy wrote the token.
        intervention_logps (`torch.Tensor`, *optional*): (B, C) log-probabilities under the intervention policy; NaN
            where unknown.

    Returns:
        [`Totals`].
    """
    scored = regression.scored
    counted = response_mask & scored.unsqueeze(1)  # (B, C) bool
    by_judge = counted & ~policy_authored  # (B, C) bool
    before = (logps if old_logps is None else old_logps).detach().float()  # (B, C)
    terms = {
        "intervention/nll": (-before, by_judge),
        "imitation_bonus": (regression.imitation_bonus, by_judge.any(dim=1)),
        "log_ratio": (regression.log_ratio, scored),
        "squared_residual": (regression.residual.square(), scored),
    }
    if intervention_logps is not None:
        terms["intervention/kl"] = (intervention_logps.float() - before, by_judge & intervention_logps.isfinite())
    return _masked_totals(terms)


def entropy_totals(
    entropies: torch.Tensor, response_mask: torch.Tensor, live: torch.Tensor, sample: torch.Tensor
) -> Totals:
    """Entropy of the policy over one micro-batch. Waits for the device once.

    Args:
        entropies (`torch.Tensor`): (B, C) entropy of the policy at each token, in nats.
        response_mask (`torch.Tensor`): (B, C) bool, true for response tokens.
        live (`torch.Tensor`): (B,) bool, rows that were forwarded whole.
        sample (`torch.Tensor`): (B,) bool, rows of the fixed sample.

    Returns:
        [`Totals`].
    """
    values = entropies.detach().float()
    return _masked_totals(
        {
            "entropy/live": (values, response_mask & live.unsqueeze(1)),
            "entropy/sample": (values, response_mask & sample.unsqueeze(1)),
        }
    )


def _masked_totals(terms: Mapping[str, tuple[torch.Tensor, torch.Tensor]]) -> Totals:
    """Sums and counts of values where their mask, of the same shape, is true."""
    sums = torch.stack([torch.where(mask, value, 0.0).sum() for value, mask in terms.values()])  # (K,)
    counts = torch.stack([mask.sum() for _, mask in terms.values()])  # (K,)
    totals = Totals()
    for name, (total, count) in zip(terms, torch.stack([sums, counts.to(sums)], dim=1).tolist(), strict=True):
        totals.add(name, total, round(count))
    return totals


def _all_equal(values: torch.Tensor, counted: torch.Tensor) -> torch.Tensor:
    """(N/G,) bool: whether the counted entries of each row are exactly equal."""
    largest = torch.where(counted, values, -torch.inf).amax(dim=1)
    smallest = torch.where(counted, values, torch.inf).amin(dim=1)
    return largest <= smallest
