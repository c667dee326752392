"""The trained model under the generator: two kinds of weights, scoring, and how it is given back to the trainer."""

import asyncio
import threading

import pytest
import torch
from peft import LoraConfig, PromptTuningConfig, get_peft_model
from transformers import LlamaForCausalLM, MistralConfig, MistralForCausalLM
from trl.trainer.utils import add_fused_lm_head

from mintrl_trl.errors import ConfigError, GenerationError
from mintrl_trl.generation.local import LocalGenerator

from .generation_oracle import VOCABULARY, collect, decode_alone, score_alone, tiny_llama
from .tiny import tiny_model

PREFIX = [5, 9, 3]
EVERY_LINEAR = "all-linear"


@pytest.fixture
def make():
    made = []

    def build(model, **options):
        made.append(LocalGenerator(model, **{"end_ids": (), **options}))
        return made[-1]

    yield build
    for generator in made:
        generator.close()


def adapted(seed=0):
    """A float64 model with a LoRA adapter that changes its output visibly."""
    model = get_peft_model(tiny_model(seed).double(), LoraConfig(r=4, target_modules=EVERY_LINEAR))
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_" in name:
                weight.normal_(std=0.3)
    return model


def modes(model):
    return {name: module.training for name, module in model.named_modules()}


def train_once(model):
    """A training step's forward and backward pass; returns the gradients."""
    model.zero_grad()
    ids = torch.tensor([[5, 9, 3, 7, 8]])
    model(input_ids=ids, labels=ids).loss.backward()
    return {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None}


def test_policy_and_base_rows_of_a_peft_model_are_decoded_side_by_side(make):
    model = adapted()
    grads = {name: weight.requires_grad for name, weight in model.named_parameters()}
    base = tiny_model().double()
    generator = make(model)

    async def run():
        return await asyncio.gather(
            *(collect(generator, PREFIX, 20, seed, weights=w) for seed in range(4) for w in ("policy", "base"))
        )

    found = asyncio.run(run())
    expected = [decode_alone(m, PREFIX, 20, seed) for seed in range(4) for m in (model.eval(), base)]
    assert [ids for ids, _ in found] == [ids for ids, _ in expected]
    assert [logps for _, logps in found] == [pytest.approx(logps) for _, logps in expected]
    assert found[0][0] != found[1][0]
    assert {name: weight.requires_grad for name, weight in model.named_parameters()} == grads
    assert generator.has_base


def test_a_separate_base_model_serves_the_base_weights(make):
    model, base = tiny_model(0).double(), tiny_model(1).double()
    generator = make(model, base_model=base)
    found = [asyncio.run(collect(generator, PREFIX, 10, 3, weights=weights)) for weights in ("policy", "base")]
    assert [ids for ids, _ in found] == [decode_alone(m, PREFIX, 10, 3)[0] for m in (model, base)]


def test_base_weights_of_a_fully_trained_model_are_refused(make):
    generator = make(tiny_model())
    assert not generator.has_base
    with pytest.raises(ConfigError, match="base_model="):
        generator.stream(PREFIX, 5, 1, weights="base")
    with pytest.raises(ConfigError, match="base_model="):
        asyncio.run(generator.score(PREFIX, [4], weights="base"))


def test_a_fused_head_changes_nothing(make):
    model = tiny_model().double()
    expected = decode_alone(model, PREFIX, 12, 1)
    add_fused_lm_head(model, temperature=0.5)
    assert asyncio.run(collect(make(model), PREFIX, 12, 1))[0] == expected[0]


def test_wrappers_are_looked_through(make, tmp_path):
    model = tiny_model().double()
    expected = decode_alone(model, PREFIX, 6, 1)[0]
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    try:
        wrapped = torch.nn.parallel.DistributedDataParallel(model)
        assert asyncio.run(collect(make(wrapped), PREFIX, 6, 1))[0] == expected
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize("build", [lambda: adapted().float(), tiny_llama], ids=["peft", "full"])
def test_the_model_comes_back_as_it_was(make, build):
    torch.manual_seed(0)
    model = build()
    model.train()
    model.get_input_embeddings().eval()  # a mixture that eval() and train() would not restore
    model.enable_input_require_grads()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    model.config.use_cache = False
    expected, before = train_once(model), modes(model)
    generator = make(model, base_model=None)
    seen = []
    hook = model.get_output_embeddings().register_forward_hook(
        lambda module, *_: seen.append((module.training, model.training, torch.is_grad_enabled()))
    )
    with generator.active():
        asyncio.run(collect(generator, PREFIX, 8, 1))
    hook.remove()
    assert seen and set(seen) == {(False, False, False)}
    assert generator.idle and modes(model) == before
    assert model.config.use_cache is False
    assert any(getattr(module, "gradient_checkpointing", False) for module in model.modules())
    gradients = train_once(model)
    assert gradients.keys() == expected.keys() and all(
        torch.equal(gradients[name], expected[name]) for name in expected
    )
    assert not any(tensor.is_inference() for tensor in [*model.parameters(), *model.buffers()])


def test_weights_are_read_anew_after_training(make):
    model = tiny_llama().double()
    generator = make(model)
    for version in range(3):
        generator.set_version(f"update-{version}")
        with generator.active():
            assert asyncio.run(collect(generator, PREFIX, 6, 1))[0] == decode_alone(model, PREFIX, 6, 1)[0]
        model.train()
        with torch.no_grad():
            for weight in model.parameters():
                weight += 0.05 * torch.randn_like(weight)
        model.eval()


def test_outside_of_active_the_engine_is_idle_and_refuses(make):
    model = tiny_model()
    model.train()
    generator = make(model)
    with generator.active(), generator.active():
        asyncio.run(collect(generator, PREFIX, 3, 1))
        assert not model.training and not generator.idle
    assert model.training and generator.idle
    with pytest.raises(GenerationError, match=r"inside `with generator\.active"):
        asyncio.run(collect(generator, PREFIX, 3, 1))
    with pytest.raises(GenerationError, match="paused"):
        asyncio.run(generator.score(PREFIX, [4]))
    generator.resume()
    asyncio.run(collect(generator, PREFIX, 3, 1))
    assert generator.idle and model.training  # without `active` the model is back when the last request has ended


def test_leaving_active_ends_what_is_open(make):
    model = tiny_model()
    model.train()
    generator = make(model)

    async def run():
        stream, waiting = generator.stream(PREFIX, 500, 1), generator.stream(PREFIX, 500, 2)
        with generator.active():
            await anext(stream)
            later = asyncio.ensure_future(anext(waiting))
            await asyncio.sleep(0)
        assert generator.idle and model.training and generator.num_rows == 0
        with pytest.raises(GenerationError, match="stopped"):
            async for _ in stream:
                pass
        with pytest.raises(GenerationError, match="stopped"):
            await later
            async for _ in waiting:
                pass

    asyncio.run(run())


def test_an_error_inside_active_still_gives_the_model_back(make):
    model = tiny_model()
    model.train()
    generator = make(model)
    with pytest.raises(ZeroDivisionError), generator.active():
        asyncio.run(collect(generator, PREFIX, 3, 1))
        raise ZeroDivisionError
    assert generator.idle and model.training


def test_closing_ends_the_thread(make):
    generator = make(tiny_model())
    asyncio.run(collect(generator, PREFIX, 3, 1))
    names = [thread.name for thread in threading.enumerate()]
    generator.close()
    generator.close()
    assert names.count("mintrl-generator") == 1 + [t.name for t in threading.enumerate()].count("mintrl-generator")
    with pytest.raises(GenerationError, match="closed"):
        asyncio.run(collect(generator, PREFIX, 3, 1))
    with pytest.raises(GenerationError, match="closed"), generator.active():
        pass


def test_a_forgotten_generator_ends_its_thread():
    generator = LocalGenerator(tiny_model(), end_ids=())
    asyncio.run(collect(generator, PREFIX, 3, 1))
    thread = generator._engine._thread
    del generator
    thread.join(timeout=10)
    assert not thread.is_alive()


def test_autocast_is_entered_once_for_a_loan_and_only_on_the_engines_thread(make):
    entered = []

    def autocast():
        entered.append(threading.current_thread().name)
        return torch.autocast("cpu", torch.bfloat16)

    model, dtypes = tiny_model(), set()
    hook = model.lm_head.register_forward_hook(lambda module, arguments, output: dtypes.add(output.dtype))
    generator = make(model, autocast=autocast)
    with generator.active():
        asyncio.run(collect(generator, PREFIX, 5, 1))
        ids, logps = asyncio.run(collect(generator, PREFIX, 5, 2))
    hook.remove()
    assert entered == ["mintrl-generator"] and dtypes == {torch.bfloat16}
    assert not torch.is_autocast_enabled("cpu")
    assert logps == pytest.approx(score_alone(model, PREFIX, ids), abs=0.05)


@pytest.mark.parametrize("options", [{}, {"prefill_tokens": 3}, {"max_batch": 2}], ids=str)
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_scores_are_those_of_a_plain_forward_pass(make, options, temperature):
    model = tiny_llama().double()
    generator = make(model, temperature=temperature, **options)
    prompts = [[5, 6, 7, 8, 9, 10, 11], [12], [13, 14, 15]]
    continuations = [[20], [21, 22], [23, 24, 25, 26, 27, 28], [29, 2, 2]]
    pairs = [(prompt, continuation) for prompt in prompts for continuation in continuations]

    async def run():
        return await asyncio.gather(
            collect(generator, PREFIX, 30, 1),  # rows that are decoded meanwhile are not disturbed
            *(generator.score(prompt, continuation) for prompt, continuation in pairs),
        )

    stream, *scores = asyncio.run(run())
    for (prompt, continuation), found in zip(pairs, scores, strict=True):
        assert found == pytest.approx(score_alone(model, prompt, continuation, temperature))
    ids, logps = stream
    assert ids == decode_alone(model, PREFIX, 30, 1, temperature=temperature)[0]
    assert asyncio.run(generator.score(PREFIX, ids)) == pytest.approx(logps)


def test_a_shared_prefix_is_read_once(make):
    model, widths = tiny_llama().double(), []
    generator = make(model)
    hook = model.register_forward_pre_hook(
        lambda _, a, options: widths.append(options["input_ids"].shape), with_kwargs=True
    )

    continuations = [[token, 5, 6][: token % 4] for token in range(10)]
    found = asyncio.run(generator.score_all(PREFIX * 4, continuations))
    hook.remove()
    assert list(map(tuple, widths)) == [(1, 12), (4, 2)]  # the prefix, then the four continuations that go on
    assert found == [pytest.approx(score_alone(model, PREFIX * 4, continuation)) for continuation in continuations]


def test_scoring_nothing_and_scoring_what_cannot_be(make):
    model = tiny_llama().double()
    generator = make(model)
    assert asyncio.run(generator.score(PREFIX, [])) == ()
    with pytest.raises(GenerationError, match="need one or more ids"):
        asyncio.run(generator.score(PREFIX, [VOCABULARY]))
    with torch.no_grad():
        model.lm_head.weight[3] = float("nan")
    with pytest.raises(GenerationError, match="not finite"):
        asyncio.run(generator.score(PREFIX, [4, 5]))


def test_versions(make):
    generator = make(tiny_model(), weight_version="7")
    generator.bump_version()
    assert generator.weight_version == "8" and generator.base_version == "base"

    async def run():
        stream = generator.stream(PREFIX, 400, 1)
        await anext(stream)
        generator.set_version("8")  # nothing changes
        with pytest.raises(GenerationError, match="while requests were open"):
            generator.set_version("9")
        await stream.aclose()

    asyncio.run(run())


def with_rope(**parameters):
    config = tiny_llama().config
    config.rope_parameters = {**config.rope_parameters, **parameters}
    return LlamaForCausalLM(config)


def sliding():
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    return MistralForCausalLM(MistralConfig(vocab_size=10, num_key_value_heads=2, sliding_window=8, **sizes))


def prompt_tuned():
    return get_peft_model(tiny_model(), PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2))


@pytest.mark.parametrize(
    ("build", "options", "field"),
    [
        (sliding, {}, "model"),
        (lambda: with_rope(rope_type="dynamic", factor=2.0), {}, "model"),
        (prompt_tuned, {}, "model"),
        (lambda: torch.nn.Linear(2, 2), {}, "model"),
        (tiny_model, {"base_model": torch.nn.Linear(2, 2)}, "base_model"),
        (tiny_model, {"temperature": 0.0}, "temperature"),
        (tiny_model, {"max_batch": 0}, "max_batch"),
        (tiny_model, {"prefill_tokens": 0}, "prefill_tokens"),
        (tiny_model, {"pad_id": VOCABULARY}, "pad_id"),
        (tiny_model, {"pad_id": None}, "pad_id"),
        (tiny_model, {"end_ids": [2, -1]}, "end_ids"),
    ],
    ids=[
        "sliding window", "dynamic rope", "prompt learning", "no language model", "base is none", "temperature",
        "max_batch", "prefill_tokens", "pad_id", "pad_id missing", "end_ids",
    ],
)  # fmt: skip
def test_what_cannot_work_is_refused_with_the_fix(build, options, field):
    with pytest.raises(ConfigError) as caught:
        LocalGenerator(build(), **{"end_ids": (), **options})
    assert caught.value.field == field
