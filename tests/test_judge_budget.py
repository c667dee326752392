"""A judge that takes no more reviews: what its rollouts become, and when a budget is spent."""

import asyncio

import pytest

from mintrl_trl.errors import ConfigError
from mintrl_trl.judges.accounting import Account, Usage
from mintrl_trl.judges.chat import ChatReply
from mintrl_trl.judges.llm import LLMJudge
from mintrl_trl.judges.public_tests import PublicTestsJudge
from mintrl_trl.rollouts.doors import KEEP, Correction, Revise
from mintrl_trl.rollouts.loop import BackgroundLoop
from mintrl_trl.rollouts.rollout import Author, Problem

from .doors import ScriptedJudge, counting, request, sample


@pytest.fixture(scope="module")
def loop():
    loop = BackgroundLoop()
    yield loop
    loop.close()


class LimitedJudge(ScriptedJudge):
    """Takes so many reviews and no more."""

    limit = 0

    @property
    def exhausted(self):
        return len(self.reviews) >= self.limit


def limited(limit):
    judge = LimitedJudge(lambda call: Revise(call.first_new + 1), lambda call: Correction(ids=(7,)))
    judge.limit = limit
    return judge


@pytest.mark.parametrize("overlap", [True, False], ids=["overlap", "one-by-one"])
def test_without_reviews_left_a_rollout_goes_on_as_the_policys_own(loop, overlap):
    judge = limited(1)
    rollout = sample(loop, counting(), judge, reviews=3, limit=12, overlap=overlap)[0]
    assert [review.intervened for review in rollout.reviews] == [True]
    assert len(judge.corrections) == 1  # the review that came to a verdict is followed through
    assert rollout.ids == (100, 7, *range(102, 112))
    assert [span.author for span in rollout.spans] == [Author.POLICY, Author.INTERVENTION, Author.POLICY]


@pytest.mark.parametrize("overlap", [True, False], ids=["overlap", "one-by-one"])
def test_a_judge_without_any_reviews_left_is_not_asked(loop, overlap):
    judge, generator = limited(0), counting(end_at=9)
    rollouts = sample(
        loop, generator, judge, reviews=3, limit=12, overlap=overlap, requests=[request(row) for row in range(3)]
    )
    assert judge.reviews == []
    assert all(rollout.reviews == () and rollout.ids == (*range(100, 109), 999) for rollout in rollouts.values())
    assert len(generator.requests) == 3  # each in one request, however its chunks would have ended


def test_a_chunk_is_kept_where_the_last_review_went_to_another_rollout_meanwhile(loop):
    judge = limited(1)
    rollouts = sample(loop, counting(), judge, reviews=3, limit=12, requests=[request(row) for row in range(4)])
    assert sum(len(rollout.reviews) for rollout in rollouts.values()) == len(judge.reviews) < 12
    assert all(len(rollout.ids) == 12 for rollout in rollouts.values())


PRICES = {"price_per_million_input": 0.5, "price_per_million_output": 2.0}


def test_usage_and_cost_add_up():
    account = Account(**PRICES)
    account.add("review", Usage(1, 0, 1000, 100, 1.0, 900))
    account.add("review", Usage(retries=1))
    account.add("correction", Usage(1, 0, 500, 50, 0.5))
    assert account.usage["review"] == Usage(1, 1, 1000, 100, 1.0, 900)
    assert account.cost == pytest.approx((1500 * 0.5 + 150 * 2.0) / 1e6)
    assert account.counters()["judge/cost"] == account.cost
    assert account.counters()["judge/review/cached_tokens"] == 900.0
    assert not account.exhausted
    assert "judge/cost" not in Account().counters()  # unknown, not nothing
    assert Account(price_per_million_input=1.0).cost is None


@pytest.mark.parametrize("budget", [{"budget_tokens": 1100}, {"budget_cost": 0.0007}], ids=["tokens", "money"])
def test_a_budget_is_spent_at_its_limit_and_what_was_spent_outlives_the_run(budget):
    account = Account(**PRICES, **budget)
    account.add("review", Usage(1, 0, 1000, 99))
    assert not account.exhausted
    later = Account(**PRICES, **budget)
    later.add("review", Usage(1, 0, 10, 0))  # before it hears of the run
    later.spent = account.spent
    assert later.spent == pytest.approx(account.spent)
    assert not later.exhausted
    later.add("review", Usage(1, 0, 0, 1))
    assert later.exhausted
    assert later.counters()["judge/review/prompt_tokens"] == 10.0


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"price_per_million_input": -1.0}, "price_per_million_input"),
        ({"price_per_million_output": float("nan")}, "price_per_million_output"),
        ({"budget_tokens": 0}, "budget_tokens"),
        ({"budget_cost": 1.0}, "budget_cost"),
        ({"budget_cost": -1.0, **PRICES}, "budget_cost"),
    ],
)
def test_refuses_prices_and_budgets(settings, field):
    with pytest.raises(ConfigError, match=f"`{field}`"):
        LLMJudge("m", base_url="http://localhost:1/v1", **settings)


def test_a_judge_stops_asking_once_its_budget_is_spent(caplog):
    asked = []

    async def chat(messages, **options):
        asked.append(messages)
        return ChatReply('{"reason": "no", "decision": "revise", "step": 1}', prompt_tokens=60, completion_tokens=40)

    async def scenario():
        judge = LLMJudge(chat=chat, budget_tokens=150)
        verdicts = [await judge.review(Problem("q"), ["a"], 0, seed=seed) for seed in range(3)]
        correction = await judge.intervene(Problem("q"), "", verdicts[0], 8, seed=0)  # what was begun is ended
        return judge, verdicts, correction

    judge, verdicts, correction = asyncio.run(scenario())
    assert verdicts == [Revise(0, "no"), Revise(0, "no"), KEEP]
    assert len(asked) == 3
    assert correction.text
    assert judge.exhausted
    (record,) = caplog.records
    assert "has spent its budget (200 tokens): no more reviews" in record.getMessage()


def test_a_judge_that_runs_examples_is_exhausted_with_the_judge_behind_it():
    inner = limited(1)
    heard = []
    inner.prepare = lambda *about, **more: heard.append((about, more))
    judge = PublicTestsJudge([], inner=inner)
    assert not judge.exhausted
    judge.prepare("vocabulary", 100, needs_logps=True)
    assert heard == [(("vocabulary", 100), {"needs_logps": True})]
    inner.limit = 0
    assert judge.exhausted
