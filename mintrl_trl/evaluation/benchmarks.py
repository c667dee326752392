"""Benchmarks by name: where their problems are, how they are scored, and what a score is worth.

Owns: the list of benchmarks, finding their files in a folder, and the notes that belong beside a score (a part of the
problems, public tests alone). Reads nothing from the network unless the name says so (`hub:aime_2025`). Invariant: the
rows that come out are those that training would read from the same file, with the same prompts.

| a benchmark is named | its problems come from |
|---|---|
| `aime_2025`, or another name of `BENCHMARKS` | its file in the data folder |
| `hub:aime_2025` | the hub |
| `math`, `code`, `hub:math`, `hub:code` | the three benchmarks of the paper's averages |
| `chains` | the small world; nothing is read |
| a path to a `.jsonl` | that file, in the form of `data.sources` |
"""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ..data.chains import World, chains_reward
from ..data.hub_benchmarks import (
    HubBenchmark,
    hub_benchmark_rows,
    map_gsm8k,
    map_humaneval_plus,
    map_livecodebench,
    map_matharena,
    map_mbpp_plus,
)
from ..data.sources import FILE_SUFFIXES, first_rows, load_rows
from ..errors import ConfigError
from ..rewards.code import FOREVER, CodeChecker, require_tests
from ..rewards.math import math_reward, require_golds

DATA_VARIABLE = "MINTRL_DATA"
HUB_PREFIX = "hub:"
CHAINS = "chains"
CHAINS_PROBLEMS = 128
DOMAINS = ("math", "code", CHAINS)
# Scores are not training rewards: what is slow but right passes. EvalPlus's full tests are slow on purpose.
CODE_TEST_SECONDS, CODE_ROW_SECONDS = 30.0, 120.0


@dataclass(frozen=True)
class Benchmark:
    """A benchmark that is known by name.

    Args:
        name (`str`): As users write it.
        title (`str`): Its column in the paper's tables, or a short title.
        domain (`str`): `"math"` or `"code"`.
        problems (`int`, *optional*): How many it has; `None` where releases differ.
        files (`tuple[tuple[str, ...], ...]`): File names to look for, the best first; a benchmark may be several files.
        hub ([`HubBenchmark`]): Where it is on the hub.
        licence (`str`): Under which terms it may be used.
        notes (`Mapping[str, str]`): From a file's name to what its scores are worth less for.
    """

    name: str
    title: str
    domain: str
    problems: int | None
    files: tuple[tuple[str, ...], ...]
    hub: HubBenchmark
    licence: str
    notes: Mapping[str, str]


_MATHARENA_LICENCE = "CC-BY-NC-SA-4.0 (MathArena); the problems belong to the {}"
_EVALPLUS_LICENCE = "Apache-2.0 (EvalPlus), {}"
_FEWER_TESTS = "a few of the plus tests, so it passes some programs that the full set fails"


def _matharena(name: str, title: str, owner: str) -> Benchmark:
    hub = HubBenchmark(f"MathArena/{name}", map_matharena, split="train")
    return Benchmark(name, title, "math", 30, ((f"{name}.jsonl",),), hub, _MATHARENA_LICENCE.format(owner), {})


BENCHMARKS: dict[str, Benchmark] = {
    benchmark.name: benchmark
    for benchmark in (
        _matharena("aime_2025", "AIME25", "Mathematical Association of America"),
        _matharena("aime_2026", "AIME26", "Mathematical Association of America"),
        _matharena("hmmt_feb_2025", "HMMT25", "Harvard-MIT Mathematics Tournament"),
        Benchmark(
            "gsm8k",
            "GSM8K",
            "math",
            1319,
            (("gsm8k_test.jsonl",), ("gsm8k.jsonl",), ("gsm8k_test_200.jsonl",)),
            HubBenchmark("openai/gsm8k", map_gsm8k, config="main"),
            "MIT",
            {},
        ),
        Benchmark(
            "humaneval_plus",
            "HE+",
            "code",
            164,
            (("humaneval_plus_full.jsonl",), ("humaneval_plus.jsonl",)),
            HubBenchmark("evalplus/humanevalplus", map_humaneval_plus),
            _EVALPLUS_LICENCE.format("MIT (HumanEval)"),
            {"humaneval_plus.jsonl": _FEWER_TESTS},
        ),
        Benchmark(
            "mbpp_plus",
            "MBPP+",
            "code",
            378,
            (("mbpp_plus_full.jsonl",), ("mbpp_plus.jsonl",)),
            HubBenchmark("evalplus/mbppplus", map_mbpp_plus),
            _EVALPLUS_LICENCE.format("CC-BY-4.0 (MBPP)"),
            {"mbpp_plus.jsonl": _FEWER_TESTS},
        ),
        Benchmark(
            "livecodebench",
            "LCB",
            "code",
            None,
            (("livecodebench.jsonl",), ("livecodebench_v1_stdin.jsonl", "livecodebench_v1_leetcode.jsonl")),
            HubBenchmark("livecodebench/code_generation_lite", map_livecodebench, file="test6.jsonl"),
            "unclear (card: cc; builder: MIT); the statements belong to LeetCode, AtCoder and Codeforces",
            {},
        ),
    )
}

# The averages of the paper's tables, in their order.
DOMAIN_AVERAGES: dict[str, tuple[str, ...]] = {
    "math": ("aime_2025", "aime_2026", "hmmt_feb_2025"),
    "code": ("livecodebench", "humaneval_plus", "mbpp_plus"),
}


@dataclass(frozen=True)
class LoadedBenchmark:
    """The problems of a benchmark, ready to be sampled and scored.

    Args:
        name (`str`): As it was asked for, without `hub:` and folders.
        title (`str`): For the head of a table's column.
        domain (`str`): One of `DOMAINS`.
        rows (`tuple[dict, ...]`): In the form of `data.rows`; each has an `id` of its own.
        source (`str`): Where they come from.
        notes (`tuple[str, ...]`): What a reader of its scores has to know; empty for the whole benchmark.
    """

    name: str
    title: str
    domain: str
    rows: tuple[dict[str, Any], ...]
    source: str
    notes: tuple[str, ...] = ()

    @property
    def reward(self) -> Callable[..., Any]:
        """The reward function of the domain, in TRL's signature. For code it starts the sandbox.

        Raises:
            RewardError: Programs cannot be run on this machine.
        """
        return reward_of(self.domain)

    def subset(self, row: Mapping[str, Any]) -> str | None:
        """Name of the part that a row is reported under, besides the whole; `None` without parts."""
        return ("hard" if row["misconceived"] else "easy") if "misconceived" in row else None


def load_benchmark(name: str, *, data: str | Path | None = None, limit: int | None = None) -> LoadedBenchmark:
    """Load a benchmark by its name, or a file of problems by its path; see the module's table.

    Args:
        name (`str`): A name of `BENCHMARKS`, the same with `hub:` before it, `chains`, or a path.
        data (`str` or `Path`, *optional*): Folder with the benchmarks' files, or with a folder `eval` that has them. By
            default what the environment variable `MINTRL_DATA` names.
        limit (`int`, *optional*): Problems at most, from the beginning; of `chains` half easy, half hard ones.

    Raises:
        ConfigError: No such benchmark or file; the message says which file, where it can be had and its licence.
        DataError: A row that cannot be used, or an answer or tests with which no response could be judged.
        RewardError: Code: programs cannot be run on this machine.
    """
    if limit is not None and limit < 1:
        raise ConfigError("limit", limit, "1 or more, or None", "leave it out to take every problem")
    if name == CHAINS:
        return _chains(limit)
    if name.endswith(FILE_SUFFIXES):
        return _file(Path(name), limit)
    benchmark = _known(name.removeprefix(HUB_PREFIX))
    if name.startswith(HUB_PREFIX):
        taken = hub_benchmark_rows(benchmark.hub, limit=limit)
        return _loaded(benchmark, taken, f"hub: {benchmark.hub.source}", (), limit)
    rows: list[dict[str, Any]] = []
    paths = _find(benchmark, data)
    for path in paths:
        if limit is None or len(rows) < limit:
            rows += load_rows(path, task=benchmark.domain, limit=limit and limit - len(rows))
    plain = [path.name.removesuffix(".gz") for path in paths]
    notes = [benchmark.notes[file] for file in plain if file in benchmark.notes]
    return _loaded(benchmark, rows, " + ".join(path.name for path in paths), notes, limit)


def load_benchmarks(
    names: Iterable[str], *, data: str | Path | None = None, limit: int | None = None
) -> list[LoadedBenchmark]:
    """Load several; `math` and `code` stand for the three benchmarks of the paper's averages.

    Raises:
        ConfigError: None, or two of one name; and as for `load_benchmark`.
    """
    wanted = spelled_out(names)
    if not wanted:
        raise ConfigError("benchmark", "", "at least one", f"name one of {', '.join(BENCHMARKS)}")
    loaded = [load_benchmark(name, data=data, limit=limit) for name in wanted]
    twice = {one.name for one in loaded if sum(other.name == one.name for other in loaded) > 1}
    if twice:
        raise ConfigError("benchmark", ", ".join(sorted(twice)), "each name once", "name every benchmark once")
    return loaded


def spelled_out(names: Iterable[str]) -> list[str]:
    """Names of single benchmarks: `math` and `code` are the three of the paper's averages, with `hub:` if it has it.

    Examples:
        >>> spelled_out(["hub:math", "gsm8k"])
        ['hub:aime_2025', 'hub:aime_2026', 'hub:hmmt_feb_2025', 'gsm8k']
    """
    found = []
    for name in names:
        prefix = HUB_PREFIX if name.startswith(HUB_PREFIX) else ""
        parts = DOMAIN_AVERAGES.get(name.removeprefix(prefix))
        found += [name] if parts is None else [prefix + part for part in parts]
    return found


def reward_of(domain: str) -> Callable[..., Any]:
    """The reward function that scores a domain, in TRL's signature. Programs get more time than in training.

    Raises:
        ConfigError: An unknown domain.
        RewardError: Programs cannot be run on this machine.
    """
    rewards = {"math": lambda: math_reward, "code": lambda: _code_checker().reward, CHAINS: lambda: chains_reward}
    if domain not in rewards:
        raise ConfigError("domain", domain, " | ".join(DOMAINS), "name one of them")
    return rewards[domain]()


def data_folder(data: str | Path | None) -> Path | None:
    """The folder that was given or that the environment names; `None` without either.

    Raises:
        ConfigError: It is no folder.
    """
    given = data if data is not None else os.environ.get(DATA_VARIABLE) or None
    if given is None:
        return None
    if not Path(given).is_dir():
        field = "data" if data is not None else DATA_VARIABLE
        raise ConfigError(field, str(given), "a folder with the benchmarks' files", "correct the path")
    return Path(given)


@cache
def _code_checker() -> CodeChecker:
    checker = CodeChecker(batch_seconds=FOREVER, test_seconds=CODE_TEST_SECONDS, row_seconds=CODE_ROW_SECONDS)
    checker.start()
    return checker


def _known(name: str) -> Benchmark:
    if name not in BENCHMARKS:
        allowed = f"{', '.join((*DOMAIN_AVERAGES, *BENCHMARKS))} (each also with `{HUB_PREFIX}` before it), {CHAINS}, "
        allowed += "or a path to a .jsonl"
        raise ConfigError("benchmark", name, allowed, "name one of them")
    return BENCHMARKS[name]


def _find(benchmark: Benchmark, data: str | Path | None) -> list[Path]:
    """The files of a benchmark: of the first choice whose files are all there, plain or packed."""
    folder = data_folder(data)
    for names in benchmark.files if folder is not None else ():
        for place in (folder, folder / "eval"):
            found = [
                next((path for path in (place / name, place / f"{name}.gz") if path.is_file()), None) for name in names
            ]
            if None not in found:
                return found
    files = " or ".join(" + ".join(names) for names in benchmark.files)
    allowed = f"a name whose file is in the data folder: {files} (or .gz)"
    where = "name a folder with --data" if folder is None else f"put it into {folder}"
    fix = f"{where}, or evaluate on `{HUB_PREFIX}{benchmark.name}`, which downloads {benchmark.hub.repository}"
    raise ConfigError("benchmark", benchmark.name, allowed, f"{fix}. Licence: {benchmark.licence}")


def _loaded(
    benchmark: Benchmark, rows: Sequence[dict[str, Any]], source: str, notes: Iterable[str], limit: int | None
) -> LoadedBenchmark:
    notes = list(notes)
    if benchmark.problems is not None and len(rows) != benchmark.problems:
        notes.append(f"{len(rows):,} of its {benchmark.problems:,} problems")
    elif benchmark.problems is None and len(rows) == limit:
        notes.append(f"limited to {limit:,} of its problems")
    groups = {test["group"] for row in rows for test in row.get("tests", ())}
    if groups == {"public"}:
        notes.append("public tests alone, which wrong programs pass")
    return _checked(benchmark.name, benchmark.title, benchmark.domain, rows, source, notes)


def _file(path: Path, limit: int | None) -> LoadedBenchmark:
    """A file of ours; those of code have tests."""
    domain = "code" if any("tests" in row for row in first_rows(path)) else "math"
    rows = load_rows(path, task=domain, limit=limit)
    name = path.name.partition(".")[0]
    if not name:
        raise ConfigError("benchmark", str(path), "a file whose name does not begin with a dot", "rename it")
    return _checked(name, name, domain, rows, str(path), ())


def _checked(
    name: str, title: str, domain: str, rows: Sequence[dict[str, Any]], source: str, notes: Iterable[str]
) -> LoadedBenchmark:
    """Refuse rows with which no response could be judged."""
    if domain == "math":
        require_golds(rows)
    else:
        require_tests(rows)
    return LoadedBenchmark(name, title, domain, tuple(rows), source, tuple(notes))


def _chains(limit: int | None) -> LoadedBenchmark:
    count = CHAINS_PROBLEMS if limit is None else limit
    rows = World.load().evaluation_rows(count - count // 2, count // 2)
    named = tuple({"id": f"chains/{number}", **row} for number, row in enumerate(rows))
    return LoadedBenchmark(CHAINS, CHAINS, CHAINS, named, "the small world", ())
