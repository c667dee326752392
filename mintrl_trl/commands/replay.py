"""`mintrl replay`: an update computed again from its saved rollouts. Owns its flags and exit code."""

import argparse
import json
import sys

from ..errors import ConfigError
from . import CLEAN, FINDINGS, SubParsers, pipe_may_close, without_bars

_EXACT, _ROUNDED = 0.001, 0.01

_ABOUT = """\
Compute an update of a run again, from its saved rollouts and the weights before it, without data, server, judge or
reward: its loss and gradient norm beside the logged ones, every rollout's log-ratio, residual and loss, and where a
number is not finite. Update N needs checkpoint-(N-1) of the run; the first one needs the model that the run began with.
Without --step it lists the updates that can be replayed. Nothing is written, no weight changes.
"""
_MORE = """\
examples:
  mintrl replay runs/quickstart
  mintrl replay runs/quickstart --step 1
  mintrl replay runs/math --step 201 --micro-batch 1 --limit 0
  mintrl replay runs/math --step 118 --model weights/before-118 --json

exit code: 0 loss and gradient norm are those that were logged, 1 they differ, or something is not finite, 2 it could
not be done
"""


def add(commands: SubParsers) -> None:
    parser = commands.add_parser(
        "replay",
        help="compute an update again from its saved rollouts",
        description=_ABOUT,
        epilog=_MORE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", metavar="RUN", help="the run's folder")
    parser.add_argument("--step", type=int, metavar="N", help="which update, counted from 1")
    parser.add_argument("--model", metavar="MODEL", help="weights before the update: a folder, a hub id or chains_base")
    parser.add_argument("--micro-batch", type=int, metavar="ROWS", help="rows of one forward (default: the run's)")
    parser.add_argument(
        "--tolerance",
        type=float,
        metavar="SHARE",
        help=f"relative difference that is none (default: {_EXACT}; {_ROUNDED} from rounded weights)",
    )
    parser.add_argument("--limit", type=int, default=20, metavar="N", help="list N rollouts; 0: all (default: 20)")
    parser.add_argument("--json", action="store_true", help="everything as one JSON object, for other programs")
    parser.set_defaults(run=run, flags={"folder": "RUN"})


def run(arguments: argparse.Namespace) -> int:
    for name, least in (("step", 1), ("micro_batch", 1), ("limit", 0), ("tolerance", 0)):
        value = getattr(arguments, name)
        if value is not None and value < least:
            raise ConfigError(name, value, f"at least {least}", "correct it")

    from rich.console import Console

    from ..baselines.ablations import AblationTrainer
    from ..config import MInTRLConfig
    from ..config_ablations import AblationConfig
    from ..replay import Replayer
    from ..reporting.replay_report import print_replay
    from ..trainer import MInTRLTrainer

    without_bars()
    replayer = Replayer(arguments.folder, {MInTRLConfig: MInTRLTrainer, AblationConfig: AblationTrainer})
    if arguments.step is None:
        found = replayer.replayable()
        heading = "updates with the weights before them:" if found else "of no update are the weights before it known"
        with pipe_may_close():
            sys.stdout.write(f"{heading}\n")
            for update, weights in found.items():
                sys.stdout.write(f"{update:>6}  from {weights.described}{' (rounded)' if weights.rounded else ''}\n")
            sys.stdout.write("any of these: --step N; any other: --step N --model WEIGHTS, those before it\n")
        return CLEAN
    with Console(stderr=True).status(f"replaying update {arguments.step}"):
        replayed = replayer.replay(arguments.step, model=arguments.model, micro_batch=arguments.micro_batch)
    with pipe_may_close():
        if arguments.json:
            sys.stdout.write(json.dumps(replayed.to_json()) + "\n")
        else:
            print_replay(replayed, Console(highlight=False), arguments.limit or None)
    tolerance = arguments.tolerance
    if tolerance is None:
        tolerance = _ROUNDED if replayed.rounded else _EXACT
    return CLEAN if replayed.agrees(tolerance) else FINDINGS
