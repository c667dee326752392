"""`phase2_importance_correction`: TRL's weights between trainer and sampler, in phase 2 and nowhere else."""

import math

import pytest
import torch

from mintrl_trl import ConfigError, MInTRLConfig
from mintrl_trl.generation.local import LocalGenerator
from mintrl_trl.rollouts.doors import SampledToken

from .test_trainer_against_trl import Replayed, trl_trainer
from .tiny import tiny_model, tiny_tokenizer
from .trainers import AlwaysKeep, HashGenerator, Recorder, assert_same_weights, make_trainer, weights
from .trl_options import shows

SGD = {"optim": "sgd", "max_grad_norm": 0.0, "learning_rate": 0.05, "weight_decay": 0.0}
ON_POLICY = {"judge": None, "num_control": 4, "num_intervened": 0, "intervention_updates": 0, "max_steps": 1}
CORRECTED = {"use_vllm": True, "phase2_importance_correction": True}


class Shifted:
    """Samples from a copy of the weights, and says that its tokens were likelier by a constant than they are."""

    weight_version = "copy"

    def __init__(self, shift: float):
        tokenizer = tiny_tokenizer()
        self.inner = LocalGenerator(tiny_model(), end_ids=[tokenizer.eos_token_id], pad_id=tokenizer.pad_token_id)
        self.shift = shift

    async def stream(self, prefix_ids, max_tokens, seed):
        async for token, logp in self.inner.stream(prefix_ids, max_tokens, seed):
            yield SampledToken(token, logp + self.shift)

    def close(self):
        self.inner.close()


class Spread(HashGenerator):
    """Log-probabilities from -6 to -1; some rollouts come without."""

    async def stream(self, prefix_ids, max_tokens, seed):
        async for token, _ in super().stream(prefix_ids, max_tokens, seed):
            yield SampledToken(token, None if seed % 2 else -1.0 - (token * 7 % 50) / 10)


def odd(completion_ids, **kwargs):
    """1 for every other response, whatever its length."""
    return [float(sum(ids) % 2) for ids in completion_ids]


def step(folder, generator, **overrides):
    """What one update changed, and the trainer."""
    trainer = make_trainer(
        folder, generator=generator, reward=odd, trainer_class=Recorder, **(SGD | ON_POLICY | overrides)
    )
    before = weights(trainer)
    trainer.train()
    trainer.close()
    return {name: after - before[name] for name, after in weights(trainer).items()}, trainer


@shows("vllm_importance_sampling_mode", "vllm_importance_sampling_clip_max", "vllm_importance_sampling_clip_min")
@pytest.mark.parametrize(
    ("shift", "options", "factor"),
    [
        (0.5, {}, math.exp(-0.5)),
        (-0.5, {}, math.exp(0.5)),
        (-2.0, {}, 3.0),  # cut at the default
        (-2.0, {"vllm_importance_sampling_clip_max": 5.0}, 5.0),
        (2.0, {"vllm_importance_sampling_clip_min": 0.5}, 0.5),
        (-2.0, {"vllm_importance_sampling_mode": "token_mask"}, 0.0),
        (0.0, {"vllm_importance_sampling_mode": "sequence_mask"}, 1.0),
    ],
)
@pytest.mark.parametrize("lean", [True, False], ids=["lean", "TRL's layout"])
def test_each_token_counts_by_its_ratio(tmp_path, shift, options, factor, lean):
    plain, _ = step(tmp_path / "plain", Shifted(shift), lean_updates=lean)
    corrected, _ = step(tmp_path / "corrected", Shifted(shift), lean_updates=lean, **CORRECTED, **options)
    assert any(change.abs().max() > 1e-4 for change in plain.values())
    assert_same_weights(corrected, {name: factor * change for name, change in plain.items()}, rtol=1e-3, atol=2e-6)


@pytest.mark.parametrize("mode", ["token_truncate", "token_mask", "sequence_truncate", "sequence_mask"])
def test_unlike_ratios_act_as_in_trl(tmp_path, mode):
    options = {"vllm_importance_sampling_mode": mode}
    _, ours = step(tmp_path / "ours", Spread(), **CORRECTED, **options)
    logps = ours.batches[0]["sampling_per_token_logps"]
    assert logps.isnan().any() and (logps < -1).any()

    class Corrected(Replayed):
        def _generate_single_turn(self, *args, **kwargs):
            completions = self.script.pop(0)
            return completions, [row[: len(ids)].tolist() for ids, row in zip(completions, logps, strict=True)]

    theirs = trl_trainer(tmp_path / "theirs", ours.completions, odd, max_steps=1, **SGD, **options)
    theirs.__class__ = Corrected
    theirs.use_vllm = theirs.vllm_importance_sampling_correction = True
    theirs.train()
    assert_same_weights(weights(ours), weights(theirs), rtol=1e-5, atol=1e-6)


def test_phase_1_is_never_corrected(tmp_path):
    """The update of phase 1 is the same to the last bit, the first of phase 2 is not."""
    phases = {"judge": AlwaysKeep(), "num_control": 2, "num_intervened": 2, "intervention_updates": 1}
    runs = []
    for name, options in (("plain", {}), ("corrected", CORRECTED)):
        _, trainer = step(tmp_path / name, Spread(), max_steps=2, **phases, **options)
        runs.append(trainer)
    (plain_1, plain_2), (corrected_1, corrected_2) = (run.gradients for run in runs)
    assert all(torch.equal(plain_1[name], corrected_1[name]) for name in plain_1)
    assert any(not torch.allclose(plain_2[name], corrected_2[name]) for name in plain_2)
    first, second = runs[1].batches
    assert "importance_sampling_ratio" not in first and "importance_sampling_ratio" in second
    assert runs[1].use_vllm is False and runs[1].vllm_importance_sampling_correction is False


def test_evaluation_is_not_corrected(tmp_path):
    trainer = make_trainer(
        tmp_path,
        generator=Spread(),
        trainer_class=Recorder,
        trainer_kwargs={"eval_dataset": trl_trainer(tmp_path / "rows", []).train_dataset},
        per_device_eval_batch_size=8,
        **(SGD | ON_POLICY | CORRECTED),
    )
    trainer.evaluate()
    trainer.close()
    assert all("importance_sampling_ratio" not in batch for batch in trainer.batches)


@pytest.mark.parametrize(
    ("options", "field", "fix"),
    [
        ({"use_vllm": False}, "phase2_importance_correction", "set generation='vllm'"),
        ({"max_steps": 100, "intervention_updates": 100}, "phase2_importance_correction", "below max_steps"),
        (
            {"loss_type": "vespo", "vllm_importance_sampling_mode": "sequence_mask"},
            "vllm_importance_sampling_mode",
            "remove vllm_importance_sampling_mode",
        ),
        ({"vllm_importance_sampling_clip_max": None}, "vllm_importance_sampling_clip_max", "remove it"),
        (
            {"vllm_importance_sampling_clip_min": 3.0},
            "vllm_importance_sampling_clip_min",
            "remove vllm_importance_sampling_clip_min",
        ),
    ],
)
def test_what_would_not_act_is_refused(options, field, fix):
    with pytest.raises(ConfigError) as caught:
        MInTRLConfig("runs/wrong", **(CORRECTED | options))
    assert str(caught.value).startswith(f"`{field}` is ") and fix in str(caught.value)


def test_local_generation_by_name_leaves_it_alone():
    assert MInTRLConfig("runs/right", phase2_importance_correction=True, generation="local").generation == "local"
