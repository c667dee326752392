"""Reading on while the judge reads changes nothing with the model in process, and leaves nothing running."""

import asyncio
import random
import time

import pytest
import torch

from mintrl_trl import KEEP, Correction, NoVerdict, Problem, Revise, Role, RolloutRequest
from mintrl_trl.generation.local import LocalGenerator
from mintrl_trl.generation.vocabulary import TokenizerVocabulary
from mintrl_trl.rollouts.sampler import InterventionSampler, SamplerSettings
from mintrl_trl.rollouts.schedule import InterventionBudget
from tests.tiny import tiny_model, tiny_tokenizer


class SeededJudge:
    """Verdicts and corrections that depend on the seed alone: keeps, rejects, fails, corrects with nothing."""

    async def review(self, problem, steps, first_new, *, seed):
        draw = random.Random(seed)
        kind = draw.choice(("keep", "revise", "revise", "fail"))
        if kind == "fail":
            raise NoVerdict("unparsable")
        return KEEP if kind == "keep" else Revise(draw.randrange(first_new, len(steps)))

    async def intervene(self, problem, accepted, verdict, max_tokens, *, seed):
        draw = random.Random(seed)
        return Correction(ids=tuple(draw.randrange(3, 40) for _ in range(draw.randrange(4)))[:max_tokens])


@pytest.fixture(scope="module")
def generator():
    model = tiny_model().double()
    with torch.no_grad():  # likelier ends and blank lines, so that rollouts have steps and differ in length
        model.lm_head.weight[[2, 45, 46]] += 0.02 * torch.randn(3, 32, dtype=torch.float64)
    generator = LocalGenerator(model, end_ids=[2], pad_id=0)
    yield generator
    generator.close()


def make_rollouts(generator, *, overlap: bool, chunk: int, reviews: int, limit: int, run_seed: int):
    budget = InterventionBudget(
        chunk_tokens=chunk, max_reviews=reviews, correction_tokens=3, max_completion_tokens=limit
    )
    settings = SamplerSettings(
        budget=budget, run_seed=run_seed, overlap_reviews=overlap, no_verdict_limit=1.0, max_concurrent_reviews=3
    )
    vocabulary = TokenizerVocabulary(tiny_tokenizer(), end_ids=[2], size=47)
    sampler = InterventionSampler(generator, SeededJudge(), vocabulary, settings)
    requests = [
        RolloutRequest(
            row=row,
            prompt_ids=(1, 10 + row, 11),
            problem=Problem("q"),
            role=Role.INTERVENED if row % 2 else Role.CONTROL,
            update=3,
        )
        for row in range(12)
    ]
    with generator.active():
        sampler.start(requests)
        rollouts = sampler.collect()
    return rollouts


@pytest.mark.parametrize(("chunk", "reviews", "limit"), [(4, 4, 24), (3, 2, 17), (7, 3, 9)])
@pytest.mark.parametrize("run_seed", [0, 1])
def test_overlap_on_and_off_give_identical_rollouts(generator, chunk, reviews, limit, run_seed):
    shape = dict(chunk=chunk, reviews=reviews, limit=limit, run_seed=run_seed)
    on = make_rollouts(generator, overlap=True, **shape)
    off = make_rollouts(generator, overlap=False, **shape)
    assert [rollout.ids for rollout in on.values()] == [rollout.ids for rollout in off.values()]
    for row, rollout in on.items():
        assert [(span.author, span.ids) for span in rollout.spans] == [
            (span.author, span.ids) for span in off[row].spans
        ]
        assert [r.decision for r in rollout.reviews] == [r.decision for r in off[row].reviews]
        assert rollout.stop is off[row].stop
    assert any(rollout.num_interventions for rollout in on.values())
    assert generator.idle


def test_cancelling_leaves_no_row_in_the_batch(generator):
    class Slow(SeededJudge):
        async def review(self, problem, steps, first_new, *, seed):
            await asyncio.sleep(30)

    budget = InterventionBudget(chunk_tokens=2, max_reviews=2, correction_tokens=2, max_completion_tokens=400)
    vocabulary = TokenizerVocabulary(tiny_tokenizer(), end_ids=[2], size=47)
    sampler = InterventionSampler(generator, Slow(), vocabulary, SamplerSettings(budget=budget, run_seed=0))
    with generator.active():
        sampler.start([RolloutRequest(r, (1, 5), Problem("q"), Role.INTERVENED, 0) for r in range(6)])
        time.sleep(0.1)
        assert sampler.progress().reviews_in_flight > 0
        sampler.cancel()
        deadline = time.monotonic() + 5
        while generator.num_rows and time.monotonic() < deadline:
            time.sleep(0.01)
        assert generator.num_rows == 0
    assert generator.idle
