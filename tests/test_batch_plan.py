"""TRL's batch sizes from ours: hand-worked plans, even spreading, and refusals whose two fixes work."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mintrl_trl.batch_plan import DERIVED_SIZES, BatchPlan, plan_batches
from mintrl_trl.errors import ConfigError

PAPER = {
    "prompts_per_update": 32,
    "num_control": 8,
    "num_intervened": 8,
    "updates_per_generation": 1,
    "num_processes": 1,
    "tokens_per_row": 2048 + 16384,
    "eval_rows_per_device": 8,
    "evaluates": False,
}


def plan(sizes=None, **changes):
    return plan_batches(**PAPER | changes, given=dict.fromkeys(DERIVED_SIZES) | (sizes or {}))


def test_paper_on_one_and_on_eight_processes():
    assert plan() == BatchPlan(1, 512, 16, 512, 512, 8)
    assert plan(num_processes=8) == BatchPlan(1, 64, 16, 64, 512, 16)


@pytest.mark.parametrize(
    ("tokens_per_row", "rows"),
    [(18_432, 1), (16_384, 2), (8_192, 4), (8_193, 2), (4_096, 8), (16, 8), (40_000, 1)],
)
def test_derived_rows_keep_to_the_token_limit_and_divide_evenly(tokens_per_row, rows):
    assert plan(tokens_per_row=tokens_per_row).per_device_train_batch_size == rows


def test_derived_rows_are_a_divisor():
    # 3 prompts x 5 rollouts = 15 rows: 5 is the largest divisor up to 8
    assert plan(prompts_per_update=3, num_control=3, num_intervened=2, tokens_per_row=64) == BatchPlan(
        5, 3, 5, 3, 15, 4
    )


def test_several_updates_share_a_generated_batch():
    assert plan(updates_per_generation=4, num_processes=4) == BatchPlan(1, 128, 16, 512, 2048, 16)


def test_evaluation_groups_fit_the_evaluation_batch():
    assert plan(eval_rows_per_device=3, num_processes=4, evaluates=True).num_generations_eval == 12
    assert plan({"num_generations_eval": 1}, evaluates=True).num_generations_eval == 1
    assert plan({"num_generations_eval": 3}).num_generations_eval == 3  # no evaluation, so nothing to fit
    with pytest.raises(ConfigError, match="set num_generations_eval=2, or per_device_eval_batch_size=3"):
        plan({"num_generations_eval": 3}, evaluates=True)


def applied(fix):
    """The settings that each of the two alternatives of a fix names."""
    return [{name: int(value)} for name, value in re.findall(r"(\w+)=(\d+)", fix)]


@given(
    prompts=st.integers(1, 40),
    control=st.integers(1, 9),
    intervened=st.integers(0, 9),
    updates=st.integers(1, 3),
    processes=st.integers(1, 9),
    rows=st.none() | st.integers(1, 9),
)
def test_every_plan_is_even_and_every_refusal_names_two_settings_that_work(
    prompts, control, intervened, updates, processes, rows
):
    settings = {
        "prompts_per_update": prompts,
        "num_control": control,
        "num_intervened": intervened if control > 1 else max(1, intervened),
        "updates_per_generation": updates,
        "num_processes": processes,
    }
    sizes = {"per_device_train_batch_size": rows}
    try:
        found = plan(sizes, **settings)
    except ConfigError as error:
        group = control + settings["num_intervened"]
        assert prompts * group % (processes * (rows or 1))
        fixes = applied(error.fix)
        assert len(fixes) == 2 and fixes[0] != fixes[1]
        for fix in fixes:
            changed_sizes = sizes | {name: value for name, value in fix.items() if name in sizes}
            plan(changed_sizes, **settings | {name: value for name, value in fix.items() if name in settings})
        return
    assert found.per_device_train_batch_size == rows or rows is None
    per_step = found.per_device_train_batch_size * processes
    assert found.gradient_accumulation_steps * per_step == prompts * found.num_generations
    assert found.steps_per_generation * per_step == found.generation_batch_size
    assert found.generation_batch_size == updates * prompts * found.num_generations
    assert plan(vars(found) | {"num_generations_eval": None}, **settings) == found  # its own sizes agree with it
