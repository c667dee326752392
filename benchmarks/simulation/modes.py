"""One batch, made in four ways on servers of its own, and what each of them took.

It owns the comparison: the same rows with the same numbers of policy tokens, the same verdicts, the same corrections.
It never touches the sampler's inside.
"""

import hashlib
from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from mintrl_trl.rollouts.loop import BackgroundLoop
from mintrl_trl.rollouts.rollout import Author, Rollout, RolloutRequest
from mintrl_trl.rollouts.sampler import InterventionSampler, SamplerSettings
from mintrl_trl.rollouts.schedule import Phase

from .clock import VirtualClockLoop
from .doors import JUDGE, POLICY, SimulatedJudge, SimulatedPolicy, SimulatedVocabulary, requests
from .lockstep import LockStep
from .scenario import Scenario
from .server import SimulatedServer, Usage


class Mode(Enum):
    """How a batch is made."""

    ON_POLICY = "on-policy"  # all rows are controls
    LOCK_STEP = "lock-step"  # rounds: all sample, then all are reviewed
    NO_OVERLAP = "no overlap"  # a coroutine for each rollout, which waits for the judge
    OVERLAP = "overlap"  # and samples on while the judge reads


@dataclass(frozen=True)
class Tokens:
    """Where tokens went.

    Args:
        policy (`int`): Policy tokens of the rollouts: equal in all modes.
        corrections (`int`): Spliced in.
        discarded (`int`): Policy tokens of chunks that were cut off.
        lookahead (`int`): Policy tokens sampled beyond a chunk and thrown away.
    """

    policy: int
    corrections: int
    discarded: int
    lookahead: int

    @property
    def wasted(self) -> int:
        """Sampled by the policy and in no rollout."""
        return self.discarded + self.lookahead


def count_tokens(rollouts: Iterable[Rollout]) -> Tokens:
    """Tokens of rollouts by what became of them."""
    rollouts = list(rollouts)
    spans = [span for rollout in rollouts for span in rollout.spans]
    reviews = [review for rollout in rollouts for review in rollout.reviews]
    return Tokens(
        policy=sum(len(span) for span in spans if span.author is Author.POLICY),
        corrections=sum(len(span) for span in spans if span.author is Author.INTERVENTION),
        discarded=sum(len(review.discarded_ids) for review in reviews),
        lookahead=sum(review.lookahead_tokens for review in reviews),
    )


@dataclass(frozen=True)
class Outcome:
    """What one mode took. Times are virtual.

    Args:
        mode (`Mode`): Which.
        seconds (`float`): From the first request to the last finished rollout.
        digest (`str`): Of all rollouts: equal where they are equal, token for token and author for author.
        tokens (`Tokens`): Where they went.
        reviews (`int`), revisions (`int`): Calls that asked for a verdict, and those that changed a rollout.
        review_seconds (`float`): Mean time of a review, waiting included; 0 where it was not measured.
        held_up_seconds (`float`): Mean time, over reviewed rollouts, in which nothing was sampled because the judge was
            waited for; 0 where it was not measured.
        judge (`Usage`): What reviews and corrections used.
        policy_busy_seconds (`float`), judge_busy_seconds (`float`): Summed over servers.
    """

    mode: Mode
    seconds: float
    digest: str
    tokens: Tokens
    reviews: int
    revisions: int
    review_seconds: float
    held_up_seconds: float
    judge: Usage
    policy_busy_seconds: float
    judge_busy_seconds: float


def simulate(mode: Mode, scenario: Scenario) -> Outcome:
    """Make a batch in one way, in virtual time."""
    shared = scenario.judge_servers == 0
    places = {POLICY: scenario.policy_places} | ({JUDGE: scenario.judge_places} if shared else {})
    policies = [SimulatedServer(scenario, places) for _ in range(scenario.policy_servers)]
    judges = [SimulatedServer(scenario, {JUDGE: scenario.judge_places}) for _ in range(scenario.judge_servers)]
    generator = SimulatedPolicy(scenario, policies)
    judge = SimulatedJudge(scenario, judges or policies)
    vocabulary = SimulatedVocabulary(scenario)
    batch = requests(scenario, Phase.ON_POLICY if mode is Mode.ON_POLICY else Phase.INTERVENTION)
    clock = VirtualClockLoop()
    loop = BackgroundLoop("simulation", clock)
    try:
        if mode is Mode.LOCK_STEP:
            rounds = LockStep(generator, judge, vocabulary, scenario.budget, scenario.seed)
            rollouts, seconds = loop.run(_timed(rounds, batch, clock))
        else:
            settings = SamplerSettings(
                scenario.budget,
                scenario.seed,
                overlap_reviews=mode is Mode.OVERLAP,
                max_concurrent_rollouts=len(batch),
                max_concurrent_reviews=scenario.max_concurrent_reviews,
                no_verdict_limit=0.0,
                review_timeout_seconds=1e6,
            )
            ends: list[float] = []
            with InterventionSampler(
                generator, judge, vocabulary, settings, lambda _: ends.append(clock.now), loop=loop
            ) as sampler:
                sampler.start(batch)
                rollouts, seconds = sampler.collect(), max(ends)
    finally:
        loop.close()
    made = [rollouts[row] for row in sorted(rollouts)]
    reviews = [review for rollout in made for review in rollout.reviews]
    reviewed = [rollout for rollout in made if rollout.reviews]
    return Outcome(
        mode,
        seconds,
        _digest(made),
        count_tokens(made),
        reviews=len(reviews),
        revisions=sum(review.intervened for review in reviews),
        review_seconds=sum(review.review_seconds for review in reviews) / (len(reviews) or 1),
        held_up_seconds=sum(rollout.held_up_seconds for rollout in reviewed) / (len(reviewed) or 1),
        judge=_total(server.usage[JUDGE] for server in judges or policies),
        policy_busy_seconds=sum(server.busy_seconds for server in policies),
        judge_busy_seconds=sum(server.busy_seconds for server in judges),
    )


def _digest(rollouts: Iterable[Rollout]) -> str:
    digest = hashlib.sha256()
    for rollout in rollouts:
        for span in rollout.spans:
            digest.update(span.author.value.encode() + array("I", span.ids).tobytes())
    return digest.hexdigest()


async def _timed(rounds: LockStep, batch: list[RolloutRequest], clock: VirtualClockLoop) -> tuple[dict, float]:
    return await rounds.rollouts(batch), clock.now


def _total(usages: Iterable[Usage]) -> Usage:
    total = Usage()
    for usage in usages:
        total.requests += usage.requests
        total.prompt_tokens += usage.prompt_tokens
        total.cached_tokens += usage.cached_tokens
        total.sampled_tokens += usage.sampled_tokens
    return total
