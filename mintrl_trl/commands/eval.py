"""`mintrl eval`: the scores of models and checkpoints on benchmarks. Owns its flags, and what is said at its end."""

import argparse
import json
import signal
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import ConfigError, GenerationError
from . import CLEAN, SubParsers, without_bars

if TYPE_CHECKING:
    from rich.console import Console

    from ..evaluation.benchmarks import LoadedBenchmark
    from ..evaluation.samples import SampleFolder
    from ..evaluation.table import Evaluated

_ABOUT = """\
Evaluate models as the paper does: 32 samples of each problem at temperature 1, of at most 32,768 tokens; Pass@1 and
Pass@k with confidence intervals over problems, averages by domain, and paired differences from the first model.
Samples are saved as they finish; the same command continues what was interrupted, or adds samples, problems and
benchmarks.
"""
_MORE = """\
MODEL is a hub id, a folder of a model or adapter, a checkpoint, or a run folder (all its checkpoints, of which the best
and the final one are named); chains_base is the small world's base model. It may also be a folder that this command
made, to show it again or beside others.

BENCHMARK is aime_2025, aime_2026, hmmt_feb_2025, gsm8k, humaneval_plus, mbpp_plus or livecodebench, from the folder
--data, or math or code for the three of the paper's averages; each also from the hub, as hub:math; chains, the small
world; or a JSON Lines file in the form that training reads.

examples:
  mintrl eval Qwen/Qwen3-1.7B --benchmarks math --data data/eval --base-url http://localhost:8000
  mintrl eval Qwen/Qwen3-1.7B runs/math_qwen3_1.7b --benchmarks math --base-url http://localhost:8000
  mintrl eval chains_base runs/quickstart --benchmarks chains --samples 16
  mintrl eval runs/gsm8k_smollm2 --benchmarks gsm8k --data data --held-out rows.jsonl --max-completion-length 512
  mintrl eval evaluations --rescore

exit code: 0 done, 2 it could not be done, 130 interrupted, 143 terminated
"""


def add(commands: SubParsers) -> None:
    parser = commands.add_parser(
        "eval",
        help="score models and checkpoints on benchmarks",
        description=_ABOUT,
        epilog=_MORE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("models", nargs="+", metavar="MODEL", help="what to evaluate; differences are from the first")
    parser.add_argument("--benchmarks", nargs="+", metavar="BENCHMARK", help="what to evaluate on")
    parser.add_argument("--data", type=Path, metavar="FOLDER", help="of benchmarks' files (default: $MINTRL_DATA)")
    parser.add_argument("--held-out", metavar="FILE", help="training problems kept apart, to choose a checkpoint by")
    parser.add_argument("--limit", type=int, metavar="N", help="the first N problems of each benchmark only")
    parser.add_argument("--out", type=Path, default=Path("evaluations"), metavar="FOLDER", help="default: evaluations")
    parser.add_argument(
        "--rescore", action="store_true", help="score the samples that are there again, without a model"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the table to FILE, several as a list")

    sampling = parser.add_argument_group("sampling (default: the paper's)")
    sampling.add_argument("--samples", type=int, metavar="N", help="responses to each problem (default: 32)")
    sampling.add_argument("--temperature", type=float, default=1.0, help="default: 1.0")
    sampling.add_argument("--top-p", type=float, default=1.0, help="default: 1.0; below 1 on a server only")
    sampling.add_argument("--max-completion-length", type=int, metavar="TOKENS", help="default: 32768, chains: 52")
    sampling.add_argument("--enable-thinking", action="store_true", help="switch thinking on in the chat template")
    sampling.add_argument("--seed", type=int, default=0, help="default: 0")

    where = parser.add_argument_group("where models run")
    where.add_argument("--base-url", nargs="+", default=[], metavar="URL", help="vLLM servers (default: in process)")
    where.add_argument("--served-name", metavar="NAME", help="what to ask the servers for (default: MODEL)")
    where.add_argument("--max-concurrent-rollouts", type=int, metavar="N", help="default: 256, on servers 512")
    where.add_argument("--dtype", choices=("bfloat16", "float32"), help="in process (default: bfloat16 on a GPU)")
    parser.set_defaults(run=run, flags={"model": "MODEL", "benchmark": "--benchmarks"})


def run(arguments: argparse.Namespace) -> int:
    # Imported here, so that help and mistakes in the command line are answered at once
    import logging

    from rich.console import Console

    from ..evaluation.samples import SAMPLES
    from ..evaluation.table import make_table
    from ..reporting.evaluation_table import print_table

    logging.basicConfig(format="%(message)s")
    logging.getLogger("mintrl_trl").setLevel(logging.INFO)
    if arguments.json is not None and (arguments.json.is_dir() or not arguments.json.parent.is_dir()):
        fix = "name a file, and make its folder first"
        raise ConfigError("json", str(arguments.json), "a file in a folder that exists", fix)
    try:
        with _ended_by_a_scheduler():
            models, domains, notes, places = _measured(arguments, Console(stderr=True))
    except (KeyboardInterrupt, SystemExit, GenerationError):
        if any(arguments.out.glob(f"*/*/{SAMPLES}")):
            sys.stderr.write("What was finished is saved; the same command continues.\n")
        raise
    alike: dict[frozenset[str], list[Evaluated]] = {}
    for model in models:
        alike.setdefault(frozenset(model.results), []).append(model)
    tables = [make_table(own, domains) for own in alike.values()]
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = max(console.width, 120)
    for table in tables:  # one for each set of benchmarks
        print_table(table, console)
    if arguments.json is not None:
        content = tables[0].as_json() if len(tables) == 1 else json.dumps([asdict(table) for table in tables], indent=2)
        arguments.json.write_text(content, encoding="utf-8")
    for note in notes:
        console.print(f"Note: {note}", markup=False, soft_wrap=True)
    words = (
        f"Samples and scores: {', '.join(places)}. The same command with more samples, models or benchmarks goes on."
    )
    console.print(words, markup=False, soft_wrap=True)
    sys.stdout.flush()
    return CLEAN


@contextmanager
def _ended_by_a_scheduler() -> Iterator[None]:
    """SIGTERM ends the block as Ctrl-C does, with the exit code that it has without this."""

    def end(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    if threading.current_thread() is not threading.main_thread():  # which alone may have handlers
        yield
        return
    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _measured(
    arguments: argparse.Namespace, console: "Console"
) -> "tuple[list[Evaluated], dict[str, str], list[str], list[str]]":
    """What was measured of each model in the order they were named, domains by benchmark, notes on benchmarks, and the
    folders that it is in."""
    from ..eval_models import find_models, holds_models
    from ..evaluate_models import EvalSettings, evaluate_models, read_stored
    from ..evaluation.samples import stored_folders

    stored = {name: [] if holds_models(name) else stored_folders(name) for name in arguments.models}
    fresh = {name: find_models([name]) for name, folders in stored.items() if not folders}
    if arguments.rescore:  # models stand for what was measured of them
        for name, models in fresh.items():
            stored[name] = [folder for model in models for folder in stored_folders(arguments.out / model.slug)]
            if not stored[name]:
                allowed = f"a model whose samples are in {arguments.out}"
                raise ConfigError("model", name, allowed, "evaluate it first: the same without --rescore")
        fresh = {}
    stored = {name: _named(folders, arguments) for name, folders in stored.items() if name not in fresh}
    chosen = _benchmarks(arguments) if fresh or arguments.rescore else {}
    again, measured = None, {}
    if arguments.rescore:
        chosen = chosen or _benchmarks_of([folder for folders in stored.values() for folder in folders], arguments.data)
        again = {benchmark.name: benchmark for benchmark in chosen.values()}
    kept = {
        name: read_stored(folders, arguments.samples, console, again) for name, folders in stored.items()
    }  # before anything is sampled: it may be refused
    if fresh:
        if not chosen:
            fix = "write --benchmarks math --data FOLDER"
            raise ConfigError("benchmark", None, "at least one for a model that is to be evaluated", fix)
        without_bars()
        given = {name: getattr(arguments, name) for name in EvalSettings.options() if name in arguments}
        settings = EvalSettings(**{name: value for name, value in given.items() if value is not None})
        measured = {one.label: one for one in evaluate_models(find_models(list(fresh)), chosen, settings, console)}
    found, domains = [], {benchmark.name: benchmark.domain for benchmark in chosen.values()}
    for name in arguments.models:
        if name in fresh:
            found += [(name, measured[model.label]) for model in fresh[name]]
        else:
            models, theirs = kept[name]
            found, domains = found + [(name, model) for model in models], domains | theirs
    notes = [f"{one.title}: {note}" for one in chosen.values() for note in one.notes]
    places = [*([str(arguments.out)] if fresh else []), *(name for name in arguments.models if name in kept)]
    return _told_apart(found), domains, notes, places


def _told_apart(found: "Sequence[tuple[str, Evaluated]]") -> "list[Evaluated]":
    """Models by the words they were named with; those of one label, as under two settings, get these words beside it,
    and so does all of their run."""
    labels = Counter(model.label for _, model in found)
    runs = {model.run for _, model in found if labels[model.label] > 1} - {""}
    return [
        replace(model, label=f"{model.label} ({word})", run=f"{model.run} ({word})" if model.run else "")
        if labels[model.label] > 1 or model.run in runs
        else model
        for word, model in found
    ]


def _words(arguments: argparse.Namespace) -> list[str]:
    """What `--benchmarks` names, with `math` and `code` spelled out."""
    from ..evaluation.benchmarks import spelled_out

    return spelled_out(arguments.benchmarks or ())


def _named(folders: "list[SampleFolder]", arguments: argparse.Namespace) -> "list[SampleFolder]":
    """Those of the folders that `--benchmarks` and `--held-out` name, in this order; all where nothing is named."""
    from ..evaluation.benchmarks import HUB_PREFIX
    from ..evaluation.table import HELD_OUT

    if arguments.benchmarks is None:
        return folders
    names = [Path(word.removeprefix(HUB_PREFIX)).name.partition(".")[0] for word in _words(arguments)]
    names += [HELD_OUT] if arguments.held_out is not None else []
    found = [folder for name in names for folder in folders if folder.path.name == name]
    if not found:
        there = ", ".join(dict.fromkeys(folder.path.name for folder in folders))
        raise ConfigError("benchmark", ", ".join(names), f"what there are samples of: {there}", "name one of them")
    return found


def _benchmarks(arguments: argparse.Namespace) -> "dict[str, LoadedBenchmark]":
    """The benchmarks that the command line names, by the words they are named with."""
    from ..evaluation.benchmarks import load_benchmark, load_benchmarks
    from ..evaluation.table import HELD_OUT

    if arguments.benchmarks is None:
        return {}
    words = _words(arguments)
    found = dict(zip(words, load_benchmarks(words, data=arguments.data, limit=arguments.limit), strict=True))
    if any(benchmark.name == HELD_OUT for benchmark in found.values()):
        raise ConfigError("benchmark", HELD_OUT, "a file of another name: this one is for --held-out", "rename it")
    if arguments.held_out in found:
        fix = "keep problems of the training set apart, and name their file"
        raise ConfigError("held_out", arguments.held_out, "problems that are not among --benchmarks", fix)
    if arguments.held_out is not None:
        found[arguments.held_out] = replace(load_benchmark(arguments.held_out, limit=arguments.limit), name=HELD_OUT)
    return found


def _benchmarks_of(folders: "Sequence[SampleFolder]", data: Path | None) -> "dict[str, LoadedBenchmark]":
    """The benchmarks that folders hold samples of, as they were named and limited then, from the data folder that was
    named then unless `data` is one."""
    from ..evaluation.benchmarks import load_benchmark

    headers = [folder.described() for folder in folders]
    origins = {header["benchmark"]: header["origin"] for header in headers if "origin" in header}
    unknown = [header["benchmark"] for header in headers if header["benchmark"] not in origins]
    if unknown:
        allowed = f"the benchmarks of the folders, which do not say where {', '.join(unknown)} came from"
        raise ConfigError("benchmark", None, allowed, "name them")
    found = {}
    for name, origin in origins.items():
        then = origin.get("data")
        place = then if data is None and then is not None and Path(then).is_dir() else data
        found[name] = replace(load_benchmark(origin["benchmark"], data=place, limit=origin["limit"]), name=name)
    return found
