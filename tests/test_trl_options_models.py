"""Options of TRL about models, adapters and references, each in a tiny run."""

import asyncio
import json

import pytest
import torch
from datasets import Dataset
from peft import LoraConfig, get_peft_model
from transformers import (
    BitsAndBytesConfig,
    GPT2Config,
    GPT2LMHeadModel,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
    TrainerCallback,
)
from trl.trainer import grpo_trainer

from mintrl_trl import ConfigError, MInTRLConfig, MInTRLTrainer, trl_seams
from tests.test_trl_options_loss import CLOSE, Recorder, trained
from tests.tiny import tiny_model, tiny_tokenizer
from tests.trainers import ROWS, AlwaysKeep, HashGenerator, make_trainer, parity_reward, settings, weights
from tests.trl_options import shows

OWN_TOKENIZER = """
from transformers import PreTrainedTokenizerFast
from tests.tiny import tiny_tokenizer

class Own(PreTrainedTokenizerFast):
    @classmethod
    def from_pretrained(cls, *args, **kwargs):
        return tiny_tokenizer()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The tiny model and its tokenizer on disk."""
    path = tmp_path_factory.mktemp("model")
    tiny_model().save_pretrained(path)
    tiny_tokenizer().save_pretrained(path)
    return str(path)


def adapter(**options):
    return LoraConfig(r=2, target_modules=["q_proj"], lora_dropout=0.0, **options)


def adapted_model():
    """A model with an adapter that has been trained: it does something."""
    model = get_peft_model(tiny_model(), adapter())
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                weight.normal_(std=0.5, generator=torch.Generator().manual_seed(1))
    return model


def tiny_mixture():
    torch.manual_seed(0)
    shape = dict(hidden_size=32, intermediate_size=64, moe_intermediate_size=16, num_hidden_layers=2, head_dim=16)
    config = Qwen3MoeConfig(
        vocab_size=47,
        **shape,
        num_experts=4,
        num_experts_per_tok=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=512,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    model = Qwen3MoeForCausalLM(config).eval()
    model.generation_config.eos_token_id = 2
    return model


# Models


@shows("model_init_kwargs")
def test_model_init_kwargs_reach_a_model_loaded_by_name(tmp_path, folder):
    trainer = trained(tmp_path, model=folder, model_init_kwargs={"dtype": "bfloat16", "attn_implementation": "eager"})
    assert trainer.model.dtype == torch.bfloat16
    assert trainer.model.config._attn_implementation == "eager"


@shows("quantization_config", "trust_remote_code")
def test_how_a_model_is_loaded_is_handed_on(tmp_path, folder, monkeypatch):
    """Up to the call that loads it: quantised weights need a GPU."""
    asked = {}

    def load(name, **kwargs):
        asked.update(kwargs)
        raise LookupError(name)

    monkeypatch.setattr(grpo_trainer, "create_model_from_path", load)
    quantization = BitsAndBytesConfig(load_in_4bit=True)
    with pytest.raises(LookupError):
        make_trainer(
            tmp_path,
            model=folder,
            trust_remote_code=True,
            trainer_kwargs={"quantization_config": quantization, "peft_config": adapter()},
        )
    assert asked["quantization_config"] is quantization
    assert asked["trust_remote_code"] is True


@shows("trust_remote_code")
def test_code_that_comes_with_a_tokenizer_runs_only_when_trusted(tmp_path):
    folder = tmp_path / "model"
    tiny_model().save_pretrained(folder)
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "Own", "auto_map": {"AutoTokenizer": [None, "own.Own"]}})
    )
    (folder / "own.py").write_text(OWN_TOKENIZER)
    for trusted in (True, False):
        args = MInTRLConfig(str(tmp_path / "run"), **settings(trust_remote_code=trusted))
        arguments = (str(folder), parity_reward, args, Dataset.from_list(ROWS))
        doors = {"judge": AlwaysKeep(), "generator": HashGenerator()}
        if trusted:
            MInTRLTrainer(*arguments, **doors).train()
        else:
            with pytest.raises(ConfigError, match="holds a tokenizer"):
                MInTRLTrainer(*arguments, **doors)


@shows("disable_dropout")
def test_a_model_drops_out_in_neither_place_or_is_refused(tmp_path):
    def dropping():
        shape = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 512, "vocab_size": 47}
        return GPT2LMHeadModel(GPT2Config(**shape, bos_token_id=1, eos_token_id=2, pad_token_id=0))

    model = dropping()
    trained(tmp_path, model=model)
    assert all(module.p == 0 for module in model.modules() if isinstance(module, torch.nn.Dropout))
    with pytest.raises(ConfigError, match=r"`disable_dropout` is False.*drop drops out 10% in training"):
        make_trainer(tmp_path, model=dropping(), disable_dropout=False)
    functional = tiny_model()
    functional.model.layers[0].self_attn.attention_dropout = 0.1
    with pytest.raises(ConfigError, match=r"self_attn.attention_dropout=0.1.*model_init_kwargs="):
        make_trainer(tmp_path, model=functional)


@shows("cast_lm_head_to_fp32")
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_a_float32_head_is_used_by_policy_and_frozen_policy(tmp_path, tied):
    model = tiny_model().to(torch.bfloat16)
    if not tied:
        model.config.tie_word_embeddings = False
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    trainer = make_trainer(tmp_path, model=model, cast_lm_head_to_fp32=True, generator=None)
    frozen = trl_seams.unfused_copy(trainer.model)
    ids = torch.tensor([[1, 5, 6]])
    assert trainer.model(input_ids=ids).logits.dtype == torch.float32
    torch.testing.assert_close(frozen(input_ids=ids).logits, trainer.model(input_ids=ids).logits)
    trainer.train()
    trainer.close()


@shows("router_aux_loss_coef")
def test_experts_are_balanced_in_both_phases(tmp_path):
    runs = [trained(tmp_path / str(coef), model=tiny_mixture(), router_aux_loss_coef=coef) for coef in (0.0, 10.0)]
    routers = [[weight for name, weight in weights(run).items() if "mlp.gate." in name] for run in runs]
    assert not torch.allclose(routers[0][0], routers[1][0], atol=1e-4)
    assert [line["aux_loss"] > 0 for line in runs[1].state.log_history[:2]] == [True, True]
    with pytest.raises(ValueError, match="not a Mixture-of-Experts model"):
        make_trainer(tmp_path, router_aux_loss_coef=0.1)


# Adapters and references


@shows("peft_config")
def test_an_adapter_that_is_there_already_goes_on_and_is_the_reference_itself(tmp_path):
    """KL is 0 at the start: the reference is the adapter as it was passed, not the model without it."""
    model = adapted_model()
    before = weights_of(model)
    trainer = trained(tmp_path, model=model, beta=0.1, learning_rate=1e-4, intervention_updates=0, max_steps=1)
    assert trainer.state.log_history[0]["kl"] == pytest.approx(0, abs=1e-6)
    after = weights_of(model)
    assert any(not torch.equal(before[name], after[name]) for name in before if "default" in name)
    kept = [name for name in after if ".ref." in name]
    assert kept and all(torch.equal(before[name.replace(".ref.", ".default.")], after[name]) for name in kept)


def weights_of(model):
    return {name: weight.detach().clone() for name, weight in model.named_parameters()}


def test_the_self_judge_of_a_model_with_an_adapter_is_the_model_as_it_was_passed(tmp_path):
    model = adapted_model()
    args = MInTRLConfig(str(tmp_path), **settings(judge="self"))
    rows = Dataset.from_list(ROWS)
    trainer = MInTRLTrainer(model, parity_reward, args, rows, processing_class=tiny_tokenizer())
    generator = trainer.policy.generator

    async def both():
        return [await generator.score((1, 5), (6, 7, 8), weights=weights) for weights in ("policy", "base")]

    with generator.active():
        policy, base = asyncio.run(both())
    assert base == pytest.approx(policy, abs=1e-6)
    with torch.no_grad():
        model.get_parameter("base_model.model.model.layers.0.self_attn.q_proj.lora_B.default.weight").add_(1.0)
    with generator.active():
        moved, still = asyncio.run(both())
    assert still == pytest.approx(base, abs=1e-6)
    assert moved != pytest.approx(policy, abs=1e-3)
    trainer.close()


@shows("peft_config", "sync_ref_model")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        pytest.param({"beta": 0.1, "sync_ref_model": True}, "false with an adapter", id="moving reference"),
        pytest.param({"frozen": True}, "is_trainable=True", id="frozen"),
        pytest.param({"beta": 0.1, "adapter_name": "mine"}, "named 'default'", id="other name"),
    ],
)
def test_adapters_that_could_not_work_are_refused(tmp_path, options, message):
    model = get_peft_model(tiny_model(), adapter(), adapter_name=options.pop("adapter_name", "default"))
    if options.pop("frozen", False):
        model.requires_grad_(False)
    with pytest.raises(ConfigError, match=message):
        make_trainer(tmp_path, model=model, max_steps=3, **options)


@shows("sync_ref_model", "ref_model_sync_steps", "ref_model_mixup_alpha", "beta")
def test_the_reference_follows_the_policy_in_both_phases(tmp_path, folder):
    """Alone phase 2 runs the reference."""
    moved = []

    class Watch(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            policy, reference = (next(m.parameters()).detach().clone() for m in (trainer.model, trainer.ref_model))
            moved.append((policy, reference))

    trainer = make_trainer(
        tmp_path,
        model=folder,
        trainer_class=Recorder,
        intervention_updates=1,
        max_steps=3,
        beta=0.1,
        sync_ref_model=True,
        ref_model_sync_steps=1,
        ref_model_mixup_alpha=0.25,
    )
    start = next(trainer.model.parameters()).detach().clone()
    trainer.add_callback(Watch())
    trainer.train()
    reference = start
    for policy, seen in moved:
        reference = 0.25 * policy + 0.75 * reference
        torch.testing.assert_close(seen, reference, **CLOSE)
    assert ["ref_per_token_logps" in batch for batch in trainer.batches] == [False, True, True]
    assert ["kl" in line for line in trainer.state.log_history[:3]] == [False, True, True]
