"""Baselines that learn from a teacher: numbers worked out by hand, rows, trajectories, what is refused."""

import asyncio
import json
import math
from pathlib import Path

import pytest
import torch
from datasets import Dataset
from trl.trainer.distillation_trainer import _chunked_divergence_loss

from mintrl_trl.baselines.opsd import TEACHER_PROMPTS, mean_entropy
from mintrl_trl.baselines.scoring import score_rollouts
from mintrl_trl.baselines.sft_grpo import IGNORED, stage_arguments, supervised_rows
from mintrl_trl.baselines.teacher import spell_alike
from mintrl_trl.baselines.trajectories import Trajectory, collect_trajectories, read_trajectories
from mintrl_trl.data import chains
from mintrl_trl.data.chains import World
from mintrl_trl.errors import ConfigError, RewardError
from mintrl_trl.recipe import RecipeArguments, parse_recipe
from mintrl_trl.rollouts.doors import SampledToken
from tests.tiny import tiny_tokenizer

P, T = torch.tensor([0.7, 0.2, 0.1]), torch.tensor([0.5, 0.25, 0.25])  # policy and teacher
KL_PT, KL_TP, JSD = 0.09927278218459154, 0.11662245248648477, 0.02636768822821215
GRADIENT = torch.tensor([0.166039618106, -0.0644832667, -0.101556351406])  # of KL(P || T) by the policy's logits


# Divergences: TRL's, under the meaning that our setting `divergence` gives them


@pytest.mark.parametrize(("divergence", "value"), [(1.0, KL_PT), (0.0, KL_TP), (0.5, JSD)])
def test_divergence_of_opd(divergence, value):
    loss, _, tokens = _chunked_divergence_loss(
        P.log()[None, None], T.log()[None, None], torch.eye(3), torch.eye(3), torch.ones(1, 1), divergence
    )
    assert loss.item() == pytest.approx(value, rel=1e-5)
    assert tokens == 1


@pytest.mark.parametrize(("divergence", "value"), [(1.0, KL_PT), (0.0, KL_TP), (0.5, JSD)])
def test_divergence_of_opsd(divergence, value):
    from trl.experimental.sdft.loss_utils import (
        compute_full_logit_self_distillation_loss,
    )  # after ours, which warns not

    p, t = P.double().log()[None, None], T.double().log()[None, None]
    loss = compute_full_logit_self_distillation_loss(p, t, distillation_alpha=divergence)
    assert loss.item() == pytest.approx(value, rel=1e-6)


def test_gradient_of_reverse_kl_is_the_mean_of_the_sampled_token_gradient():
    logits = P.log().clone().requires_grad_()
    loss, *_ = _chunked_divergence_loss(
        logits[None, None], T.log()[None, None], torch.eye(3), torch.eye(3), torch.ones(1, 1), 1.0
    )
    loss.backward()
    advantages = (T / P).log()
    assert advantages.tolist() == pytest.approx([-0.336472236621, 0.223143551314, 0.916290731874], rel=1e-5)
    sampled = sum(P[y] * -advantages[y] * (torch.eye(3)[y] - P) for y in range(3))  # E of -A grad log p(y)
    assert torch.allclose(logits.grad, GRADIENT, atol=1e-6)
    assert torch.allclose(sampled, GRADIENT, atol=1e-6)


def test_mean_entropy_passes_over_padding():
    logits = torch.stack([P.log(), T.log(), torch.tensor([9.0, 0.0, 0.0])])[None]
    mask = torch.tensor([[True, True, False]])
    expected = -((P * P.log()).sum() + (T * T.log()).sum()).item() / 2
    assert mean_entropy(logits, mask) == pytest.approx(expected, rel=1e-6)


def test_self_teacher_of_the_small_world_reads_what_its_self_judge_reads():
    row = next(World.load().training_rows(3))
    text = TEACHER_PROMPTS["chains"].format(**row)
    ids = chains.build_tokenizer()(text)["input_ids"]
    problem = chains.Problem(question=row["prompt"], privileged_context=row["privileged_context"])
    assert tuple(ids) == chains.privileged_prompt_ids(problem)


# Settings


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"method": "opd"}, "teacher_model"),
        ({"method": "sft_grpo"}, "teacher_model"),
        ({"method": "grpo", "teacher_model": "a"}, "teacher_model"),
        ({"method": "opsd", "teacher_model": "a"}, "teacher_model"),
        ({"method": "opsd", "divergence": 1.5}, "divergence"),
        ({"method": "opsd", "self_teacher": "ema"}, "self_teacher"),
        ({"method": "opsd", "skip_tokens": -1}, "skip_tokens"),
        ({"method": "sft_grpo", "teacher_model": "a", "sft_attempts": 0}, "sft_attempts"),
        ({"method": "sft_grpo", "teacher_model": "a", "sft_learning_rate": 0.0}, "sft_learning_rate"),
        ({"method": "opd", "teacher_model": "a", "sft_epochs": 2}, "sft_epochs"),
    ],
)
def test_a_setting_that_the_method_does_not_follow_is_refused(settings, field):
    with pytest.raises(ConfigError) as caught:
        RecipeArguments(task="chains", **settings)
    assert caught.value.field == field


# Rows of SFT


class Length:
    """The settings that rows depend on."""

    chat_template_kwargs = None
    max_completion_length = 52


def trajectory(prompt: int, text: str, *ends: int):
    return Trajectory(prompt, 0, (*chains.encode(text), *ends), True, 1.0)


def test_a_supervised_row_is_the_policys_prompt_the_response_and_one_end_token():
    tokenizer, row = chains.build_tokenizer(), next(World.load().training_rows(0))
    rows = Dataset.from_list([row])
    text = row["privileged_context"]
    for ends in ((chains.EOS_ID,), (chains.EOS_ID, chains.EOS_ID), ()):
        made = supervised_rows([trajectory(0, text, *ends)], rows, tokenizer, chains.build_tokenizer(), Length)
        prompt = [chains.BOS_ID, *chains.encode(row["prompt"])]
        response = [*chains.encode(text), chains.EOS_ID]
        assert made[0] == {"input_ids": prompt + response, "labels": [IGNORED] * len(prompt) + response}
    too_long = trajectory(0, text + "0", chains.EOS_ID)
    assert len(supervised_rows([too_long], rows, tokenizer, chains.build_tokenizer(), Length)) == 0


def test_responses_go_as_text_between_models_that_spell_differently():
    theirs, ours = chains.build_tokenizer(), tiny_tokenizer()
    assert spell_alike(theirs, chains.build_tokenizer())
    assert not spell_alike(theirs, ours)
    rows = Dataset.from_list([{"prompt": "1+1?"}])
    made = supervised_rows([trajectory(0, "12", chains.EOS_ID)], rows, ours, theirs, Length)
    assert ours.decode(made[0]["input_ids"]) == "<bos>1+1?12<eos>"
    assert made[0]["labels"][-3:] == [*ours("12", add_special_tokens=False)["input_ids"], ours.eos_token_id]


# Trajectories


class Vocabulary:
    size, end_ids, special_ids, special_texts = 11, frozenset({10}), frozenset({10}), ()

    def token_bytes(self, token_id: int) -> bytes:
        return str(token_id).encode() if token_id < 10 else b""


class Teacher:
    """Answers a prompt (number,) with one digit that depends on the seed alone, and counts."""

    weight_version, end_ids = "teacher", frozenset({10})

    def __init__(self):
        self.asked: list[tuple[int, int]] = []

    async def stream(self, prefix_ids, max_tokens, seed):
        self.asked.append((prefix_ids[0], seed))
        for token in (seed % 3, 10)[:max_tokens]:
            await asyncio.sleep(0)
            yield SampledToken(token, 0.0)


def right_is_zero(prompts, completions, **_):
    return [float(completion == "0") for completion in completions]


def collect(path, teacher, count=40, **changes):
    settings = {"attempts": 3, "only_right": True, "max_completion_tokens": 4, "seed": 0, "show_progress": False}
    prompts, rows = [[number] for number in range(count)], [{"prompt": str(number)} for number in range(count)]
    return collect_trajectories(teacher, Vocabulary(), prompts, rows, right_is_zero, path, **settings | changes)


def test_a_problem_is_tried_until_it_is_solved_and_every_try_is_kept(tmp_path):
    path, teacher = tmp_path / "a" / "trajectories.jsonl", Teacher()
    kept = collect(path, teacher)
    lines = list(read_trajectories(path))
    assert len(lines) == len(teacher.asked) == len({seed for _, seed in teacher.asked})
    for number in range(40):
        tries = sorted((line for line in lines if line.prompt == number), key=lambda line: line.attempt)
        assert [line.attempt for line in tries] == list(range(len(tries)))
        assert not any(line.right for line in tries[:-1])
        assert tries[-1].right or len(tries) == 3
    assert [line.prompt for line in kept] == sorted({line.prompt for line in lines if line.right})
    assert 15 < len(kept) < 40
    assert all(line.ids == (0, 10) for line in kept)


def test_an_interrupted_collection_goes_on_with_what_is_missing(tmp_path):
    whole, path, teacher = tmp_path / "whole.jsonl", tmp_path / "cut.jsonl", Teacher()
    kept = collect(whole, Teacher())
    lines = whole.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:25]) + lines[25][:10])  # the last line is torn
    assert collect(path, teacher) == kept
    assert len(teacher.asked) == len(lines) - 25
    key = lambda line: (line.prompt, line.attempt)  # noqa: E731
    assert sorted(read_trajectories(path), key=key) == sorted(read_trajectories(whole), key=key)


def test_without_the_filter_the_first_that_ended_is_kept(tmp_path):
    kept = collect(tmp_path / "all.jsonl", Teacher(), only_right=False)
    assert [line.prompt for line in kept] == list(range(40))
    assert {line.attempt for line in kept} == {0}
    assert any(not line.right for line in kept)
    assert collect(tmp_path / "short.jsonl", Teacher(), only_right=False, max_completion_tokens=1) == []


# Rewards


def test_scores_come_with_their_reasons_and_none_is_not_a_number(tmp_path):
    collect(tmp_path / "t.jsonl", Teacher(), 2)
    found = []

    def reward(prompts, completions, log_extra, column, **_):
        found.extend(zip(prompts, completions, column, strict=True))
        log_extra("why", ["wrong", None])
        return [0.0, None]

    class Done:
        ids = (7, 10)

    rows = [{"prompt": "a", "column": 1}, {"prompt": [{"role": "user", "content": "b"}], "column": 2}]
    rewards, reasons = score_rollouts(reward, rows, [Done, Done], Vocabulary())
    assert rewards[0] == 0.0
    assert math.isnan(rewards[1])
    assert reasons == ["wrong", None]
    assert found == [("a", "7", 1), (rows[1]["prompt"], [{"role": "assistant", "content": "7"}], 2)]
    with pytest.raises(RewardError, match="1 rewards for 2"):
        score_rollouts(lambda **_: [1.0], rows, [Done, Done], Vocabulary())


def test_lines_of_trajectories_are_plain(tmp_path):
    path = tmp_path / "t.jsonl"
    collect(path, Teacher(), 1)
    first = json.loads(path.read_text().splitlines()[0])
    assert set(first) == {"prompt", "attempt", "ids", "ended", "reward"}


def test_the_stage_before_a_run_is_not_pushed(tmp_path):
    path = Path(__file__).parents[1] / "recipes" / "chains_sft_grpo.yaml"
    recipe = parse_recipe(["--config", str(path), "--push_to_hub", "true"], default=path)
    assert recipe.config.push_to_hub
    assert not stage_arguments(recipe, tmp_path, num_rows=8).push_to_hub
