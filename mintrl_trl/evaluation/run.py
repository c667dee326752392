"""Fills the folder of an evaluation: samples that are missing, scores that are missing, and the counts they make.

Owns which (problem, sample) is still to do and what seeds it. It builds no generator and prints nothing. Invariants: a
sample depends on its problem's id and prompt, its number and the folder's settings, so an evaluation that is
interrupted and continued equals one that is not, and more samples and problems can be added later; counts are made of
problems with all their samples only.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from hashlib import blake2b, sha256
from itertools import islice
from typing import Any

from ..errors import ConfigError, DataError
from ..rollouts.doors import PolicyGenerator, Vocabulary
from ..rollouts.progress import Progress
from ..rollouts.rollout import Problem, Role, Rollout, RolloutRequest, StopReason
from ..rollouts.sampler import InterventionSampler
from ..rollouts.schedule import request_seed
from ..rollouts.segmentation import decode
from .results import EvalProblem, EvalResult, ProblemResult
from .samples import Key, Sample, SampleFolder, Score
from .sampling import Reviews, sample_requests, sampler_seed
from .scoring import NO_ANSWER, Rewarded, call_reward

_HELD = 4  # requests started and not yet let go, for each that may be in flight
_SCORED_TOGETHER = 128
_DETAIL_CHARS = 200

Rows = Mapping[str, Mapping[str, Any]]


def problems_fingerprint(problems: Sequence[EvalProblem]) -> str:
    """What sampling reads of problems, as 16 hexadecimal digits: their ids and the ids of their prompts."""
    return _digest([[problem.id, list(problem.prompt_ids)] for problem in problems])


def prompt_fingerprints(problems: Sequence[EvalProblem]) -> dict[str, str]:
    """What sampling reads of each problem, by its id, as 16 hexadecimal digits: the ids of its prompt."""
    return {problem.id: _digest(list(problem.prompt_ids)) for problem in problems}


def prompts_fingerprint(rows: Sequence[Mapping[str, Any]]) -> str:
    """What problems ask, as 16 hexadecimal digits: their ids and prompts, before any tokenizer."""
    return _digest([[row["id"], row["prompt"]] for row in rows])


def row_fingerprint(row: Mapping[str, Any]) -> str:
    """What scoring reads of a row, as 16 hexadecimal digits."""
    return _digest(row)


def sample_row(problem: str, sample: int) -> int:
    """The row of a request, which decides its seed: in [0, 2**63), and of (problem id, sample) alone."""
    digest = blake2b(json.dumps([problem, sample]).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def policy_seed(seed: int, problem: str, sample: int) -> int:
    """The seed of the policy's request for a sample, as long as nothing was spliced in."""
    return request_seed(sampler_seed(seed), 0, sample_row(problem, sample), 0)


def fill(
    folder: SampleFolder,
    generator: PolicyGenerator,
    vocabulary: Vocabulary,
    problems: Sequence[EvalProblem],
    *,
    num_samples: int,
    max_completion_tokens: int,
    seed: int = 0,
    max_concurrent_rollouts: int = 512,
    watch: Callable[[Callable[[], Progress], int], AbstractContextManager] | None = None,
    reviews: Reviews | None = None,
    problem_of: Callable[[EvalProblem], Problem] | None = None,
    on_rollout: Callable[[Key, Rollout], None] = lambda key, rollout: None,
) -> int:
    """Sample what a folder lacks, each sample being saved as it finishes.

    Args:
        folder ([`SampleFolder`]): Begun, with the settings of this call.
        generator ([`PolicyGenerator`]), vocabulary ([`Vocabulary`]): The policy.
        problems (`Sequence[EvalProblem]`): With ids, each its own.
        num_samples (`int`): Samples of each problem; those there already count.
        max_completion_tokens (`int`): Length limit of a response.
        seed (`int`, *optional*, defaults to 0): Seed of the evaluation.
        max_concurrent_rollouts (`int`, *optional*, defaults to 512): Requests in flight at most.
        watch (`Callable`, *optional*): From a function that tells the progress, and the number of samples that were
            there before, to a context manager that is entered while it runs.
        reviews ([`Reviews`], *optional*): A judge that takes part, in pilot rollouts.
        problem_of (`Callable`, *optional*): What the judge may know of a problem; needed with `reviews`.
        on_rollout (`Callable[[Key, Rollout], None]`, *optional*): Called with each rollout before its sample is saved,
            on another thread.

    Returns:
        `int`: Samples that were made.

    Raises:
        ConfigError: No problem, no sample of each, or ids that are missing or there twice.
        GenerationError: The policy could not go on. What was finished is saved.
    """
    ids = [problem.id for problem in problems]
    if not problems or len(set(ids)) < len(ids) or not all(ids):
        raise ConfigError("problems", ids, "one problem or more, each with an id of its own", "give every row an `id`")
    if num_samples < 1:
        raise ConfigError("samples", num_samples, "at least 1", "sample each problem once or more")
    there = {sample.key for sample in folder.samples()}
    role = Role.CONTROL if reviews is None else Role.INTERVENED
    keys: dict[int, Key] = {}
    requests = []
    for number in range(num_samples):  # all problems once, then again: after a while every problem has some
        for problem in problems:
            if (problem.id, number) not in there:
                row = sample_row(problem.id, number)
                keys[row] = problem.id, number
                known = problem_of(problem) if problem_of is not None else _question(problem)
                requests.append(RolloutRequest(row, problem.prompt_ids, known, role, update=0))

    def save(rollout: Rollout) -> None:
        on_rollout(keys[rollout.request.row], rollout)
        folder.append(_sample(*keys[rollout.request.row], rollout, vocabulary))

    def watch_all(sampler: InterventionSampler) -> AbstractContextManager:
        return watch(lambda: replace(sampler.progress(), total=len(requests)), len(there))

    if requests:
        finished = sample_requests(
            generator,
            vocabulary,
            requests,
            max_completion_tokens=max_completion_tokens,
            run_seed=seed,
            max_concurrent_rollouts=max_concurrent_rollouts,
            max_held=_HELD * max_concurrent_rollouts,
            on_finished=save,
            watch=None if watch is None else watch_all,
            reviews=reviews,
        )
        for _ in finished:
            pass
    return len(requests)


def score(
    folder: SampleFolder,
    rows: Rows,
    reward: Callable[..., Sequence[float | None]],
    *,
    anew: bool = False,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> int:
    """Score the samples of a folder that have no score, one without a reward, or one of a row that has changed.

    Args:
        folder ([`SampleFolder`]): With samples; those of problems without a row are passed over.
        rows (`Rows`): The data rows by id, of equal columns; `prompt` and what the reward function reads.
        reward (`Callable`): In TRL's signature.
        anew (`bool`, *optional*, defaults to `False`): Score all samples again.
        on_progress (`Callable[[int, int], None]`, *optional*): Called with samples done and in all.

    Returns:
        `int`: Samples that were scored.
    """
    known = {} if anew else folder.scores()
    fingerprints = {name: row_fingerprint(row) for name, row in rows.items()}
    todo: set[Key] = set()
    for sample in folder.samples():
        if sample.problem not in rows:
            continue
        old = known.get(sample.key)
        if old is None or old.reward is None or old.row != fingerprints[sample.problem]:
            todo.add(sample.key)
    if anew:
        folder.forget_scores()
    on_progress(0, len(todo))
    done = 0
    waiting = (sample for sample in folder.samples() if sample.key in todo)
    while some := list(islice(waiting, _SCORED_TOGETHER)):  # a folder may be larger than memory
        folder.append_scores(
            _score(sample, rewarded, fingerprints[sample.problem])
            for sample, rewarded in zip(some, _rewarded(some, rows, reward), strict=True)
        )
        done += len(some)
        on_progress(done, len(todo))
    return done


def count(
    folder: SampleFolder, problems: Sequence[str], num_samples: int, subset: Mapping[str, str] | None = None
) -> EvalResult:
    """The counts of a folder's first `num_samples` samples of each problem, in the order of `problems`.

    Args:
        folder ([`SampleFolder`]): Scored.
        problems (`Sequence[str]`): Ids; samples of others are passed over.
        num_samples (`int`): The n of Pass@k.
        subset (`Mapping[str, str]`, *optional*): Subset of problems, by id.

    Raises:
        DataError: Samples or scores are missing.
    """
    scores = folder.scores()
    totals = {name: ProblemResult(0, 0, 0, 0, 0, (subset or {}).get(name), name) for name in problems}
    without_score = 0
    for sample in folder.samples():
        if sample.problem not in totals or sample.sample >= num_samples:
            continue
        if sample.key not in scores:
            without_score += 1
            continue
        total, one = totals[sample.problem], scores[sample.key]
        rewarded = Rewarded(math.nan if one.reward is None else one.reward, one.why)
        totals[sample.problem] = replace(
            total,
            samples=total.samples + 1,
            solved=total.solved + rewarded.solved,
            unscored=total.unscored + (one.reward is None),
            truncated=total.truncated + (sample.stop == StopReason.LENGTH.value),
            tokens=total.tokens + len(sample.ids),
            no_answer=total.no_answer + (one.why in NO_ANSWER),
        )
    found = sum(total.samples for total in totals.values())
    if found < len(problems) * num_samples:
        wanted = f"{len(problems) * num_samples:,} scored samples, {num_samples} of each of {len(problems)} problems"
        all_there = found + without_score == len(problems) * num_samples
        fix = "score them: `--rescore`" if all_there else "continue the evaluation: the same command without --rescore"
        raise DataError(str(folder.path), "samples", f"{found:,} samples", wanted, fix)
    return EvalResult(tuple(totals.values()))


def _question(problem: EvalProblem) -> Problem:
    return Problem(problem.prompt if isinstance(problem.prompt, str) else "")


def _sample(problem: str, number: int, rollout: Rollout, vocabulary: Vocabulary) -> Sample:
    logps = [span.logps for span in rollout.spans]
    logp = None if any(some is None for some in logps) else math.fsum(value for some in logps for value in some)
    text = str(decode(rollout.ids, vocabulary))
    return Sample(problem, number, rollout.ids, text, rollout.stop.value, logp)


def _rewarded(samples: Sequence[Sample], rows: Rows, reward: Callable[..., Sequence[float | None]]) -> list[Rewarded]:
    own = [rows[sample.problem] for sample in samples]
    names = [name for name in own[0] if name != "prompt"]
    return call_reward(
        reward,
        prompts=[row["prompt"] for row in own],
        texts=[sample.text for sample in samples],
        completion_ids=[sample.ids for sample in samples],
        columns={name: [row[name] for row in own] for name in names},
    )


def _score(sample: Sample, rewarded: Rewarded, row: str) -> Score:
    reward = None if math.isnan(rewarded.reward) else rewarded.reward
    detail = rewarded.detail if len(rewarded.detail) <= _DETAIL_CHARS else rewarded.detail[: _DETAIL_CHARS - 3] + "..."
    return Score(sample.problem, sample.sample, reward, rewarded.why, detail, row)


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, default=str)
    return sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:16]
