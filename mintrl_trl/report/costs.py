"""What a run cost, by role: calls, tokens, seconds, money, and where the time of its updates went.

Sums up what was logged and estimates nothing. Invariant: a number that was not logged is absent, never 0.
"""

from typing import Any

from ..analysis.curves import seconds_until
from ..analysis.runs import Run

_STAGES = {
    "rollouts": "share/rollout",
    "waiting for the judge": "share/review",
    "rewards": "share/reward",
    "weights to the sampler": "share/sync",
    "update": "share/update",
    "idle": "share/idle",
}
_JUDGE = {"review": "judge, reviews", "correction": "judge, corrections"}


def total_of(run: Run, name: str) -> float | None:
    """Sum of a plain number over a run's generated batches; `None` where it was not logged.

    A line that stands for several updates holds the mean over their batches.
    """
    per_batch = run.settings.get("updates_per_generation") or 1
    total, before, found = 0.0, 0, False
    for update, value in run.series(name):
        total += value * max(1.0, (update - before) / per_batch if _interval(run) > 1 else 1.0)
        before, found = update, True
    return total if found else None


def cost_of(run: Run, reviews: int) -> dict[str, Any]:
    """Cost by role, and shares of the time.

    Args:
        run ([`Run`]): The run.
        reviews (`int`): Reviews that its rollouts hold, for judges that keep no account.
    """
    seconds = max(seconds_until(run).values(), default=None)
    return {
        "roles": [role for role in (_policy(run), *_judge(run, reviews), *_others(run)) if role is not None],
        "time": _time(run),
        "seconds": seconds,
        "note": _note(run),
    }


def _policy(run: Run) -> dict[str, Any] | None:
    written = total_of(run, "tokens/policy")
    if written is None:
        return None
    vain = sum(total_of(run, f"tokens/{name}") or 0.0 for name in ("discarded", "lookahead"))
    return _role(
        "policy",
        "not used: cut by the judge, or written during a review that cut" if vain else "",
        {
            "tokens written": written + vain,
            "of these not used": vain or None,
            "seconds": total_of(run, "seconds/rollout"),
        },
    )


def _judge(run: Run, reviews: int) -> list[dict[str, Any]]:
    found = []
    for role, name in _JUDGE.items():
        account = {
            "calls": total_of(run, f"judge/{role}/calls"),
            "retries": total_of(run, f"judge/{role}/retries"),
            "tokens read": total_of(run, f"judge/{role}/prompt_tokens"),
            "tokens written": total_of(run, f"judge/{role}/completion_tokens"),
            "seconds": total_of(run, f"judge/{role}/seconds"),
        }
        note = "seconds of all calls, many at a time"
        if account["calls"] is None and role == "review" and reviews:
            account, note = {"calls": float(reviews)}, "counted in the rollouts; this judge keeps no account"
        if account["calls"]:
            found.append(_role(name, note, account))
    spliced = total_of(run, "tokens/intervention")
    if spliced:
        name = "judge, in rollouts" if found else "expert, in rollouts"
        found.append(_role(name, "its tokens that responses hold", {"tokens written": spliced}))
    return found


def _others(run: Run) -> list[dict[str, Any] | None]:
    reward = total_of(run, "seconds/reward")
    steps, forwarded = seconds_until(run), total_of(run, "tokens/forwarded")
    share = _share(run, "share/update")
    update = share * max(steps.values()) if share is not None and steps else None
    return [
        _role("rewards", "", {"seconds": reward}) if reward is not None else None,
        _role("trainer", "forward and backward passes", {"tokens read": forwarded, "seconds": update})
        if forwarded is not None or update is not None
        else None,
    ]


def _role(name: str, note: str, values: dict[str, float | None]) -> dict[str, Any]:
    return {"name": name, "note": note} | {key: value for key, value in values.items() if value is not None}


def _time(run: Run) -> list[dict[str, Any]]:
    shares = {name: _share(run, metric) for name, metric in _STAGES.items()}
    return [{"name": name, "share": round(share, 5)} for name, share in shares.items() if share is not None]


def _share(run: Run, metric: str) -> float | None:
    """A share of the updates' time, by their seconds; updates without a value count as none of it."""
    seconds = dict(run.series("step/seconds"))
    values = [(seconds[update], value) for update, value in run.series(metric) if update in seconds]
    total = sum(own for update, own in seconds.items() if update > 0)
    return sum(own * value for own, value in values) / total if values and total else None


def _note(run: Run) -> str:
    cost = total_of(run, "judge/cost")
    if cost is not None:
        return f"The judge cost {cost:,.2f} in the currency of its prices."
    if total_of(run, "judge/review/calls"):
        return "No price: set judge_price_per_million_input and judge_price_per_million_output."
    return "Over all updates that were logged."


def _interval(run: Run) -> float:
    return run.settings.get("logging_steps") or 1
