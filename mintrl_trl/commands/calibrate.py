"""`mintrl calibrate`: how to set interventions, and how good the judge is. Owns its flags and exit code."""

import argparse
import sys
from pathlib import Path

from ..errors import ConfigError, FailureLimitError, GenerationError, JudgeError
from . import CLEAN, FINDINGS, SubParsers, without_bars

_ABOUT = """\
Make pilot rollouts with the base model and the judge of a recipe, under several budgets (chunk, reviews, correction),
and report what interventions do: reward gain, revise rate, share of the judge's tokens, cost. Kappa is the mean
log-probability of the judge's corrections under itself. Then the judge is measured: objections to rollouts that end
right, what its corrections are worth, and whether it names the first wrong step. Nothing is trained. What is sampled is
saved; the same command continues what was interrupted.
"""
_MORE = """\
examples:
  mintrl calibrate --config recipes/quickstart.yaml
  mintrl calibrate --config recipes/chains_self_judge.yaml --chunk-tokens 8 16 --max-reviews 2 4 --correction-tokens 1 4
  mintrl calibrate --config recipes/math_qwen3_1.7b.yaml --prompts 64 --chunk-tokens 256 512 --labelled steps.jsonl

Other flags are the recipe's settings. The folder gets calibration.json, and recipe.yaml where a budget was chosen.

exit code: 0 a budget was chosen, 1 none will do, 2 it could not be done, 130 interrupted
"""


def add(commands: SubParsers) -> None:
    parser = commands.add_parser(
        "calibrate",
        help="find out how to set interventions, and how good the judge is",
        description=_ABOUT,
        epilog=_MORE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--config", required=True, type=Path, metavar="RECIPE", help="the run's YAML file")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="default: calibration/RECIPE")
    parser.add_argument("--prompts", type=int, default=32, metavar="N", help="problems (default: 32)")
    parser.add_argument("--rollouts", type=int, default=8, metavar="N", help="of each, per budget (default: 8)")

    grid = parser.add_argument_group("budgets (default: around the recipe's)")
    grid.add_argument("--chunk-tokens", type=int, nargs="+", default=[], metavar="N", help="tokens between two reviews")
    grid.add_argument("--max-reviews", type=int, nargs="+", default=[], metavar="N", help="reviews of a rollout")
    grid.add_argument(
        "--correction-tokens", type=int, nargs="+", default=[], metavar="N", help="tokens of a correction"
    )
    grid.add_argument(
        "--max-off-policy-share",
        type=float,
        default=0.05,
        metavar="SHARE",
        help="of the judge's tokens, above which a budget is not chosen (default: 0.05)",
    )

    judge = parser.add_argument_group("the judge")
    judge.add_argument(
        "--shadow-share", type=float, default=0.25, metavar="SHARE", help="controls reviewed without effect (0.25)"
    )
    judge.add_argument("--rescue-cases", type=int, default=32, metavar="N", help="corrections to weigh (default: 32)")
    judge.add_argument("--continuations", type=int, default=8, metavar="N", help="of each, with and without (8)")
    judge.add_argument("--labelled", type=Path, metavar="FILE", help="solutions in ProcessBench's form (.jsonl)")
    own = {"prompts", "rollouts", "max_off_policy_share", "shadow_share", "rescue_cases", "continuations", "labelled"}
    parser.set_defaults(run=run, settings=(), own={*own, "out"})


def run(arguments: argparse.Namespace) -> int:
    # Imported here, so that help and mistakes in the command line are answered at once
    import logging

    from rich.console import Console

    from ..calibrate import CalibrationSettings, calibrate
    from ..calibration.choice import recipe_fragment
    from ..recipe import parse_recipe
    from ..reporting.calibration_report import print_calibration

    logging.basicConfig(format="%(message)s")
    logging.getLogger("mintrl_trl").setLevel(logging.INFO)
    if arguments.labelled is not None and not arguments.labelled.is_file():
        raise ConfigError("labelled", str(arguments.labelled), "a JSON Lines file", "correct the path")
    out = arguments.out or Path("calibration") / arguments.config.stem
    settings = CalibrationSettings(
        out,
        chunk_tokens=tuple(arguments.chunk_tokens),
        max_reviews=tuple(arguments.max_reviews),
        correction_tokens=tuple(arguments.correction_tokens),
        prompts=arguments.prompts,
        rollouts=arguments.rollouts,
        max_off_policy_share=arguments.max_off_policy_share,
        shadow_share=arguments.shadow_share,
        rescue_cases=arguments.rescue_cases,
        continuations=arguments.continuations,
        labelled=arguments.labelled,
    )
    recipe = parse_recipe(["--config", str(arguments.config), *arguments.settings], default=arguments.config)
    without_bars()
    try:
        found = calibrate(recipe, settings, Console(stderr=True))
    except (KeyboardInterrupt, GenerationError, JudgeError, FailureLimitError):
        sys.stderr.write("What was finished is saved; the same command continues.\n")
        raise
    (out / "calibration.json").write_text(found.as_json(), encoding="utf-8")
    console, chosen = Console(highlight=False), found.choice.pilot
    if not console.is_terminal:
        console.width = max(console.width, 120)
    print_calibration(found, console)
    if chosen is None:
        (out / "recipe.yaml").unlink(missing_ok=True)
        next_step = (
            "Next: try another judge (what this one does is above), other budgets, or a larger --max-off-policy-share."
        )
    else:
        (out / "recipe.yaml").write_text(recipe_fragment(chosen, found.measured_on), encoding="utf-8")
        next_step = f"Next: put the lines of {out / 'recipe.yaml'} into {arguments.config}."
    console.print(next_step, markup=False, soft_wrap=True)
    sys.stdout.flush()
    return FINDINGS if chosen is None else CLEAN
