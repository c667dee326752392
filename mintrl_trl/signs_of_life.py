"""Whoever watches a run sees that it moves, and what it waits for where it does not: live line, heartbeat, warnings.

It puts the trainer's settings and the names of its servers into `reporting`'s displays, and decides nothing.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .reporting.live import LiveProgress
from .reporting.run_folder import jsonable
from .reporting.watchdog import Watchdog
from .rollouts.progress import Progress

if TYPE_CHECKING:
    from .trainer import MInTRLTrainer


def live_progress(trainer: "MInTRLTrainer", progress: Callable[[], Progress], label: str, **shown: Any) -> LiveProgress:
    """What shows, while rollouts are made, how they come along. On the main process.

    Args:
        trainer ([`MInTRLTrainer`]): Whose rollouts.
        progress (`Callable[[], Progress]`): Snapshot of what makes them.
        label (`str`): What is being made.
        **shown: `time_left` and `noun` of [`LiveProgress`].
    """
    args = trainer.args
    doors = jsonable({"policy": ", ".join(args.server_urls), "judge": args.judge_base_url or ""})  # without secrets
    show = trainer.accelerator.is_main_process and args.show_progress
    served = trainer.policy.served

    def away() -> list[str]:
        outages = [] if served is None else served.outages()
        return [f"{one.server}, {one.seconds:.0f} of {one.limit_seconds:.0f} s" for one in outages]

    stall_seconds = float(args.stall_seconds)
    return LiveProgress(progress, label, enabled=show, stall_seconds=stall_seconds, doors=doors, away=away, **shown)


def watchdog(trainer: "MInTRLTrainer") -> Watchdog:
    """What warns, on every process, where an update stands still outside of its rollouts."""
    args = trainer.args
    servers, rewards = jsonable(", ".join(args.server_urls)), ", ".join(trainer.reward_func_names)
    names = {
        "sync": f"weights to reach {servers or 'the generator'}",
        "reward": f"the rewards ({rewards})",
        "update": "a forward or backward pass",
        "idle": "other processes, or the next rows",
    }
    number, processes = trainer.accelerator.process_index, trainer.accelerator.num_processes
    where = f", process {number}" if processes > 1 else ""
    return Watchdog(
        trainer.step_meter.clock.current,
        float(args.stall_seconds),
        names,
        lambda: f"update {trainer.state.global_step + 1}{where}",
        enabled=args.show_progress is not False,
    )
