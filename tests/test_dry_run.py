"""The largest update before the first rollout: it goes through everything and changes nothing."""

import io

import pytest
import torch
from peft import LoraConfig
from rich.console import Console
from transformers import Qwen3ForCausalLM

from mintrl_trl import MemoryLimitError, NumericsError
from mintrl_trl.dry_run import DryRunCallback
from tests.histories import history
from tests.tiny import tiny_model
from tests.trainers import HashGenerator, assert_same_weights, make_trainer, weights

GIB = 2**30


class FakeMemory:
    """Says what it is told to. Counts how often it was asked for the peak."""

    name = "a fake device"

    def __init__(self, peak, room):
        self.asked = 0
        self._peak, self._room = peak, room

    def reset(self):
        pass

    def held(self):
        return GIB

    def peak(self):
        self.asked += 1
        return self._peak

    def reserved(self):
        return None

    def room(self):
        return self._room


def run(folder, *, dry, resume=None, **settings):
    """What a run leaves behind: weights, metrics without times, and whether its random state moved."""
    trainer = make_trainer(folder, dry_run_worst_case=dry, **settings)
    trainer.train(resume)
    left = weights(trainer), history(folder), torch.rand(3).tolist()
    trainer.close()
    return left


LORA = {"peft_config": LoraConfig(r=2, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")}


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"gradient_checkpointing": True, "per_device_train_batch_size": 4},
        {"trainer_kwargs": LORA},
        {"updates_per_generation": 2, "per_device_train_batch_size": 4},
        {"num_iterations": 2, "intervention_updates": 0},
        {"beta": 0.1, "intervention_updates": 1},
        {"use_adaptive_entropy": True, "intervention_updates": 1},
        {"optim": "sgd", "optim_args": "momentum=0.9"},
        {"optim": "adafactor"},
        {"lean_updates": False},
    ],
    ids=[
        "plain",
        "checkpointed",
        "LoRA",
        "two updates",
        "GRPO, two iterations",
        "KL",
        "entropy",
        "SGD",
        "Adafactor",
        "TRL",
    ],
)
def test_a_run_is_the_same_with_and_without(tmp_path, given):
    if "beta" in given:  # TRL loads the reference from where the model came from
        tiny_model().save_pretrained(tmp_path / "model")
        given = given | {"model": str(tmp_path / "model")}
    without = run(tmp_path / "without", dry=False, **given)
    torch.manual_seed(0)
    dry = run(tmp_path / "dry", dry=True, **given)
    assert_same_weights(dry[0], without[0])
    assert dry[1] == without[1]
    assert dry[2] == without[2]


def test_a_resumed_run_keeps_its_optimizer_state(tmp_path):
    saving = {"max_steps": 4, "save_strategy": "steps", "save_steps": 2}
    whole = run(tmp_path / "whole", dry=False, **saving)
    run(tmp_path / "parts", dry=False, **saving)
    resumed = run(tmp_path / "parts", dry=True, resume=str(tmp_path / "parts" / "checkpoint-2"), **saving)
    assert_same_weights(resumed[0], whole[0])


class Recorder(Qwen3ForCausalLM):
    """Notes the shapes it is given."""

    def __init__(self, config):
        super().__init__(config)
        self.shapes = []
        self.model.register_forward_pre_hook(self._note, with_kwargs=True)

    def _note(self, module, args, kwargs):
        self.shapes.append((tuple(kwargs["input_ids"].shape), torch.is_grad_enabled()))


def test_it_comes_before_any_rollout_and_has_full_length(tmp_path):
    """Two phases of 4 rows x (20 + 16) tokens, then the micro-batches of real rollouts."""
    generator = HashGenerator()
    asked = []

    class Console:
        def print(self, *args, **kwargs):
            asked.append(len(generator.requests))

    model = Recorder(tiny_model().config)
    trainer = make_trainer(
        tmp_path, model=model, generator=generator, per_device_train_batch_size=4, max_prompt_length=20, max_steps=3
    )
    trainer.callback_handler.callbacks.insert(0, DryRunCallback(trainer, Console()))
    trainer.train()
    assert asked == [0]
    assert model.shapes[:2] == [((4, 36), True)] * 2
    assert all(shape[1] < 36 for shape, _ in model.shapes[2:])


def test_a_run_of_one_phase_tries_that_one(tmp_path):
    model = Recorder(tiny_model().config)
    trainer = make_trainer(tmp_path, model=model, intervention_updates=2, max_steps=2, dry_run_worst_case=True)
    trainer.train()
    assert [shape for shape, _ in model.shapes].count((8, 48)) == 1


def test_the_report_says_what_memory_is_made_of(tmp_path):
    output = io.StringIO()
    trainer = make_trainer(tmp_path, max_steps=1)
    memory = FakeMemory(peak=3 * GIB, room=4 * GIB)
    trainer.add_callback(DryRunCallback(trainer, Console(file=output, soft_wrap=True), memory))
    trainer.train()
    assert output.getvalue().startswith("dry run: 8 x (32 + 16) tokens, ")
    assert "peak 3.00 of 4.00 GiB (75%) of a fake device" in output.getvalue()
    assert memory.asked == 1


def test_what_does_not_fit_stops_the_run_before_any_rollout(tmp_path):
    generator = HashGenerator()
    trainer = make_trainer(tmp_path, generator=generator, max_steps=1)
    before = weights(trainer)
    trainer.add_callback(DryRunCallback(trainer, memory=FakeMemory(peak=4 * GIB, room=4 * GIB)))
    with pytest.raises(MemoryLimitError) as caught:
        trainer.train()
    text = str(caught.value)
    assert "8 x (32 + 16) tokens" in text
    assert "1. per_device_train_batch_size=4 (about 2.5 GiB)" in text
    assert "2. gradient_checkpointing=True" in text
    assert not generator.requests
    assert_same_weights(weights(trainer), before)


class Hungry(Qwen3ForCausalLM):
    """Has no memory for rows of full length."""

    error: Exception = torch.OutOfMemoryError("tried to allocate 20.00 GiB")

    def __init__(self, config):
        super().__init__(config)
        self.model.register_forward_pre_hook(self._refuse, with_kwargs=True)

    def _refuse(self, module, args, kwargs):
        if kwargs["input_ids"].shape[1] == 48:
            raise self.error


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("tried to allocate 20.00 GiB"),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"),
        MemoryError(),
    ],
    ids=["device", "main memory", "Python"],
)
def test_running_out_of_memory_says_what_to_change(tmp_path, error):
    model = Hungry(tiny_model().config)
    model.error = error
    trainer = make_trainer(tmp_path, model=model, dry_run_worst_case=True, max_steps=1)
    with pytest.raises(MemoryLimitError, match=r"1\. per_device_train_batch_size=4\n  2\. gradient_checkpointing=True"):
        trainer.train()


def test_other_errors_stay_what_they_are(tmp_path):
    model = Hungry(tiny_model().config)
    model.error = RuntimeError("shapes do not match")
    with pytest.raises(RuntimeError, match="shapes do not match"):
        make_trainer(tmp_path, model=model, dry_run_worst_case=True).train()


class Restless(torch.optim.SGD):
    """Moves weights whatever the gradients are."""

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for weight in group["params"]:
                weight.add_(1e-3)


def test_an_optimizer_that_cannot_stand_still_is_found_out(tmp_path):
    model = tiny_model()
    trainer = make_trainer(
        tmp_path,
        model=model,
        dry_run_worst_case=True,
        trainer_kwargs={"optimizers": (Restless(model.parameters(), lr=0.1), None)},
    )
    with pytest.raises(NumericsError, match="Restless"):
        trainer.train()
