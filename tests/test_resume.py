"""Going on from a checkpoint: exactly as if nothing had happened, or not at all."""

import json
import math

import pytest
import torch
from peft import LoraConfig
from transformers import TrainerCallback

from mintrl_trl import ConfigError, MInTRLConfig
from mintrl_trl.checkpoint_state import FREE_SETTINGS, changes, decisive_settings, describe_judge
from mintrl_trl.checkpoints import last_good
from mintrl_trl.errors import CheckpointError
from mintrl_trl.resume import check_output_folder
from tests.histories import history
from tests.tiny import tiny_model
from tests.trainers import ROWS, RejectLastStep, assert_same_weights, make_trainer, settings, weights

pytestmark = pytest.mark.slow
SAVING = {"save_strategy": "steps", "save_steps": 1, "max_steps": 4, "intervention_updates": 2}


class StopAfter(TrainerCallback):
    """Ends a run as an interrupt does, once an update is done and before it is saved."""

    def __init__(self, update: int):
        self.update = update

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == self.update:
            raise KeyboardInterrupt


def interrupted(folder, update, **options):
    """A run that stops after `update`; closed, as its process would be gone."""
    trainer = make_trainer(folder, **options)
    trainer.add_callback(StopAfter(update))
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    trainer.close()


VARIANTS = {
    "full": {},
    "later pass over the rows": {"rows": ROWS[:4], "max_steps": 5},
    "end of a pass": {"rows": ROWS[:6], "max_steps": 5},
    "local generator": {"generator": None},
    "reset at the switch": {"reset_optimizer_at_switch": True},
    "several updates of a batch": {"updates_per_generation": 2, "save_steps": 2, "per_device_train_batch_size": 4,
                                   "max_steps": 6},
    "several passes over a batch": {"num_iterations": 2, "save_steps": 2, "max_steps": 6},
    "accumulation, schedule": {"per_device_train_batch_size": 2, "lr_scheduler_type": "linear"},
    "adaptive entropy": {"use_adaptive_entropy": True, "entropy_coef": 0.01, "entropy_target": 5.0},
    "moving reference": {"beta": 0.1, "sync_ref_model": True, "ref_model_sync_steps": 1},
    "evaluations": {"eval_strategy": "steps", "eval_steps": 1, "eval_on_start": True,
                    "per_device_eval_batch_size": 8, "num_generations_eval": 4},
}  # fmt: skip


QUICK = ("full", "later pass over the rows", "local generator")


@pytest.mark.parametrize("variant", [pytest.param(v, marks=() if v in QUICK else pytest.mark.slow) for v in VARIANTS])
def test_a_run_that_goes_on_ends_as_one_that_never_stopped(tmp_path, variant):
    """Bitwise the weights, and the same lines apart from times."""
    options = SAVING | VARIANTS[variant]
    stops = (3, 5) if options["save_steps"] == 2 else (2,) if variant == "evaluations" else (options["max_steps"] - 1,)
    if "moving" in variant:
        tiny_model().save_pretrained(tmp_path / "model")
        options["model"] = str(tmp_path / "model")
    if variant == "evaluations":
        options["trainer_kwargs"] = {"eval_dataset": make_rows()}
    whole = make_trainer(tmp_path / "whole", **options)
    whole.train()
    for stop in stops:
        folder = tmp_path / f"stopped-{stop}"
        interrupted(folder, stop, **options)
        trainer = make_trainer(folder, **options)
        trainer.train(resume_from_checkpoint=True)
        assert trainer.resumed_from == str(folder / f"checkpoint-{stop - 1}")
        assert_same_weights(weights(whole), weights(trainer))
        assert history(folder) == history(tmp_path / "whole")
        trainer.close()
    whole.close()


def make_rows():
    from datasets import Dataset

    return Dataset.from_list(list(ROWS[:2]))


@pytest.mark.parametrize("beta", [0.0, pytest.param(0.1, marks=pytest.mark.slow)])
def test_an_adapter_goes_on_too(tmp_path, beta):
    options = SAVING | {
        "generator": None,
        "beta": beta,
        "trainer_kwargs": {"peft_config": LoraConfig(r=2, lora_alpha=4, target_modules=["q_proj", "v_proj"])},
    }
    whole = make_trainer(tmp_path / "whole", **options)
    whole.train()
    interrupted(tmp_path / "stopped", 3, **options)
    trainer = make_trainer(tmp_path / "stopped", **options)
    trainer.train(resume_from_checkpoint="last")
    assert_same_weights(weights(whole), weights(trainer))
    assert history(tmp_path / "stopped") == history(tmp_path / "whole")
    trainer.close()
    whole.close()


def test_what_came_after_the_checkpoint_is_set_aside(tmp_path):
    options = SAVING | {"resumable_checkpoints": 4}
    whole = make_trainer(tmp_path, **options)
    whole.train()
    before = history(tmp_path)
    trainer = make_trainer(tmp_path, **options)
    trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))
    assert_same_weights(weights(whole), weights(trainer))
    assert history(tmp_path) == before
    aside = sorted(path.name for path in (tmp_path / "abandoned-1").iterdir())
    assert aside == ["checkpoint-2", "checkpoint-3", "checkpoint-4", "metrics.jsonl", "rollouts.jsonl"]
    assert [line["update"] for line in history(tmp_path / "abandoned-1")["metrics.jsonl"]] == [2, 3, 4, 4]


def test_the_setting_resumes_as_the_argument_does(tmp_path):
    interrupted(tmp_path, 3, **SAVING)
    trainer = make_trainer(tmp_path, resume_from_checkpoint="true", **SAVING)
    trainer.train()
    assert trainer.resumed_from == str(tmp_path / "checkpoint-2")


def test_a_copy_of_the_run_goes_on_in_another_folder(tmp_path):
    interrupted(tmp_path / "first", 3, **SAVING)
    before = history(tmp_path / "first")
    trainer = make_trainer(tmp_path / "second", **SAVING)
    trainer.train(resume_from_checkpoint=str(tmp_path / "first" / "checkpoint-2"))
    assert history(tmp_path / "first") == before
    assert [line["update"] for line in history(tmp_path / "second")["metrics.jsonl"]] == [3, 4, 4]


# Refusals


def test_a_missing_checkpoint_is_never_a_fresh_start(tmp_path):
    trainer = make_trainer(tmp_path, **SAVING)
    with pytest.raises(CheckpointError, match="holds no checkpoint"):
        trainer.train(resume_from_checkpoint=True)
    with pytest.raises(CheckpointError, match="checkpoint-7 does not exist"):
        trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-7"))
    assert not list(tmp_path.iterdir())


def test_another_run_in_the_folder_is_refused_without_the_flag(tmp_path):
    interrupted(tmp_path, 3, **SAVING)
    before = history(tmp_path)
    with pytest.raises(ConfigError, match="metrics, rollouts or checkpoints of another run") as error:
        make_trainer(tmp_path, **SAVING).train()
    assert f"resume_from_checkpoint={tmp_path / 'checkpoint-2'}" in error.value.fix
    assert "set_aside_older_run=true" in error.value.fix
    assert history(tmp_path) == before
    make_trainer(tmp_path, set_aside_older_run=True, **SAVING).train()
    assert history(tmp_path / "previous-1") == before
    assert last_good(tmp_path / "previous-1").update == 2


def test_a_run_that_made_nothing_does_not_bar_its_folder(tmp_path):
    first = make_trainer(tmp_path, **SAVING)
    first.run_folder.describe(tmp_path, first.args)
    assert check_output_folder(first.args) is None
    make_trainer(tmp_path, **SAVING).train()
    assert not (tmp_path / "settings-2.json").exists()
    assert (tmp_path / "previous-1" / "settings.json").exists()


class Strict(RejectLastStep):
    def __init__(self, level):
        super().__init__()
        self.level = level

    def settings(self):
        return {"level": self.level}


CHANGED = {
    "seed": ({"seed": 7}, "settings.seed: was 42, is 7"),
    "objective": ({"kappa": -0.1}, "settings.kappa: was -0.2, is -0.1"),
    "batch size": ({"per_device_train_batch_size": 4}, "settings.per_device_train_batch_size: was 8, is 4"),
    "data": ({"rows": ROWS[::-1]}, "data.content: was "),
    "fewer rows": ({"rows": ROWS[:6]}, "data.rows: was 8, is 6"),
    "judge": ({"judge": Strict(2)}, "judge.level: was 1, is 2"),
    "kind of judge": ({"judge": RejectLastStep()}, 'judge.class: was "tests.test_resume.Strict", is "tests.trainers.'),
    "tests of the rows": ({"rows": [row | {"tests": "none"} for row in ROWS]}, "data.content: was "),
    "adapter": ({"trainer_kwargs": {"peft_config": LoraConfig(r=2)}}, "policy.parameters: was "),
}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run that was interrupted; tests that go on from it do so in a folder of their own."""
    folder = tmp_path_factory.mktemp("run")
    interrupted(folder, 3, judge=Strict(1), **SAVING)
    return folder


@pytest.mark.parametrize("change", CHANGED)
def test_a_run_that_differs_is_refused_unless_allowed(run, tmp_path, change, caplog):
    changed, message = CHANGED[change]
    options = SAVING | {"judge": Strict(1)} | changed
    with pytest.raises(CheckpointError, match="this run differs from the one that wrote") as error:
        make_trainer(tmp_path, **options).train(resume_from_checkpoint=str(run / "checkpoint-2"))
    assert message in str(error.value)
    assert "allow_changed_resume=true" in str(error.value)
    assert not list(tmp_path.iterdir())
    if change == "objective":
        trainer = make_trainer(tmp_path, allow_changed_resume=True, **options)
        trainer.train(resume_from_checkpoint=str(run / "checkpoint-2"))
        assert trainer.state.global_step == 4
        assert message in caplog.text


def test_length_display_and_places_may_change(run, tmp_path):
    free = {"max_steps": 5, "logging_steps": 5, "save_steps": 5, "resumable_checkpoints": 3, "overlap_reviews": False}
    trainer = make_trainer(tmp_path, judge=Strict(1), **SAVING | free)
    trainer.train(resume_from_checkpoint=str(run / "checkpoint-2"))
    assert trainer.state.global_step == 5


def test_the_length_decides_where_the_learning_rate_follows_from_it():
    constant = MInTRLConfig("runs/demo", **settings())
    linear = MInTRLConfig("runs/demo", **settings(lr_scheduler_type="linear"))
    assert "max_steps" not in decisive_settings(constant)
    assert decisive_settings(linear)["max_steps"] == 2


def test_every_free_setting_exists():
    names = MInTRLConfig("runs/demo", **settings()).to_dict().keys()
    for pattern in FREE_SETTINGS:
        stem = pattern.strip("*")
        matches = [name for name in names if (name == stem or (pattern != stem and stem in name))]
        assert matches, pattern


def test_settings_that_decide_results_are_compared():
    decisive = decisive_settings(MInTRLConfig("runs/demo", **settings()))
    for name in ("seed", "kappa", "anchor", "beta2", "prompts_per_update", "num_generations", "learning_rate", "judge",
                 "judge_model", "temperature", "max_completion_length", "intervention_updates", "beta",
                 "reset_optimizer_at_switch", "gradient_accumulation_steps", "optim", "loss_type"):  # fmt: skip
        assert name in decisive, name


def test_changes_are_listed_one_by_one():
    was = {"settings": {"a": 1, "gone": 2, "deep": {"b": [1]}, "hash": "x"}, "judge": {"class": "A", "hash": "y"}}
    now = {"settings": {"a": 2, "new": 2, "deep": {"b": [2]}, "hash": "z"}, "judge": {"class": "A", "hash": "y"}}
    assert changes(was, was) == []
    assert changes(was, now) == ["settings.a: was 1, is 2", "settings.deep.b: was [1], is [2]"]


def test_judges_describe_themselves():
    assert describe_judge(None) == {"class": None}
    assert describe_judge(Strict(3)) == {"class": "tests.test_resume.Strict", "level": 3}
    assert describe_judge(RejectLastStep()) == {"class": "tests.trainers.RejectLastStep"}


# What a checkpoint holds


def test_a_checkpoint_says_what_its_run_was(tmp_path):
    trainer = make_trainer(tmp_path, save_total_limit=3, **SAVING)
    trainer.train()
    assert trainer.args.save_total_limit == 3
    assert sorted(path.name for path in tmp_path.glob("checkpoint-*")) == [f"checkpoint-{u}" for u in (2, 3, 4)]
    states = {u: json.loads((tmp_path / f"checkpoint-{u}" / "mintrl_state.json").read_text()) for u in (2, 3, 4)}
    assert [(state["update"], state["phase"]) for state in states.values()] == [
        (2, "on_policy"),
        (3, "on_policy"),
        (4, "on_policy"),
    ]
    state = states[4]
    assert state["seed"] == 42
    assert state["run"]["settings"]["kappa"] == -0.2
    assert state["run"]["data"]["rows"] == 8
    assert all(len(part["hash"]) == 32 for part in state["run"].values())
    assert state["versions"]["packages"]["trl"].startswith("1.16")
    assert len(state["review_windows"]) == 1
    assert set(state["review_windows"][0]) == {None}  # reviews that gave a verdict
    mark = json.loads((tmp_path / "checkpoint-4" / "complete.json").read_text())
    assert {"optimizer.pt", "mintrl_state.json", "settings.json", "versions.json"} <= mark["files"].keys()
    assert [json.loads((tmp_path / f"checkpoint-{u}" / "complete.json").read_text())["resumable"] for u in states] == [
        False,
        True,
        True,
    ]


def test_the_window_of_reviews_goes_on(tmp_path):
    interrupted(tmp_path, 2, **SAVING)
    path = tmp_path / "checkpoint-1" / "mintrl_state.json"
    trainer = make_trainer(tmp_path, **SAVING)
    state = json.loads(path.read_text())
    state["review_windows"] = [["timeout", None, "timeout"]]
    text = json.dumps(state, indent=2) + "\n"
    mark = json.loads((path.parent / "complete.json").read_text())
    path.write_text(text)
    mark["files"]["mintrl_state.json"] = len(text)
    (path.parent / "complete.json").write_text(json.dumps(mark))
    trainer.train(resume_from_checkpoint=True)
    assert trainer.sampler.review_window[:3] == ["timeout", None, "timeout"]
    assert trainer.sampler._reviewer.failures._failures == 2


def test_weights_alone_are_no_place_to_go_on_from(tmp_path):
    make_trainer(tmp_path, save_only_model=True, **SAVING).train()
    with pytest.raises(CheckpointError, match="checkpoint-4 keeps the weights alone"):
        make_trainer(tmp_path, **SAVING).train(resume_from_checkpoint=True)


def test_trls_own_checkpoint_is_refused(tmp_path):
    interrupted(tmp_path, 3, **SAVING)
    (tmp_path / "checkpoint-2" / "complete.json").unlink()
    with pytest.raises(CheckpointError, match=r"another program wrote it\. The last one .* is .*checkpoint-1"):
        make_trainer(tmp_path, **SAVING).train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))


def test_random_numbers_of_the_run_do_not_depend_on_a_resume(tmp_path):
    interrupted(tmp_path, 3, **SAVING)
    torch.manual_seed(999)
    trainer = make_trainer(tmp_path, **SAVING)
    trainer.train(resume_from_checkpoint=True)
    assert math.isfinite(trainer.state.log_history[-2]["loss"])


def test_an_evaluation_before_training_belongs_to_the_run(tmp_path):
    trainer = make_trainer(tmp_path, max_steps=1, intervention_updates=1)
    trainer.evaluate(make_rows())
    trainer.train()
    assert [line["update"] for line in history(tmp_path)["metrics.jsonl"]] == [0, 1, 1]
    with pytest.raises(ConfigError, match="set_aside_older_run"):
        trainer.train()
    trainer.close()
    another = make_trainer(tmp_path, max_steps=1, intervention_updates=1)
    another.evaluate(make_rows())
    with pytest.raises(ConfigError, match="set_aside_older_run"):
        another.train()
    another.close()
