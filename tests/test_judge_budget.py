"""A judge that takes no more reviews: what its rollouts become, and when a budget is spent."""

import pytest

from mintrl_trl.rollouts.doors import Correction, Revise
from mintrl_trl.rollouts.loop import BackgroundLoop
from mintrl_trl.rollouts.rollout import Author

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
