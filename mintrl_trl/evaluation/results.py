"""What is evaluated and what comes out: problems, counts of each, and the scores that follow from counts.

Plain values and arithmetic; nothing here samples or scores. Invariant: Pass@k divides by the responses there are, and a
response without a reward counts as not solved and is counted apart, so a score is never better than what was verified.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import fmean, stdev
from typing import Any

from ..errors import ConfigError
from .pass_at_k import pass_at_k


@dataclass(frozen=True)
class EvalProblem:
    """One problem to evaluate on.

    Args:
        prompt (`str` or `list[dict]`): Text or messages, as reward functions get it.
        prompt_ids (`tuple[int, ...]`): The rendered prompt.
        columns (`Mapping[str, Any]`): The row's other columns, for the reward function.
        subset (`str`, *optional*): Name of the subset the problem is reported under, besides the whole.
        id (`str`, *optional*): Its name, unique in its set; empty where problems have none.
    """

    prompt: str | list[dict[str, str]]
    prompt_ids: tuple[int, ...]
    columns: Mapping[str, Any] = field(default_factory=dict)
    subset: str | None = None
    id: str = ""

    @classmethod
    def from_row(
        cls,
        row: Mapping[str, Any],
        tokenizer: Any,
        *,
        subset: str | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> "EvalProblem":
        """Render a row's `prompt` as training does: messages through the chat template, text as it is.

        Raises:
            ConfigError: Messages, and a tokenizer without chat template.
        """
        prompt = row["prompt"]
        if isinstance(prompt, str):
            ids = tokenizer(prompt)["input_ids"]
        elif getattr(tokenizer, "chat_template", "") is None:
            allowed = "one whose tokenizer has a chat template, as prompts are messages"
            fix = "evaluate an instruct model, set chat_template in its tokenizer, or give rows with prompts as text"
            raise ConfigError("model", getattr(tokenizer, "name_or_path", ""), allowed, fix)
        else:
            ids = tokenizer.apply_chat_template(
                prompt, add_generation_prompt=True, tokenize=True, return_dict=True, **(chat_template_kwargs or {})
            )["input_ids"]
        columns = {name: row[name] for name in row if name != "prompt"}
        return cls(prompt, tuple(ids), columns, subset, row.get("id", ""))


@dataclass(frozen=True)
class ProblemResult:
    """Counts of one problem.

    Args:
        samples (`int`): Responses, the n of Pass@k.
        solved (`int`): Responses rewarded above 0.5.
        unscored (`int`): Responses that got no reward; counted as not solved.
        truncated (`int`): Responses that reached the length limit.
        tokens (`int`): Response tokens of all of them.
        subset (`str`, *optional*): Name of the subset.
        id (`str`, *optional*): The problem's id; empty where it has none.
        no_answer (`int`, *optional*): Responses in which the reward function found no answer to look at.
    """

    samples: int
    solved: int
    unscored: int
    truncated: int
    tokens: int
    subset: str | None = None
    id: str = ""
    no_answer: int = 0


@dataclass(frozen=True)
class EvalResult:
    """Counts of every problem, in order, and the scores that follow from them."""

    problems: tuple[ProblemResult, ...]

    @property
    def subsets(self) -> tuple[str, ...]:
        """Names of the subsets, in order of appearance."""
        return tuple(dict.fromkeys(problem.subset for problem in self.problems if problem.subset is not None))

    def part(self, subset: str | None) -> "EvalResult":
        """The counts of one subset's problems (`None`: of all)."""
        return EvalResult(tuple(problem for problem in self.problems if subset in (None, problem.subset)))

    def pass_at(self, k: int, subset: str | None = None) -> float:
        """Unbiased Pass@k, averaged over the problems of `subset` (`None`: all), in [0, 1].

        Raises:
            ConfigError: No problem is in `subset`, or one has fewer than `k` responses.
        """
        return fmean(self.scores(k, subset))

    def standard_error(self, k: int, subset: str | None = None) -> float:
        """Standard error of `pass_at` over the draw of problems; NaN for a single problem."""
        scores = self.scores(k, subset)
        return stdev(scores) / math.sqrt(len(scores)) if len(scores) > 1 else math.nan

    def metrics(self, ks: Iterable[int] = (1,), prefix: str = "eval") -> dict[str, float]:
        """Scores by name, for a tracker.

        Args:
            ks (`Iterable[int]`, *optional*, defaults to `(1,)`): Values of k.
            prefix (`str`, *optional*, defaults to `"eval"`): First part of every name.

        Returns:
            `dict[str, float]`: `eval/pass@1`, `eval/<subset>/pass@1` and so on; `eval/unscored`, `eval/truncated` and
            `eval/no_answer` as shares of all responses; `eval/length`, the mean response length in tokens.
        """
        ks = tuple(ks)
        named = {f"{prefix}/pass@{k}": self.pass_at(k) for k in ks}
        for subset in self.subsets:
            named |= {f"{prefix}/{subset}/pass@{k}": self.pass_at(k, subset) for k in ks}
        shares = {"unscored": "unscored", "truncated": "truncated", "no_answer": "no_answer", "length": "tokens"}
        return named | {f"{prefix}/{name}": self.per_sample(count) for name, count in shares.items()}

    def per_sample(self, count: str) -> float:
        """Sum of one of the counts of [`ProblemResult`] over all problems, for each response."""
        total = sum(getattr(problem, count) for problem in self.problems)
        return total / sum(problem.samples for problem in self.problems)

    def scores(self, k: int, subset: str | None = None) -> list[float]:
        """Unbiased Pass@k of each problem of `subset` (`None`: of all), in order, in [0, 1].

        Raises:
            ConfigError: As for [`EvalResult.pass_at`].
        """
        chosen = [problem for problem in self.problems if subset is None or problem.subset == subset]
        if not chosen:
            raise ConfigError("subset", subset, f"None or one of {list(self.subsets)}", "name a subset of the problems")
        return [pass_at_k(problem.samples, problem.solved, k) for problem in chosen]
