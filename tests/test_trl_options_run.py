"""Options of TRL outside its loss, each in a tiny run: rewards, evaluation, callbacks, logs."""

import asyncio
import json
from pathlib import Path

import pandas as pd
import pytest
import torch
from datasets import Dataset
from transformers import (
    Qwen3ForSequenceClassification,
    TrainerCallback,
)
from trl.trainer import grpo_trainer

from mintrl_trl import ConfigError, GenerationError, MInTRLConfig, trl_seams
from tests.test_trl_options_loss import CLOSE, Recorder, length_reward, trained
from tests.tiny import tiny_model, tiny_tokenizer
from tests.trainers import ROWS, AlwaysKeep, HashGenerator, make_trainer, parity_reward, settings
from tests.trl_options import shows

# Rewards


@shows("reward_weights", "reward_funcs", "scale_rewards")
def test_the_baseline_of_phase_1_is_the_controls_mean_of_the_weighted_sum(tmp_path):
    """Unscaled: 0.5 x the first reward - 2 x the second."""
    trainer = trained(tmp_path, reward=[parity_reward, length_reward], reward_weights=[0.5, -2.0])
    lengths = trainer.batches[0]["completion_mask"].sum(1)
    totals = (0.5 * (lengths % 2 == 0) - 2.0 * lengths / 10).view(2, 4)
    expected = totals - totals[:, :2].mean(dim=1, keepdim=True)
    torch.testing.assert_close(trainer.batches[0]["advantages"], expected.flatten(), **CLOSE)


@shows("reward_funcs")
def test_rewards_may_be_coroutines(tmp_path):
    async def later(completion_ids, **kwargs):
        await asyncio.sleep(0)
        return parity_reward(None, completion_ids)

    runs = [trained(tmp_path / str(number), reward=reward) for number, reward in enumerate((later, parity_reward))]
    assert [line["reward"] for line in runs[0].state.log_history[:2]] == [
        line["reward"] for line in runs[1].state.log_history[:2]
    ]


@shows("reward_funcs", "reward_processing_classes")
@pytest.mark.parametrize("by_name", [True, False], ids=["path", "module"])
def test_a_reward_model_scores_prompt_and_response(tmp_path, by_name):
    config = tiny_model().config
    config.num_labels = 1
    torch.manual_seed(1)
    scorer = Qwen3ForSequenceClassification(config).eval()
    reward, tokenizers = [scorer], [tiny_tokenizer()]
    if by_name:
        scorer.save_pretrained(tmp_path / "reward")
        tiny_tokenizer().save_pretrained(tmp_path / "reward")
        reward, tokenizers = [str(tmp_path / "reward")], None
    trainer = trained(tmp_path / "run", reward=reward, trainer_kwargs={"reward_processing_classes": tokenizers})
    record = json.loads(Path(tmp_path, "run", "rollouts.jsonl").read_text().splitlines()[0])
    prompt = trainer.batches[0]["prompt_ids"][0]
    text = tiny_tokenizer().decode(prompt, skip_special_tokens=True) + tiny_tokenizer().decode(
        record["ids"], skip_special_tokens=True
    )
    ids = torch.tensor([tiny_tokenizer()(text, add_special_tokens=False)["input_ids"]])
    assert record["reward"] == pytest.approx(scorer(ids).logits.item(), abs=1e-5)


@shows("reward_funcs", "reward_weights", "reward_processing_classes")
@pytest.mark.parametrize(
    ("reward", "options", "field"),
    [
        pytest.param(None, {}, "reward_funcs", id="none"),
        pytest.param([], {}, "reward_funcs", id="empty"),
        pytest.param([parity_reward], {"reward_weights": [1.0, 2.0]}, "reward_weights", id="weights"),
        pytest.param(
            [parity_reward, length_reward],
            {"trainer_kwargs": {"reward_processing_classes": tiny_tokenizer()}},
            "reward_processing_classes",
            id="tokenizers",
        ),
    ],
)
def test_rewards_that_do_not_fit_together_are_refused_before_a_model_loads(tmp_path, reward, options, field):
    with pytest.raises(ConfigError, match=f"`{field}` is"):
        make_trainer(tmp_path, model="no/such-model", reward=reward, **options)


# The batch, the prompts, the order


@shows("mask_truncated_completions")
def test_truncated_rows_leave_the_loss_of_phase_1_and_stay_in_the_baseline(tmp_path):
    """Those that end in the judge's words at the cap are truncated, too."""
    trainer = trained(tmp_path, generator=HashGenerator(end_every=40), mask_truncated_completions=True)
    batch, completions = trainer.batches[0], trainer.completions[0]
    truncated = torch.tensor([ids[-1] != 2 for ids in completions])
    assert truncated.any() and not truncated.all()
    assert torch.equal(batch[trl_seams.SCORED], ~truncated)
    assert torch.equal(batch["completion_mask"].bool().any(1), ~truncated)
    rewards = torch.tensor(parity_reward(None, completions)).view(2, 4)
    expected = rewards - rewards[:, :2].mean(dim=1, keepdim=True)
    torch.testing.assert_close(batch["advantages"][~truncated], expected.flatten()[~truncated], **CLOSE)


@shows("temperature")
def test_log_probabilities_are_those_of_the_temperature_sampled_at(tmp_path):
    trainer = make_trainer(tmp_path, trainer_class=Recorder, generator=None, temperature=0.5, max_steps=1)
    assert trainer.policy.generator.temperature == 0.5
    trainer.train()
    (inputs,) = trainer.micro_batches
    with torch.no_grad():
        seen = trl_seams.forward(trainer, trainer.model, inputs).logps
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
        mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
        logits = trainer.model(input_ids=ids, attention_mask=mask).logits / 0.5
    width = inputs["completion_ids"].size(1)
    expected = logits[:, -width - 1 : -1].log_softmax(-1).gather(2, inputs["completion_ids"][:, :, None])[:, :, 0]
    kept = inputs["completion_mask"].bool()
    torch.testing.assert_close(seen[kept], expected[kept], **CLOSE)
    trainer.close()


@shows("num_iterations")
def test_phase_1_regresses_twice_on_one_batch(tmp_path):
    trainer = make_trainer(tmp_path, trainer_class=Recorder, num_iterations=2)
    trainer.train()
    assert len(trainer.batches) == 1
    first, second = trainer.micro_batches
    assert torch.equal(first["old_per_token_logps"], second["old_per_token_logps"])


@shows("chat_template_kwargs")
def test_template_arguments_reach_every_prompt(tmp_path):
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = "{{ tone }}{% for m in messages %}{{ m['content'] }}{% endfor %}"
    rows = [{"prompt": [{"role": "user", "content": f"{i}+1="}]} for i in range(8)]
    args = MInTRLConfig(str(tmp_path), **settings(chat_template_kwargs={"tone": "dry "}, max_steps=1))
    trainer = Recorder(
        tiny_model(), parity_reward, args, Dataset.from_list(rows), None, tokenizer,
        judge=AlwaysKeep(), generator=HashGenerator(),
    )  # fmt: skip
    trainer.train()
    assert all(tokenizer.decode(ids).startswith("dry ") for ids in trainer.batches[0]["prompt_ids"])


@shows("shuffle_dataset")
def test_prompts_come_in_order_when_asked(tmp_path):
    trainer = trained(tmp_path, shuffle_dataset=False)
    prompts = [tiny_tokenizer().decode(batch["prompt_ids"][row][1:]) for batch in trainer.batches for row in (0, 4)]
    assert prompts == ["0+1=", "1+1=", "2+1=", "3+1="]


# Evaluation, callbacks, optimizers


@shows("eval_dataset", "num_generations_eval")
@pytest.mark.parametrize("several", [True, False], ids=["by name", "one"])
def test_evaluation_while_training(tmp_path, several):
    rows = Dataset.from_list(ROWS[:2])
    trainer = trained(
        tmp_path,
        eval_strategy="steps",
        eval_steps=1,
        per_device_eval_batch_size=4,
        num_generations_eval=2,
        trainer_kwargs={"eval_dataset": {"easy": rows, "hard": rows} if several else rows},
    )
    names = ["eval_easy_reward", "eval_hard_reward"] if several else ["eval_reward"]
    for name in names:
        assert [line["step"] for line in trainer.state.log_history if name in line] == [1, 2]
    evaluated = [batch for batch in trainer.completions if len(batch) == 4]
    assert len(evaluated) == 2 * len(names)
    assert len(trainer.micro_batches) == 2 + len(evaluated)


@shows("callbacks")
def test_callbacks_see_every_update_and_can_stop_the_run(tmp_path):
    class StopAfterOne(TrainerCallback):
        logs = ()

        def on_log(self, args, state, control, logs, **kwargs):
            self.logs = (*self.logs, logs)

        def on_step_end(self, args, state, control, **kwargs):
            control.should_training_stop = True

    callback = StopAfterOne()
    trainer = trained(tmp_path, max_steps=3, trainer_kwargs={"callbacks": [callback]})
    assert trainer.state.global_step == 1
    assert "rewards/control" in callback.logs[0]


@shows("optimizers")
def test_an_optimizer_and_a_schedule_may_be_passed(tmp_path):
    model = tiny_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5**step)
    trained(tmp_path, model=model, trainer_kwargs={"optimizers": (optimizer, schedule)}, reset_optimizer_at_switch=True)
    assert schedule.get_last_lr() == [0.125]
    assert optimizer.state


# Logs


@shows("log_completions", "num_completions_to_print", "log_multimodal")
def test_completions_are_printed_and_kept_with_our_advantages(tmp_path, capsys):
    trainer = trained(tmp_path, log_completions=True, num_completions_to_print=1, log_multimodal=False)
    table = pd.read_parquet(tmp_path / "completions" / "completions_00001.parquet")
    assert table["advantage"].tolist() == trainer.batches[0]["advantages"].tolist()
    assert len(table) == 8
    printed = capsys.readouterr().out.splitlines()
    assert sum(line.startswith("│ └") for line in printed) == 3  # a table a log line
    assert sum(line.startswith("│ ├") for line in printed) == 0  # of one row


@shows("log_unique_prompts")
@pytest.mark.parametrize(("unique", "rows"), [(True, 2), (False, 8)])
def test_trackers_get_each_prompt_once_when_asked(tmp_path, monkeypatch, unique, rows):
    class Tracker:
        run, tables = object(), []
        Table = staticmethod(lambda dataframe: dataframe)
        log = staticmethod(lambda values: Tracker.tables.append(values["completions"]))

    monkeypatch.setattr(grpo_trainer, "wandb", Tracker, raising=False)
    trainer = make_trainer(tmp_path, log_completions=True, log_unique_prompts=unique, max_steps=1)
    trainer.args.report_to = ["wandb"]
    trainer.train()
    assert len(Tracker.tables.pop()) == rows


@shows("log_completions_hub_repo")
def test_completions_are_uploaded_where_asked(tmp_path, monkeypatch):
    uploads = []
    monkeypatch.setattr(grpo_trainer, "create_repo", lambda repo, **kwargs: uploads.append(("made", repo)))
    monkeypatch.setattr(grpo_trainer.DatasetCard, "push_to_hub", lambda self, repo: uploads.append(("card", repo)))
    monkeypatch.setattr(grpo_trainer, "CommitScheduler", lambda **kwargs: uploads.append(("every", kwargs["repo_id"])))
    make_trainer(tmp_path, log_completions=True, log_completions_hub_repo="me/rows")
    assert uploads == [("made", "me/rows"), ("card", "me/rows"), ("every", "me/rows")]


# Servers


@shows("use_vllm", "vllm_server_host", "vllm_server_port", "vllm_server_timeout")
def test_a_server_is_waited_for_as_long_as_the_timeout_says(tmp_path):
    address = {"vllm_server_host": "127.0.0.1", "vllm_server_port": 9}
    with pytest.raises(GenerationError, match=r"127\.0\.0\.1:9"):
        make_trainer(tmp_path, generator=None, use_vllm=True, vllm_server_timeout=0.1, **address)
