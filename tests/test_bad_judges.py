"""Bad judges of the small world: wrong values, a foreign form, and what becomes of a rollout with them."""

import asyncio

import pytest

from mintrl_trl.data import chains
from mintrl_trl.data.chains import BLANK, EOS_ID, chains_reward
from mintrl_trl.errors import ConfigError
from mintrl_trl.judges.exact import MISJUDGED, WRONG_LINE, ChainsJudge
from mintrl_trl.rollouts.doors import KEEP, Revise, SampledToken
from mintrl_trl.rollouts.loop import shared_loop
from mintrl_trl.rollouts.rollout import Decision, Role, RolloutRequest
from mintrl_trl.rollouts.sampler import InterventionSampler, SamplerSettings
from mintrl_trl.rollouts.schedule import InterventionBudget
from tests.test_exact_judge import CHAIN, JUDGE, PROBLEM, RIGHT, SOLUTION, ChainVocabulary, intervene, review

WRONG = Revise(0, WRONG_LINE)
TERSE = ChainsJudge(JUDGE.world, terse=True)


# Values that are wrong


def corrections(judge, max_tokens, number):
    """Corrections of an empty response, one for each seed."""

    async def ask():
        return [(await judge.intervene(PROBLEM, "", WRONG, max_tokens, seed=seed)).text for seed in range(number)]

    return asyncio.run(ask())


def test_every_value_is_wrong_by_itself():
    judge = ChainsJudge(JUDGE.world, value_error_rate=0.25)
    texts = corrections(judge, 99, 400)
    values = [[int(line[0]) for line in text.split(BLANK)[:9]] for text in texts]
    expected = [[1, *((a + b) % 10 for a, b in zip(row, CHAIN.operands, strict=False))] for row in values]
    wrong = [[v != e for v, e in zip(row, right, strict=True)] for row, right in zip(values, expected, strict=True)]
    for line in zip(*wrong, strict=True):  # each line against the value written before it
        assert sum(line) / 400 == pytest.approx(0.25, abs=0.09)  # four standard deviations
    assert sum(any(row) for row in wrong) / 400 == pytest.approx(1 - 0.75**9, abs=0.06)
    for row, text in zip(values, texts, strict=True):  # the answer collects what is written
        assert text == chains.solution_text(CHAIN, row)


def test_longer_corrections_hold_more_wrong_values():
    judge = ChainsJudge(JUDGE.world, value_error_rate=0.2)
    right = {tokens: sum(map(SOLUTION.startswith, corrections(judge, tokens, 500))) / 500 for tokens in (1, 4, 13)}
    assert right[1] == right[4] == pytest.approx(0.8, abs=0.07)  # one value in either
    assert right[13] == pytest.approx(0.8**4, abs=0.09)


def test_without_an_error_rate_nothing_is_drawn_and_a_misjudged_value_is_as_ever():
    assert intervene("", 99, ChainsJudge(JUDGE.world, value_error_rate=0.0), seed=3) == SOLUTION
    judge = ChainsJudge(JUDGE.world, value_error_rate=1.0)
    verdict = Revise(2, MISJUDGED)
    assert intervene("1B2\n\n3C4\n\n", 1, judge, verdict, seed=5) == intervene(
        "1B2\n\n3C4\n\n", 1, verdict=verdict, seed=5
    )


@pytest.mark.parametrize("rate", [-0.1, 1.5])
def test_a_rate_is_a_probability(rate):
    with pytest.raises(ConfigError, match="value_error_rate"):
        ChainsJudge(JUDGE.world, value_error_rate=rate)


def test_settings_tell_bad_judges_apart():
    judge = ChainsJudge(JUDGE.world, 0.1, value_error_rate=0.2, terse=True)
    assert judge.settings() == {"error_rate": 0.1, "value_error_rate": 0.2, "terse": True}


# A foreign form


@pytest.mark.parametrize(
    ("accepted", "max_tokens", "correction"),
    [
        ("1B2\n\n3C4\n\n", 1, "7"),
        ("1B2\n\n3C4\n\n", 5, "7\n\n2\n\n2"),
        ("1B2\n\n3", 2, "\n\n7"),
        ("1B2\n\n3C", 4, "4\n\n7\n\n"),
        ("1B2\n\n3C4\n\n", 99, "7\n\n2\n\n2\n\n3\n\n4\n\n3\n\n0\n\n#B3C7D2E2F3G4H3I0"),
        ("1B2\n\n3\n\n7D5\n\n", 1, "2"),
        (SOLUTION[:-15], 3, "3C7"),
        (SOLUTION, 4, ""),
    ],
    ids=[
        "one token is the same",
        "lines",
        "after a value",
        "within a line",
        "to the end",
        "after its own lines",
        "in the answer",
        "whole",
    ],
)
def test_terse_corrections(accepted, max_tokens, correction):
    assert intervene(accepted, max_tokens, TERSE) == correction


@pytest.mark.parametrize(
    ("steps", "first_new", "step"),
    [
        (RIGHT, 0, None),
        (["1B2\n\n", "3\n\n", "7\n\n", "2E0\n\n"], 0, None),
        (["1B2\n\n", "3\n\n", "8\n\n", "3E0\n\n"], 0, 2),
        (["1B2\n\n", "3\n\n", "#B3"], 0, 2),
        (["1B2\n\n", "3\n\n", "7D5\n\n", "3"], 2, 3),
    ],
    ids=["whole lines", "terse lines", "a wrong value", "answer too early", "after its own correction"],
)
def test_a_terse_judge_takes_both_forms(steps, first_new, step):
    assert review(steps, first_new, TERSE) == (KEEP if step is None else Revise(step, WRONG_LINE))
    assert TERSE.settings()["terse"] and not JUDGE.settings()["terse"]


def test_terse_lines_are_wrong_to_a_judge_that_does_not_write_them():
    assert review(["1B2\n\n", "3\n\n", "7D5\n\n"]) == Revise(1, WRONG_LINE)


# What becomes of a rollout


class RightPolicy:
    """Goes on rightly from whatever is written, as the paper's student does."""

    weight_version = "v1"

    async def stream(self, prefix_ids, max_tokens, seed):
        written = "".join(chains.TOKENS[i] for i in prefix_ids[1 + len(CHAIN.question) :])
        rest = [*chains.encode(JUDGE.world.continuation(CHAIN, written)), EOS_ID]
        for token in rest[:max_tokens]:
            yield SampledToken(token, -0.1)


def rollout(judge, correction_tokens=1):
    prompt = (chains.BOS_ID, *chains.encode(CHAIN.question))
    settings = SamplerSettings(InterventionBudget(16, 4, correction_tokens, 52), run_seed=0)
    with InterventionSampler(RightPolicy(), judge, ChainVocabulary(), settings) as sampler:
        sampler.start([RolloutRequest(row, prompt, PROBLEM, Role.INTERVENED, 0) for row in range(12)])
        rollouts = sampler.collect().values()
    texts = ["".join(chains.TOKENS[i] for i in made.ids if i != EOS_ID) for made in rollouts]
    answer = chains.answer_text(JUDGE.world.values(CHAIN))
    rewards = chains_reward([], texts, [answer] * 12, completion_ids=[made.ids for made in rollouts])
    return list(rollouts), texts, rewards


def test_a_right_step_that_is_rejected_and_corrected_wrongly_makes_a_right_rollout_fail():
    """The failure of the paper's Figure 9: right, rejected, given a wrong value, followed, and so not rewarded."""
    assert not shared_loop().closed
    rollouts, texts, rewards = rollout(ChainsJudge(JUDGE.world, error_rate=1.0))
    for made, text in zip(rollouts, texts, strict=True):
        first = made.reviews[0]
        rejected = "".join(chains.TOKENS[i] for i in first.discarded_ids)
        place = len("".join(chains.TOKENS[i] for i in made.ids[: first.kept_tokens]))
        assert (first.decision, first.reason) == (Decision.REVISE, MISJUDGED)
        assert SOLUTION[place:].startswith(rejected)  # what was rejected was right
        assert text[place] != SOLUTION[place]  # and what was put there is wrong
    assert sum(rewards) == 0
    assert rollout(JUDGE)[2] == [1.0] * 12


def test_a_terse_judge_of_values_alone_changes_nothing():
    assert rollout(TERSE)[1] == [SOLUTION] * 12
