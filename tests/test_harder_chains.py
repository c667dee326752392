"""The harder small world: problems, rewards without an outcome, a model as judge, and the recipe's words for them."""

import asyncio
from dataclasses import replace
from itertools import islice
from types import SimpleNamespace

import pytest
import torch
from transformers import AutoModelForCausalLM

from mintrl_trl.chains_task import teacher_judge
from mintrl_trl.data import chains
from mintrl_trl.data.chains import BOS_ID, EOS_ID, HARDER_COUNTS, World, base_model_path, chains_reward
from mintrl_trl.data.chains_rewards import format_reward, random_reward
from mintrl_trl.errors import ConfigError
from mintrl_trl.judge_setup import build_judge
from mintrl_trl.judges.exact import ChainsJudge
from mintrl_trl.judges.teacher import THRESHOLD, TeacherJudge
from mintrl_trl.judges.variants import PlaceboJudge, RandomCutJudge
from mintrl_trl.pass_at_k_callback import PassAtKCallback
from mintrl_trl.recipe import RecipeArguments
from mintrl_trl.rollouts.doors import KEEP, Revise, TokenText
from mintrl_trl.rollouts.rollout import Problem
from mintrl_trl.tasks import build_task
from tests.test_tasks import chains as recipe
from tests.tiny import tiny_model


@pytest.fixture(scope="module")
def world():
    return World.load(hard_counts=HARDER_COUNTS)


# Problems


def test_hard_problems_meet_three_or_four_entries(world):
    rows = list(islice(world.training_rows(seed=3), 100))
    assert {row["misconceived"] for row in rows[::2]} == {0}
    assert {row["misconceived"] for row in rows[1::2]} == {3, 4}
    held_out = world.evaluation_rows(num_easy=4, num_hard=6)
    assert [row["misconceived"] for row in held_out] == [0] * 4 + [3, 4] * 3
    assert held_out[:4] == World.load().evaluation_rows(num_easy=4, num_hard=0)


def test_the_harder_world_has_the_same_table(world):
    assert replace(world, hard_counts=chains.HARD_COUNTS) == World.load()


# Rewards


def test_format_reward_asks_for_the_form_alone():
    right = "0\n\n#B3C7D2E2F3G4H3I0"
    texts = [right, right.replace("7", "9"), right, right[:-1], right.replace("C", "D"), "#", ""]
    ids = [[5, EOS_ID], [5, EOS_ID], [5], [EOS_ID], [EOS_ID], [EOS_ID], []]
    assert format_reward(["?"] * 7, texts, completion_ids=ids, answer=["x"] * 7) == [1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0]


def test_random_reward_is_a_fair_coin_that_repeats_itself():
    prompts, texts = ["8B7?"] * 4000, [""] * 4000
    ids = [[5, EOS_ID]] * 4000  # equal responses are rewarded apart
    state = SimpleNamespace(global_step=3)
    first = random_reward(prompts, texts, completion_ids=ids, trainer_state=state)
    assert sum(first) == pytest.approx(2000, abs=130)  # four standard deviations
    assert random_reward(prompts, texts, completion_ids=ids, trainer_state=state) == first
    for other in ({"trainer_state": SimpleNamespace(global_step=4)}, {"trainer_state": None}):
        again = random_reward(prompts, texts, completion_ids=ids, **other)
        assert sum(a == b for a, b in zip(first, again, strict=True)) == pytest.approx(2000, abs=130)


# A model as judge. The shipped base model is a good teacher of what it knows.


@pytest.fixture(scope="module")
def teacher():
    judge = teacher_judge(str(base_model_path()))
    yield judge
    asyncio.run(judge.aclose())


def easy_problem(world):
    """A problem with its right lines as steps, and the right values."""
    chain = chains.Chain.parse(world.evaluation_rows(1, 0)[0]["prompt"])
    text = world.continuation(chain, "")
    lines = [line + chains.BLANK for line in text.split(chains.BLANK)[:5]]
    return Problem(chain.question), [TokenText(line, chains.encode(line)) for line in lines], world.values(chain)


def test_a_teacher_keeps_what_it_would_write_and_rejects_what_it_would_not(teacher, world):
    problem, steps, values = easy_problem(world)
    wrong_value = str((values[2] + 1) % 10)
    wrong = [*steps[:2], TokenText(wrong_value + steps[2][1:], chains.encode(wrong_value + steps[2][1:])), *steps[3:]]

    async def reviews():
        return [
            await teacher.review(problem, shown, new, seed=0) for shown, new in ((steps, 0), (wrong, 0), (wrong, 3))
        ]

    kept, rejected, missed_before = asyncio.run(reviews())
    assert kept == KEEP
    assert isinstance(rejected, Revise) and rejected.step == 2
    assert (
        isinstance(missed_before, Revise) and missed_before.step == 3
    )  # what follows the wrong value is right no more


def test_a_teacher_tells_what_the_model_gives_its_words(teacher, world):
    problem, steps, _ = easy_problem(world)
    accepted = TokenText("".join(steps[:2]), chains.encode("".join(steps[:2])))
    correction = asyncio.run(teacher.intervene(problem, accepted, Revise(2), 3, seed=1))
    assert len(correction.ids) == len(correction.logps) == 3
    model = AutoModelForCausalLM.from_pretrained(base_model_path())
    ids = [BOS_ID, *chains.encode(problem.question), *accepted.ids, *correction.ids]
    with torch.no_grad():
        logps = model(torch.tensor([ids])).logits.log_softmax(-1)[0, -4:-1]
    expected = [logps[place, token].item() for place, token in enumerate(correction.ids)]
    assert list(correction.logps) == pytest.approx(expected, abs=1e-4)


def test_a_teacher_counts_what_it_reads_and_writes(world):
    judge = teacher_judge(str(base_model_path()))
    problem, steps, _ = easy_problem(world)
    accepted = TokenText("".join(steps), chains.encode("".join(steps)))

    async def ask():
        await judge.review(problem, steps, 2, seed=0)
        await judge.review(problem, steps[:1], 0, seed=0)
        await judge.intervene(problem, accepted, Revise(5), 4, seed=0)
        await judge.aclose()

    asyncio.run(ask())
    counted = judge.counters()
    assert counted["judge/review/calls"] == 2 and counted["judge/correction/calls"] == 1
    assert counted["judge/review/prompt_tokens"] == (19 + 20) + (19 + 4)  # `<bos>` and question, then lines of four
    assert counted["judge/review/completion_tokens"] == 0
    assert counted["judge/correction/prompt_tokens"] == 19 + 20
    assert counted["judge/correction/completion_tokens"] == 4
    assert counted["judge/review/seconds"] > 0 and counted["judge/leak"] == 0


def test_a_teacher_has_no_need_of_a_reference_and_is_known_by_its_weights(teacher):
    assert isinstance(teacher, TeacherJudge)
    assert teacher.threshold == THRESHOLD
    assert teacher.settings() == {"threshold": THRESHOLD, "temperature": 1.0, "weights": teacher.fingerprint}
    assert len(teacher.fingerprint) == 32


# The recipe's words


def test_words_for_world_reward_and_judge():
    task = build_task(
        recipe(world="hard", reward="format", judge_error_rate=0.1, judge_value_error_rate=0.2, judge_terse=True)
    )
    assert {row["misconceived"] for row in task.rows} == {0, 3}
    assert (task.reward, task.evaluation_reward) == (format_reward, chains_reward)
    assert task.judge.settings() == {"error_rate": 0.1, "value_error_rate": 0.2, "terse": True}
    assert build_task(recipe(reward="random")).reward is random_reward


def test_evaluation_asks_for_the_outcome_whatever_is_rewarded():
    task = build_task(recipe(reward="random"))
    trainer = SimpleNamespace(processing_class=None, args=SimpleNamespace(max_completion_length=1))
    assert PassAtKCallback(trainer, task, RecipeArguments(task="chains")).reward is chains_reward


def test_the_defaults_are_the_small_world_as_ever():
    task = build_task(recipe())
    assert isinstance(task.judge, ChainsJudge)
    assert task.judge.settings() == {"error_rate": 0.0, "value_error_rate": 0.0, "terse": False}
    assert task.rows.to_list() == list(islice(World.load().training_rows(42), 6))
    assert task.reward is task.evaluation_reward is chains_reward


def test_a_teacher_by_name():
    named = {"judge": "local", "judge_model": str(base_model_path())}
    chosen = {"judge_likelihood_threshold": -2.0, "judge_temperature": 1.5}
    judge = build_task(recipe(settings=named | chosen)).judge(None)
    assert (type(judge), judge.threshold, judge.temperature) == (TeacherJudge, -2.0, 1.5)
    asyncio.run(judge.aclose())
    idle = {"intervention_updates": 0, "num_intervened": 0}
    assert build_task(recipe(settings=named | idle)).judge is None


@pytest.mark.parametrize(
    ("name", "kind"), [("none", ChainsJudge), ("placebo", PlaceboJudge), ("random_cut", RandomCutJudge)]
)
def test_variants_by_name(world, name, kind):
    args = recipe(settings={"judge_variant": name}).config
    judge = build_judge(SimpleNamespace(args=args), ChainsJudge(world), None, None, None, starts_as_base=True)
    assert type(judge) is kind


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"world": "soft"}, "`world` is 'soft'. Allowed: lines or hard. Fix: set `world: lines`"),
        ({"reward": "none"}, "`reward` is 'none'. Allowed: outcome or format or random. Fix: set `reward: outcome`"),
        ({"judge_value_error_rate": 2}, "`judge_value_error_rate` is 2. Allowed: a number from 0 to 1. Fix: set"),
        ({"judge_terse": "yes"}, "`judge_terse` is 'yes'. Allowed: true or false. Fix: set `judge_terse: false`"),
    ],
    ids=["world", "reward", "rate", "truth value"],
)
def test_words_that_are_not_known(settings, message):
    with pytest.raises(ConfigError) as caught:
        RecipeArguments(task="chains", **settings)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"world": "hard"}, "`world` is 'hard'. Allowed: 'lines' for `task: math`. Fix: remove `world`"),
        ({"reward": "random"}, "`reward` is 'random'. Allowed: 'outcome' for `task: math`. Fix: remove `reward`"),
        ({"judge_terse": True}, "`judge_terse` is True. Allowed: False for `task: math`. Fix: remove `judge_terse`"),
    ],
    ids=["world", "reward", "judge"],
)
def test_words_of_the_small_world_belong_to_it(settings, message):
    with pytest.raises(ConfigError) as caught:
        RecipeArguments(task="math", dataset="rows.jsonl", **settings)
    assert message in str(caught.value)


def test_a_model_of_another_world_is_no_teacher(tmp_path):
    tiny_model().save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="the small world's 26 tokens"):
        teacher_judge(str(tmp_path))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: build_task(recipe(settings={"judge": "self"}, judge_terse=True)),
            "`judge_terse` is True. Allowed: False for `judge: self`. Fix: remove `judge_terse`",
        ),
        (
            lambda: build_task(recipe(settings={"judge": "local", "judge_model": "nowhere"})),
            "`judge_model` is 'nowhere'. Allowed: a folder with a model of the small world. Fix: run",
        ),
        (
            lambda: build_task(
                recipe(settings={"judge": "local", "judge_model": str(base_model_path()), "judge_temperature": 0})
            ),
            "`judge_temperature` is 0. Allowed: above 0 for `judge: local`, whose corrections are sampled. Fix: set",
        ),
        (
            lambda: recipe(settings={"judge": "local"}),
            "`judge_model` is None. Allowed: a folder with judge='local'. Fix: set judge_model=",
        ),
        (
            lambda: recipe(settings={"judge_variant": "half"}),
            "`judge_variant` is 'half'.",
        ),
    ],
    ids=["terse self-judge", "no such folder", "greedy teacher", "no folder", "variant"],
)
def test_judges_that_cannot_be(make, message):
    with pytest.raises(ConfigError) as caught:
        make()
    assert message in str(caught.value)
