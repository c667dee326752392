"""The line about an update: what it holds, in which order, when it is printed, and its clock."""

import io
import time
from types import SimpleNamespace

import pytest
from rich.console import Console
from transformers import TrainerControl, TrainerState

from mintrl_trl.reporting import console as module
from mintrl_trl.reporting.console import ConsoleCallback

FULL = {
    "loss": 0.25,
    "rewards/control": 0.4375,
    "rewards/intervened": 1.0,
    "groups/rescued": 0.5,
    "off_policy_share": 0.0196,
    "judge/revise_rate": 0.27,
    "judge/no_verdict": 0.0,
    "entropy/sample": 0.0234,
    "entropy": 9.0,
    "grad_norm": 0.309,
    "learning_rate": 1e-4,
}


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still until it is moved."""
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock.now))
    return clock


def callback(intervention_updates=90, width=40):
    stream = io.StringIO()
    console = Console(file=stream, width=width, highlight=False, soft_wrap=True)
    return ConsoleCallback(intervention_updates, console), stream


def make_updates(shown, clock, updates, seconds):
    """Updates of so many seconds each, with evaluations of a minute between them."""
    shown.on_train_begin(None, TrainerState(), TrainerControl())
    for _ in range(updates):
        clock.now += 60
        shown.on_step_begin(None, TrainerState(), TrainerControl())
        clock.now += seconds
        shown.on_step_end(None, TrainerState(), TrainerControl())


def test_a_small_gradient_is_not_none_and_an_update_without_contrast_says_so():
    line = callback()[0].line({"grad_norm": 0.0036, "groups/dead": 1.0}, 20, 150)
    assert line == "update  20/150 interventions · grad norm 0.0036 · all groups dead"
    assert "dead" not in callback()[0].line({"groups/dead": 0.5}, 20, 150)


def test_the_whole_line(clock):
    shown, _ = callback()
    make_updates(shown, clock, 20, 1.5)
    assert shown.line(FULL, 20, 150) == (
        "update  20/150 interventions · reward 0.44 · intervened 1.00 · rescued 50% · off-policy 2.0% · revised 27% · "
        "no verdict 0% · entropy 0.02 · grad norm 0.31 · 1.50 s/update, 3:15 left"
    )


def test_absent_metrics_leave_no_gap(clock):
    shown, _ = callback()
    assert shown.line({"loss": 1.0, "grad_norm": 2.0}, 0, 5) == "update 0/5 interventions · grad norm 2"


@pytest.mark.parametrize(
    ("intervention_updates", "update", "phase"),
    [(2, 1, "interventions"), (2, 2, "interventions"), (2, 3, "on-policy"), (0, 1, "on-policy")],
)
def test_the_phase_ends_with_its_last_update(intervention_updates, update, phase):
    shown, _ = callback(intervention_updates)
    assert shown.line({}, update, 9).startswith(f"update {update}/9 {phase}")


def test_entropy_is_trls_in_the_second_phase_and_shown_once():
    shown, _ = callback(0)
    assert "entropy 0.50" in shown.line({"entropy": 0.5}, 3, 5)
    assert shown.line({"entropy/sample": 0.25, "entropy": 0.5}, 3, 5).count("entropy") == 1


def test_time_is_counted_from_where_a_resumed_run_starts(clock):
    shown, _ = callback()
    assert "s/update" not in shown.line({}, 40, 50)
    make_updates(shown, clock, 4, 2.0)
    assert shown.line({}, 44, 50).endswith("2.00 s/update, 0:12 left")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0:00"), (59.6, "1:00"), (61, "1:01"), (3599, "59:59"), (3600, "1:00:00"), (90_061, "25:01:01")],
)
def test_clock(clock, seconds, text):
    shown, _ = callback()
    make_updates(shown, clock, 1, seconds)
    assert shown.line({}, 1, 2).endswith(f"{text} left")


@pytest.mark.parametrize(
    ("state", "logs", "printed"),
    [
        ({"is_world_process_zero": True}, {"loss": 0.1}, True),
        ({"is_world_process_zero": False}, {"loss": 0.1}, False),
        ({"is_world_process_zero": True}, {"eval_reward": 0.1}, False),
        ({"is_world_process_zero": True}, {"train_runtime": 9.0, "train_loss": 0.1}, False),
        ({"is_world_process_zero": True}, None, False),
    ],
    ids=["update", "other process", "evaluation", "end", "nothing"],
)
def test_a_line_is_printed_for_updates_by_the_main_process(state, logs, printed):
    shown, stream = callback()
    shown.on_train_begin(None, TrainerState(global_step=1), TrainerControl())
    shown.on_log(None, TrainerState(global_step=1, max_steps=2, **state), TrainerControl(), logs=logs)
    assert stream.getvalue() == ("update 1/2 interventions\n" if printed else "")


def test_a_long_line_stays_one_line(clock):
    shown, stream = callback(width=40)
    shown.on_train_begin(None, TrainerState(global_step=0), TrainerControl())
    clock.now += 1
    shown.on_log(None, TrainerState(global_step=1, max_steps=150), TrainerControl(), logs=FULL)
    assert stream.getvalue().count("\n") == 1
    assert len(stream.getvalue()) > 150


def test_lines_go_to_standard_output_by_default(capsys):
    shown = ConsoleCallback(0)
    shown.on_train_begin(None, TrainerState(global_step=1), TrainerControl())
    shown.on_log(None, TrainerState(global_step=1, max_steps=1), TrainerControl(), logs={"loss": 0.0})
    assert capsys.readouterr().out == "update 1/1 on-policy\n"


def test_a_line_costs_next_to_nothing():
    shown, _ = callback()
    started = time.perf_counter()
    for update in range(1000):
        shown.line(FULL, update, 1000)
    assert time.perf_counter() - started < 1


def test_a_loss_that_says_how_far_a_run_is_stands_in_the_line():
    shown = ConsoleCallback(0, Console(file=io.StringIO()), loss="distillation loss")
    line = shown.line({"loss": 0.01234, "rewards/control": 0.5}, 3, 150)
    assert line.startswith("update   3/150 on-policy · distillation loss 0.0123 · reward 0.50")
