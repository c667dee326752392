"""Every number of the simulation, in one frozen dataclass. Lengths are drawn here, once, from the seed."""

import math
import random
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from mintrl_trl.rollouts.schedule import InterventionBudget, Schedule


@dataclass(frozen=True)
class Scenario:
    """A batch of the paper's math setting on one policy server and one judge server. Times in seconds.

    Args:
        prompts (`int`), num_control (`int`), num_intervened (`int`): Rows of the batch.
        chunk_tokens (`int`), max_reviews (`int`), correction_tokens (`int`): k, R and h.
        prompt_tokens (`int`): Length of a prompt; the rows of a group share all but its last token.
        mean_tokens (`float`), length_sigma (`float`), cap_tokens (`int`): Policy tokens of a row: lognormal with that
            mean before the cap, at most `cap_tokens`. Rows of one index have the same length in every mode; corrections
            come on top.
        step_tokens (`int`): Policy tokens of one step, the unit that the judge rejects.
        revise_rate (`float`): Share of reviews that say Revise; the step is uniform among the new ones.
        verdict_tokens (`float`), verdict_sigma (`float`), verdict_cap (`int`): Tokens of a verdict: lognormal.
        judge_head_tokens (`int`), judge_tail_tokens (`int`): Around the steps in a judge's prompt. Steps are appended,
            so that successive reviews share their prefix.
        decode_seconds (`float`), row_seconds (`float`): A decode step takes the first, and the second for each row.
        prefill_tokens_per_second (`float`), prefill_step_tokens (`int`): Prompt tokens lengthen the step in which they
            are processed; a step takes up to `prefill_step_tokens` of them.
        block_tokens (`int`): Granularity of the prefix cache, which never forgets.
        policy_places (`int`), judge_places (`int`): Rows that one server decodes at once; more wait in line.
        policy_servers (`int`), judge_servers (`int`): How many. Without a judge server the judge's requests join the
            policy's servers, on `judge_places` places of their own.
        request_seconds (`float`): A request's way to the server.
        stream_tokens (`int`): Tokens that a server sends at once; the last never wait.
        max_concurrent_reviews (`int`): The sampler's own limit; best is what the judge works on at once.
        parameters (`float`): Of the policy, for the update and the sync.
        trainer_flops (`float`): Useful operations per second of one training GPU.
        flops_per_parameter (`float`): Operations of an update per parameter and token: forward, its repetition under
            gradient checkpointing, backward.
        sync_seconds (`float`), sync_bytes_per_second (`float`): New weights reach the servers after the first and as
            long as 2 bytes for each parameter take.
        seed (`int`): Of lengths and of the run.
    """

    prompts: int = 32
    num_control: int = 8
    num_intervened: int = 8
    chunk_tokens: int = 512
    max_reviews: int = 4
    correction_tokens: int = 64
    prompt_tokens: int = 200
    mean_tokens: float = 4000.0
    length_sigma: float = 0.8
    cap_tokens: int = 16_384
    step_tokens: int = 40
    revise_rate: float = 0.3
    verdict_tokens: float = 80.0
    verdict_sigma: float = 0.5
    verdict_cap: int = 1024
    judge_head_tokens: int = 500
    judge_tail_tokens: int = 60
    decode_seconds: float = 0.008
    row_seconds: float = 0.000_03
    prefill_tokens_per_second: float = 20_000.0
    prefill_step_tokens: int = 2048
    block_tokens: int = 16
    policy_places: int = 512
    judge_places: int = 32
    policy_servers: int = 1
    judge_servers: int = 1
    request_seconds: float = 0.002
    stream_tokens: int = 8
    max_concurrent_reviews: int = 32
    parameters: float = 1.7e9
    trainer_flops: float = 3.5e14
    flops_per_parameter: float = 8.0
    sync_seconds: float = 0.5
    sync_bytes_per_second: float = 1e10
    seed: int = 0

    def __post_init__(self):
        if self.chunk_tokens % self.stream_tokens:
            raise ValueError("a chunk that ends within a message waits for the rest: make stream_tokens divide it")

    def but(self, **changes: Any) -> "Scenario":
        """The same with other values."""
        return replace(self, **changes)

    @property
    def schedule(self) -> Schedule:
        """Who is reviewed."""
        return Schedule(self.num_control, self.num_intervened, intervention_updates=1)

    @property
    def budget(self) -> InterventionBudget:
        """Limits of a rollout. The cap on a response leaves room for all corrections, so none displaces the policy."""
        room = self.cap_tokens + self.max_reviews * self.correction_tokens
        return InterventionBudget(self.chunk_tokens, self.max_reviews, self.correction_tokens, room)

    @cached_property
    def lengths(self) -> tuple[int, ...]:
        """Policy tokens of each row, the end token included."""
        rng = random.Random(self.seed)
        location = math.log(self.mean_tokens) - self.length_sigma**2 / 2
        rows = self.prompts * self.schedule.group_size
        drawn = (rng.lognormvariate(location, self.length_sigma) for _ in range(rows))
        return tuple(min(max(round(length), 1), self.cap_tokens) for length in drawn)

    def verdict_length(self, rng: random.Random) -> int:
        """Tokens of one verdict."""
        location = math.log(self.verdict_tokens) - self.verdict_sigma**2 / 2
        return min(max(round(rng.lognormvariate(location, self.verdict_sigma)), 1), self.verdict_cap)
