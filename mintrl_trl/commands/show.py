"""`mintrl show`: look at a run's rollouts. Owns its flags."""

import argparse
import sys

from ..errors import ConfigError
from . import CLEAN, SubParsers, pipe_may_close

_ABOUT = """\
Look at the rollouts of a run: who wrote what, in colour, what the judge discarded (struck through) and why, what the
rollout earned and the advantage it was trained with. Where there are no colours, {+judge+} and [-discarded-] mark them.
A large run is read once; later calls answer at once.
"""
_MORE = """\
examples:
  mintrl show runs/quickstart --rescued
  mintrl show runs/quickstart --step 12 --group 3
  mintrl show runs/math --derailed --newest-first --limit 20
  mintrl show runs/math --no-verdict --prompt "how many apples" --limit 0 --color always | less -R
  mintrl show runs/math --revised --json | jq .reviews

Filters are met all together. rescued: right (reward above 0), where interventions were allowed, and every control of
its group wrong; derailed: wrong, where they were allowed, and every control right.
exit code: 0 done, 2 it could not be done
"""


def add(commands: SubParsers) -> None:
    parser = commands.add_parser(
        "show",
        help="look at a run's rollouts",
        description=_ABOUT,
        epilog=_MORE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", metavar="RUN", help="the run's folder")
    filters = parser.add_argument_group("which")
    filters.add_argument("--step", type=int, metavar="N", help="of update N, counted from 1")
    filters.add_argument("--group", type=int, metavar="N", help="of group N of their update, counted from 0")
    filters.add_argument("--role", choices=["control", "intervened"], help="of this role")
    filters.add_argument("--rescued", action="store_true", help="right, and every control of the group wrong")
    filters.add_argument("--derailed", action="store_true", help="wrong, and every control of the group right")
    filters.add_argument("--revised", action="store_true", help="the judge rejected a step")
    filters.add_argument("--no-verdict", action="store_true", help="a review gave no verdict")
    filters.add_argument("--prompt", metavar="TEXT", help="the prompt holds TEXT")
    how = parser.add_argument_group("how")
    how.add_argument("--limit", type=int, default=5, metavar="N", help="at most N; 0: all (default: 5)")
    how.add_argument("--newest-first", action="store_true", help="later updates first")
    how.add_argument("--json", action="store_true", help="a line of JSON for each, for other programs")
    how.add_argument("--color", choices=["auto", "always", "never"], default="auto", help="default: auto")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from rich.console import Console

    from ..reporting.rollout_index import RolloutFilter
    from ..reporting.rollout_view import opened_index, rollout_lines, show_rollouts
    from ..rollouts.rollout import Role

    if arguments.limit < 0:
        raise ConfigError("limit", arguments.limit, "0 (all) or more", "write --limit 0")
    wanted = RolloutFilter(
        update=arguments.step,
        group=arguments.group,
        role=Role(arguments.role) if arguments.role else None,
        rescued=arguments.rescued,
        derailed=arguments.derailed,
        revised=arguments.revised,
        no_verdict=arguments.no_verdict,
        prompt=arguments.prompt,
    )
    how = {"limit": arguments.limit or None, "newest_first": arguments.newest_first}
    colours = {"auto": None, "always": True, "never": False}[arguments.color]
    console = Console(force_terminal=colours, no_color=None if colours is None else not colours, highlight=False)
    with pipe_may_close(), opened_index(arguments.folder, Console(stderr=True)) as index:
        if arguments.json:
            for line in rollout_lines(index, wanted, **how):
                sys.stdout.write(line + "\n")
        else:
            show_rollouts(index, wanted, console, **how)
    return CLEAN
