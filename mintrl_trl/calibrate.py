"""Finds out how to set interventions, and how good the judge is, with pilot rollouts of a recipe's base model.

Owns the order of things: everything that can be refused is, the model and the judge are opened once, controls and the
rollouts of every budget are made, a budget is chosen, and the judge is measured under it. What numbers mean is
`calibration`'s. It trains nothing. Invariant: it may be stopped at any moment and called again with the same recipe;
what was sampled is not sampled again, and rollouts of all budgets share their noise, so differences are the budgets'.
"""

import random
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from rich.console import Console

from .calibration.choice import MAX_OFF_POLICY_SHARE, choose
from .calibration.labelled import read_labelled
from .calibration.result import Calibration
from .config import MInTRLConfig
from .errors import ConfigError
from .eval_models import DTYPES, EvalModel, Servers, find_models, local_generator
from .evaluation.intervals import mean_interval
from .evaluation.results import EvalProblem
from .judge_setup import build_judge
from .pilots import PilotRollouts
from .recipe import Recipe
from .reporting.folder_lock import FolderLock
from .rollouts.doors import Judge, PolicyGenerator
from .rollouts.loop import shared_loop
from .rollouts.schedule import InterventionBudget
from .tasks import Task, build_task


@dataclass(frozen=True)
class CalibrationSettings:
    """How much is tried.

    Args:
        out (`Path`): Folder of everything that is made.
        chunk_tokens, max_reviews, correction_tokens (`tuple[int, ...]`, *optional*): The grid. By default half, once
            and twice the recipe's chunk, half and once its reviews, and its correction.
        prompts (`int`, *optional*, defaults to 32): Problems, drawn from the recipe's rows with its seed.
        rollouts (`int`, *optional*, defaults to 8): Of each problem, without interventions and under each budget.
        max_off_policy_share (`float`, *optional*, defaults to 0.05): The judge's tokens of all, at most, in (0, 1].
        shadow_share (`float`, *optional*, defaults to 0.25): Controls that are reviewed without effect, in [0, 1].
        rescue_cases (`int`, *optional*, defaults to 32): Corrections whose worth is measured; 0 measures none.
        continuations (`int`, *optional*, defaults to 8): From each cut, with the correction and without.
        labelled (`Path`, *optional*): Solutions with their first wrong step, in ProcessBench's form.

    Raises:
        ConfigError: A number out of range.
    """

    out: Path
    chunk_tokens: tuple[int, ...] = ()
    max_reviews: tuple[int, ...] = ()
    correction_tokens: tuple[int, ...] = ()
    prompts: int = 32
    rollouts: int = 8
    max_off_policy_share: float = MAX_OFF_POLICY_SHARE
    shadow_share: float = 0.25
    rescue_cases: int = 32
    continuations: int = 8
    labelled: Path | None = None

    def __post_init__(self):
        for name, least in (("prompts", 1), ("rollouts", 1), ("rescue_cases", 0), ("continuations", 1)):
            if getattr(self, name) < least:
                raise ConfigError(name, getattr(self, name), f"{least} or more", "leave it out for the default")
        for name in ("chunk_tokens", "max_reviews", "correction_tokens"):
            if any(value < 1 for value in getattr(self, name)):
                raise ConfigError(name, min(getattr(self, name)), "1 or more", "leave it out for the default")
        if not 0 < self.max_off_policy_share <= 1:
            allowed = "above 0, at most 1"
            raise ConfigError("max_off_policy_share", self.max_off_policy_share, allowed, "use 0.05")
        if not 0 <= self.shadow_share <= 1:
            raise ConfigError("shadow_share", self.shadow_share, "from 0 to 1", "use 0.25")

    def budgets(self, args: MInTRLConfig) -> list[InterventionBudget]:
        """The grid, without budgets whose chunk or correction is longer than a response."""
        limit, chunk, reviews = args.max_completion_length, args.chunk_tokens, args.max_reviews
        chunks = self.chunk_tokens or sorted({max(1, chunk // 2), chunk, 2 * chunk})
        most = self.max_reviews or sorted({max(1, reviews // 2), reviews})
        corrections = self.correction_tokens or (args.correction_tokens,)
        grid = [
            InterventionBudget(*sizes, max_completion_tokens=limit, review_final_chunk=args.review_final_chunk)
            for sizes in product(chunks, most, corrections)
            if max(sizes[0], sizes[2]) <= limit
        ]
        if not grid:
            allowed = f"at most {limit}, the recipe's max_completion_length, for one of them"
            raise ConfigError("chunk_tokens", max(chunks), allowed, "write smaller ones")
        return grid


def calibrate(recipe: Recipe, settings: CalibrationSettings, console: Console) -> Calibration:
    """Make pilot rollouts with the base model and the judge of a recipe.

    Args:
        recipe ([`Recipe`]): Read and checked.
        settings ([`CalibrationSettings`]): How much is tried.
        console (`Console`): Where progress goes.

    Raises:
        ConfigError: A recipe without judge, too few rows, a model with too little room, or a folder with rollouts under
            other settings; before any weights are read where it can be known.
        GenerationError, JudgeError, FailureLimitError: Model or judge could not go on. What was finished is saved.
    """
    args = recipe.config
    if not args.needs_judge:
        raise ConfigError("judge", args.judge, "a recipe whose rollouts are reviewed", "set `judge` and `max_reviews`")
    budgets = settings.budgets(args)
    task = build_task(recipe)
    models = find_models([task.model])
    if len(models) > 1 or recipe.policy.model_revision not in (None, "main"):
        allowed = "one model at its newest revision, not a run with several checkpoints"
        raise ConfigError("model_name_or_path", task.model, allowed, "name a folder of one model")
    model = models[0]
    rows = _draw(task, args, model, settings.prompts)
    labelled = [] if settings.labelled is None else read_labelled(settings.labelled, model.vocabulary)
    with ExitStack() as stack:
        lock = FolderLock(settings.out)
        holder = lock.take()
        if holder is not None:
            raise ConfigError("out", str(settings.out), f"a folder that nobody fills; {holder} does", "wait for it")
        stack.callback(lock.release)
        problems = [_problem(row, args, model) for row in rows.values()]
        generator = stack.enter_context(_generator(args, recipe, model, problems))
        judge = _judge(task, args, model, generator)
        if hasattr(judge, "aclose"):
            stack.callback(lambda: shared_loop().run(judge.aclose()))
        made = PilotRollouts(settings, args, model, generator, judge, rows, problems, task, console)
        controls, base = made.controls()
        pilots = {}
        for number, budget in enumerate(budgets, start=1):
            pilots[budget] = made.pilot(budget, base, f"budget {number} of {len(budgets)}")
        choice = choose([pilot for _, pilot in pilots.values()], settings.max_off_policy_share)
        judged = budgets[0] if choice.pilot is None else choice.pilot.budget
        return Calibration(
            model=model.label,
            judge=args.judge_model or args.judge or type(judge).__name__,
            problems=len(problems),
            rollouts=settings.rollouts,
            controls=mean_interval(base.scores(1)),
            pilots=tuple(pilot for _, pilot in pilots.values()),
            choice=choice,
            judged=judged,
            alarms=made.alarms(controls, judged),
            rescue=made.rescue(pilots[judged][0], judged),
            first_errors=made.first_errors(controls, labelled),
        )


def _draw(task: Task, args: MInTRLConfig, model: EvalModel, prompts: int) -> dict[str, dict[str, Any]]:
    """So many rows with prompts that fit, drawn with the recipe's seed, by their ids."""
    order = random.Random(args.seed).sample(range(len(task.rows)), len(task.rows))
    rows: dict[str, dict[str, Any]] = {}
    for index in order:
        row = {"id": f"row/{index}", **task.rows[index]}
        if len(_problem(row, args, model).prompt_ids) <= args.max_prompt_length:
            rows[row["id"]] = row
            if len(rows) == prompts:
                return rows
    if not rows:
        allowed, fix = "a length that at least one prompt has", "raise it"
        raise ConfigError("max_prompt_length", args.max_prompt_length, allowed, fix)
    allowed = f"at most {len(rows)}, the rows whose prompts fit"
    raise ConfigError("prompts", prompts, allowed, f"write --prompts {len(rows)}")


def _problem(row: Mapping[str, Any], args: MInTRLConfig, model: EvalModel) -> EvalProblem:
    return EvalProblem.from_row(row, model.tokenizer, chat_template_kwargs=args.chat_template_kwargs)


def _generator(
    args: MInTRLConfig, recipe: Recipe, model: EvalModel, problems: Sequence[EvalProblem]
) -> AbstractContextManager[PolicyGenerator]:
    """The base model, as the recipe samples it."""
    longest = max(len(problem.prompt_ids) for problem in problems)
    if args.generation == "vllm":
        sampling = {"temperature": args.temperature, "top_p": args.top_p}
        servers = Servers(args.server_urls, max_concurrency=args.max_concurrent_rollouts, **sampling)
        return servers.generator(model, longest, args.max_completion_length)
    if model.positions is not None and longest + args.max_completion_length > model.positions:
        allowed = f"at most {model.positions - longest}; the model has {model.positions} positions"
        raise ConfigError("max_completion_length", args.max_completion_length, allowed, "set it lower")
    return local_generator(
        model,
        temperature=args.temperature,
        max_batch=args.local_max_batch,
        dtype=recipe.policy.dtype if recipe.policy.dtype in DTYPES else None,
        device="cpu" if args.use_cpu else None,
        serves_base=args.judge == "self",
    )


def _judge(task: Task, args: MInTRLConfig, model: EvalModel, generator: PolicyGenerator) -> Judge:
    """The recipe's judge, asked once where it can be."""
    owner = SimpleNamespace(
        args=args, processing_class=model.tokenizer, accelerator=SimpleNamespace(num_processes=1)
    )  # what is read of a trainer, and of a policy on a server; no server is waited for here: pilots are continued
    served = None
    if args.generation == "vllm":
        served = SimpleNamespace(base_model=model.name, keeps_base=True, waiting_for=lambda urls: None)
    judge = build_judge(owner, task.judge, generator, model.vocabulary, served, starts_as_base=True)
    if hasattr(judge, "probe"):
        shared_loop().run(judge.probe())
    return judge
