"""Options of TRL's loss: in phase 2 they do exactly what they do in TRL's own trainer, and in phase 1 nothing."""

import pytest
import torch
from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig

from tests.tiny import tiny_model, tiny_tokenizer
from tests.trainers import (
    ROWS,
    TRL_SETTINGS,
    Recorder,
    Replayed,
    assert_same_weights,
    make_trainer,
    parity_reward,
    weights,
)
from tests.trl_options import shows

pytestmark = pytest.mark.slow

CONTROLS_ONLY = {"judge": None, "num_control": 4, "num_intervened": 0, "intervention_updates": 0}
PLAIN_STEPS = {"optim": "sgd", "learning_rate": 1.0}  # AdamW's first steps blow rounding errors up
CLOSE = {"rtol": 1e-4, "atol": 1e-6}


def length_reward(completion_ids, **kwargs):
    """On another scale than the first reward."""
    return [len(ids) / 10 for ids in completion_ids]


def trained(output_dir, **options):
    """A run of one update of each phase."""
    trainer = make_trainer(output_dir, trainer_class=Recorder, **({"intervention_updates": 1} | options))
    trainer.train()
    return trainer


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The tiny model on disk, where a reference model is loaded from."""
    path = tmp_path_factory.mktemp("model")
    tiny_model().save_pretrained(path)
    return str(path)


@pytest.fixture
def model(folder):
    def make():
        made = tiny_model()
        made.config._name_or_path = folder
        return made

    return make


def our_run(output_dir, model, reward=parity_reward, **options):
    """Two updates on one batch of two micro-batches, so that probability ratios leave 1; phase 2 alone."""
    both = {"num_iterations": 2, "max_steps": 2, "per_device_train_batch_size": 4, **PLAIN_STEPS, **CONTROLS_ONLY}
    trainer = make_trainer(output_dir, model=model, trainer_class=Recorder, reward=reward, **(both | options))
    trainer.train()
    return trainer


def their_run(output_dir, model, script, reward=parity_reward, **options):
    """The same in TRL's trainer."""
    args = GRPOConfig(
        str(output_dir),
        **TRL_SETTINGS
        | dict(
            per_device_train_batch_size=4,
            gradient_accumulation_steps=2,
            num_iterations=2,
            max_steps=2,
        )
        | PLAIN_STEPS
        | options,
    )
    rows = Dataset.from_list(list(ROWS))
    trainer = Replayed(model, reward, args=args, train_dataset=rows, processing_class=tiny_tokenizer())
    trainer.script = list(script)
    trainer.train()
    return trainer


LOSSES = {
    "grpo": {"loss_type": "grpo"},
    "bnpo": {"loss_type": "bnpo"},
    "dr_grpo": {"loss_type": "dr_grpo"},
    "cispo": {"loss_type": "cispo", "epsilon_high": 5.0},
    "luspo": {"loss_type": "luspo", "importance_sampling_level": "sequence"},
    "sapo": {"loss_type": "sapo", "sapo_temperature_neg": 2.0, "sapo_temperature_pos": 0.5},
    "vespo": {
        "loss_type": "vespo",
        "vespo_k_pos": 1.0,
        "vespo_lambda_pos": 2.0,
        "vespo_k_neg": 2.0,
        "vespo_lambda_neg": 1.0,
    },
    "sequence ratios": {"loss_type": "grpo", "importance_sampling_level": "sequence"},
    "clipping": {"epsilon": 0.01, "epsilon_high": 0.02},
    "dual clip": {"delta": 1.25},
    "no dual clip": {"delta": None, "epsilon": 0.05},
    "kl": {"beta": 0.5},
    "plain kl": {"beta": 0.5, "use_bias_correction_kl": False},
    "batch scale": {"scale_rewards": "batch"},
    "no scale": {"scale_rewards": False},
    "truncated left out": {"mask_truncated_completions": True},
    "high entropy alone": {"top_entropy_quantile": 0.3},
    "entropy bonus": {"entropy_coef": 0.5},
    "adaptive entropy": {
        "use_adaptive_entropy": True,
        "entropy_coef": 0.2,
        "entropy_target": 10.0,
        "entropy_coef_min": 0.1,
        "entropy_coef_max": 0.4,
        "entropy_coef_delta": 0.3,
    },
    "temperature": {"temperature": 0.7},
    "iterations": {"num_iterations": 1, "max_steps": 1},
    "length": {"max_completion_length": 8},
    "order": {"shuffle_dataset": False},
}


@pytest.fixture(scope="module")
def plain_weights(tmp_path_factory):
    return weights(our_run(tmp_path_factory.mktemp("plain"), tiny_model()))


@shows(
    "loss_type", "importance_sampling_level", "epsilon", "epsilon_high", "delta", "beta", "use_bias_correction_kl",
    "sapo_temperature_neg", "sapo_temperature_pos", "vespo_k_pos", "vespo_lambda_pos", "vespo_k_neg",
    "vespo_lambda_neg", "scale_rewards", "mask_truncated_completions", "top_entropy_quantile", "entropy_coef",
    "use_adaptive_entropy", "entropy_coef_min", "entropy_coef_max", "entropy_coef_delta", "entropy_target",
    "temperature", "num_iterations", "max_completion_length", "shuffle_dataset",
)  # fmt: skip
@pytest.mark.parametrize("options", LOSSES.values(), ids=LOSSES.keys())
def test_an_option_acts_in_phase_2_as_in_trl(tmp_path, model, plain_weights, options):
    ours = our_run(tmp_path / "ours", model(), **options)
    theirs = their_run(tmp_path / "theirs", model(), ours.completions, **options)
    assert_same_weights(weights(ours), weights(theirs), **CLOSE)
    assert any(not torch.allclose(plain_weights[name], after, atol=1e-5) for name, after in weights(ours).items())


@shows("reward_weights", "reward_funcs", "multi_objective_aggregation")
@pytest.mark.parametrize("aggregation", ["sum_then_normalize", "normalize_then_sum"])
def test_several_rewards_act_in_phase_2_as_in_trl(tmp_path, plain_weights, aggregation):
    options = {
        "reward": [parity_reward, length_reward],
        "reward_weights": [0.5, -2.0],
        "multi_objective_aggregation": aggregation,
    }
    ours = our_run(tmp_path / "ours", tiny_model(), **options)
    theirs = their_run(tmp_path / "theirs", tiny_model(), ours.completions, **options)
    assert_same_weights(weights(ours), weights(theirs), **CLOSE)
    assert any(not torch.allclose(plain_weights[name], after, atol=1e-5) for name, after in weights(ours).items())


@shows("pad_to_multiple_of", "gradient_checkpointing", "cast_lm_head_to_fp32")
@pytest.mark.parametrize(
    "options",
    [{"pad_to_multiple_of": 8}, {"gradient_checkpointing": True}, {"cast_lm_head_to_fp32": True}],
    ids=["padding", "checkpointing", "head"],
)
@pytest.mark.parametrize("phase_1", [1, 0], ids=["phase 1", "phase 2"])
def test_an_option_of_the_forward_changes_no_weight(tmp_path, options, phase_1):
    """A float32 head is what a float32 model has anyway."""
    runs = []
    for name, more in (("with", options), ("without", {})):
        trainer = make_trainer(
            tmp_path / name, trainer_class=Recorder, intervention_updates=phase_1, max_steps=1, **PLAIN_STEPS, **more
        )
        trainer.train()
        runs.append(trainer)
    assert_same_weights(*map(weights, runs), **CLOSE)
    if "pad_to_multiple_of" in options:
        assert runs[0].batches[0]["completion_ids"].size(1) % 8 == 0


def test_phase_1_knows_no_option_of_trls_loss(tmp_path, model):
    """The first update, whose loss is the regression, is the same to the last bit."""
    after_first = []

    class Snapshot(TrainerCallback):
        def on_step_end(self, args, state, control, model, **kwargs):
            if state.global_step == 1:
                after_first.append({name: weight.detach().clone() for name, weight in model.named_parameters()})

    options = {
        "loss_type": "grpo",
        "importance_sampling_level": "sequence",
        "epsilon": 0.01,
        "delta": None,
        "beta": 0.5,
        "scale_rewards": "none",
        "multi_objective_aggregation": "normalize_then_sum",
        "entropy_coef": 0.5,
        "top_entropy_quantile": 0.3,
    }
    for name, more in (("plain", {}), ("all", options)):
        make_trainer(
            tmp_path / name,
            model=model(),
            reward=[parity_reward, length_reward],
            intervention_updates=1,
            trainer_kwargs={"callbacks": [Snapshot()]},
            **more,
        ).train()
    assert_same_weights(*after_first)
