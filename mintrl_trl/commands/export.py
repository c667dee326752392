"""`mintrl export`: make a plain model folder from a checkpoint. Owns its flags."""

import argparse
import sys

from . import CLEAN, SubParsers, without_bars

_ABOUT = """\
Write a checkpoint of a run as a plain Hugging Face folder, model and tokenizer: whatever the run trained (all weights
or an adapter), however they were saved (whole, sharded by FSDP, thinned out later).
"""
_MORE = """\
examples:
  mintrl export runs/math_qwen3_1.7b/checkpoint-500 models/mine
  mintrl export runs/gsm8k_smollm2/checkpoint-200 models/merged --merge --dtype float32

exit code: 0 done, 2 it could not be done
"""


def add(commands: SubParsers) -> None:
    parser = commands.add_parser(
        "export",
        help="make a plain model folder from a checkpoint",
        description=_ABOUT,
        epilog=_MORE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("checkpoint", metavar="CHECKPOINT", help="a folder checkpoint-N of a run")
    parser.add_argument("out", metavar="OUT", help="the folder to make; it must not exist, or be empty")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16", help="default: bfloat16")
    parser.add_argument("--merge", action="store_true", help="add an adapter to its base model's weights")
    parser.add_argument("--base", metavar="NAME_OR_FOLDER", help="with --merge: the base model, if it has moved")
    parser.set_defaults(run=run, flags={"out": "OUT"})


def run(arguments: argparse.Namespace) -> int:
    from ..export import export_checkpoint

    without_bars()
    folder = export_checkpoint(
        arguments.checkpoint, arguments.out, dtype=arguments.dtype, merge=arguments.merge, base=arguments.base
    )
    sys.stdout.write(f"{folder}\n")
    return CLEAN
