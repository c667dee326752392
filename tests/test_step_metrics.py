"""Tokens, times and utilisation of an update, by hand."""

import asyncio
import math

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

from mintrl_trl import KEEP, Correction, Revise
from mintrl_trl.step_metrics import (
    STAGES,
    StepClock,
    StepRecord,
    TokenCount,
    Tokens,
    TrainingFlops,
    named_peak_flops,
    peak_flops,
    step_metrics,
)
from tests.tiny import tiny_model
from tests.trainers import HashGenerator, make_trainer

SHARES = {f"share/{name}" for name in (*STAGES, "review")}


def seconds(**given: float) -> dict[str, float]:
    return dict.fromkeys(STAGES, 0.0) | given


def test_tokens_are_counted_until_they_are_taken():
    count = TokenCount()
    count.add(live=3, forwarded=5, squared=9)
    count.add(live=4, forwarded=4, squared=16)
    assert count.take() == Tokens(7, 9, 25)
    assert count.take() == Tokens(0, 0, 0)


class HandClock:
    """A clock that is moved by hand."""

    def __init__(self):
        self.seconds = 100.0

    def __call__(self):
        return self.seconds


def test_time_inside_another_stage_counts_once():
    now = HandClock()
    clock = StepClock(now)
    clock.start("update")
    with clock.stage("idle"):
        now.seconds += 1.0
        with clock.stage("rollout"):
            now.seconds += 4.0
        now.seconds += 2.0
    with clock.stage("update"):
        now.seconds += 8.0
    now.seconds += 16.0
    assert clock.stop() == seconds(rollout=4.0, idle=3.0, update=24.0)


def test_a_clock_that_stands_counts_nothing_and_a_broken_update_leaves_nothing():
    now = HandClock()
    clock = StepClock(now)
    with clock.stage("rollout"):
        now.seconds += 1.0
    clock.start("update")
    with pytest.raises(KeyError), clock.stage("rollout"):
        now.seconds += 2.0
        raise KeyError
    clock.start("update")
    now.seconds += 4.0
    assert clock.stop() == seconds(update=4.0)
    now.seconds += 8.0
    assert clock.stop() == seconds(update=4.0)


def test_shares_are_those_of_all_processes_and_add_up_to_one():
    """The judge held up a quarter of 4 s and half of 2 s: 2 s of 20; the policy sampled in the other 4."""
    records = [
        StepRecord(
            seconds(sync=1.0, rollout=4.0, reward=1.0, update=3.0, idle=1.0),
            held_up_share=0.25,
            response_tokens=300,
            tokens=Tokens(live=400, forwarded=500),
        ),
        StepRecord(
            seconds(sync=1.0, rollout=2.0, reward=1.0, update=5.0, idle=1.0),
            held_up_share=0.5,
            response_tokens=600,
            tokens=Tokens(live=800, forwarded=900),
        ),
    ]
    assert step_metrics(records) == pytest.approx(
        {
            "step/seconds": 10.0,
            "share/sync": 0.1,
            "share/rollout": 0.2,
            "share/review": 0.1,
            "share/reward": 0.1,
            "share/update": 0.4,
            "share/idle": 0.1,
            "seconds/sync": 1.0,
            "seconds/rollout": 3.0,
            "seconds/reward": 1.0,
            "tokens/live": 1200,
            "tokens/forwarded": 1400,
            "tokens_per_second/rollout": 300.0,
            "tokens_per_second/update": 300.0,
        }
    )


def test_utilisation_is_work_over_what_the_devices_could_do():
    """2 s at 100 per second and 3 s at 100 per second could do 500; 250 were done."""
    records = [
        StepRecord(seconds(update=2.0), tokens=Tokens(5, 5, 25), flops=100.0, peak_flops=100.0),
        StepRecord(seconds(update=3.0), tokens=Tokens(5, 5, 25), flops=150.0, peak_flops=100.0),
    ]
    assert step_metrics(records)["mfu"] == pytest.approx(0.5)


def test_what_is_not_known_is_absent():
    alone = step_metrics([StepRecord(seconds(update=2.0))])
    assert alone.keys() == {"step/seconds", *SHARES}
    for record in (
        StepRecord(seconds(update=2.0), tokens=Tokens(5, 5), peak_flops=100.0),
        StepRecord(seconds(update=2.0), tokens=Tokens(5, 5), flops=100.0),
    ):
        assert "mfu" not in step_metrics([record])


def test_operations_of_a_small_model():
    """Embeddings of 47 x 32 serve as head; a layer has 4 x 32 x 32, 3 x 32 x 64, and norms of 2 x 32 and 2 x 16."""
    weights = 47 * 32 + 2 * (4 * 32 * 32 + 3 * 32 * 64 + 2 * 32 + 2 * 16) + 32
    flops = TrainingFlops.of(tiny_model())
    assert flops.per_token == 6 * weights
    assert flops(tokens=10, squared_tokens=100) == 6 * weights * 10 + 6 * 2 * 32 * 100


def test_frozen_weights_need_no_gradient_of_their_own():
    full = TrainingFlops.of(tiny_model())
    model = get_peft_model(tiny_model(), LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM"))
    assert TrainingFlops.of(model).per_token == full.per_token * 4 / 6 + 6 * 2 * (2 * 32 + 2 * 32)


def test_embeddings_that_are_only_looked_up_cost_nothing_and_experts_what_a_token_uses():
    config = Qwen3MoeConfig(
        vocab_size=50,
        hidden_size=16,
        intermediate_size=32,
        moe_intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=8,
        num_experts=4,
        num_experts_per_tok=1,
        tie_word_embeddings=False,
    )
    dense = 50 * 16 + 4 * 16 * 16 + 4 * 16 + 2 * 16 + 2 * 8 + 16  # head, attention, router, norms
    expert = 3 * 16 * 8
    assert TrainingFlops.of(Qwen3MoeForCausalLM(config)).per_token == 6 * (dense + expert)


@pytest.mark.parametrize(
    ("name", "dtype", "expected"),
    [
        ("NVIDIA H100 80GB HBM3", torch.bfloat16, 989e12),
        ("NVIDIA H100 PCIe", torch.bfloat16, 756e12),
        ("NVIDIA A100-SXM4-80GB", torch.float16, 312e12),
        ("NVIDIA L40S", torch.bfloat16, 362e12),
        ("NVIDIA GeForce RTX 4090", torch.bfloat16, 165.2e12),
        ("NVIDIA A40", torch.bfloat16, 149.7e12),
        ("NVIDIA H100 80GB HBM3", torch.float32, None),
        ("NVIDIA GeForce RTX 4090", torch.float32, None),
        ("Some Device", torch.bfloat16, None),
    ],
)
def test_peaks_of_devices(name, dtype, expected):
    assert named_peak_flops(name, dtype) == expected


def test_a_cpu_has_no_known_peak():
    assert peak_flops(torch.device("cpu"), torch.float32) is None


def test_every_update_says_where_its_time_went(tmp_path):
    """Two updates share a batch: the second one samples nothing."""
    trainer = make_trainer(tmp_path, updates_per_generation=2, per_device_train_batch_size=4)
    trainer.train()
    first, second = [line for line in trainer.run_folder.metrics() if "loss" in line]
    for line in (first, second):
        assert sum(line[name] for name in SHARES) == pytest.approx(1.0)
        assert line["share/update"] > 0
        assert line["share/idle"] > 0
        assert line["step/seconds"] > 0
        assert "mfu" not in line
    assert first["share/rollout"] > 0
    assert first["seconds/rollout"] > 0
    assert first["tokens_per_second/rollout"] > 0
    assert second["share/rollout"] == second["share/review"] == second["share/reward"] == 0
    assert "tokens_per_second/rollout" not in second


class SlowJudge:
    """Takes its time."""

    async def review(self, problem, steps, first_new, *, seed):
        await asyncio.sleep(0.05)
        return KEEP


class SlowCorrector:
    """Rejects at once and takes its time over the correction."""

    async def review(self, problem, steps, first_new, *, seed):
        return Revise(first_new, "no")

    async def intervene(self, problem, accepted, verdict, max_tokens, *, seed):
        await asyncio.sleep(0.05)
        return Correction(ids=(5,))


class NeverEnding(HashGenerator):
    """Samples on, one token in 5 ms, without ever ending."""

    async def stream(self, prefix_ids, max_tokens, seed):
        async for token in super().stream(prefix_ids, max_tokens, seed):
            await asyncio.sleep(0.005)
            yield token


@pytest.mark.parametrize(
    ("judge", "overlap", "low", "high"),
    [
        (SlowJudge(), False, 0.10, math.inf),  # two reviews, and nothing is sampled meanwhile
        (SlowJudge(), True, 0.0, 0.05),  # 60 tokens at 5 ms: the policy samples on through both reviews
        (SlowCorrector(), True, 0.10, math.inf),  # a rejected stream is closed before the correction
    ],
    ids=["waiting for a verdict", "sampling meanwhile", "waiting for a correction"],
)
def test_rollouts_are_held_up_only_while_nothing_is_sampled(tmp_path, judge, overlap, low, high):
    kept = []
    trainer = make_trainer(
        tmp_path,
        judge=judge if hasattr(judge, "intervene") else _with_intervene(judge),
        generator=NeverEnding(end_every=10**9),
        overlap_reviews=overlap,
        max_completion_length=60,
        max_steps=1,
        reward=lambda completions, **kwargs: [0.0] * len(completions),
    )
    add = trainer.step_meter.add_rollouts
    trainer.step_meter.add_rollouts = lambda rollouts: (kept.extend(rollouts), add(rollouts))
    trainer.train()
    for rollout in kept:
        if rollout.reviews:
            assert low <= rollout.held_up_seconds <= high
            assert rollout.held_up_seconds < rollout.seconds
        else:
            assert rollout.held_up_seconds == 0.0
    (line,) = (line for line in trainer.run_folder.metrics() if "share/review" in line)
    assert (line["share/review"] > 0) == (low > 0)


def _with_intervene(judge):
    async def intervene(*args, **kwargs):
        raise AssertionError("nothing was rejected")

    judge.intervene = intervene
    return judge
