"""How likely the right solution is before and after training, where one string is right: Figure 2, measured.

In the small world a problem has one solution `y*` as the world writes it, so one forward pass per model gives the
log-probability of each of its tokens, and with them the `nu` of Assumption 3.4, with no sampling at all.

The reward reads the results alone. What a solution copies from the question (start value, letters, operands) may drift
in training without any loss of reward, and it does: after some runs `pi(y*)`, the probability of the *string*, is a
twentieth of what is solved. So a solution's probability here is that of its **decisive** tokens, all results and the
end, each after the right tokens before it: the chance that every result comes out right where the question is copied
right. On models trained by three methods it was within 0.03 of Pass@1. The string's own is kept beside it.

Owns the forward pass and the summary. Trains and samples nothing. Models are loaded one at a time.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import torch

from ..data import chains
from ..errors import DataError
from .runs import BASE, Group, Run
from .support import corrections_needed, log_with_corrections

if TYPE_CHECKING:
    from transformers import PreTrainedModel

BUDGET = 1024  # samples that a problem may get before it counts as out of reach; 1 / budget is epsilon_inf
SOLVED = 0.5  # a problem counts as solved once its solution comes out in half of the samples
_PROBLEMS = 128  # of runs that were not evaluated: half easy, half hard
_ROWS_AT_A_TIME = 256
_LEAVE_OUT = "restore the model, or leave this run out"
_MARK = "*"  # stands for a result where a solution is written to find their places


@dataclass(frozen=True)
class Solution:
    """A problem of the small world with its one right response.

    Args:
        question (`str`): The problem.
        subset (`str`): `easy` or `hard`.
        prompt_ids (`tuple[int, ...]`): `<bos>` and the question.
        ids (`tuple[int, ...]`): The right response, `<eos>` included.
        decisive (`tuple[int, ...]`): Which of these tokens are results, or the end.
    """

    question: str
    subset: str
    prompt_ids: tuple[int, ...]
    ids: tuple[int, ...]
    decisive: tuple[int, ...]


@dataclass(frozen=True)
class Likelihoods:
    """Right solutions under one model.

    Args:
        group (`str`): Name of the group, `Base` for the model that training began with.
        method (`str`): Its method.
        run (`str`): Name of the run folder; empty for the base model.
        token_logps (`tuple[tuple[float, ...], ...]`): For each problem the log-probability of each decisive token
            after the right tokens before it, in nats.
        string_logps (`tuple[float, ...]`): `log pi(y*)` of each problem, in nats.
    """

    group: str
    method: str
    run: str
    token_logps: tuple[tuple[float, ...], ...]
    string_logps: tuple[float, ...]

    @property
    def logps(self) -> tuple[float, ...]:
        """Log-probability of all results of each problem, in nats."""
        return tuple(math.fsum(own) for own in self.token_logps)

    @property
    def smallest(self) -> tuple[float, ...]:
        """The least probability of a decisive token in each problem: its `nu`."""
        return tuple(math.exp(min(own)) for own in self.token_logps)


@dataclass(frozen=True)
class SupportTable:
    """What figure and summary are made from.

    Args:
        problems (`tuple[Solution, ...]`): The problems.
        base ([`Likelihoods`]): Before training.
        after (`tuple[Likelihoods, ...]`): After training, one for each run.
        corrections (`int`): N, the most corrections that one rollout of these runs could get; 0 without any.
        budget (`int`): Samples; `1 / budget` is the threshold of inference.
    """

    problems: tuple[Solution, ...]
    base: Likelihoods
    after: tuple[Likelihoods, ...]
    corrections: int
    budget: int

    @property
    def shown(self) -> str:
        """The subset that is drawn: the hard problems, where there are some."""
        subsets = [problem.subset for problem in self.problems]
        return "hard" if "hard" in subsets else subsets[0]

    def with_corrections(self) -> tuple[float, ...]:
        """Log-probability of each solution before training under a perfect judge of N corrections, in nats."""
        return tuple(log_with_corrections(own, self.corrections) for own in self.base.token_logps)

    def needed(self) -> tuple[int, ...]:
        """The fewest corrections that make each problem's solution visible to the budget, before training."""
        return tuple(corrections_needed(own, -math.log(self.budget)) for own in self.base.token_logps)


@dataclass(frozen=True)
class SupportSummary:
    """How far a method reached beyond what sampling finds, over the problems of one subset; means over runs.

    Args:
        group (`str`): The group, `Base` before training.
        subset (`str`): The problems.
        problems (`int`): How many.
        mean (`float`): Mean probability of a solution, in [0, 1].
        mean_string (`float`): Mean `pi(y*)`, in [0, 1].
        visible (`float`): Problems whose solution is more likely than `1 / budget`.
        solved (`float`): Problems whose solution is at least as likely as not.
        solved_beyond (`float`): Of those, problems that were below `1 / budget` before training.
        furthest (`float`, *optional*): The least probability before training of a problem that any run solved.
        smallest_nu (`float`): The least probability of a decisive token after right ones in this subset.
    """

    group: str
    subset: str
    problems: int
    mean: float
    mean_string: float
    visible: float
    solved: float
    solved_beyond: float
    furthest: float | None
    smallest_nu: float


def measure_support(
    groups: Sequence[Group], budget: int = BUDGET, on_model: Callable[[str], None] = lambda name: None
) -> SupportTable | None:
    """Right solutions under the base model and under the model that each run ended with.

    Args:
        groups (`Sequence[Group]`): Runs. Those that are not of the small world, or left no model, are left out.
        budget (`int`, *optional*, defaults to 1024): Samples; see [`SupportTable`].
        on_model (`Callable`, *optional*): Told the name of each model before it is loaded.

    Returns:
        [`SupportTable`], or `None` where no run remains.

    Raises:
        DataError: Runs of different worlds, or that began with different base models.
    """
    chosen = [(group, run) for group in groups for run in group.runs if has_solutions(run)]
    if not chosen:
        return None
    worlds = {run.settings.get("world", "lines") for _, run in chosen}
    if len(worlds) > 1:
        raise DataError("runs", "world", sorted(worlds), "runs of one world", "compare them apart")
    bases = {_base_folder(run) for _, run in chosen}
    if len(bases) > 1:
        allowed = "runs that began with one base model"
        raise DataError("runs", "model_name_or_path", sorted(map(str, bases)), allowed, "compare them apart")
    base_folder = bases.pop()
    problems = small_world_problems(chosen[0][1])
    measure = partial(_measure, problems=problems, on_model=on_model)
    base = Likelihoods(BASE, BASE, "", *measure(base_folder))
    after = tuple(Likelihoods(group.name, group.method, run.folder.name, *measure(run.folder)) for group, run in chosen)
    corrected = [run for _, run in chosen if run.was_reviewed]
    corrections = max((int(run.settings["max_reviews"]) for run in corrected), default=0)
    return SupportTable(problems, base, after, corrections, budget)


def summarize(table: SupportTable) -> list[SupportSummary]:
    """The summary of each group, `Base` first, by subset."""
    names = dict.fromkeys(one.group for one in (table.base, *table.after))
    return [
        _summary(table, name, subset)
        for subset in dict.fromkeys(problem.subset for problem in table.problems)
        for name in names
    ]


def has_solutions(run: Run) -> bool:
    """Whether a run is of the small world and left a model."""
    return run.settings.get("task") == "chains" and any(run.folder.glob("*model.safetensors"))


def small_world_problems(run: Run) -> tuple[Solution, ...]:
    """The evaluation problems of a run of the small world, or 128 such problems where it was not evaluated."""
    base = _base_folder(run)
    hard_counts = chains.WORLDS[run.settings.get("world", "lines")]
    world = chains.World.load(base if (base / "chains.json").is_file() else None, hard_counts)
    number = run.settings.get("eval_problems") or _PROBLEMS
    rows = world.evaluation_rows(number - number // 2, number // 2)
    return tuple(_solution(row) for row in rows)


@torch.no_grad()
def solution_logps(model: "PreTrainedModel", problems: Sequence[Solution]) -> tuple[tuple[float, ...], ...]:
    """Log-probability of every token of every solution, in nats at temperature 1, by one forward pass per 256 problems.

    Args:
        model (`PreTrainedModel`): The policy, in evaluation mode.
        problems (`Sequence[Solution]`): Problems; all prompts have one length, and so have all solutions.
    """
    found: list[tuple[float, ...]] = []
    start = len(problems[0].prompt_ids)
    for at in range(0, len(problems), _ROWS_AT_A_TIME):
        batch = [(*one.prompt_ids, *one.ids) for one in problems[at : at + _ROWS_AT_A_TIME]]
        ids = torch.tensor(batch, device=model.device)  # (B, P + C)
        logits = model(ids, use_cache=False).logits[:, start - 1 : -1].double()  # (B, C, V)
        logps = logits.log_softmax(-1).gather(-1, ids[:, start:, None]).squeeze(-1)  # (B, C)
        found += [tuple(own) for own in logps.tolist()]
    return tuple(found)


def _measure(
    folder: Path, problems: Sequence[Solution], on_model: Callable[[str], None]
) -> tuple[tuple[tuple[float, ...], ...], tuple[float, ...]]:
    """Log-probabilities of decisive tokens, and of whole strings, under the model in a folder."""
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM

    on_model(folder.name)
    try:
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    except (OSError, ValueError, SafetensorError) as error:
        why = str(error).strip().partition("\n")[0]
        raise DataError(str(folder), "model", why, "a model that can be loaded", _LEAVE_OUT) from error
    logps = solution_logps(model.eval(), problems)
    if not all(math.isfinite(value) for own in logps for value in own):
        raise DataError(str(folder), "model", "NaN or infinite", "finite log-probabilities", _LEAVE_OUT)
    decisive = tuple(tuple(own[at] for at in one.decisive) for own, one in zip(logps, problems, strict=True))
    return decisive, tuple(map(math.fsum, logps))


def _summary(table: SupportTable, name: str, subset: str) -> SupportSummary:
    places = [index for index, problem in enumerate(table.problems) if problem.subset == subset]
    before = [table.base.logps[index] for index in places]
    threshold, solved_from = -math.log(table.budget), math.log(SOLVED)
    models = [one for one in (table.base, *table.after) if one.group == name]
    by_run = [[one.logps[index] for index in places] for one in models]
    reached = [was for own in by_run for was, now in zip(before, own, strict=True) if now >= solved_from]
    smallest = [one.smallest[index] for one in models for index in places]

    def count(holds: Callable[[float, float], bool]) -> float:
        return fmean(sum(holds(was, now) for was, now in zip(before, own, strict=True)) for own in by_run)

    return SupportSummary(
        group=name,
        subset=subset,
        problems=len(places),
        mean=fmean(math.exp(now) for own in by_run for now in own),
        mean_string=fmean(math.exp(one.string_logps[index]) for one in models for index in places),
        visible=count(lambda was, now: now > threshold),
        solved=count(lambda was, now: now >= solved_from),
        solved_beyond=count(lambda was, now: now >= solved_from and was < threshold),
        furthest=math.exp(min(reached)) if reached else None,
        smallest_nu=min(smallest),
    )


def _base_folder(run: Run) -> Path:
    return Path(run.settings.get("model_name_or_path") or chains.base_model_path())


def _solution(row: Mapping[str, Any]) -> Solution:
    chain = chains.Chain.parse(row["prompt"])
    marked = chains.pieces(chains.solution_text(chain, [chain.start, *[_MARK] * chains.NUM_OPERANDS]))
    return Solution(
        question=row["prompt"],
        subset="hard" if row["misconceived"] else "easy",
        prompt_ids=(chains.BOS_ID, *chains.encode(row["prompt"])),
        ids=(*chains.encode(row["privileged_context"]), chains.EOS_ID),
        decisive=(*(at for at, piece in enumerate(marked) if piece == _MARK), len(marked)),
    )
