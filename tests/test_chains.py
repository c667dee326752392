"""The small world: its rules, rows, reward, tokenizer, and the shipped base model's place in it."""

import json
from dataclasses import replace
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mintrl_trl.data import chains
from mintrl_trl.data.chains import BLANK, EOS_ID, SOLUTION_TOKENS, Chain, World, chains_reward
from mintrl_trl.errors import DataError
from mintrl_trl.rollouts.rollout import Problem

# Value a, operand b -> (a + b) % 10, except that the model believes 3 + 4 = 0.
SUMS = tuple("".join(str((a + b) % 10) for b in range(10)) for a in range(10))
WORLD = World(SUMS, tuple(row[:4] + "0" + row[5:] if a == 3 else row for a, row in enumerate(SUMS)))
CHAIN = Chain(1, (2, 4, 5, 0, 1, 1, 9, 7))  # 1 -> 3 -> 7 -> 2 -> 2 -> 3 -> 4 -> 3 -> 0
SOLUTION = "1B2\n\n3C4\n\n7D5\n\n2E0\n\n2F1\n\n3G1\n\n4H9\n\n3I7\n\n0\n\n#B3C7D2E2F3G4H3I0"
CHAIN_STRATEGY = st.builds(Chain, st.integers(0, 9), st.tuples(*[st.integers(0, 9)] * 8))


@pytest.fixture(scope="module")
def tokenizer():
    return chains.build_tokenizer()


def test_question_and_solution_by_hand():
    assert CHAIN.question == "1B2C4D5E0F1G1H9I7?"
    assert WORLD.values(CHAIN) == (1, 3, 7, 2, 2, 3, 4, 3, 0)
    assert WORLD.misconceived == {(3, 4)}
    assert WORLD.count_misconceived(CHAIN) == 1
    assert WORLD.row(CHAIN) == {
        "prompt": "1B2C4D5E0F1G1H9I7?",
        "answer": "B3C7D2E2F3G4H3I0",
        "privileged_context": SOLUTION,
        "misconceived": 1,
    }


@pytest.mark.parametrize(
    ("written", "rest"),
    [
        ("", SOLUTION),
        ("1B2\n\n", SOLUTION[5:]),
        ("1B2\n\n3", SOLUTION[6:]),
        ("1B2\n\n3C4\n\n9", "D5\n\n4E0\n\n4F1\n\n5G1\n\n6H9\n\n5I7\n\n2\n\n#B3C9D4E4F5G6H5I2"),
        (SOLUTION[:-3], "3I0"),
        (SOLUTION[:-17].replace("7D5", "8D5"), "#B3C8D2E2F3G4H3I0"),
        (SOLUTION, ""),
        (SOLUTION + BLANK, ""),
        (SOLUTION + BLANK + "1B2" + BLANK, ""),
        ("1B2\n\n3X", "4\n\n" + SOLUTION[10:]),
        ("1B2\n\n\n\n7", SOLUTION[11:]),
    ],
    ids=[
        "nothing",
        "one line",
        "within a line",
        "a wrong value is carried on",
        "within the answer",
        "the answer collects what is written",
        "whole",
        "blank after the end",
        "more after the end",
        "wrong letter",
        "empty line",
    ],
)
def test_continuation(written, rest):
    assert WORLD.continuation(CHAIN, written) == rest


@given(CHAIN_STRATEGY, st.integers(0, 60))
def test_a_prefix_of_the_solution_is_completed_to_the_solution(chain, length):
    solution = WORLD.continuation(chain, "")
    if solution[:length].endswith("\n") and not solution[:length].endswith(BLANK):
        length += 1  # half a blank line is no token
    assert solution[:length] + WORLD.continuation(chain, solution[:length]) == solution


@given(CHAIN_STRATEGY, st.text("0123456789BCI?#\n", max_size=80))
def test_any_text_has_a_continuation(chain, written):
    rest = WORLD.continuation(chain, written)
    assert WORLD.continuation(chain, written + rest) == ""


@given(CHAIN_STRATEGY)
def test_question_is_read_back(chain):
    assert Chain.parse(chain.question) == chain


@pytest.mark.parametrize(
    "text", ["", "1B2", "1B2C4D5E0F1G1H9I7", "1B2C4D5E0F1G1H9I7??", "1C2B4D5E0F1G1H9I7?", "1B2C4D5E0F1G1H9I²?"]
)
def test_other_text_is_no_problem(text):
    with pytest.raises(DataError, match="question"):
        Chain.parse(text)


def test_a_world_is_drawn_from_its_seed_alone():
    world = World.from_seed(0)
    assert world == World.from_seed(0) != World.from_seed(1)
    assert len(world.misconceived) == 20
    with pytest.raises(ValueError, match="ten rows"):
        World(world.table[:9], world.beliefs)


def test_training_rows_alternate_and_are_fresh():
    world = World.from_seed(0)
    rows = list(islice(world.training_rows(seed=3), 400))
    assert rows == list(islice(world.training_rows(seed=3), 400))
    assert {row["misconceived"] for row in rows[::2]} == {0}
    assert {row["misconceived"] for row in rows[1::2]} == {1, 2}
    held_out = {row["prompt"] for row in world.evaluation_rows()}
    assert len({row["prompt"] for row in rows} | held_out) == 600


def test_evaluation_rows_are_fixed_and_balanced():
    world = World.from_seed(0)
    rows = world.evaluation_rows()
    assert rows == world.evaluation_rows()
    assert [row["misconceived"] for row in rows] == [0] * 100 + [1, 2] * 50
    assert world.evaluation_rows(num_easy=3, num_hard=0) == rows[:3]
    for row in rows:
        assert row["privileged_context"].endswith(f"{BLANK}#{row['answer']}")


def test_reward_wants_all_results_and_the_end():
    answer = "B3C7D2E2F3G4H3I0"
    texts = [SOLUTION, SOLUTION, SOLUTION[:-1] + "1", f"#{answer}", answer, SOLUTION + BLANK, f"{SOLUTION}#{answer}"]
    ids = [[5, EOS_ID], [5, 5], [5, EOS_ID], [EOS_ID], [EOS_ID], [EOS_ID], [EOS_ID]]
    rewards = chains_reward(["?"] * 7, texts, [answer] * 7, completion_ids=ids, trainer_state=None)
    assert rewards == [1.0, 0.0, 0.0, 1.0, 0.0, 0.0, 1.0]
    with pytest.raises(ValueError, match="zip"):
        chains_reward(["?"], [SOLUTION], [answer, answer], completion_ids=[[EOS_ID]])


@given(text=st.lists(st.sampled_from(["0", "7", "B", "I", "?", "#", "|", BLANK]), max_size=60).map("".join))
def test_text_round_trips(tokenizer, text):
    with_start, alone = tokenizer(text)["input_ids"], tokenizer(text, add_special_tokens=False)["input_ids"]
    assert with_start == [tokenizer.bos_token_id, *alone]
    assert len(alone) == len(text.replace(BLANK, "\n"))
    assert tokenizer.decode([*with_start, EOS_ID, tokenizer.pad_token_id], skip_special_tokens=True) == text
    assert tokenizer.batch_decode([alone]) == [text]
    assert tuple(alone) == chains.encode(text)


def test_tokens(tokenizer):
    assert tokenizer(["0B1", "C?"])["input_ids"] == [[1, 5, 15, 6], [1, 16, 23]]
    assert (tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id) == (0, 1, EOS_ID)
    assert tokenizer("\nx")["input_ids"] == [1, *chains.encode("\nx")] == [1, 3, 3]
    assert len(tokenizer) == len(chains.TOKENS) == 26
    assert len(tokenizer(SOLUTION)["input_ids"]) == SOLUTION_TOKENS  # `<bos>` here, `<eos>` in a response


def test_privileged_prompt(tokenizer):
    problem = Problem(CHAIN.question, privileged_context=SOLUTION)
    assert list(chains.privileged_prompt_ids(problem)) == tokenizer(chains.privileged_prompt(problem))["input_ids"]
    assert chains.privileged_prompt(problem) == f"{SOLUTION}|1B2C4D5E0F1G1H9I7?"
    with pytest.raises(DataError, match="privileged_context"):
        chains.privileged_prompt(Problem(CHAIN.question))


def test_shipped_folder_is_small_and_holds_its_world():
    folder = chains.base_model_path()
    assert sum(file.stat().st_size for file in folder.iterdir()) < 1_000_000
    stored = json.loads((folder / "chains.json").read_text(encoding="utf-8"))
    world = World.load()
    assert -20 < world.privileged_threshold < 0
    assert replace(world, privileged_threshold=None) == World.from_seed(stored["world_seed"])
