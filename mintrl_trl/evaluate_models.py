"""Evaluates models on benchmarks, each pair in a folder of its own: what `mintrl eval` does.

Owns the order of things: everything that can be refused is, then each model is opened once and what its folders lack is
sampled, then what lacks a score is scored, then counts are made. It knows no flag and draws no table. Invariant: it may
be stopped at any moment and called again with the same arguments; the result is that of a call that was not stopped.
"""

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from .errors import ConfigError
from .eval_models import DTYPES, EvalModel, Servers, default_device, default_dtype, local_generator
from .evaluation.benchmarks import LoadedBenchmark, data_folder
from .evaluation.results import EvalProblem, EvalResult
from .evaluation.run import count, fill, prompt_fingerprints, prompts_fingerprint, score
from .evaluation.samples import SampleFolder
from .evaluation.table import Evaluated
from .reporting.folder_lock import FolderLock
from .reporting.live import LiveProgress
from .reporting.run_folder import versions

logger = logging.getLogger(__name__)

MAX_COMPLETION_LENGTH = 32_768  # the paper's
_LENGTHS = {"chains": 52}  # of domains that need no more; a right response of the small world has 52 tokens
_HEARTBEAT_SECONDS = 30.0
_LOCAL_AT_ONCE, _SERVED_AT_ONCE = 256, 512


@dataclass(frozen=True)
class EvalSettings:
    """How models are evaluated. The defaults are the paper's protocol (its appendix H).

    Args:
        samples (`int`, *optional*, defaults to 32): Responses to each problem, the n of Pass@k.
        temperature (`float`, *optional*, defaults to 1.0): Of sampling; above 0 in process.
        top_p (`float`, *optional*, defaults to 1.0): In (0, 1]; below 1 on a server only.
        max_completion_length (`int`, *optional*): Tokens of a response at most; by default
            32,768, and 52 in the small world.
        enable_thinking (`bool`, *optional*, defaults to `False`): For the chat template, as in training.
        seed (`int`, *optional*, defaults to 0): Seed of all samples.
        base_url (`tuple[str, ...]`, *optional*): Addresses of vLLM servers; by default models run in process.
        served_name (`str`, *optional*): What to ask the servers for, where it is not the model's name.
        max_concurrent_rollouts (`int`, *optional*): Responses in the making at once; by default 256 in process and 512
            on servers.
        dtype (`str`, *optional*): In process, `"bfloat16"` or `"float32"`; by default bfloat16 on a GPU.
        limit (`int`, *optional*), data (`Path`, *optional*): To how many problems the benchmarks were limited when they
            were loaded, and from which folder, by default that of `MINTRL_DATA`; written down for scoring anew.
        out (`Path`, *optional*): Folder of the folders that are made, one for each model and benchmark.

    Raises:
        ConfigError: A value out of range, or that goes with a server alone.
    """

    samples: int = 32
    temperature: float = 1.0
    top_p: float = 1.0
    max_completion_length: int | None = None
    enable_thinking: bool = False
    seed: int = 0
    base_url: tuple[str, ...] = ()
    served_name: str | None = None
    max_concurrent_rollouts: int | None = None
    dtype: str | None = None
    limit: int | None = None
    data: Path | None = None
    out: Path = Path("evaluations")

    def __post_init__(self):
        for name in ("samples", "max_completion_length", "max_concurrent_rollouts"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(name, value, "1 or more", "leave it out for the default")
        if not 0 <= self.temperature < float("inf"):
            raise ConfigError("temperature", self.temperature, "0 or more", "use the paper's 1.0")
        if not 0 < self.top_p <= 1:
            raise ConfigError("top_p", self.top_p, "more than 0, at most 1", "use the paper's 1.0")
        if self.temperature == 0 and self.base_url and self.samples > 1:
            allowed = "1 at temperature 0, where all samples of a problem are the same"
            raise ConfigError("samples", self.samples, allowed, "set it to 1")
        if self.dtype is not None and (self.dtype not in DTYPES or self.base_url):
            allowed = "unset where a server computes" if self.base_url else " or ".join(DTYPES)
            raise ConfigError("dtype", self.dtype, allowed, "leave it out")
        if not self.base_url:
            fix = "start a vLLM server and name its address as base_url, or leave it out"
            if self.top_p != 1:
                raise ConfigError("top_p", self.top_p, "1 in process", fix)
            if self.temperature == 0:
                raise ConfigError("temperature", self.temperature, "above 0 in process", fix)
            if self.served_name is not None:
                raise ConfigError("served_name", self.served_name, "unset without base_url", fix)

    @classmethod
    def options(cls) -> list[str]:
        """Names of all settings."""
        return [one.name for one in fields(cls)]

    @property
    def at_once(self) -> int:
        """Responses in the making at once."""
        return self.max_concurrent_rollouts or (_SERVED_AT_ONCE if self.base_url else _LOCAL_AT_ONCE)

    def sampling(self, benchmark: LoadedBenchmark) -> dict[str, Any]:
        """What decides samples, for the folder's header."""
        return {
            "temperature": self.temperature,
            "top_p": self.top_p,
            "max_completion_length": self.max_completion_length
            or _LENGTHS.get(benchmark.domain, MAX_COMPLETION_LENGTH),
            "enable_thinking": self.enable_thinking,
            "seed": self.seed,
            "generator": "vllm" if self.base_url else "local",
            "dtype": None if self.base_url else self.dtype or default_dtype(default_device()),
        }


@dataclass(frozen=True)
class _Job:
    """One model on one benchmark."""

    model: EvalModel
    benchmark: LoadedBenchmark
    folder: SampleFolder
    problems: Sequence[EvalProblem] = field(repr=False)
    max_completion_length: int

    @property
    def longest_prompt(self) -> int:
        return max(len(problem.prompt_ids) for problem in self.problems)

    @property
    def subsets(self) -> dict[str, str]:
        return {problem.id: problem.subset for problem in self.problems if problem.subset is not None}

    def count(self, samples: int) -> EvalResult:
        """Of these problems alone; the folder may have more."""
        return count(self.folder, [problem.id for problem in self.problems], samples, self.subsets)

    def conditions(self) -> dict[str, Any]:
        return _conditions(self.folder.header() | {"prompts": prompts_fingerprint(self.benchmark.rows)})


def evaluate_models(
    models: Sequence[EvalModel],
    benchmarks: Mapping[str, LoadedBenchmark],
    settings: EvalSettings,
    console: Console,
) -> list[Evaluated]:
    """Evaluate every model on every benchmark.

    Args:
        models (`Sequence[EvalModel]`): From `find_models`.
        benchmarks (`Mapping[str, LoadedBenchmark]`): At least one, by what `load_benchmark` was asked for.
        settings ([`EvalSettings`]): How.
        console (`Console`): Where progress goes.

    Returns:
        `list[Evaluated]`: One per model, in order.

    Raises:
        ConfigError: Folders that hold samples under other settings, models with too little room, servers that serve
            something else, and the like; before any weights are read.
        GenerationError: A model could not go on. What was finished is saved.
    """
    for benchmark in benchmarks.values():
        _ = benchmark.reward  # a machine that cannot run programs is found out before anything is sampled
    with ExitStack() as locks:
        jobs = [_job(model, asked, benchmarks[asked], settings, locks) for model in models for asked in benchmarks]
        for model in models:
            todo = [job for job in jobs if job.model is model and not _is_full(job, settings.samples)]
            if todo:
                with _generator(model, todo, settings) as generator:
                    for job in todo:
                        _fill(job, generator, settings, console)
        for job in jobs:
            _score(job.folder, job.benchmark, console)
    return [
        Evaluated(
            model.label,
            {job.benchmark.name: job.count(settings.samples) for job in jobs if job.model is model},
            model.run,
            model.update,
            {job.benchmark.name: job.conditions() for job in jobs if job.model is model},
        )
        for model in models
    ]


def read_stored(
    folders: Sequence[SampleFolder],
    samples: int | None,
    console: Console,
    rescored_by: Mapping[str, LoadedBenchmark] | None = None,
) -> tuple[list[Evaluated], dict[str, str]]:
    """What was measured before, without a model.

    Args:
        folders (`Sequence[SampleFolder]`): From `evaluation.samples.stored_folders`.
        samples (`int`, *optional*): The first so many of each problem; by default all.
        console (`Console`): Where progress goes.
        rescored_by (`Mapping[str, LoadedBenchmark]`, *optional*): Score all samples again, by the rows of these, which
            are by the names that folders have.

    Returns:
        `tuple`: One [`Evaluated`] per model, oldest checkpoint first, and the domain of each benchmark.

    Raises:
        ConfigError: A benchmark whose problems are not those that were sampled, or that one model has two folders of;
            no samples.
        DataError: A folder that is not complete.
    """
    if samples is not None and samples < 1:
        raise ConfigError("samples", samples, "1 or more", "leave it out to take all")
    models: dict[str, Evaluated] = {}
    domains = {}
    for folder in folders:
        header = folder.described()
        model, name = header["model"], header["benchmark"]
        domains[name] = header["domain"]
        one = models.setdefault(model["label"], Evaluated(model["label"], {}, model["run"], model["update"], {}))
        if name in one.results:
            allowed = f"one folder of what {one.label} wrote on {name}; {folder.path} is another"
            raise ConfigError("model", one.label, allowed, "name one of the folders")
        if rescored_by is not None:
            benchmark = rescored_by[name]
            if prompts_fingerprint(benchmark.rows) != header.get("prompts"):
                allowed = f"the problems that {folder.path} has samples of, with their ids and prompts"
                raise ConfigError("benchmark", name, allowed, "name the file and the limit that were used then")
            with _locked(folder):
                _score(folder, benchmark, console, anew=True)
        taken = header["samples"] if samples is None else samples
        one.results[name] = count(folder, header["ids"], taken, header["subsets"])
        one.conditions[name] = _conditions(header)
    found = sorted(models.values(), key=lambda model: (model.run, model.update or 0))
    return found, domains


def _job(model: EvalModel, asked: str, benchmark: LoadedBenchmark, settings: EvalSettings, locks: ExitStack) -> _Job:
    """Render the prompts, check the model's room, and begin or continue the folder."""
    switch = {"enable_thinking": settings.enable_thinking}
    problems = [
        EvalProblem.from_row(row, model.tokenizer, subset=benchmark.subset(row), chat_template_kwargs=switch)
        for row in benchmark.rows
    ]
    sampling = settings.sampling(benchmark)
    folder = SampleFolder(settings.out / model.slug / benchmark.name)
    job = _Job(model, benchmark, folder, problems, sampling["max_completion_length"])
    if not settings.base_url:
        _check_room(job)
    locks.enter_context(_locked(job.folder))
    job.folder.begin(
        {
            "origin": {"model": model.name, "benchmark": asked, "limit": settings.limit, "data": _place(settings.data)},
            "model": {
                "label": model.label,
                "run": model.run,
                "update": model.update,
                "fingerprint": model.fingerprint,
            },
            "benchmark": benchmark.name,
            "domain": benchmark.domain,
            "prompts": prompts_fingerprint(benchmark.rows),
            "prompt_ids": prompt_fingerprints(problems),
            "sampling": sampling,
            "samples": settings.samples,
            "ids": [problem.id for problem in problems],
            "subsets": job.subsets,
            "versions": versions(),
        }
    )
    return job


def _place(data: Path | None) -> str | None:
    """The data folder as it is found from anywhere; `None` without one."""
    folder = data_folder(data)
    return None if folder is None else str(folder.resolve())


def _check_room(job: _Job) -> None:
    positions, longest, limit = job.model.positions, job.longest_prompt, job.max_completion_length
    if positions is not None and longest + limit > positions:
        allowed = f"at most {positions - longest:,} for {job.model.label}, which has {positions:,} positions; the "
        allowed += f"longest prompt of {job.benchmark.name} has {longest:,} tokens"
        fix = f"set it to {positions - longest}" if positions > longest else "leave this benchmark out"
        raise ConfigError("max_completion_length", limit, allowed, fix)


def _is_full(job: _Job, samples: int) -> bool:
    there = {sample.key for sample in job.folder.samples()}
    return all((problem.id, number) in there for problem in job.problems for number in range(samples))


@contextmanager
def _generator(model: EvalModel, jobs: Sequence[_Job], settings: EvalSettings) -> Iterator[Any]:
    """The model, with room for all of its jobs."""
    if settings.base_url:
        servers = Servers(
            settings.base_url,
            settings.served_name,
            temperature=settings.temperature,
            top_p=settings.top_p,
            max_concurrency=settings.at_once,
        )
        longest = max(jobs, key=lambda job: job.longest_prompt + job.max_completion_length)
        context = servers.generator(model, longest.longest_prompt, longest.max_completion_length)
    else:
        context = local_generator(
            model, temperature=settings.temperature, max_batch=settings.at_once, dtype=settings.dtype
        )
    with context as generator:
        yield generator


def _fill(job: _Job, generator: Any, settings: EvalSettings, console: Console) -> None:
    def watch(progress, there: int) -> LiveProgress:
        label = f"{job.model.label} on {job.benchmark.name}" + (f" ({there:,} there before)" if there else "")
        if not console.is_terminal:  # a line every half minute follows
            logger.info("%s: sampling", label)
        return LiveProgress(progress, label, console=console, time_left=True, noun="responses")

    fill(
        job.folder,
        generator,
        job.model.vocabulary,
        job.problems,
        num_samples=settings.samples,
        max_completion_tokens=job.max_completion_length,
        seed=settings.seed,
        max_concurrent_rollouts=settings.at_once,
        watch=watch,
    )


def _score(folder: SampleFolder, benchmark: LoadedBenchmark, console: Console, *, anew: bool = False) -> None:
    columns = TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task(f"scoring {folder.path}")
        said = time.monotonic()

        def show(done: int, total: int) -> None:
            nonlocal said
            progress.update(bar, completed=done, total=total)
            if not console.is_terminal and time.monotonic() - said >= _HEARTBEAT_SECONDS:
                said = time.monotonic()
                logger.info("%s: %d of %d samples are scored", folder.path, done, total)

        score(folder, {row["id"]: row for row in benchmark.rows}, benchmark.reward, anew=anew, on_progress=show)


def _conditions(header: Mapping[str, Any]) -> dict[str, Any]:
    """What has to be known of two evaluations that are compared: are the problems the same, and how was sampled?"""
    return {"prompts": header.get("prompts"), "sampling": header.get("sampling", {})}


@contextmanager
def _locked(folder: SampleFolder) -> Iterator[None]:
    """Nobody else fills or scores the folder meanwhile."""
    lock = FolderLock(folder.path)
    try:
        holder = lock.take()
    except OSError as error:
        allowed = f"a folder that can be written ({error.strerror})"
        raise ConfigError("out", str(folder.path), allowed, "name another folder") from error
    if holder is not None:
        raise ConfigError("out", str(folder.path), f"a folder that nobody fills; {holder} does", "wait for its end")
    try:
        yield
    finally:
        lock.release()
