"""The exact judge: local check, cut, right continuation, and the mistakes of an imperfect one."""

import asyncio
import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mintrl_trl.data import chains
from mintrl_trl.data.chains import EOS_ID, Chain, World
from mintrl_trl.errors import ConfigError, JudgeError
from mintrl_trl.judges.exact import MISJUDGED, WRONG_LINE, ChainsJudge
from mintrl_trl.rollouts.doors import KEEP, Revise, TokenText
from mintrl_trl.rollouts.rollout import Problem
from mintrl_trl.rollouts.segmentation import segment

# Value a, operand b -> (a + b) % 10.
SUMS = tuple("".join(str((a + b) % 10) for b in range(10)) for a in range(10))
JUDGE = ChainsJudge(World(SUMS, SUMS))
CHAIN = Chain(1, (2, 4, 5, 0, 1, 1, 9, 7))  # 1 -> 3 -> 7 -> 2 -> 2 -> 3 -> 4 -> 3 -> 0
PROBLEM = Problem(CHAIN.question)
RIGHT = [
    "1B2\n\n",
    "3C4\n\n",
    "7D5\n\n",
    "2E0\n\n",
    "2F1\n\n",
    "3G1\n\n",
    "4H9\n\n",
    "3I7\n\n",
    "0\n\n",
    "#B3C7D2E2F3G4H3I0",
]
SOLUTION = "".join(RIGHT)


def review(steps, first_new=0, judge=JUDGE, seed=0):
    return asyncio.run(judge.review(PROBLEM, steps, first_new, seed=seed))


def intervene(accepted, max_tokens=99, judge=JUDGE, verdict=None, seed=0):
    verdict = verdict or Revise(0, WRONG_LINE)
    return asyncio.run(judge.intervene(PROBLEM, accepted, verdict, max_tokens, seed=seed)).text


@pytest.mark.parametrize(
    ("steps", "first_new", "step"),
    [
        (RIGHT, 0, None),
        (RIGHT[:4], 0, None),
        (["1B2\n\n", "3C"], 0, None),
        (["2B2\n\n", "4C4\n\n"], 0, 0),
        (["1B2\n\n", "3C4\n\n", "8D5\n\n", "3E0\n\n"], 0, 2),
        (["1B2\n\n", "3C4\n\n", "8D5\n\n", "3E0\n\n"], 2, 2),
        (["1B2\n\n", "3C4\n\n", "8D5\n\n", "3E0\n\n"], 3, None),
        (["1B2\n\n", "3C4\n\n", "8D5\n\n", "2E0\n\n"], 3, 3),
        (["1B2\n\n", "4"], 1, 1),
        (["1B2\n\n", "3", "C4\n\n", "7D5\n\n"], 2, None),
        (["1B2\n\n", "3", "C5\n\n", "7D5\n\n"], 2, 2),
        (["1B2\n\n", "4", "C4\n\n", "8D5\n\n"], 2, None),
        (["1B2\n\n", "4", "C4\n\n", "7D5\n\n"], 2, 3),
        (["1B2\n\n", "3C", "4\n\n7D5\n\n", "3E0\n\n"], 2, 3),
        (["1B2\n\n", "3C4", "\n\n8D5\n\n"], 2, 2),
        (["1B2\n\n\n\n", "3C4\n\n"], 0, 0),
        (["1B2\n\n", "3C4\n\n", "#B3"], 0, 2),
        ([*RIGHT[:9], "#B3C8"], 9, 9),
        ([*RIGHT[:9], "#B3C7", "D3"], 10, 10),
        ([*RIGHT[:9], "#B4C7", "D2"], 10, None),
        ([*RIGHT[:2], "8D5\n\n", "3E0\n\n", "3F1\n\n", "4G1\n\n", "5H9\n\n", "4I7\n\n", "1\n\n", "#B3C8D3"], 9, None),
        ([*RIGHT, "\n\n7"], 8, 9),
        ([*RIGHT, "\n\n7"], 10, None),
    ],
    ids=[
        "right",
        "right so far",
        "unfinished line",
        "start value",
        "first of two wrong-looking lines",
        "at first_new",
        "missed earlier: what follows from it is right",
        "missed earlier: back on the reference chain is wrong",
        "value alone at the end of the chunk",
        "line cut after its value",
        "wrong operand in a line begun earlier",
        "wrong value accepted earlier",
        "wrong against the value accepted earlier",
        "line cut within the operand",
        "chunk that begins with the blank line",
        "one blank line too many",
        "answer too early",
        "answer does not collect what is written",
        "answer cut by the chunk",
        "missed earlier in the answer",
        "answer collects wrong values",
        "text after the answer: the answer anew",
        "text after an accepted answer: nothing to add",
    ],
)
def test_review(steps, first_new, step):
    assert review(steps, first_new) == (KEEP if step is None else Revise(step, WRONG_LINE))


def test_an_end_too_early_is_seen_in_the_ids():
    early = [TokenText("1B2\n\n", [6, 15, 7, 4]), TokenText("3C4\n\n", [8, 16, 9, 4, EOS_ID])]
    assert review(early) == Revise(1, WRONG_LINE)
    assert review([TokenText("1B2", [6, 15, 7, EOS_ID])]) == Revise(0, WRONG_LINE)
    assert review([*RIGHT[:-1], TokenText(RIGHT[-1], [5, EOS_ID])]) == KEEP


@pytest.mark.parametrize(
    ("accepted", "max_tokens", "correction"),
    [
        ("1B2\n\n3C4\n\n", 1, "7"),
        ("1B2\n\n3C4\n\n", 4, "7D5\n\n"),
        ("1B2\n\n3C4\n\n", 5, "7D5\n\n2"),
        ("1B2\n\n3", 2, "C4"),
        ("1B2\n\n3C4", 2, "\n\n7"),
        (SOLUTION, 4, ""),
        (SOLUTION[:-1], 4, "0"),
        ("", 3, "1B2"),
    ],
)
def test_correction_is_the_right_continuation_cut_to_the_limit(accepted, max_tokens, correction):
    assert intervene(accepted, max_tokens) == correction


def test_beyond_the_wrong_line_the_correction_follows_from_the_corrected_value():
    # The policy wrote 8 for 7 and went on from 8; neither may show in the correction.
    steps = ["1B2\n\n", "3C4\n\n", "8D5\n\n", "3E0\n\n"]
    verdict = review(steps)
    accepted = "".join(steps[: verdict.step])
    assert intervene(accepted, verdict=verdict) == SOLUTION[len(accepted) :]
    assert intervene(accepted, 9, verdict=verdict) == "7D5\n\n2E0\n\n2"


def test_a_missed_value_is_carried_on_by_the_correction():
    assert intervene("1B2\n\n4C4\n\n", 5) == "8D5\n\n3"
    assert intervene("1B2\n\n4C4\n\n").endswith("#B4C8D3E3F4G5H4I1")


def test_foreign_problem_and_impossible_rate_are_refused():
    with pytest.raises(JudgeError, match=r"chains only.*question"):
        asyncio.run(JUDGE.review(Problem("What is 2 + 2?"), ["4"], 0, seed=0))
    with pytest.raises(ConfigError, match="error_rate"):
        ChainsJudge(JUDGE.world, error_rate=1.5)


def test_imperfect_judge_misses_half_and_spoils_half():
    judge, wrong = ChainsJudge(JUDGE.world, error_rate=0.5), ["1B2\n\n", "3C4\n\n", "8D5\n\n"]
    verdicts = Counter(review(wrong, judge=judge, seed=seed) for seed in range(2000))
    assert set(verdicts) == {KEEP, Revise(2, WRONG_LINE), Revise(2, MISJUDGED)}
    assert verdicts[Revise(2, WRONG_LINE)] == pytest.approx(1000, abs=90)  # four standard deviations
    assert verdicts[KEEP] == pytest.approx(500, abs=80)
    assert verdicts[Revise(2, MISJUDGED)] == pytest.approx(500, abs=80)


def test_imperfect_judge_rejects_any_new_line_of_a_right_chunk():
    judge = ChainsJudge(JUDGE.world, error_rate=1.0)
    steps = ["1B2\n\n", "3", "C4\n\n", "7D5\n\n", "2E0\n\n", "2"]
    verdicts = {review(steps, 2, judge, seed) for seed in range(60)}
    assert verdicts == {Revise(step, MISJUDGED) for step in (3, 4, 5)}
    assert review(RIGHT, 9, judge) == KEEP  # no value line begins in the answer
    assert review(steps, 2, judge, seed=7) == review(steps, 2, judge, seed=7)


def test_a_misjudgement_puts_any_wrong_value_and_goes_on_from_it():
    verdict = Revise(2, MISJUDGED)
    texts = [intervene("1B2\n\n3C4\n\n", 5, verdict=verdict, seed=seed) for seed in range(200)]
    assert {text[0] for text in texts} == set("012345689")
    assert all(text == f"{text[0]}D5\n\n{(int(text[0]) + 5) % 10}" for text in texts)
    assert intervene("1B2\n\n3", 3, verdict=verdict) == "C4\n\n"  # no value is next
    assert intervene(SOLUTION, verdict=verdict) == ""


class ChainVocabulary:
    """The world's tokens as segmentation reads them."""

    size = len(chains.TOKENS)
    end_ids = frozenset({EOS_ID})
    special_ids = frozenset(range(len(chains.SPECIALS)))
    special_texts = chains.SPECIALS

    def token_bytes(self, token_id):
        return b"" if token_id in self.special_ids else chains.TOKENS[token_id].encode()

    def encode(self, text):
        return chains.encode(text)


def careless_chunk(chain, written, rng, limit):
    """What a policy writes that slips every fifth token, but ends after a whole answer, as no judge can do that."""
    ids = []
    while len(ids) < limit and EOS_ID not in ids:
        text = written + "".join(chains.TOKENS[i] for i in ids)
        right = chains.encode(JUDGE.world.continuation(chain, text))
        slip = rng.choice((EOS_ID, *range(len(chains.SPECIALS), len(chains.TOKENS))))
        ids.append(EOS_ID if not right else slip if rng.random() < 0.2 else right[0])
    return ids


def reviewed_rollout(chain, rng, chunk_tokens, max_correction):
    """Algorithm 1 with an unlimited review budget. Returns the response's text."""
    problem, steps = Problem(chain.question), []
    for _ in range(300):
        written = "".join(steps)
        ids = careless_chunk(chain, written, rng, chunk_tokens)
        shown = [*steps, *segment(ids, ChainVocabulary()).steps]
        verdict = asyncio.run(JUDGE.review(problem, shown, len(steps), seed=0))
        if verdict == KEEP:
            steps = shown
            if ids[-1] == EOS_ID:
                return "".join(steps)
            continue
        assert len(steps) <= verdict.step < len(shown)
        kept = shown[: verdict.step]
        correction = JUDGE.intervene(problem, "".join(kept), verdict, rng.randint(1, max_correction), seed=0)
        steps = [*kept, asyncio.run(correction).text]
        assert steps[-1], "a rejected step has a right continuation"
    raise AssertionError("the rollout never came to its end")


@given(st.integers(0, 2**32), st.integers(1, 20), st.integers(1, 9))
def test_every_reviewed_rollout_ends_in_the_right_solution(seed, chunk_tokens, max_correction):
    rng = random.Random(seed)
    chain = chains.draw_chain(rng)
    assert reviewed_rollout(chain, rng, chunk_tokens, max_correction) == JUDGE.world.continuation(chain, "")
