"""`mintrl push`: a run's model on the hub. Owns its flags."""

import argparse
import sys
from pathlib import Path

from ..errors import ConfigError
from . import CLEAN, SubParsers, without_bars

_ABOUT = """\
Push the model of a run to the hub: weights and tokenizer, a model card written from the run's own files, the recipe,
settings, versions and metrics. Rollouts stay here, but for the few that the card shows. The repository is private
unless --public says otherwise.
"""
_MORE = """\
examples:
  mintrl push runs/math_qwen3_1.7b my-model
  mintrl push runs/gsm8k_smollm2/checkpoint-200 me/my-model --merge --license apache-2.0
  mintrl push runs/quickstart my-model --stage look-at-this-first

exit code: 0 pushed, 2 it could not be done
"""


def add(commands: SubParsers) -> None:
    parser = commands.add_parser(
        "push",
        help="put a run's model on the hub, with its card",
        description=_ABOUT,
        epilog=_MORE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("source", metavar="RUN", help="a run folder with a saved model, or a checkpoint")
    parser.add_argument("repo", metavar="REPO", help="name, or owner/name, of the repository; made if need be")
    parser.add_argument("--public", action="store_true", help="a public repository")
    parser.add_argument("--merge", action="store_true", help="add an adapter to its base model's weights")
    parser.add_argument("--base", metavar="NAME_OR_FOLDER", help="with --merge: the base model, if it has moved")
    parser.add_argument("--license", metavar="ID", help="of the model (default: the base model's)")
    parser.add_argument("--judge-license", metavar="ID", help="of the judge model (default: as the hub has it)")
    parser.add_argument("--examples", type=int, default=3, metavar="N", help="rollouts in the card (default: 3)")
    parser.add_argument("--revision", metavar="BRANCH", help="the branch to push to")
    parser.add_argument("--message", default="Upload model", help="of the commit")
    parser.add_argument("--stage", type=Path, metavar="FOLDER", help="write what would be pushed there; push nothing")
    parser.set_defaults(run=run, flags={"repo": "REPO"})


def run(arguments: argparse.Namespace) -> int:
    from huggingface_hub.utils import HFValidationError, validate_repo_id

    from ..sharing.push_run import push_run
    from ..sharing.pusher import HubPusher

    if arguments.examples < 0:
        raise ConfigError("examples", arguments.examples, "a whole number, at least 0", "write --examples 0")
    try:
        validate_repo_id(arguments.repo)
    except HFValidationError as error:
        allowed = "name or owner/name, of letters, digits and .-_"
        raise ConfigError("repo", arguments.repo, allowed, "write such a name") from error
    pusher = HubPusher(arguments.repo, private=not arguments.public, revision=arguments.revision)
    without_bars()
    where = push_run(
        arguments.source,
        pusher,
        merge=arguments.merge,
        base=arguments.base,
        license=arguments.license,
        judge_license=arguments.judge_license,
        examples=arguments.examples,
        message=arguments.message,
        stage=arguments.stage,
    )
    sys.stdout.write(f"{where}\n")
    return CLEAN
