"""What a replayed update was, for a person and for a program. Owns the values' form; computes no loss."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console

_NOISE = 1e-7  # a difference this small is rounding; the loss of an on-policy update is little else
# Columns of the list: field and heading. Those without any value are left out.
_COLUMNS = {
    "row": "row",
    "group": "group",
    "role": "role",
    "reward": "reward",
    "advantage": "advantage",
    "tokens": "tokens",
    "judge_tokens": "judge's",
    "logp": "log-prob",
    "log_ratio": "log-ratio",
    "imitation_bonus": "bonus",
    "residual": "residual",
    "loss": "loss",
}


@dataclass(frozen=True)
class ReplayedRollout:
    """One rollout's part of an update.

    Args:
        row, group, role, reward, advantage: As recorded.
        tokens, judge_tokens (`int`): Response tokens; those that the judge wrote.
        live (`bool`): False: its gradient is exactly zero, so the update forwarded two of its tokens alone.
        logp (`float`, *optional*): Log-probability of the response under the weights before the update, in nats;
            `None` where it was not forwarded whole.
        broken_at (`int`, *optional*): First response token whose log-probability is not a finite number.
        loss (`float`, *optional*): Its squared residual, times the loss scale; the update's loss is the mean over
            rollouts. `None` where the loss is not a sum over rollouts (on-policy updates).
        log_ratio (`float`, *optional*): Sum of log-probability minus reference, in nats.
        residual (`float`, *optional*): beta2 log-ratio minus advantage.
        imitation_bonus (`float`, *optional*): What its intervention tokens add to its advantage.
    """

    row: int
    group: int
    role: str
    reward: float | None
    advantage: float | None
    tokens: int
    judge_tokens: int
    live: bool
    logp: float | None = None
    broken_at: int | None = None
    loss: float | None = None
    log_ratio: float | None = None
    residual: float | None = None
    imitation_bonus: float | None = None


@dataclass(frozen=True)
class ReplayedUpdate:
    """An update, computed again.

    Args:
        update (`int`): Which, from 1.
        phase (`str`): `"interventions"` or `"on-policy"`.
        weights (`str`): Where the weights before it came from.
        rounded (`bool`): Whether these were saved with fewer digits than they were trained with.
        loss, grad_norm (`float`): Computed again.
        logged_loss, logged_grad_norm (`float`, *optional*): As `metrics.jsonl` has them, of this update alone.
        rollouts (`tuple[ReplayedRollout, ...]`): Those of the update.
        notes (`tuple[str, ...]`): Why it need not be what was logged, to the last digit.
        broken (`tuple[str, ...]`): What is not a finite number, and where.
    """

    update: int
    phase: str
    weights: str
    rounded: bool
    loss: float
    grad_norm: float
    logged_loss: float | None
    logged_grad_norm: float | None
    rollouts: tuple[ReplayedRollout, ...]
    notes: tuple[str, ...] = ()
    broken: tuple[str, ...] = ()

    def agrees(self, tolerance: float) -> bool:
        """Whether nothing is broken, and what was logged is met up to a relative difference."""
        pairs = ((self.loss, self.logged_loss), (self.grad_norm, self.logged_grad_norm))
        close = (
            math.isclose(mine, logged, rel_tol=tolerance, abs_tol=_NOISE)
            for mine, logged in pairs
            if logged is not None
        )
        finite = math.isfinite(self.loss) and math.isfinite(self.grad_norm)
        return finite and not self.broken and all(close)

    def to_json(self) -> dict[str, Any]:
        """Plain values; numbers that are not finite become their names, which JSON has no form for."""
        return _plain(asdict(self))


def print_replay(replayed: ReplayedUpdate, console: Console, limit: int | None = 20) -> None:
    """Print an update and its rollouts, those with the largest loss first.

    Args:
        replayed ([`ReplayedUpdate`]): The update.
        console (`Console`): Where to.
        limit (`int`, *optional*, defaults to 20): Rollouts that are listed at most; `None`: all.
    """
    console.print(
        f"update {replayed.update} ({replayed.phase}), {len(replayed.rollouts)} rollouts, weights: {replayed.weights}",
        markup=False,
        soft_wrap=True,
    )
    for name, mine, logged in (
        ("loss", replayed.loss, replayed.logged_loss),
        ("gradient norm", replayed.grad_norm, replayed.logged_grad_norm),
    ):
        compared = "not logged" if logged is None else f"logged {logged:.9g}, {_difference(mine, logged)}"
        console.print(f"{name:<13} {mine:.9g}   {compared}", markup=False, soft_wrap=True)
    for note in replayed.notes:
        console.print(f"note: {note}", markup=False, soft_wrap=True)
    for line in replayed.broken:
        console.print(f"not finite: {line}", style="bold red", markup=False, soft_wrap=True)
    ordered = sorted(replayed.rollouts, key=_weight, reverse=True)
    shown = ordered if limit is None else ordered[:limit]
    largest = "loss" if any(rollout.loss is not None for rollout in ordered) else "advantage"
    head = f"\n{len(shown)} of {len(ordered)} rollouts, the largest {largest} first; a row in brackets has no gradient"
    console.print(head, soft_wrap=True)
    for line, broken in _lines(shown):
        console.print(line, style="bold red" if broken else None, markup=False, soft_wrap=True)


def _lines(rollouts: Sequence[ReplayedRollout]) -> Iterator[tuple[str, bool]]:
    """A list as lines of columns, the headings first, and whether a line's rollout is broken."""
    names = [name for name in _COLUMNS if any(getattr(rollout, name) is not None for rollout in rollouts)]
    cells = [[_COLUMNS[name] for name in names], *([_cell(rollout, name) for name in names] for rollout in rollouts)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row, rollout in zip(cells, [None, *rollouts], strict=True):
        line = "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        yield line, rollout is not None and rollout.broken_at is not None


def _cell(rollout: ReplayedRollout, name: str) -> str:
    value = getattr(rollout, name)
    if name == "row" and not rollout.live:
        return f"({value})"
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _weight(rollout: ReplayedRollout) -> tuple[bool, float]:
    """What is broken first, then by loss, or by advantage where the loss is not a sum over rollouts."""
    size = rollout.loss if rollout.loss is not None else abs(rollout.advantage or 0.0)
    return rollout.broken_at is not None or not math.isfinite(size), size if math.isfinite(size) else math.inf


def _difference(mine: float, logged: float) -> str:
    if not (math.isfinite(mine) and math.isfinite(logged)):
        return "not comparable"
    if abs(mine - logged) <= _NOISE:
        return "the same" if mine == logged else f"difference {abs(mine - logged):.1e}"
    return f"relative difference {abs(mine - logged) / max(abs(logged), 1e-12):.1e}"


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
