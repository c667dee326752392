"""Calibration: given tokens come back, what is counted is what was written, and rules choose what they should."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from mintrl_trl.calibration.choice import choose, recipe_fragment
from mintrl_trl.calibration.judge_quality import alarms, first_errors, rescue, rescue_cases
from mintrl_trl.calibration.labelled import LabelledSolution, chains_solutions, read_labelled
from mintrl_trl.calibration.pilot import Pilot, PilotFolder, corrections, measure, pilot_json
from mintrl_trl.calibration.replay import Beginning, Beginnings, ShadowJudge
from mintrl_trl.data.chains import EOS_ID, SPECIALS, TOKENS, Chain, World, encode, solution_text
from mintrl_trl.errors import ConfigError, DataError
from mintrl_trl.evaluation.intervals import compare_means, mean_interval
from mintrl_trl.evaluation.results import EvalProblem, EvalResult, ProblemResult
from mintrl_trl.evaluation.run import fill, policy_seed
from mintrl_trl.evaluation.sampling import Reviews
from mintrl_trl.rollouts.doors import Correction, Revise
from mintrl_trl.rollouts.loop import shared_loop
from mintrl_trl.rollouts.rollout import Problem, Role
from mintrl_trl.rollouts.schedule import InterventionBudget

from . import samples as by_hand
from .doors import END, PROMPT_IDS, ScriptedJudge, StepVocabulary, counting, sample

PROBLEM = EvalProblem("7+5?", PROMPT_IDS, id="a")
BUDGET = InterventionBudget(chunk_tokens=4, max_reviews=2, correction_tokens=2, max_completion_tokens=12)


def result(*solved: int, samples: int = 4) -> EvalResult:
    return EvalResult(tuple(ProblemResult(samples, one, 0, 0, samples, id=str(n)) for n, one in enumerate(solved)))


def pilot(gains: list[float], share: float, chunk: int = 4, kappa: float | None = -0.25) -> Pilot:
    controls, own = [0.5] * len(gains), [0.5 + gain for gain in gains]
    metrics = {"off_policy_share": share, "judge/revise_rate": 0.25}
    comparison, budget = compare_means(controls, own), replace(BUDGET, chunk_tokens=chunk)
    return Pilot(budget, 8, mean_interval(own), comparison, tuple(gains), 0.0, metrics, kappa, 12, None, {})


# Given tokens, and a judge that is not followed


@pytest.mark.parametrize("overlap", [False, True])
def test_a_judge_in_the_shadow_is_heard_and_changes_nothing(overlap):
    judge = ScriptedJudge(verdict=lambda call: Revise(call.first_new + 1, "no"), correction=lambda call: 1 / 0)
    alone = sample(shared_loop(), counting(end_at=10), None, reviews=0, limit=16)[0]
    shadowed = sample(shared_loop(), counting(end_at=10), ShadowJudge(judge), limit=16, overlap=overlap)[0]
    assert shadowed.ids == alone.ids and shadowed.intervention_tokens == 0
    assert [(one.decision.value, one.step, one.correction_tokens) for one in shadowed.reviews] == [
        ("revise", 1, 0),
        ("revise", 5, 0),
    ]
    assert judge.corrections == []


class Replaying(Beginnings):
    open_streams = 0  # for `sample`; the policy's own are looked at below


def replayed(ids: tuple[int, ...], judge=None, limit: int = 12, **options):
    """A rollout that begins with `ids`, under the seed of the tests' first request; also what the policy was asked."""
    seen = counting(**options)
    sample(shared_loop(), seen, None, reviews=0, limit=limit)
    seed, policy = seen.requests[0].seed, counting(**options)
    begun = Replaying(policy, {seed: Beginning(len(PROMPT_IDS), ids)})
    reviews = 0 if judge is None else 2
    return sample(shared_loop(), begun, judge, limit=limit, reviews=reviews)[0], policy


def test_a_response_begins_with_what_is_given_and_the_policy_goes_on():
    rollout, policy = replayed((7, 8, 9))
    assert rollout.ids == (7, 8, 9, *range(103, 112))
    assert [(one.prefix_ids, one.max_tokens) for one in policy.requests] == [((*PROMPT_IDS, 7, 8, 9), 9)]
    assert policy.open_streams == 0


def test_a_whole_response_is_reviewed_without_the_policy():
    judge = ScriptedJudge(verdict=[Revise(2, "no")])
    rollout, policy = replayed((5, 6, 7, 8, 9, END), ShadowJudge(judge))
    assert rollout.ids == (5, 6, 7, 8, 9, END) and policy.requests == []
    assert [call.new_steps for call in judge.reviews] == [("5\n\n", "6\n\n", "7\n\n", "8\n\n"), ("9\n\n",)]


def test_after_a_correction_the_policy_goes_on_by_itself():
    judge = ScriptedJudge(verdict=[Revise(1)], correction=[Correction(ids=(50,))])
    rollout, policy = replayed((5, 6, 7, 8, 9, 10), judge)
    assert rollout.ids == (5, 50, *range(102, 112))
    assert policy.requests[-1].prefix_ids == (*PROMPT_IDS, 5, 50)


# Folders of pilot rollouts


class Counting(ScriptedJudge):
    def counters(self):
        return {"judge/leak": 1.0 * len(self.corrections), "judge/review/requests": 1.0 * len(self.reviews)}


def filled(folder: PilotFolder, samples: int = 3, judge=None) -> int:
    judge = judge or Counting(
        verdict=lambda call: Revise(call.first_new + 1), correction=lambda call: Correction(ids=(50,), logps=(-0.5,))
    )
    folder.begin({"samples": samples})
    return fill(
        folder,
        counting(end_at=10),
        StepVocabulary(END),
        [PROBLEM],
        num_samples=samples,
        max_completion_tokens=12,
        max_concurrent_rollouts=1,
        reviews=Reviews(judge, BUDGET),
        problem_of=lambda problem: Problem(problem.prompt),
        on_rollout=folder.recorder(judge.counters),
    )


def test_rollouts_come_back_as_they_were(tmp_path):
    folder = PilotFolder(tmp_path)
    assert filled(folder) == 3
    found = folder.rollouts()
    assert set(found) == {("a", 0), ("a", 1), ("a", 2)}
    rollout = found["a", 0]
    assert rollout.request.role is Role.INTERVENED
    assert rollout.ids == (100, 50, 102, 50, *range(104, 110), END)[: len(rollout.ids)]
    assert [review.correction_tokens for review in rollout.reviews] == [1, 1]
    assert corrections(rollout) == [(50,), (50,)]
    assert [span.logps for span in rollout.spans if span.author.value == "intervention"] == [(-0.5,), (-0.5,)]
    assert folder.counted() == {"judge/leak": 6.0, "judge/review/requests": 6.0}


@pytest.mark.parametrize("torn", ["samples.jsonl", "reviews.jsonl"])
def test_a_rollout_whose_writer_was_killed_is_made_again(tmp_path, torn):
    folder = PilotFolder(tmp_path)
    filled(folder)
    whole = {key: (one.spans, one.reviews, one.stop) for key, one in folder.rollouts().items()}
    for name in {torn, "samples.jsonl"}:  # a review line is written first, so it is torn with its sample missing
        lines = (tmp_path / name).read_bytes().splitlines(keepends=True)
        last = lines[-1][:20] if name == torn else b""
        (tmp_path / name).write_bytes(b"".join(lines[:-1]) + last)
    assert filled(folder) == 1
    assert {key: (one.spans, one.reviews, one.stop) for key, one in folder.rollouts().items()} == whole


def test_a_pilot_counts_what_was_written(tmp_path):
    folder = PilotFolder(tmp_path)
    filled(folder)
    own, controls = result(3, samples=3), result(0, samples=3)
    vocabulary = StepVocabulary(END)
    found = measure(folder, BUDGET, own, controls, answers={"a": "501"}, vocabulary=vocabulary)
    rollout = folder.rollouts()["a", 0]
    assert (found.kappa, found.kappa_tokens, found.rescued) == (-0.5, 6, 1.0)
    assert found.off_policy_share == 2 / len(rollout.ids)
    assert found.metrics["judge/revise_rate"] == 1.0 and found.metrics["judge/interventions"] == 2.0
    assert found.gain.difference.value == 1.0 == found.gains[0]
    assert found.leak_rate == 1.0  # six counted of six
    assert found.cost == {"judge/review/requests": 2.0}
    assert pilot_json(found)["budget"]["chunk_tokens"] == 4
    silent = Counting(verdict=lambda call: Revise(call.first_new), correction=lambda call: Correction(text="501"))
    silent.counters = dict
    other = PilotFolder(tmp_path / "other")
    filled(other, judge=silent)
    found = measure(other, BUDGET, own, controls, answers={"a": "501"}, vocabulary=vocabulary)
    assert found.kappa is None and found.leak_rate == 1.0  # nobody withheld them, and they say it


def test_controls_and_intervened_rollouts_share_their_noise():
    assert policy_seed(0, "a", 1) == policy_seed(0, "a", 1) != policy_seed(1, "a", 1)
    assert len({policy_seed(0, name, number) for name in "abc" for number in range(4)}) == 12


# The choice


def test_the_largest_gain_among_sparse_budgets():
    small, large, dense = pilot([0.1] * 6, 0.01), pilot([0.3] * 6, 0.04), pilot([0.4] * 6, 0.2)
    assert choose([small, large, dense]).pilot is large
    assert choose([small, large, dense], 0.5).pilot is dense


def test_the_sparsest_of_those_that_are_as_good():
    sparse, best = pilot([0.4, 0.0, 0.4, 0.0], 0.01), pilot([0.2, 0.3, 0.2, 0.2], 0.03)
    choice = choose([best, sparse])
    assert choice.pilot is sparse and "one standard error" in choice.why


def test_no_budget_without_a_gain():
    assert choose([pilot([-0.1] * 4, 0.01), pilot([0.4] * 4, 0.3)]).pilot is None
    assert "more than 5.0%" in choose([pilot([0.4] * 4, 0.3)]).why


@pytest.mark.parametrize(("kappa", "written"), [(-0.21249, -0.2125), (-0.1, -0.1), (0.0, -0.0001), (None, None)])
def test_the_fragment_is_a_recipe(kappa, written):
    found = yaml.safe_load(recipe_fragment(pilot([0.2] * 4, 0.02, kappa=kappa), "a: b"))
    expected = {"chunk_tokens": 4, "max_reviews": 2, "correction_tokens": 2}
    assert found == expected | ({} if written is None else {"kappa": written})


# The judge


def test_objections_to_what_ends_right_are_false_alarms():
    rollout = by_hand.corrected_rollout()
    quiet = replace(rollout, reviews=rollout.reviews[1:])
    rollouts = {("a", 0): rollout, ("a", 1): quiet, ("b", 0): quiet, ("b", 1): rollout}
    found = alarms(rollouts, {("a", 0): True, ("a", 1): True, ("b", 0): True, ("b", 1): False})
    assert (found.right, found.wrong, found.reviews, found.no_verdict) == (3, 1, 6, 0.0)
    assert found.false_alarms.value == 0.25  # half of a's, none of b's
    assert found.detections.value == 1.0
    assert alarms({}, {}).false_alarms is None


def test_cases_of_all_problems_come_before_a_second_of_one():
    rollout = by_hand.corrected_rollout()
    rollouts = {(name, number): rollout for name in "abc" for number in range(3)}
    rollouts["d", 0] = replace(rollout, reviews=())
    cases = rescue_cases(rollouts, 4)
    assert sorted(case.problem for case in cases[:3]) == ["a", "b", "c"] and len(cases) == 4
    assert cases[0].kept == by_hand.ids("7+5=") and cases[0].correction == by_hand.ids("12;")
    assert rescue_cases({("d", 0): rollouts["d", 0]}, 4) == []


def test_continuations_are_compared_over_problems():
    rollout = by_hand.corrected_rollout()
    cases = rescue_cases({key: rollout for key in (("a", 0), ("a", 1), ("b", 0))}, 9)
    names = [case.problem for case in cases]
    without = result(*[0] * 3)
    helped = result(*(4 if name == "a" else 2 for name in names))
    found = rescue(cases, without, helped)
    assert (found.cases, found.problems, found.continuations) == (3, 2, 4)
    assert (found.without, found.with_correction, found.difference.difference.value) == (0.0, 0.75, 0.75)


STEPS = ["one ", "two\n\nand ", "three"]


def labelled(name: str, label: int | None) -> LabelledSolution:
    ids = (*by_hand.ids("one \n\ntwo\n\nand \n\nthree"), by_hand.END)
    return LabelledSolution(name, Problem("?"), ids, (0, 6, 17), label)


def reviewed(step: int | None):
    rollout = by_hand.corrected_rollout()
    review = rollout.reviews[1] if step is None else replace(rollout.reviews[0], step=step)
    return replace(rollout, reviews=(review,))


def test_steps_of_a_label_may_hold_several_of_ours():
    # Ours: "one", "two", "and", "three"; the label's second step holds two of them
    solutions = [labelled("a", 1), labelled("b", 1), labelled("c", 2), labelled("d", None), labelled("e", None)]
    named = {"a": 1, "b": 2, "c": None, "d": None, "e": 3}
    found = first_errors(solutions, {name: reviewed(step) for name, step in named.items()}, by_hand.ByteVocabulary())
    assert (found.erroneous, found.correct, found.no_verdict) == (3, 2, 0)
    assert (found.precision.value, found.recall.value, found.correct_kept.value) == pytest.approx((2 / 3, 2 / 3, 1 / 2))
    assert found.f1 == pytest.approx(2 * (2 / 3) * 0.5 / (2 / 3 + 0.5))


def test_a_file_in_processbenchs_form(tmp_path):
    row = {"id": "g-1", "problem": "?", "steps": STEPS, "label": 1, "generator": "x", "final_answer_correct": False}
    path = tmp_path / "steps.jsonl"
    path.write_text(json.dumps(row) + "\n\n" + json.dumps(row | {"id": "g-2", "label": -1}) + "\n")
    first, second = read_labelled(path, by_hand.ByteVocabulary())
    assert first == replace(labelled("g-1", 1), problem=Problem("?"))
    assert second.first_error is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"label": 3}, "from -1 (all are right) to 2"),
        ({"label": True}, "from -1"),
        ({"steps": []}, "a list of texts that are not empty"),
        ({"steps": ["a", " "]}, "a list of texts that are not empty"),
        ({"problem": None}, "`problem` is None"),
        ({"answer": 7}, "`answer` is 7"),
    ],
)
def test_a_line_that_cannot_be_used(tmp_path, change, message):
    path = Path(tmp_path, "steps.jsonl")
    path.write_text(json.dumps({"id": "g", "problem": "?", "steps": STEPS, "label": 1} | change) + "\n")
    with pytest.raises(DataError) as caught:
        read_labelled(path, by_hand.ByteVocabulary())
    assert message in str(caught.value) and "steps.jsonl:1" in str(caught.value)


def test_a_file_with_nothing_in_it(tmp_path):
    (tmp_path / "steps.jsonl").write_text("")
    for name in ("steps.jsonl", "none.jsonl"):
        with pytest.raises(ConfigError, match="labelled"):
            read_labelled(tmp_path / name, by_hand.ByteVocabulary())


class ChainsVocabulary(StepVocabulary):
    """The small world's tokens, as its tokenizer spells them."""

    def token_bytes(self, token_id: int) -> bytes:
        return b"" if token_id < len(SPECIALS) else TOKENS[token_id].encode()


def test_the_small_world_labels_by_its_rules():
    world = World.load()
    row = world.evaluation_rows(1, 0)[0]
    problem, right = Problem(row["prompt"]), row["privileged_context"]
    values = [int(line[0]) for line in right.split("\n\n")[:-1]]
    chain = Chain.parse(row["prompt"])
    slip = (values[3] + 1) % 10
    follows = [*values[:3], slip]
    for operand in chain.operands[3:]:
        follows.append(world.result(follows[-1], operand))
    texts = {
        "right": (right, None),
        "slip": (solution_text(chain, follows), 3),  # and everything follows from it
        "answer": (right[:-1] + str((int(right[-1]) + 1) % 10), 9),
        "early": (right[: right.index("#")].rstrip(), 8),
        "cut": (right[:-1], 9),
    }
    responses = [(name, problem, (*encode(text), EOS_ID)) for name, (text, _) in texts.items()]
    responses.append(("endless", problem, encode(right)))
    found = chains_solutions(world, responses, ChainsVocabulary(EOS_ID))
    assert {one.id: one.first_error for one in found} == {name: label for name, (_, label) in texts.items()}
