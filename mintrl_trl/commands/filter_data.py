"""`mintrl filter-data`: leave out training problems that the base model solves almost always. Owns its flags."""

import argparse
import sys
from pathlib import Path

from ..errors import ConfigError, GenerationError
from . import CLEAN, SubParsers, without_bars

_ABOUT = """\
Leave out problems that are too easy to learn from: the base model answers each 8 times, and what it solves at least 7
times is dropped, as the paper does with its training prompts. Samples are saved as they finish; the same command
continues what was interrupted. The kept rows are written with their rate, `base_pass_rate`, in the form that training
reads.
"""
_MORE = """\
examples:
  mintrl filter-data rows.jsonl --model Qwen/Qwen3-1.7B --out kept.jsonl --base-url http://localhost:8000
  mintrl filter-data nvidia/AceReason-Math --model Qwen/Qwen3-4B --out kept.jsonl --base-url http://localhost:8000
  mintrl filter-data chains --limit 64 --model mintrl_trl/data/chains_base --out kept.jsonl

exit code: 0 done, 2 it could not be done, 130 interrupted
"""


def add(commands: SubParsers) -> None:
    parser = commands.add_parser(
        "filter-data",
        help="leave out training problems that the base model solves almost always",
        description=_ABOUT,
        epilog=_MORE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("source", metavar="DATA", help="a JSON Lines file (.jsonl, .jsonl.gz), a hub id, or chains")
    parser.add_argument("--model", required=True, help="the base model: a hub id, a folder, or a checkpoint")
    parser.add_argument("--out", required=True, type=Path, metavar="FILE", help="the file of what is kept (.jsonl)")
    parser.add_argument("--task", choices=("math", "code"), help="kind of rows (default: found out from the rows)")
    parser.add_argument("--split", default="train", help="split of a hub id (default: train)")
    parser.add_argument("--limit", type=int, metavar="N", help="the first N usable rows only")
    parser.add_argument("--drop-bad-rows", action="store_true", help="leave out rows that cannot be used")
    parser.add_argument("--drop-from", type=int, metavar="N", help="drop what is solved N times (default: 7 of 8)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the rates of all problems to FILE")

    sampling = parser.add_argument_group("sampling (as in training)")
    sampling.add_argument("--samples", type=int, default=8, metavar="N", help="responses to each problem (default: 8)")
    sampling.add_argument("--temperature", type=float, default=1.0, help="default: 1.0")
    sampling.add_argument("--top-p", type=float, default=1.0, help="default: 1.0; below 1 on a server only")
    sampling.add_argument("--max-prompt-length", type=int, default=2048, metavar="TOKENS", help="default: 2048")
    sampling.add_argument("--max-completion-length", type=int, metavar="TOKENS", help="default: 16384, chains: 52")
    sampling.add_argument("--enable-thinking", action="store_true", help="switch thinking on in the chat template")
    sampling.add_argument("--seed", type=int, default=0, help="default: 0")

    where = parser.add_argument_group("where the model runs")
    where.add_argument("--base-url", nargs="+", default=[], metavar="URL", help="vLLM servers (default: in process)")
    where.add_argument("--served-name", metavar="NAME", help="what to ask the servers for (default: the model)")
    where.add_argument("--max-concurrent-rollouts", type=int, metavar="N", help="default: 256, on servers 512")
    where.add_argument("--dtype", choices=("bfloat16", "float32"), help="in process (default: bfloat16 on a GPU)")
    where.add_argument("--folder", type=Path, metavar="FOLDER", help="of the samples (default: beside --out)")
    parser.set_defaults(run=run, flags={"source": "DATA"})


def run(arguments: argparse.Namespace) -> int:
    # Imported here, so that help and mistakes in the command line are answered at once
    import logging

    from rich.console import Console

    from ..eval_models import find_models
    from ..evaluate_models import EvalSettings
    from ..filter_data import filter_data
    from ..reporting.difficulty_report import print_difficulties

    logging.basicConfig(format="%(message)s")
    logging.getLogger("mintrl_trl").setLevel(logging.INFO)
    if arguments.json is not None and not arguments.json.parent.is_dir():
        raise ConfigError("json", str(arguments.json), "a file in a folder that exists", "make the folder first")
    models = find_models([arguments.model])
    if len(models) > 1:
        fix = "name one of its checkpoints"
        raise ConfigError("model", arguments.model, "one model, not a run with several checkpoints", fix)
    without_bars()
    folder = arguments.folder or arguments.out.with_name(f"{arguments.out.stem}_samples")
    given = {name: getattr(arguments, name) for name in EvalSettings.options() if name in arguments}
    given = {name: value for name, value in given.items() if value is not None} | {"out": folder}
    try:
        report = filter_data(
            arguments.source,
            models[0],
            arguments.out,
            EvalSettings(**given),
            Console(stderr=True),
            task=arguments.task,
            split=arguments.split,
            drop_from=arguments.drop_from,
            max_prompt_length=arguments.max_prompt_length,
            skip_bad_rows=arguments.drop_bad_rows,
        )
    except (KeyboardInterrupt, GenerationError):
        sys.stderr.write("What was finished is saved; the same command continues.\n")
        raise
    if arguments.json is not None:
        arguments.json.write_text(report.as_json(), encoding="utf-8")
    console = Console(highlight=False)
    print_difficulties(report, console)
    console.print(f"Next: train on it, with dataset: {arguments.out}. Samples: {folder}.", markup=False, soft_wrap=True)
    sys.stdout.flush()
    return CLEAN
