"""Placebo and random cut: what they take from the judge they wrap, and what a rollout with them is made of."""

import asyncio
from collections import Counter
from dataclasses import dataclass

import pytest

from mintrl_trl.checkpoint_state import describe_judge
from mintrl_trl.judges.exact import MISJUDGED, ChainsJudge
from mintrl_trl.judges.variants import PlaceboJudge, RandomCutJudge
from mintrl_trl.objective.metrics import rollout_totals
from mintrl_trl.reporting.colours import rollout_text
from mintrl_trl.reporting.records import RolloutRecord, rollout_record
from mintrl_trl.rollouts.doors import KEEP, Correction, Revise
from mintrl_trl.rollouts.loop import BackgroundLoop
from mintrl_trl.rollouts.rollout import Decision, Problem
from mintrl_trl.rollouts.sampler import InterventionSampler
from mintrl_trl.rollouts.schedule import request_seed
from tests.doors import (
    PROBLEM,
    PROMPT_IDS,
    ScriptedGenerator,
    ScriptedJudge,
    StepVocabulary,
    StreamRequest,
    request,
    settings,
)
from tests.test_exact_judge import CHAIN, JUDGE, RIGHT

STEPS = ("a", "b", "c", "d", "e")


@pytest.fixture(scope="module")
def loop():
    loop = BackgroundLoop()
    yield loop
    loop.close()


def policy():
    """A token is 100 + response length, and 200 more for every cut before it."""
    cuts = {request_seed(7, 0, 0, number): number for number in range(9)}
    return ScriptedGenerator(lambda seed, position: 100 + position - len(PROMPT_IDS) + 200 * cuts[seed])


def sample(loop, judge, generator, **limits):
    with InterventionSampler(generator, judge, StepVocabulary(), settings(**limits), loop=loop) as sampler:
        sampler.start([request()])
        return sampler.collect()[0]


# Placebo


@pytest.mark.parametrize("overlap", [True, False], ids=["overlapping", "one after the other"])
def test_a_placebo_cuts_and_the_policy_writes_on_with_new_noise(loop, overlap):
    generator, inner = policy(), ScriptedJudge([Revise(2, "wrong")], [Correction(ids=(7, 8))])
    rollout = sample(loop, PlaceboJudge(inner), generator, overlap=overlap)
    assert rollout.ids == (100, 101, *range(302, 312))
    assert all(rollout.policy_authored) and rollout.off_policy_share == 0
    assert rollout.num_interventions == 0 and inner.corrections == []
    first, second = rollout.reviews
    assert (first.decision, first.step, first.reason) == (Decision.REVISE, 2, "wrong")
    assert (first.kept_tokens, first.correction_tokens, first.discarded_ids) == (2, 0, (102, 103))
    assert first.cuts and not first.intervened
    assert (second.decision, second.chunk_start, second.cuts) == (Decision.KEEP, 2, False)
    length = 10 if overlap else 4
    assert generator.requests[1] == StreamRequest((*PROMPT_IDS, 100, 101), length, request_seed(7, 0, 0, 1))
    assert generator.open_streams == 0


def test_cuts_at_the_very_beginning_end_with_the_reviews(loop):
    inner = ScriptedJudge(lambda call: Revise(call.first_new))
    rollout = sample(loop, PlaceboJudge(inner), policy(), reviews=3)
    assert rollout.ids == tuple(range(700, 712))
    assert [review.discarded_ids for review in rollout.reviews] == [
        tuple(range(first, first + 4)) for first in (100, 300, 500)
    ]


def test_a_placebo_rollout_in_metrics_and_records(loop):
    rollout = sample(loop, PlaceboJudge(ScriptedJudge([Revise(2, "wrong")])), policy())
    means = rollout_totals([rollout]).means()
    assert (means["judge/revise_rate"], means["judge/interventions"], means["off_policy_share"]) == (0.5, 0, 0)
    assert means["tokens/discarded"] == 2
    assert "judge/empty_correction" not in means  # none was asked for
    record = rollout_record(rollout, vocabulary=StepVocabulary(), update=1, group=0)
    assert [(span.start, span.end) for span in record.spans] == [(0, 2), (2, 12)]
    assert RolloutRecord.from_json(record.to_json()) == record
    text = rollout_text(record, marks=True).plain
    assert "101\n[-102\n103-] [step 3: wrong]\n302" in text
    assert "0 of 2 reviews intervened" in text


# Random cut


def review(judge, first_new=2, seed=0):
    return asyncio.run(judge.review(PROBLEM, STEPS, first_new, seed=seed))


def test_random_cuts_are_uniform_over_the_new_steps():
    judge = RandomCutJudge(ScriptedJudge(lambda call: Revise(4, "wrong")))

    async def reviews():
        return [await judge.review(PROBLEM, STEPS, 2, seed=seed) for seed in range(3000)]

    verdicts = Counter(asyncio.run(reviews()))
    assert set(verdicts) == {Revise(step, "wrong") for step in (2, 3, 4)}
    for count in verdicts.values():
        assert count == pytest.approx(1000, abs=105)  # four standard deviations
    assert review(judge, seed=5) == review(judge, seed=5)


def test_random_cuts_do_not_depend_on_what_the_wrapped_judge_draws():
    """An imperfect judge misjudges where the first number that its seed gives is small."""
    problem, judge = Problem(CHAIN.question), RandomCutJudge(ChainsJudge(JUDGE.world, error_rate=0.2))

    async def reviews():
        return [await judge.review(problem, RIGHT[:4], 0, seed=seed) for seed in range(2000)]

    revisions = [verdict for verdict in asyncio.run(reviews()) if isinstance(verdict, Revise)]
    steps = Counter(verdict.step for verdict in revisions)
    assert set(steps) == {0, 1, 2, 3}
    for count in steps.values():
        assert count == pytest.approx(100, abs=40)  # of about 400; four standard deviations
    assert {verdict.reason for verdict in revisions} == {MISJUDGED}


def test_a_random_cut_asks_the_judge_whether_and_what_to_write():
    inner = ScriptedJudge([KEEP, Revise(4)], [Correction(text="right")])
    judge = RandomCutJudge(inner)
    assert review(judge) == KEEP
    verdict = review(judge, seed=3)
    correction = asyncio.run(judge.intervene(PROBLEM, "ab", verdict, 9, seed=4))
    assert correction == Correction(text="right")
    (call,) = inner.corrections
    assert (call.accepted, call.verdict, call.max_tokens, call.seed) == ("ab", verdict, 9, 4)


# What passes through


@dataclass
class Counting:
    """A judge that counts what it costs."""

    model: str = "some/model"
    spent: tuple[int, float] = (0, 0.0)
    exhausted = True
    told = None

    def settings(self):
        return {"temperature": 0.5}

    def counters(self):
        return {"judge/calls": 3.0}

    def prepare(self, *words):
        self.told = words


@pytest.mark.parametrize("variant", [PlaceboJudge, RandomCutJudge])
def test_what_a_judge_counts_spends_and_is_told_passes_through(variant):
    inner = Counting()
    judge = variant(inner)
    judge.prepare("vocabulary", 10)
    judge.spent = (5, 0.1)
    assert (inner.told, inner.spent, judge.spent) == (("vocabulary", 10), (5, 0.1), (5, 0.1))
    assert judge.exhausted and judge.counters() == {"judge/calls": 3.0}
    assert describe_judge(judge) == {
        "class": f"mintrl_trl.judges.variants.{variant.__name__}",
        "of": "Counting",
        "temperature": 0.5,
        "model": "some/model",
    }


@pytest.mark.parametrize("variant", [PlaceboJudge, RandomCutJudge])
def test_a_judge_without_extras_has_none_when_wrapped(variant):
    judge = variant(ScriptedJudge())
    for name in ("spent", "exhausted", "counters", "prepare", "probe", "aclose"):
        assert not hasattr(judge, name)
    assert judge.settings() == {"of": "ScriptedJudge"}
    assert judge.weight_version == "j1"
