"""What this package takes from TRL's private parts, one assertion per finding.

A TRL upgrade that moves one of them fails here first. Hand-worked numbers pin the arithmetic of the on-policy
phase.
"""

import copy
import inspect

import pytest
import torch
from datasets import Dataset
from transformers import Trainer
from trl import GRPOConfig, GRPOTrainer
from trl.trainer import grpo_trainer

from mintrl_trl.sharing.trainer_hub import PushesToHub
from tests.tiny import tiny_model, tiny_tokenizer


def make_trainer(tmp_path, reward=None, trainer_class=GRPOTrainer, **overrides):
    settings = dict(
        per_device_train_batch_size=4,
        gradient_accumulation_steps=1,
        num_generations=4,
        max_completion_length=8,
        max_steps=1,
        learning_rate=1e-3,
        logging_steps=1,
        report_to="none",
        bf16=False,
        use_cpu=True,
        gradient_checkpointing=False,
        save_strategy="no",
        disable_tqdm=True,
    )
    return trainer_class(
        model=tiny_model(),
        reward_funcs=reward or (lambda completions, **kwargs: [float(i % 4 == 0) for i in range(len(completions))]),
        args=GRPOConfig(str(tmp_path), **(settings | overrides)),
        train_dataset=Dataset.from_list([{"prompt": f"{i}+1=", "answer": str(i + 1)} for i in range(8)]),
        processing_class=tiny_tokenizer(),
    )


class Scripted(GRPOTrainer):
    """Gives fixed completions and keeps what the hook was asked."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.hook_calls = []
        self.batches = []

    def _generate_single_turn(self, prompt_ids, images, multimodal_fields, num_generations, **kwargs):
        self.hook_calls.append((copy.deepcopy(prompt_ids), num_generations))
        return [[5 + i, 6, 2] for i in range(len(prompt_ids))], None

    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        self.batches.append(output)
        return output


def test_the_generation_hook_gets_prompts_already_repeated_and_contiguous(tmp_path):
    trainer = make_trainer(tmp_path, trainer_class=Scripted, per_device_train_batch_size=8)
    trainer.train()
    (prompt_ids, num_generations), *_ = trainer.hook_calls
    assert num_generations == 4
    assert len(prompt_ids) == 8
    assert prompt_ids[0] == prompt_ids[3] != prompt_ids[4] == prompt_ids[7]


def test_prompts_become_ids_in_one_place_and_its_ids_are_the_batch(tmp_path):
    class Given(Scripted):
        def _tokenize_prompts(self, prompts):
            return [[1, 7, 9]] * len(prompts), None, {}

    trainer = make_trainer(tmp_path, trainer_class=Given)
    trainer.train()
    assert trainer.batches[0]["prompt_ids"].tolist() == [[1, 7, 9]] * 4
    assert "current_gradient_accumulation_steps" in vars(trainer)


def test_the_batch_dict_has_the_keys_that_the_seams_read(tmp_path):
    trainer = make_trainer(tmp_path, trainer_class=Scripted)
    trainer.train()
    batch = trainer.batches[0]
    assert {"prompt_ids", "prompt_mask", "completion_ids", "completion_mask", "advantages"} <= batch.keys()
    assert batch["completion_ids"].shape == batch["completion_mask"].shape == (4, 3)
    assert batch["advantages"].shape == (4,)


def test_old_log_probabilities_are_absent_when_one_step_follows_each_generation(tmp_path):
    trainer = make_trainer(tmp_path, trainer_class=Scripted)
    trainer.train()
    assert "old_per_token_logps" not in trainer.batches[0]


def test_old_log_probabilities_are_there_when_two_steps_follow_each_generation(tmp_path):
    trainer = make_trainer(tmp_path, trainer_class=Scripted, steps_per_generation=2, max_steps=2)
    trainer.train()
    assert trainer.batches[0]["old_per_token_logps"].shape == (8, 3)


def test_rewards_come_gathered_and_none_becomes_nan(tmp_path):
    class Capture(Scripted):
        def _calculate_rewards(self, *args):
            self.rewards = super()._calculate_rewards(*args)
            return self.rewards

    trainer = make_trainer(tmp_path, reward=lambda completions, **k: [1.0, None, 0.0, 0.5], trainer_class=Capture)
    trainer.train()
    assert trainer.rewards.shape == (4, 1)
    assert trainer.rewards[:, 0].tolist()[::2] == [1.0, 0.0]
    assert torch.isnan(trainer.rewards[1, 0])


def test_the_completions_table_holds_one_advantage_per_row_of_the_batch(tmp_path):
    trainer = make_trainer(tmp_path, trainer_class=Scripted)
    trainer.train()
    assert list(trainer._logs["advantages"]) == pytest.approx(trainer.batches[0]["advantages"].tolist())


def test_columns_that_the_generation_hook_adds_are_in_the_completions_table(tmp_path):
    class Adds(Scripted):
        def _generate_single_turn(self, prompt_ids, *args):
            self._log_completion_extra("mine", list(range(len(prompt_ids))))
            return super()._generate_single_turn(prompt_ids, *args)

    trainer = make_trainer(tmp_path, trainer_class=Adds)
    trainer.train()
    assert list(trainer._logs["extra"]["mine"]) == [0, 1, 2, 3]
    assert {*trainer._logs} == {"images", "prompt", "completion", "rewards", "advantages", "extra"}


def test_reward_functions_log_extra_columns_before_the_flush(tmp_path):
    class Capture(Scripted):
        def _calculate_rewards(self, *args):
            rewards = super()._calculate_rewards(*args)
            self.pending = dict(self._pending_extra_logs)
            return rewards

    def reward(completions, log_extra, **kwargs):
        log_extra("why", ["wrong"] * len(completions))
        return [0.0] * len(completions)

    trainer = make_trainer(tmp_path, reward=reward, trainer_class=Capture)
    trainer.train()
    assert trainer.pending["why"] == ["wrong"] * 4


def test_shuffle_and_split_keep_tensors_of_one_row_together_and_refuse_a_bare_flag():
    batch = {"ids": torch.arange(8).reshape(4, 2), "mask": torch.arange(8).reshape(4, 2) * 10, "extra": None}
    shuffled = grpo_trainer.shuffle_sequence_dict(batch)
    assert torch.equal(shuffled["ids"] * 10, shuffled["mask"])
    first, second = grpo_trainer.split_tensor_dict(shuffled, 2)
    assert torch.equal(first["ids"] * 10, first["mask"])
    assert torch.equal(torch.cat([first["ids"], second["ids"]]), shuffled["ids"])
    with pytest.raises(TypeError):
        grpo_trainer.shuffle_sequence_dict(batch | {"flag": True})


def test_rewards_are_gathered_once_and_last(tmp_path, monkeypatch):
    """A process whose reward function failed makes up for that one collective call, and no other."""
    gathered = []
    monkeypatch.setattr(grpo_trainer, "gather", lambda tensor: gathered.append(tensor) or tensor)
    monkeypatch.setattr(grpo_trainer, "gather_object", lambda objects: pytest.fail("a second collective call"))
    trainer = make_trainer(tmp_path, reward=[lambda completions, **kwargs: [1.0] * len(completions)] * 2)
    monkeypatch.setattr(trainer.accelerator, "gather", lambda tensor: pytest.fail("a second collective call"))
    rows = [{"prompt": "1+1="}] * 4
    result = trainer._calculate_rewards(rows, ["1+1="] * 4, ["2"] * 4, [[5, 2]] * 4)
    assert len(gathered) == 1 and gathered[0] is result
    assert (result.shape, result.dtype) == ((4, 2), torch.float32)


def test_the_loss_is_expected_to_be_divided_for_accumulation_by_the_trainer():
    assert GRPOTrainer.loss_is_scaled_for_ga is True
    assert "current_gradient_accumulation_steps" in inspect.getsource(GRPOTrainer._compute_loss)


def test_the_defaults_we_override_are_what_we_think(tmp_path):
    defaults = GRPOConfig(str(tmp_path), bf16=False, use_cpu=True, per_device_train_batch_size=8)
    assert defaults.lr_scheduler_type == "linear"
    assert defaults.weight_decay == 0.0
    assert defaults.vllm_importance_sampling_correction is True
    assert defaults.delta is None
    assert defaults.max_completion_length == 512
    assert not hasattr(defaults, "max_prompt_length")


def test_the_fused_forward_gives_float32_log_probabilities_and_entropies(tmp_path):
    trainer = make_trainer(tmp_path)
    ids = torch.tensor([[1, 5, 6, 7, 2]])
    with torch.no_grad():
        logps, entropies, aux_loss = trainer._get_per_token_logps_and_entropies(
            trainer.model, ids, torch.ones_like(ids), 3, compute_entropy=True, compute_aux_loss=False
        )
        full = trainer.model(input_ids=ids).logits[:, 1:-1].log_softmax(-1)
    expected = full.gather(-1, ids[:, 2:, None])[..., 0]
    torch.testing.assert_close(logps, expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(entropies, -(full.exp() * full).sum(-1), rtol=1e-5, atol=1e-6)
    assert logps.dtype == torch.float32
    assert aux_loss is None


# Advantages of the on-policy phase


@pytest.mark.parametrize(
    ("rewards", "right", "wrong"),
    [
        pytest.param([1, 0, 0, 0], 1.4997000599880024, -0.4999000199960008, id="one of four"),
        pytest.param(
            [1, 0, 0, 0, 1, 0, 0, 0],
            # (1 - .25) / (std + 1e-4) with std .4629100498862757, Bessel-corrected
            0.75 / (0.4629100498862757 + 1e-4),
            -0.25 / (0.4629100498862757 + 1e-4),
            id="two of eight",
        ),
    ],
)
def test_grpo_advantages_are_divided_by_the_bessel_corrected_deviation(tmp_path, rewards, right, wrong):
    size = len(rewards)
    trainer = make_trainer(
        tmp_path,
        reward=lambda completions, **kwargs: [float(r) for r in rewards],
        trainer_class=Scripted,
        num_generations=size,
        per_device_train_batch_size=size,
    )
    trainer.train()
    expected = [right if reward else wrong for reward in rewards]
    assert trainer.batches[0]["advantages"].tolist() == pytest.approx(expected, rel=1e-6)


# The clipped loss and its normaliser, through TRL's own loss with the log-probabilities given


class GivenLogps(GRPOTrainer):
    given: torch.Tensor

    def _get_per_token_logps_and_entropies(self, *args, **kwargs):
        return self.given, torch.zeros_like(self.given), None


def grpo_loss(tmp_path, logps, old_logps, advantages, mask, **overrides):
    trainer = make_trainer(tmp_path, trainer_class=GivenLogps, **overrides)
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = 1
    trainer.given = torch.tensor(logps)
    mask = torch.tensor(mask)
    ids = torch.ones_like(mask)
    inputs = {
        "prompt_ids": ids[:, :1],
        "prompt_mask": ids[:, :1],
        "completion_ids": ids,
        "completion_mask": mask,
        "advantages": torch.tensor(advantages),
        "old_per_token_logps": torch.tensor(old_logps),
        "num_items_in_batch": mask.sum(),
    }
    return trainer.compute_loss(trainer.model, inputs).item()


@pytest.mark.parametrize(
    ("log_ratio", "advantage", "expected"),
    [
        (0.3, 1.0, -1.2),
        (0.3, -1.0, 1.3498588075760032),
        (-0.3, 1.0, -0.7408182206817179),
        (-0.3, -1.0, 0.8),
        (1.5, -1.0, 3.0),
        (1.5, 1.0, -1.2),
    ],
)
def test_delta_three_is_the_dual_clip(tmp_path, log_ratio, advantage, expected):
    loss = grpo_loss(tmp_path, [[log_ratio]], [[0.0]], [advantage], [[1]], delta=3.0)
    assert loss == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("loss_type", "expected"), [("dapo", 1 / 3), ("grpo", 0.0), ("dr_grpo", 0.125)], ids=["token", "sequence", "width"]
)
def test_aggregation(tmp_path, loss_type, expected):
    zeros = [[0.0] * 4, [0.0] * 4]
    mask = [[1, 1, 0, 0], [1, 1, 1, 1]]
    loss = grpo_loss(tmp_path, zeros, zeros, [1.0, -1.0], mask, loss_type=loss_type, max_completion_length=8)
    assert loss == pytest.approx(expected, rel=1e-6)


def test_pushes_to_the_hub_are_methods_that_a_subclass_replaces():
    for method, called in (
        ("__init__", "self.init_hf_repo()"),
        ("_save_checkpoint", "self._push_from_checkpoint(output_dir)"),
        ("push_to_hub", "self._finish_current_push()"),
    ):
        assert called in inspect.getsource(getattr(Trainer, method)), method
    assert "self._finish_current_push()" in inspect.getsource(Trainer)
    # beside the signature and the push, nothing asks who called
    assert inspect.getsource(Trainer.save_model).count("_internal_call") == 2
    assert list(inspect.signature(GRPOTrainer.create_model_card).parameters) == list(
        inspect.signature(PushesToHub.create_model_card).parameters
    )
