"""Reading on while the judge reviews changes nothing but the speed: against the plain algorithm, under any timing."""

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mintrl_trl.errors import NoVerdict
from mintrl_trl.rollouts.doors import KEEP, Correction, Revise
from mintrl_trl.rollouts.loop import BackgroundLoop
from mintrl_trl.rollouts.rollout import Decision, Role
from mintrl_trl.rollouts.sampler import InterventionSampler, SamplerSettings
from mintrl_trl.rollouts.schedule import InterventionBudget, request_seed
from mintrl_trl.rollouts.segmentation import segment

from .doors import PROMPT_IDS, ByteVocabulary, ScriptedGenerator, ScriptedJudge, counting, request, sample

RUN_SEED = 7
VOCABULARY = ByteVocabulary()
LETTERS = [*b"ab .\n\n\n`", *"é".encode()]


@pytest.fixture(scope="module")
def loop():
    loop = BackgroundLoop()
    yield loop
    loop.close()


def policy_token(noise, end_share):
    """Any byte of a few that make steps, fences and half characters; ends anywhere."""

    def script(seed, position):
        draw = random.Random(f"{noise},{seed},{position}")
        return draw.choice((256, 257)) if draw.random() < end_share else draw.choice(LETTERS)

    return script


def any_verdict(noise):
    """Keep, Revise or nothing usable, by the review's seed."""

    def script(call):
        draw = random.Random(f"{noise},{call.seed}")
        kind = draw.choice(["keep", "keep", "revise", "revise", "revise", "fail", "out of range"])
        if kind == "revise":
            return Revise(draw.randrange(call.first_new, len(call.steps)), kind)
        return {"keep": KEEP, "fail": NoVerdict("unparsable"), "out of range": Revise(len(call.steps))}[kind]

    return script


def any_correction(noise):
    """Text or ids, empty ones, with control tokens, too long ones, and failures."""

    def script(call):
        draw = random.Random(f"{noise},{call.seed}")
        ids = tuple(draw.choice([*LETTERS, 256, 258]) for _ in range(draw.randrange(6)))
        return draw.choice(
            [
                Correction(ids=ids),
                Correction(ids=ids, logps=(-0.25,) * len(ids)),
                Correction(text=draw.choice(["", "no", "no\n\n", "no<|end|>x", "<|user|>", "```py\n"])),
                TimeoutError(),
            ]
        )

    return script


budgets = st.builds(
    InterventionBudget,
    chunk_tokens=st.integers(1, 7),
    max_reviews=st.integers(0, 5),
    correction_tokens=st.integers(1, 4),
    max_completion_tokens=st.integers(1, 30),
    review_final_chunk=st.booleans(),
)
ROWS = [request(row, role, update=3) for row, role in enumerate([Role.CONTROL, Role.INTERVENED, Role.INTERVENED])]


def rollouts_of(loop, noise, end_share, budget, *, overlap, slow=0, buffered=False, closing_ticks=0):
    def ticks(seed, position=0):
        return random.Random(f"{slow},{seed},{position}").randrange(slow + 1)

    generator = ScriptedGenerator(
        policy_token(noise, end_share),
        VOCABULARY.end_ids,
        pause=ticks if slow else None,
        buffered=buffered,
        closing_ticks=closing_ticks,
    )
    judge = ScriptedJudge(any_verdict(noise), any_correction(noise), ticks=lambda seed: ticks(seed) * 3)
    settings = SamplerSettings(budget, RUN_SEED, overlap, no_verdict_limit=1.0)
    with InterventionSampler(generator, judge, VOCABULARY, settings, loop=loop) as sampler:
        sampler.start(ROWS)
        rollouts = sampler.collect()
        progress = sampler.progress()
    assert generator.open_streams == 0 and judge.running == 0
    assert progress.finished == progress.total == 3 and progress.reviews_in_flight == 0
    assert progress.tokens == generator.tokens_made
    assert progress.reviews == len(judge.reviews) == sum(len(rollout.reviews) for rollout in rollouts.values())
    return rollouts


def plain(rollout):
    """What training depends on: everything but timings and what was read ahead."""
    return replace(rollout, reviews=tuple(replace(review, lookahead_tokens=0) for review in rollout.reviews))


@given(
    noise=st.integers(0, 2**32),
    end_share=st.sampled_from([0.0, 0.03, 0.2]),
    budget=budgets,
    slow=st.integers(0, 3),
    buffered=st.booleans(),
    closing_ticks=st.integers(0, 2),
)
def test_overlap_never_changes_a_rollout(loop, noise, end_share, budget, slow, buffered, closing_ticks):
    in_turn = rollouts_of(loop, noise, end_share, budget, overlap=False)
    overlapped = rollouts_of(
        loop,
        noise,
        end_share,
        budget,
        overlap=True,
        slow=slow,
        buffered=buffered,
        closing_ticks=closing_ticks,
    )
    assert {row: plain(rollout) for row, rollout in overlapped.items()} == in_turn
    assert all(review.lookahead_tokens == 0 for rollout in in_turn.values() for review in rollout.reviews)
    for row, rollout in overlapped.items():
        check_invariants(rollout, budget)
        expected = algorithm_1(noise, end_share, budget, ROWS[row])
        assert (rollout.ids, rollout.policy_authored) == expected


def check_invariants(rollout, budget):
    ids, reviews = rollout.ids, rollout.reviews
    assert 1 <= len(ids) <= budget.max_completion_tokens
    assert len(reviews) <= (budget.max_reviews if rollout.request.role is Role.INTERVENED else 0)
    assert rollout.intervention_tokens == sum(review.correction_tokens for review in reviews)
    assert all(review.correction_tokens <= budget.correction_tokens for review in reviews)
    assert not any(token in VOCABULARY.special_ids for token in ids[:-1])
    assert (ids[-1] in VOCABULARY.end_ids) == (rollout.stop.value == "end")
    assert rollout.policy_authored[-1] or rollout.stop.value == "length"
    for review in reviews:
        assert review.kept_tokens + len(review.discarded_ids) == review.chunk_tokens
        assert review.intervened or not review.discarded_ids
        assert (review.step is not None) == (review.decision is Decision.REVISE)


def algorithm_1(noise, end_share, budget, request):
    """The rollout loop as the paper has it, without streams, tasks or time. Returns ids and who wrote them."""
    token, verdict_of, correction_of = policy_token(noise, end_share), any_verdict(noise), any_correction(noise)
    max_reviews = budget.max_reviews if request.role is Role.INTERVENED else 0
    ids, authors, reviews, revisions, num_steps, fence = [], [], 0, 0, 0, (False, b"")

    def seed(count, purpose):
        return request_seed(RUN_SEED, request.update, request.row, count, purpose)

    while len(ids) < budget.max_completion_tokens:
        room = budget.max_completion_tokens - len(ids)
        chunk = []
        while len(chunk) < (min(budget.chunk_tokens, room) if reviews < max_reviews else room):
            chunk.append(token(seed(revisions, "policy"), len(PROMPT_IDS) + len(ids) + len(chunk)))
            if chunk[-1] in VOCABULARY.end_ids:
                break
        ended = chunk[-1] in VOCABULARY.end_ids
        kept, correction = chunk, []
        if reviews < max_reviews and (budget.review_final_chunk or not ended):
            new = segment(chunk, VOCABULARY, *fence)
            call = CallOf(range(num_steps + len(new.steps)), num_steps, seed(reviews, "review"))
            verdict = verdict_of(call)
            if isinstance(verdict, Revise) and verdict.step < len(call.steps):
                cut = new.starts[verdict.step - num_steps]
                answer = correction_of(CallOf((), 0, seed(reviews, "correction")))
                correction = clean(answer)[: min(budget.correction_tokens, room - cut)]
                kept = chunk[:cut] if correction else chunk
            reviews += 1
        for part in (kept, correction):
            shown = segment(part, VOCABULARY, *fence)
            num_steps, fence = num_steps + len(shown.steps), (shown.inside_fence, shown.open_line)
        ids += [*kept, *correction]
        authors += [True] * len(kept) + [False] * len(correction)
        revisions += bool(correction)
        if ended and not correction:
            break
    return tuple(ids), tuple(authors)


class CallOf:
    def __init__(self, steps, first_new, seed):
        self.steps, self.first_new, self.seed = steps, first_new, seed


def clean(answer):
    if not isinstance(answer, Correction):
        return []
    ids = list(VOCABULARY.encode(answer.text) if answer.text is not None else answer.ids)
    return ids[: next((i for i, token in enumerate(ids) if token in VOCABULARY.special_ids), len(ids))]


def test_the_policy_reads_on_while_the_judge_reads(loop):
    """A slow judge that keeps everything costs no waiting: the whole response is there when it answers."""
    generator = counting(pause=lambda seed, position: 1)
    seen = []

    def review(call):
        seen.append(generator.tokens_made)
        return KEEP

    rollout = sample(loop, generator, ScriptedJudge(review, ticks=lambda seed: 100))[0]
    assert seen == [12, 12]
    assert len(generator.requests) == 1
    assert rollout.reviews[0].lookahead_tokens == 0, "nothing was thrown away"


def test_a_revise_stops_the_stream_and_throws_away_what_was_read_ahead(loop):
    generator = counting(pause=lambda seed, position: 1)
    judge = ScriptedJudge([Revise(2)], ticks=lambda seed: 8)
    closed_when_asked = []

    def correct(call):
        closed_when_asked.append(generator.streams[0].closes)
        return Correction(ids=(7, 8))

    judge.correction = correct
    rollout = sample(loop, generator, judge, limit=100)[0]
    assert closed_when_asked == [1], "the stream is closed before the correction is asked for"
    assert generator.streams[0].made < 50, "the work behind it really stopped"
    assert rollout.reviews[0].lookahead_tokens == generator.streams[0].made - 4 > 0


def test_a_policy_that_never_suspends_does_not_starve_the_others(loop):
    """While one stream yields without a pause, another rollout's review comes through."""
    answered_after = []
    generator = ScriptedGenerator(lambda seed, position: 5)

    def review(call):
        answered_after.append(generator.tokens_made)
        return KEEP

    sample(loop, generator, ScriptedJudge(review, ticks=lambda seed: 2), k=1, reviews=1, limit=5_000)
    assert answered_after[0] < 500
