"""Algorithm 1 by hand-worked examples: what is kept, cut, spliced in, shown and asked for."""

import asyncio
import math
from dataclasses import replace

import pytest

from mintrl_trl.errors import ConfigError
from mintrl_trl.rollouts.doors import KEEP, Correction, Revise, TokenText
from mintrl_trl.rollouts.loop import BackgroundLoop
from mintrl_trl.rollouts.rollout import Author, Decision, Problem, Role, Span, StopReason
from mintrl_trl.rollouts.sampler import InterventionSampler
from mintrl_trl.rollouts.schedule import request_seed

from .doors import (
    END,
    PROBLEM,
    PROMPT_IDS,
    ScriptedGenerator,
    ScriptedJudge,
    StepVocabulary,
    StreamRequest,
    TableVocabulary,
    counting,
    request,
    sample,
    settings,
)

BOTH_WAYS = pytest.mark.parametrize("overlap", [True, False], ids=["overlap", "in turn"])


@pytest.fixture(scope="module")
def loop():
    loop = BackgroundLoop()
    yield loop
    loop.close()


def revise(step, ids=None, text=None, then=()):
    """A judge that rejects once, at a step counted in the first chunk, and corrects."""
    return ScriptedJudge([Revise(step, "wrong"), *then], [Correction(ids=ids, text=text)])


# The vectors of the rollout automaton


@BOTH_WAYS
def test_automaton(loop, overlap):
    judge = revise(2, ids=(7, 8, 9), then=[KEEP])
    generator = counting()
    rollout = sample(loop, generator, judge, overlap=overlap)[0]
    assert rollout.ids == (100, 101, 7, 8, 104, 105, 106, 107, 108, 109, 110, 111)
    assert rollout.policy_authored == (True,) * 2 + (False,) * 2 + (True,) * 8
    assert len(judge.reviews) == len(rollout.reviews) == 2
    assert rollout.num_interventions == 1 and rollout.off_policy_share == 1 / 6
    assert rollout.stop is StopReason.LENGTH
    first, second = rollout.reviews
    assert (first.decision, first.step, first.reason) == (Decision.REVISE, 2, "wrong")
    assert (first.chunk_start, first.chunk_tokens, first.kept_tokens, first.correction_tokens) == (0, 4, 2, 2)
    assert first.discarded_ids == (102, 103) and (first.num_steps, first.first_new) == (4, 0)
    # Two kept steps and two of the correction keep their numbers; the next chunk adds four.
    assert (second.decision, second.step, second.num_steps, second.first_new) == (Decision.KEEP, None, 8, 4)
    assert (second.chunk_start, second.chunk_tokens, second.kept_tokens, second.discarded_ids) == (4, 4, 4, ())
    seeds = [request_seed(7, 0, 0, revisions) for revisions in (0, 1)]
    if overlap:
        expected = [StreamRequest(PROMPT_IDS, 12, seeds[0]), StreamRequest((*PROMPT_IDS, 100, 101, 7, 8), 8, seeds[1])]
    else:
        expected = [
            StreamRequest(PROMPT_IDS, 4, seeds[0]),
            StreamRequest((*PROMPT_IDS, 100, 101, 7, 8), 4, seeds[1]),
            StreamRequest((*PROMPT_IDS, *rollout.ids[:8]), 4, seeds[1]),
        ]
    assert generator.requests == expected


@BOTH_WAYS
def test_correction_is_cut_at_its_end_token(loop, overlap):
    rollout = sample(loop, counting(), revise(2, ids=(7, END, 9)), overlap=overlap)[0]
    assert rollout.ids == (100, 101, 7, *range(103, 112))
    assert rollout.intervention_tokens == 1


@BOTH_WAYS
def test_chunk_and_correction_are_clipped_to_the_response_limit(loop, overlap):
    judge = revise(2, ids=(7, 8, 9))
    rollout = sample(loop, counting(), judge, limit=3, overlap=overlap)[0]
    assert rollout.ids == (100, 101, 7)
    assert rollout.stop is StopReason.LENGTH
    assert rollout.reviews[0].chunk_tokens == 3
    assert judge.corrections[0].max_tokens == 1
    assert len(judge.reviews) == 1


@BOTH_WAYS
@pytest.mark.parametrize(
    "correction",
    [Correction(ids=(END,)), Correction(ids=()), Correction(text="")],
    ids=["end token alone", "no ids", "no text"],
)
def test_an_empty_correction_keeps_the_chunk(loop, correction, overlap):
    judge = ScriptedJudge([Revise(0, "wrong")], [correction])
    rollout = sample(loop, counting(), judge, overlap=overlap)[0]
    assert rollout.ids == tuple(range(100, 112))
    assert rollout.spans == (Span(rollout.ids, Author.POLICY, "v1", (-0.5,) * 12),)
    first = rollout.reviews[0]
    assert (first.decision, first.step, first.kept_tokens, first.correction_tokens) == (Decision.REVISE, 0, 4, 0)
    assert first.discarded_ids == () and not first.intervened
    assert rollout.num_interventions == 0


@BOTH_WAYS
def test_keep_of_a_chunk_with_the_end_token_stops(loop, overlap):
    judge = ScriptedJudge()
    rollout = sample(loop, counting(end_at=5), judge, overlap=overlap)[0]
    assert rollout.ids == (100, 101, 102, 103, 104, END)
    assert rollout.stop is StopReason.END
    assert [review.chunk_tokens for review in rollout.reviews] == [4, 2]


@BOTH_WAYS
def test_revise_of_a_chunk_with_the_end_token_drops_it_and_goes_on(loop, overlap):
    rollout = sample(loop, counting(end_at=2), revise(1, ids=(7, 8)), overlap=overlap, limit=6)[0]
    assert rollout.ids == (100, 7, 8, 103, 104, 105)
    assert rollout.reviews[0].discarded_ids == (101, END)


@BOTH_WAYS
def test_a_response_of_nothing_but_the_end_token(loop, overlap):
    """Kept it is one token long; rejected, the correction comes first and nothing precedes it."""
    kept = sample(loop, counting(end_at=0), ScriptedJudge(), overlap=overlap)[0]
    assert kept.ids == (END,) and kept.stop is StopReason.END
    revised = sample(loop, counting(end_at=0), revise(0, ids=(7,)), overlap=overlap, limit=3)[0]
    assert revised.ids == (7, 101, 102)
    assert revised.policy_authored == (False, True, True)


# Who is reviewed, and when


def test_final_chunk_is_not_reviewed_if_the_budget_says_so(loop):
    judge = ScriptedJudge()
    rollout = sample(loop, counting(end_at=5), judge, review_final_chunk=False)[0]
    assert rollout.stop is StopReason.END and len(judge.reviews) == 1
    clipped = ScriptedJudge()
    sample(loop, counting(), clipped, review_final_chunk=False, limit=6)
    assert [len(call.new_steps) for call in clipped.reviews] == [4, 2], "a clipped chunk is not a final one"


@BOTH_WAYS
def test_a_keep_consumes_a_review_and_the_rest_is_one_run(loop, overlap):
    generator, judge = counting(), ScriptedJudge()
    sample(loop, generator, judge, reviews=1, overlap=overlap)
    assert len(judge.reviews) == 1
    assert [call.max_tokens for call in generator.requests] == ([12] if overlap else [4, 8])


def test_a_kept_rollout_is_one_request(loop):
    generator = counting()
    sample(loop, generator, ScriptedJudge(), reviews=3)
    assert generator.requests == [StreamRequest(PROMPT_IDS, 12, request_seed(7, 0, 0, 0))]


@BOTH_WAYS
def test_controls_are_never_reviewed_and_never_chunked(loop, overlap):
    generator, judge = counting(), ScriptedJudge([Revise(0)])
    rollout = sample(loop, generator, judge, requests=[request(role=Role.CONTROL)], overlap=overlap)[0]
    assert (judge.reviews, rollout.reviews) == ([], ())
    assert [call.max_tokens for call in generator.requests] == [12]


@BOTH_WAYS
def test_without_reviews_intervened_rollouts_equal_plain_ones(loop, overlap):
    """No review budget, same seeds: the same tokens, and no judge is needed."""
    script = ScriptedGenerator(lambda seed, position: (seed * 31 + position) % 900)
    plain = sample(loop, script, None, requests=[request(row, Role.CONTROL) for row in range(5)], overlap=overlap)
    semi = sample(loop, script, None, requests=[request(row) for row in range(5)], reviews=0, overlap=overlap)
    for row in range(5):
        assert (semi[row].spans, semi[row].stop) == (plain[row].spans, plain[row].stop)
    assert len({rollout.ids for rollout in plain.values()}) == 5, "rows have seeds of their own"


def test_one_rollout_for_each_request_in_its_own_role(loop):
    """Prompts come already repeated: G entries are G rollouts, not G squared."""
    requests = [request(row, Role.CONTROL if row < 2 else Role.INTERVENED) for row in range(4)]
    generator, judge = counting(), ScriptedJudge()
    rollouts = sample(loop, generator, judge, requests=requests)
    assert list(rollouts) == [0, 1, 2, 3] and len(generator.requests) == 4
    assert [len(rollout.reviews) for rollout in rollouts.values()] == [0, 0, 2, 2]


# What the judge sees


def test_what_the_judge_is_told(loop):
    judge = revise(2, ids=(7, 8), then=[KEEP])
    sample(loop, counting(), judge)
    first, second = judge.reviews
    assert first.problem is PROBLEM
    assert first.steps == ("100\n\n", "101\n\n", "102\n\n", "103\n\n") and first.first_new == 0
    assert second.steps[:4] == ("100\n\n", "101\n\n", "7\n\n", "8\n\n")
    assert second.new_steps == ("104\n\n", "105\n\n", "106\n\n", "107\n\n"), "nothing beyond its chunk"
    (call,) = judge.corrections
    assert (call.accepted, call.accepted.ids) == ("100\n\n101\n\n", (100, 101))
    assert isinstance(call.accepted, TokenText) and call.max_tokens == 2
    assert call.verdict == Revise(2, "wrong") and call.problem is PROBLEM
    assert (first.seed, second.seed) == tuple(request_seed(7, 0, 0, index, "review") for index in (0, 1))
    assert call.seed == request_seed(7, 0, 0, 0, "correction")


def test_every_chunk_and_every_correction_begins_a_step(loop):
    """An unfinished step at the chunk's end, and the rest of it in the next chunk, are two steps."""
    vocabulary = TableVocabulary(["a", "b", "\n\n", "c", "Wait, "])
    ids = [0, 1, 2, 1, 3, 2, 0, 0, 0]
    generator = ScriptedGenerator(lambda seed, position: ids[position - len(PROMPT_IDS)])
    judge = ScriptedJudge([KEEP, Revise(3)], [Correction(text="Wait, ")])
    rollout = sample(loop, generator, judge, vocabulary, reviews=3, k=4, limit=9)[0]
    assert judge.reviews[0].steps == ("ab\n\n", "b")
    assert judge.reviews[1].steps == ("ab\n\n", "b", "c\n\n", "aa")
    assert judge.reviews[2].steps == ("ab\n\n", "b", "c\n\n", "Wait, ", "aa")
    assert [call.first_new for call in judge.reviews] == [0, 2, 4]
    assert rollout.ids == (0, 1, 2, 1, 3, 2, 4, 0, 0)


def test_steps_of_a_cut_chunk_are_those_of_its_kept_tokens(loop):
    """The token that straddles the border goes, with the blank line it holds."""
    vocabulary = TableVocabulary(["x", "\n\n   ", "y", "\n\n", "z"])
    generator = ScriptedGenerator(lambda seed, position: (position - len(PROMPT_IDS)) % 5)
    judge = ScriptedJudge([Revise(1)], [Correction(text="z")])
    rollout = sample(loop, generator, judge, vocabulary, k=5, limit=7)[0]
    assert judge.corrections[0].accepted == "x"
    assert judge.reviews[1].steps[:2] == ("x", "z")
    assert rollout.reviews[0].kept_tokens == 1 and rollout.reviews[0].discarded_ids == (1, 2, 3, 4)


# Joints of policy and judge text


def test_kept_ids_stay_as_sampled_and_the_correction_is_encoded_alone(loop):
    """Together the two texts would spell another token; the ids that were sampled must not change."""
    vocabulary = TableVocabulary(["we", " get", " hel", "lo", " there", " hello", "\n\n"])
    ids = [0, 1, 2, 6, 0, 0, 0, 0]
    generator = ScriptedGenerator(lambda seed, position: ids[position - len(PROMPT_IDS)])
    judge = ScriptedJudge([KEEP, Revise(1)], [Correction(text="lo there")])
    rollout = sample(loop, generator, judge, vocabulary, k=3, h=4, limit=6)[0]
    assert judge.corrections[0].accepted == "we get hel"
    assert vocabulary.encode("we get hello there") == (0, 1, 5, 4)
    assert rollout.ids[:5] == (0, 1, 2, 3, 4)


def test_a_step_mark_inside_a_token_stays_with_the_policy(loop):
    """Id 382 of a Qwen vocabulary is a full stop with two line ends: it is kept whole."""
    vocabulary = TableVocabulary(["so x is", " 3", ".", ".\n\n", "Then", " y", "Wait"])
    generator = ScriptedGenerator(lambda seed, position: (0, 1, 3, 4, 5)[(position - len(PROMPT_IDS)) % 5])
    rollout = sample(loop, generator, revise(1, text="Wait"), vocabulary, k=5, h=1, limit=4)[0]
    assert rollout.ids == (0, 1, 3, 6)
    assert rollout.policy_authored == (True, True, True, False)


def test_every_request_continues_the_rendered_prompt(loop):
    """The prompt is rendered once; each request is the prompt's ids and the response's own ids, verbatim."""
    generator = counting()
    judge = ScriptedJudge(lambda call: Revise(call.first_new), lambda call: Correction(ids=(7,)))
    rollout = sample(loop, generator, judge, reviews=4, limit=20)[0]
    for number, call in enumerate(generator.requests):
        assert call.prefix_ids == (*PROMPT_IDS, *rollout.ids[:number])
        assert call.seed == request_seed(7, 0, 0, number)


def test_weight_version_is_that_of_the_opened_stream(loop):
    generator = counting()

    def review(call):
        generator.weight_version = "v2"
        return KEEP

    rollout = sample(loop, generator, ScriptedJudge(review), overlap=False, reviews=1)[0]
    assert [(span.weight_version, len(span)) for span in rollout.spans] == [("v1", 4), ("v2", 8)]


# Settings


def test_where_calls_of_the_judge_wait_the_most_urgent_is_next(loop):
    """Corrections first; then reviews of what the policy still writes, the shortest first; then of what it ended."""
    asked = []
    row_of = {request_seed(7, 0, row, 0): row for row in range(4)}
    stalls_at = {0: 40, 1: 40, 2: 6, 3: 10}  # response lengths; row 1 has ended before

    def script(seed, position):
        return END if row_of.get(seed) == 1 and position - len(PROMPT_IDS) == 2 else position

    def pause(seed, position):
        return math.inf if position - len(PROMPT_IDS) == stalls_at[row_of.get(seed, 0)] else 0

    class Judge:
        async def review(self, problem, steps, first_new, *, seed):
            asked.append(f"review {problem.question}")
            for _ in range(200):  # by then all others wait
                await asyncio.sleep(0)
            return Revise(first_new) if problem.question == "0" else KEEP

        async def intervene(self, problem, accepted, verdict, max_tokens, *, seed):
            asked.append(f"correct {problem.question}")
            return Correction(ids=(55,))

    generator = ScriptedGenerator(script, frozenset({END}), pause=pause)
    one_call = settings(k=4, reviews=1, limit=50, max_concurrent_reviews=1)
    with InterventionSampler(generator, Judge(), StepVocabulary(END), one_call, loop=loop) as sampler:
        sampler.start(replace(request(row), problem=Problem(str(row))) for row in (0, 1, 3, 2))
        sampler.collect([1])
    assert asked == ["review 0", "review 2", "correct 0", "review 3", "review 1"]  # row 0 gave its place to row 2


def test_a_judge_is_needed_for_reviews(loop):
    with InterventionSampler(counting(), None, StepVocabulary(END), settings(), loop=loop) as sampler:
        with pytest.raises(ConfigError, match="`judge`"):
            sampler.start([request()])
        sampler.start([request(role=Role.CONTROL)])
        assert sampler.collect()[0].reviews == ()


def test_a_judge_needs_both_methods():
    with pytest.raises(ConfigError, match="`review` and `intervene`"):
        InterventionSampler(counting(), object(), StepVocabulary(END), settings())


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_concurrent_rollouts", 0),
        ("max_concurrent_reviews", 0),
        ("no_verdict_window", 0),
        ("no_verdict_limit", 1.5),
    ],
)
def test_settings_refuse(field, value):
    with pytest.raises(ConfigError, match=f"`{field}`"):
        settings(**{field: value})
