"""`mintrl replay`: a recorded update gives its logged loss and gradient norm again, and shows where numbers break."""

import io
import json
import math
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console
from transformers import AutoModelForCausalLM

from mintrl_trl import MInTRLConfig, MInTRLTrainer
from mintrl_trl.baselines import build_trainer
from mintrl_trl.baselines.ablations import AblationTrainer
from mintrl_trl.checkpoints import list_checkpoints, write_mark
from mintrl_trl.cli import main
from mintrl_trl.config_ablations import AblationConfig
from mintrl_trl.errors import CheckpointError, ConfigError, DataError, NumericsError
from mintrl_trl.recipe import parse_recipe
from mintrl_trl.replay import Replayer
from mintrl_trl.reporting.replay_report import ReplayedRollout, ReplayedUpdate, print_replay
from mintrl_trl.reporting.run_folder import RunFolder
from mintrl_trl.resume import started_with
from mintrl_trl.tasks import build_task

from .samples import corrected_record
from .test_importance_correction import CORRECTED, Spread
from .tiny import tiny_model, tiny_tokenizer
from .trainers import RejectLastStep, make_trainer, settings

TRAINERS = {MInTRLConfig: MInTRLTrainer, AblationConfig: AblationTrainer}
SAVED = {"max_steps": 4, "save_strategy": "steps", "save_steps": 1, "resumable_checkpoints": 9}
QUICKSTART = Path(__file__).parents[1] / "recipes" / "quickstart.yaml"


def base_model(folder):
    """What tiny runs begin with, in a folder."""
    tiny_model().save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return str(folder)


def assert_replays(replayed):
    assert replayed.loss == pytest.approx(replayed.logged_loss, rel=1e-6, abs=1e-8)
    assert replayed.grad_norm == pytest.approx(replayed.logged_grad_norm, rel=1e-6)
    assert replayed.agrees(1e-6)
    assert replayed.broken == () and replayed.notes == ()


def some_rewards(completion_ids, **kwargs):
    return [None if len(ids) % 5 == 0 else float(sum(ids) % 2) for ids in completion_ids]


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"per_device_train_batch_size": 2, "anchor": "judge", "reward": some_rewards, "unscored_limit": 1.0},
        {
            "per_device_train_batch_size": 4,
            "lean_updates": False,
            "loss_scale": 3.0,
            "mask_truncated_completions": True,
        },
        {"updates_per_generation": 2, "save_steps": 2, "anchor": "proxy", "per_device_train_batch_size": 4},
        {"generator": Spread(), **CORRECTED},
        {"trainer_class": AblationTrainer, "config_class": AblationConfig, "phase1_loss": "grpo"},
        {"trainer_class": AblationTrainer, "config_class": AblationConfig, "const_bonus": "successes"},
        {"intervention_updates": 0, "loss_type": "dr_grpo", "per_device_train_batch_size": 2},
    ],
    ids=["const", "judge", "trls-layout", "two-updates", "corrected", "grpo-in-phase-1", "bonus", "dr-grpo"],
)
def test_every_update_gives_its_logged_loss_and_gradient_norm(tmp_path, changes):
    judge = RejectLastStep(logps=(-0.3, -0.7))
    trainer = make_trainer(tmp_path / "run", **({"judge": judge, "intervention_updates": 2} | SAVED | changes))
    trainer.train()
    trainer.close()
    replayer = Replayer(tmp_path / "run", TRAINERS)
    updates = list(replayer.replayable())
    assert updates == ([3] if "updates_per_generation" in changes else [2, 3, 4])
    assert_replays(replayer.replay(1, model=base_model(tmp_path / "base")))
    for update in updates:
        replayed = replayer.replay(update)
        assert_replays(replayed)
        assert replayed.phase == ("interventions" if update <= trainer.args.intervention_updates else "on-policy")
        assert len(replayed.rollouts) == 8
    # On another layout of micro-batches, too.
    assert replayer.replay(updates[-1], micro_batch=2).agrees(1e-5)


@pytest.mark.slow
def test_terms_of_a_rollout_add_up_to_the_loss(tmp_path):
    make_trainer(tmp_path / "run", **SAVED, logging_steps=2).train()
    replayed = Replayer(tmp_path / "run", TRAINERS).replay(2)
    assert replayed.logged_loss is None, "it is a mean over two updates"
    assert "logging_steps" in replayed.notes[0]
    assert replayed.grad_norm == pytest.approx(replayed.logged_grad_norm, rel=1e-6)
    assert replayed.loss == pytest.approx(sum(rollout.loss for rollout in replayed.rollouts) / 8, rel=1e-6)
    for rollout in replayed.rollouts:
        assert rollout.loss == pytest.approx(rollout.residual**2, rel=1e-6)
        assert rollout.residual == pytest.approx(1e-3 * rollout.log_ratio - rollout.advantage, rel=1e-5, abs=1e-7)
        assert rollout.live or rollout.logp is None


@pytest.mark.slow
@pytest.mark.parametrize("adapter", [False, True], ids=["full", "adapter"])
def test_a_recipes_run_is_replayed_from_its_first_update_by_the_command(tmp_path, capsys, adapter):
    flags = ["--max_steps", "2", "--prompts_per_update", "2", "--num_control", "4", "--num_intervened", "4"]
    flags += ["--intervention_updates", "1", "--eval_problems", "0", "--eval_every", "0", "--output_dir", str(tmp_path)]
    flags += ["--per_device_train_batch_size", "8", "--save_strategy", "steps", "--save_steps", "1"]
    if adapter:
        flags += ["--use_peft", "true", "--lora_r", "2", "--lora_target_modules", "all-linear"]
    recipe = parse_recipe(flags, default=QUICKSTART)
    trainer = build_trainer(recipe, build_task(recipe))
    trainer.train()
    trainer.close()
    capsys.readouterr()
    assert main(["replay", str(tmp_path)]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in listed] == ["updates", "1", "2", "any"]
    assert listed[1] == "     1  from the small world's base model"
    before = sorted(path.name for path in tmp_path.iterdir())
    for flags in (["1"], ["1", "--model", "chains_base"], ["2"]):
        assert main(["replay", str(tmp_path), "--step", *flags, "--json"]) == 0
        replayed = json.loads(capsys.readouterr().out)
        assert replayed["loss"] == pytest.approx(replayed["logged_loss"], rel=1e-6, abs=1e-8)
        assert replayed["grad_norm"] == pytest.approx(replayed["logged_grad_norm"], rel=1e-6)
    assert {*before, ".rollouts.index"} == {path.name for path in tmp_path.iterdir()}
    assert main(["replay", str(tmp_path), "--step", "3"]) == 2
    assert "one of these updates: 1, 2" in capsys.readouterr().err


@pytest.mark.slow
def test_numbers_that_are_not_finite_are_found_where_they_are(tmp_path, capsys):
    make_trainer(tmp_path / "run", **SAVED).train()
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "run" / "checkpoint-1")
    unused = tiny_tokenizer().convert_tokens_to_ids("7")
    with torch.no_grad():
        model.model.embed_tokens.weight[unused, 0] = math.nan
    model.save_pretrained(tmp_path / "broken")
    tiny_tokenizer().save_pretrained(tmp_path / "broken")
    replayed = Replayer(tmp_path / "run", TRAINERS).replay(2, model=str(tmp_path / "broken"))
    assert math.isnan(replayed.loss)
    assert not replayed.agrees(1.0)
    assert replayed.broken[0] == "weights before the update: model.embed_tokens.weight"
    assert replayed.broken[1].startswith("log-probabilities: row ")
    assert replayed.broken[1].endswith(" more")
    assert replayed.broken[2].startswith("gradients: model.")
    assert main(["replay", str(tmp_path / "run"), "--step", "2", "--model", str(tmp_path / "broken")]) == 1
    output = capsys.readouterr().out
    assert "not finite: weights before the update" in output
    assert "not comparable" in output


@pytest.mark.slow
def test_an_update_that_broke_is_replayed_from_the_weights_it_leaves(tmp_path):
    trainer = make_trainer(
        tmp_path, **(SAVED | {"save_steps": 4, "optim": "sgd", "learning_rate": 1e38, "max_grad_norm": 0.0})
    )
    with pytest.raises(NumericsError) as stopped:
        trainer.train()
    broke = trainer.state.global_step + 1
    assert f"--step {broke}` shows where it broke" in stopped.value.__notes__[0]
    replayer = Replayer(tmp_path, TRAINERS)
    assert [weights.described for weights in replayer.replayable().values()] == [f"weights-before-{broke}"]
    replayed = replayer.replay(broke)
    assert math.isnan(replayed.loss)
    assert replayed.logged_loss is None
    assert replayed.broken[0].startswith("weights before the update: model.embed_tokens.weight, ")


@pytest.fixture
def run(tmp_path):
    """Settings and records of two updates, one checkpoint that was thinned and one that is half; no model."""
    folder = RunFolder(tmp_path / "run")
    folder.write_config(MInTRLConfig(str(tmp_path / "run"), **settings(judge="llm", judge_base_url="http://a/v1")))
    for update in (1, 2, 3):
        folder.append_rollouts(replace(corrected_record(), update=update, row=row, group=row // 4) for row in range(8))
    for update, whole in ((1, True), (2, False)):
        checkpoint = folder.path / f"checkpoint-{update}"
        checkpoint.mkdir()
        (checkpoint / "model.safetensors").write_bytes(b"weights")
        if whole:
            write_mark(checkpoint, update, resumable=False, thinned=True)
    assert len(list_checkpoints(folder.path)) == 2
    return folder


def test_updates_with_the_weights_before_them_are_listed(run, capsys):
    assert main(["replay", str(run.path)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "updates with the weights before them:",
        "     2  from checkpoint-1 (rounded)",
        "any of these: --step N; any other: --step N --model WEIGHTS, those before it",
    ]
    run.write_recipe({"task": "math", "model_name_or_path": "some/model"})
    assert [weights.described for weights in Replayer(run.path, TRAINERS).replayable().values()] == [
        "some/model",
        "checkpoint-1",
    ]


@pytest.mark.slow
def test_a_run_from_a_named_model_is_replayed_from_its_first_update(tmp_path, monkeypatch):
    base_model(tmp_path / "base")
    monkeypatch.chdir(tmp_path)
    make_trainer(tmp_path / "run", model="base", max_steps=1).train()
    assert json.loads((tmp_path / "run" / "start.json").read_text()) == {
        "model": str(tmp_path / "base"),
        "device": "cpu",
    }
    monkeypatch.chdir("/")
    assert_replays(Replayer(tmp_path / "run", TRAINERS).replay(1))


def test_what_a_run_begins_with_is_named_where_the_name_says_all_of_it(run, tmp_path):
    cpu = torch.device("cpu")
    assert started_with("some/model", cpu) == {"model": "some/model", "device": "cpu"}
    assert started_with("some/model", torch.device("cuda", 1), "an adapter") == {"model": None, "device": "cuda"}
    assert started_with(tiny_model(), cpu)["model"] is None
    run.write_start(started_with("some/model", cpu))
    assert Replayer(run.path, TRAINERS).replayable()[1].source == "some/model"


def test_the_weights_before_an_update_are_named_as_for_eval(run):
    replayer = Replayer(run.path, TRAINERS)
    with pytest.raises(ConfigError, match="a hub id with its owner"):
        replayer.replay(1, model="chains_bse")
    (run.path / "checkpoint-2" / "config.json").write_text("{}")
    write_mark(run.path / "checkpoint-2", 2, resumable=False)
    with pytest.raises(ConfigError, match=r"a single model.*checkpoint-2"):
        replayer.replay(1, model=str(run.path))


@pytest.mark.parametrize(
    ("use_cpu", "torch_version", "start", "device"),
    [
        (True, "2.13.0", {}, "cpu"),
        (False, "2.13.0+cpu", {}, "cpu"),
        (False, "2.13.0", {"device": "cpu"}, "cpu"),
        (False, "2.13.0", {"device": "cuda"}, "a GPU: was"),
        (False, "2.13.0", {"device": "mps"}, "mps: was"),
        (False, "2.13.0", {}, "a GPU: may have been"),
    ],
)
def test_a_run_on_a_cpu_is_not_said_to_have_been_on_a_gpu(tmp_path, use_cpu, torch_version, start, device):
    folder = RunFolder(tmp_path)
    folder.write_config({"use_cpu": use_cpu})
    (tmp_path / "versions.json").write_text(json.dumps({"packages": {"torch": torch_version}}))
    if start:
        folder.write_start({"model": None} | start)
    where, _, was = device.partition(": ")
    note = f"the run {was} on {where}, the replay is on a CPU"
    assert Replayer(tmp_path, TRAINERS).device_notes(on_cpu=True) == ([note] if was else [])
    assert Replayer(tmp_path, TRAINERS).device_notes(on_cpu=False) == (
        ["the run was on a CPU, the replay is on a GPU"] if not was else []
    )


def test_what_cannot_be_replayed_says_why(run, tmp_path):
    replayer = Replayer(run.path, TRAINERS)
    with pytest.raises(CheckpointError, match=r"update 3 needs .* checkpoint-2.*--model FOLDER.*these updates: 2"):
        replayer.replay(3)
    with pytest.raises(DataError, match=r"`update` is 0.*8 rollouts of update 9"):
        replayer.replay(9, model="some/model")
    with pytest.raises(DataError, match=r"settings\.json"):
        Replayer(tmp_path, TRAINERS)
    run.append_rollouts(replace(corrected_record(), update=4, row=row, prompt_ids=None) for row in range(8))
    with pytest.raises(DataError, match=r"prompt_ids.*older version"):
        replayer.replay(4, model="some/model")
    run.write_recipe({"method": "opd"})
    with pytest.raises(ConfigError, match="mintrl or grpo"):
        Replayer(run.path, TRAINERS)


@pytest.mark.parametrize(
    ("changes", "update", "message"),
    [
        ({"updates_per_generation": 2}, 2, "write --step 1"),
        ({"updates_per_generation": 2, "lean_updates": False}, 1, "lean_updates"),
        ({"beta": 0.1, "intervention_updates": 0, "updates_per_generation": 2}, 1, "reference model"),
    ],
    ids=["inside-a-batch", "trls-shuffle", "reference"],
)
def test_updates_that_need_more_than_what_is_recorded_are_refused(tmp_path, changes, update, message):
    folder = RunFolder(tmp_path)
    config = MInTRLConfig(str(tmp_path), **settings(judge="llm", judge_base_url="http://a/v1", max_steps=6, **changes))
    folder.write_config(config)
    rows = range(config.generation_batch_size)
    folder.append_rollouts(replace(corrected_record(), update=1, row=row) for row in rows)
    with pytest.raises(ConfigError, match=message):
        Replayer(tmp_path, TRAINERS).replay(update, model="some/model")


ROLLOUT = ReplayedRollout(3, 0, "intervened", 1.0, 0.5, 40, 2, True, -9.5, None, 0.25, -8.0, -0.5, 0.008)
UPDATE = ReplayedUpdate(7, "interventions", "checkpoint-6", False, 0.25, 1.5, 0.25, 1.2, (ROLLOUT,))


def test_an_update_is_compared_with_what_was_logged():
    assert not UPDATE.agrees(0.1)
    assert UPDATE.agrees(0.3)
    assert replace(UPDATE, logged_loss=None, logged_grad_norm=None).agrees(0.0)
    assert not replace(UPDATE, broken=("gradients: a",)).agrees(1.0)
    assert not replace(UPDATE, loss=math.nan).agrees(1.0)
    assert not replace(UPDATE, loss=math.nan, logged_loss=None).agrees(1.0)
    assert replace(UPDATE, loss=2e-9, logged_loss=-3e-9).agrees(0.3), "rounding of a loss that is zero"


def test_rounded_weights_may_differ_by_more(run, monkeypatch, capsys):
    near = replace(UPDATE, grad_norm=1.2 * 1.005)  # half a percent
    for rounded, flags, code in [(False, [], 1), (True, [], 0), (True, ["--tolerance", "0.001"], 1)]:
        update = replace(near, rounded=rounded)
        monkeypatch.setattr(Replayer, "replay", lambda *a, update=update, **k: update)
        assert main(["replay", str(run.path), "--step", "2", *flags]) == code
    capsys.readouterr()


def test_a_run_that_went_on_with_other_settings_is_replayed_with_those_of_the_update(run):
    for folder, size in ((run.path / "checkpoint-2", 2.0), (run.path, 3.0)):
        other = settings(judge="llm", judge_base_url="http://a/v1", loss_scale=size)
        RunFolder(folder).write_config(MInTRLConfig(str(run.path), **other))
    write_mark(run.path / "checkpoint-2", 2, resumable=True)
    replayer = Replayer(run.path, TRAINERS)
    assert [replayer._settings_at(update)["loss_scale"] for update in (2, 3)] == [2.0, 3.0]


def test_settings_that_this_version_refuses_are_not_taken_for_flags(run, capsys):
    path = run.path / "settings.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"kappa": 0.5}))
    assert main(["replay", str(run.path), "--step", "2"]) == 2
    said = capsys.readouterr().err
    assert "--kappa" not in said
    assert "versions.json" in said


def test_a_reader_of_the_list_may_leave(run, monkeypatch):
    monkeypatch.setattr(sys.stdout, "write", lambda text: (_ for _ in ()).throw(BrokenPipeError))
    monkeypatch.setattr(os, "dup2", lambda *places: None)
    assert main(["replay", str(run.path)]) == 0


def test_the_report_lists_the_largest_loss_first_and_what_broke_before_it():
    dead = replace(ROLLOUT, row=4, live=False, loss=0.0, logp=None)
    broken = replace(ROLLOUT, row=5, loss=math.nan, broken_at=17)
    update = replace(UPDATE, rollouts=(dead, ROLLOUT, broken), notes=("rounded",), broken=("row 5",), logged_loss=None)
    console = Console(file=io.StringIO(), width=40)
    print_replay(update, console, limit=2)
    lines = console.file.getvalue().splitlines()
    assert lines[:5] == [
        "update 7 (interventions), 3 rollouts, weights: checkpoint-6",
        "loss          0.25   not logged",
        "gradient norm 1.5   logged 1.2, relative difference 2.5e-01",
        "note: rounded",
        "not finite: row 5",
    ]
    assert [line.split()[0] for line in lines[7:]] == ["row", "5", "3"]
    assert json.loads(json.dumps(update.to_json(), allow_nan=False))["rollouts"][2]["loss"] == "nan"
    console = Console(file=io.StringIO(), width=40)
    print_replay(update, console, limit=None)
    assert console.file.getvalue().splitlines()[-1].split()[0] == "(4)"


def test_on_policy_updates_have_no_empty_columns():
    plain = replace(ROLLOUT, loss=None, log_ratio=None, residual=None, imitation_bonus=None)
    console = Console(file=io.StringIO())
    print_replay(replace(UPDATE, phase="on-policy", rollouts=(plain,)), console)
    heading = console.file.getvalue().splitlines()[-2].split()
    assert heading == ["row", "group", "role", "reward", "advantage", "tokens", "judge's", "log-prob"]


@pytest.mark.parametrize("flags", [["--step", "0"], ["--micro-batch", "0"], ["--limit", "-1"]], ids=lambda f: f[0])
def test_numbers_out_of_range_are_refused(run, capsys, flags):
    assert main(["replay", str(run.path), *flags]) == 2
    assert flags[0] in capsys.readouterr().err
