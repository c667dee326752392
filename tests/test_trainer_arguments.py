"""What the trainer refuses before a model loads."""

import time

import pytest
from datasets import Dataset, DatasetDict
from peft import LoHaConfig, LoraConfig, get_peft_model
from trl import GRPOConfig

from mintrl_trl import ConfigError
from tests.refusals import NEVER_LOADED, assert_says, build, rows
from tests.tiny import tiny_model


def a_function(*args):
    raise AssertionError("never called")


ONE_TURN = "None: a rollout is one response, written by the policy and the judge"
A_DATASET = "a datasets.Dataset in memory or on disk"
NO_DROPOUT = "0.0: rollouts are sampled without dropout"
A_JUDGE = "an object with `review` and `intervene`, or a function"

REFUSED = [
    pytest.param(lambda: {"tools": [a_function]}, "tools", "a_function", ONE_TURN, "GRPOTrainer", id="tools"),
    pytest.param(
        lambda: {"environment_factory": a_function},
        "environment_factory",
        "a_function",
        ONE_TURN,
        "GRPOTrainer",
        id="environment",
    ),
    pytest.param(
        lambda: {"rollout_func": a_function},
        "rollout_func",
        "a_function",
        "None: the intervention sampler makes the rollouts",
        "generator=",
        id="rollout function",
    ),
    pytest.param(
        lambda: {"peft_config": LoraConfig(r=2, lora_dropout=0.05)},
        "peft_config.lora_dropout",
        "0.05",
        NO_DROPOUT,
        "set lora_dropout=0.0",
        id="adapter with dropout",
    ),
    pytest.param(
        lambda: {"peft_config": LoHaConfig(r=2, module_dropout=0.5)},
        "peft_config.module_dropout",
        "0.5",
        NO_DROPOUT,
        "set module_dropout=0.0",
        id="another kind of adapter with dropout",
    ),
    pytest.param(
        lambda: {"model": get_peft_model(tiny_model(), LoraConfig(target_modules=["q_proj"], lora_dropout=0.1))},
        "model.lora_dropout",
        "0.1",
        NO_DROPOUT,
        "set lora_dropout=0.0",
        id="wrapped model with dropout",
    ),
    pytest.param(
        lambda: {"train_dataset": rows(image="a.png")},
        "train_dataset",
        "column image",
        "text only",
        "dataset.remove_columns(['image'])",
        id="images",
    ),
    pytest.param(
        lambda: {"eval_dataset": {"hard": rows(images=["a.png"])}},
        "eval_dataset",
        "column images",
        "text only",
        "dataset.remove_columns(['images'])",
        id="images in one of several evaluation sets",
    ),
    pytest.param(
        lambda: {"train_dataset": rows().to_iterable_dataset()},
        "train_dataset",
        "IterableDataset",
        A_DATASET,
        "Dataset.from_list(list(rows))",
        id="stream",
    ),
    pytest.param(
        lambda: {"eval_dataset": rows().to_iterable_dataset()},
        "eval_dataset",
        "IterableDataset",
        A_DATASET,
        "Dataset.from_list(list(rows))",
        id="stream for evaluation",
    ),
    pytest.param(
        lambda: {"train_dataset": [{"prompt": "1+1="}]},
        "train_dataset",
        "list",
        A_DATASET,
        "Dataset.from_list(list(rows))",
        id="list of rows",
    ),
    pytest.param(
        lambda: {"train_dataset": DatasetDict(train=rows(), test=rows())},
        "train_dataset",
        "splits train, test",
        "one split",
        'pass dataset["train"]',
        id="all splits",
    ),
    pytest.param(
        lambda: {"train_dataset": None}, "train_dataset", "None", "at least one row", "`prompt` column", id="no data"
    ),
    pytest.param(
        lambda: {"train_dataset": Dataset.from_list([])},
        "train_dataset",
        "a dataset without rows",
        "at least one row",
        "`prompt` column",
        id="empty data",
    ),
    pytest.param(
        lambda: {"eval_dataset": {"hard": rows().select([])}},
        "eval_dataset['hard']",
        "a dataset without rows",
        "at least one row",
        "`prompt` column",
        id="empty evaluation data",
    ),
    pytest.param(
        lambda: {"judge": None},
        "judge",
        "None",
        "a `judge` setting (llm, self, exact, local)",
        "num_intervened=0 for no interventions",
        id="no judge",
    ),
    pytest.param(lambda: {"judge": "llm"}, "judge", "'llm'", A_JUDGE, "MInTRLConfig(judge=...)", id="judge by name"),
    pytest.param(
        lambda: {"args": GRPOConfig("runs/x", use_cpu=True, bf16=False)},
        "args",
        "GRPOConfig",
        "a MInTRLConfig",
        "MInTRLConfig(...)",
        id="TRL's arguments",
    ),
    pytest.param(
        lambda: {"processing_class": object()},
        "processing_class",
        "object",
        "a tokenizer, because prompts are text only",
        "processor.tokenizer",
        id="processor",
    ),
    pytest.param(
        lambda: {"processing_class": None},
        "model",
        NEVER_LOADED,
        "a folder or hub id that holds a tokenizer",
        "processing_class=",
        id="model that does not exist",
    ),
]


@pytest.mark.parametrize(("arguments", "field", "shown", "allowed", "fix"), REFUSED)
def test_refused_before_a_model_loads(tmp_path, arguments, field, shown, allowed, fix):
    arguments = arguments()
    started = time.perf_counter()
    with pytest.raises(ConfigError) as caught:
        build(tmp_path, **arguments)
    assert time.perf_counter() - started < 2
    assert_says(caught.value, field, shown, allowed, fix)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("updates", [1, 2])
def test_fewer_rows_than_one_generated_batch_are_refused(tmp_path, updates):
    """No batch could be formed of them, and a run of no updates would look finished."""
    dataset = rows("1+1=", "1" * 99, *["2+2="] * (2 * updates - 2))
    with pytest.raises(ConfigError) as caught:
        build(tmp_path, train_dataset=dataset, overrides={"updates_per_generation": updates})
    shown = f"{2 * updates - 1} rows (1 more dropped for long prompts)"
    allowed = f"at least 2 x {updates} = {2 * updates} rows: prompts_per_update x updates_per_generation"
    assert_says(caught.value, "train_dataset", shown, allowed, "set prompts_per_update=1")


@pytest.mark.parametrize("overrides", [{"num_intervened": 0}, {"max_reviews": 0}, {"intervention_updates": 0}])
def test_without_reviews_no_judge_is_asked_for(tmp_path, overrides):
    overrides = {"per_device_train_batch_size": 4} | overrides
    with pytest.raises(OSError):  # the model's: everything before it was accepted
        build(tmp_path, overrides=overrides, judge=None)


@pytest.mark.parametrize("peft_config", [LoraConfig(r=2), LoHaConfig(r=2)], ids=["LoRA", "LoHa"])
def test_adapters_without_dropout_are_accepted(tmp_path, peft_config):
    with pytest.raises(OSError):
        build(tmp_path, peft_config=peft_config)
