"""What the trainer refuses before a model loads, which rows it drops, and what a judge learns of a row."""

import logging
import time

import pytest
from datasets import Dataset, DatasetDict
from hypothesis import given
from hypothesis import strategies as st
from peft import LoHaConfig, LoraConfig, get_peft_model
from trl import GRPOConfig

from mintrl_trl import ConfigError, DataError, MInTRLConfig, MInTRLTrainer, Problem
from mintrl_trl.training_rows import check_rows, drop_long_rows, load_tokenizer, problem_of
from tests.tiny import tiny_model, tiny_tokenizer
from tests.trainers import AlwaysKeep, parity_reward, settings

NEVER_LOADED = "nobody/no-such-model"  # loading it would fail with another error
USER = {"role": "user", "content": "1+1="}
ANSWER = {"role": "assistant", "content": "2"}


def rows(*prompts, **columns) -> Dataset:
    return Dataset.from_list([{"prompt": prompt} | columns for prompt in prompts or ("1+1=",)])


def build(output_dir, *, overrides=None, **arguments) -> MInTRLTrainer:
    """The trainer's constructor with a model that does not exist."""
    given_arguments = {
        "model": NEVER_LOADED,
        "reward_funcs": parity_reward,
        "args": MInTRLConfig(str(output_dir), **settings(**(overrides or {}))),
        "train_dataset": rows("1+1=", "2+2="),
        "processing_class": tiny_tokenizer(),
        "judge": AlwaysKeep(),
    }
    return MInTRLTrainer(**given_arguments | arguments)


def assert_says(error: ConfigError, field: str, shown: str, allowed: str, fix: str) -> None:
    """The message names field, value, allowed values and fix, on one line."""
    message = str(error)
    assert "\n" not in message
    head, _, rest = message.partition(". Allowed: ")
    named_allowed, _, named_fix = rest.partition(". Fix: ")
    assert head.startswith(f"`{field}` is ")
    assert shown in head
    assert allowed in named_allowed
    assert fix in named_fix


# Arguments


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


# Rows

WRONG_ROWS = [
    pytest.param(rows(""), "row 0: `prompt` is ''", "non-empty text", "fill it in or drop the row", id="empty"),
    pytest.param(rows("1+1=", None), "row 1: `prompt` is None", "non-empty text", "fill it in", id="missing"),
    pytest.param(rows(7), "row 0: `prompt` is 7", "or a list of messages", "drop the row", id="number"),
    pytest.param(rows([]), "row 0: `prompt` is []", "or a list of messages", "drop the row", id="no messages"),
    pytest.param(rows(["1+1="]), "row 0: `prompt` is '1+1='", "`role` and `content`", "a `role`", id="list of text"),
    pytest.param(
        rows([USER], [{"role": "user", "content": None}]),
        "row 1: `prompt` is {'role': 'user', 'content': None}",
        "`role` and `content`",
        "a text `content`",
        id="message without text",
    ),
    pytest.param(
        rows([{"role": "user", "content": [{"type": "text", "text": "1+1="}]}]),
        "row 0: `prompt` is {",
        "text in `role` and `content`",
        "a text `content`",
        id="content in parts",
    ),
    pytest.param(
        rows([USER], [USER, ANSWER]),
        "row 1: `prompt` is {'role': 'assistant', 'content': '2'}",
        "the last one not the assistant's",
        "end the prompt with the user's message",
        id="answered already",
    ),
    pytest.param(
        rows(privileged_context=["a", "b"]),
        "row 0: `privileged_context` is ['a', 'b']",
        "text or None",
        "turn it into text",
        id="privileged context in a list",
    ),
    pytest.param(rows(question=5), "row 0: `question` is 5", "text or None", "turn it into text", id="question"),
    pytest.param(
        Dataset.from_list([{"problem": "1+1=", "answer": "2"}]),
        "every row: `prompt` is None",
        "text or a list of messages",
        "one of the columns ['problem', 'answer'] to `prompt`",
        id="no prompt column",
    ),
]


@pytest.mark.parametrize("name", ["train_dataset", "eval_dataset"])
@pytest.mark.parametrize(("dataset", "head", "allowed", "fix"), WRONG_ROWS)
def test_wrong_rows_are_named(tmp_path, name, dataset, head, allowed, fix):
    with pytest.raises(DataError) as caught:
        build(tmp_path, **{name: dataset})
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith(f"{name}, {head}")
    named_allowed, _, named_fix = message.partition(". Allowed: ")[2].partition(". Fix: ")
    assert allowed in named_allowed
    assert fix in named_fix


def test_a_long_value_is_shortened():
    with pytest.raises(DataError) as caught:
        check_rows(rows([USER, {"role": "assistant", "content": "x" * 10_000}]), "train_dataset")
    assert len(str(caught.value)) < 400


def test_good_rows_pass_and_other_columns_are_nobodys_business():
    check_rows(rows("1+1=", "2+2=", tests=[1, 2], answer=3, privileged_context=None, question=None), "train_dataset")
    check_rows(rows([USER], [{"role": "system", "content": ""}, USER, ANSWER, USER]), "train_dataset")
    check_rows({"easy": rows(), "hard": rows([USER])}, "eval_dataset")


# Long prompts


def drop(dataset: Dataset, limit: int, **overrides):
    args = MInTRLConfig("runs/x", **settings(max_prompt_length=limit, **overrides))
    return drop_long_rows(dataset, tiny_tokenizer(), args)


def test_text_is_measured_with_its_first_token_and_a_limit_is_inclusive():
    dataset = rows("1234", "12345", "12")  # one token a character, and <bos>
    kept, dropped = drop(dataset, 5)
    assert kept["prompt"][:] == ["1234", "12"]
    assert dropped == ["1"]


def test_messages_are_measured_as_the_template_renders_them():
    dataset = Dataset.from_list([{"prompt": [USER], "id": "short"}, {"prompt": [USER, ANSWER, USER], "id": "long"}])
    kept, dropped = drop(dataset, 9)  # "u:1+1=\n" and "a:" are nine characters
    assert kept["id"][:] == ["short"]
    assert dropped == ["long"]


def test_nothing_is_dropped_where_everything_fits(caplog):
    dataset = rows("1", "22")
    with caplog.at_level(logging.WARNING):
        assert drop(dataset, 3) == (dataset, [])
    assert not caplog.records


def test_dropped_rows_are_counted_and_the_first_named(caplog):
    dataset = Dataset.from_list([{"prompt": "1" * (1 + 20 * (i > 0)), "id": f"row-{i}"} for i in range(13)])
    with caplog.at_level(logging.WARNING):
        kept, dropped = drop(dataset, 8)
    assert len(kept) == 1
    assert dropped == [f"row-{i}" for i in range(1, 13)]
    (record,) = caplog.records
    assert record.getMessage() == (
        "Dropped 12 of 13 rows of train_dataset whose prompt is longer than max_prompt_length=8 tokens: "
        + ", ".join(f"row-{i}" for i in range(1, 11))
        + ", ..."
    )


def test_a_prompt_beyond_what_the_server_holds_is_dropped_and_counted(caplog):
    """8,128 tokens, where a server with room for 6,000 leaves 2,048 to the prompt."""
    dataset = Dataset.from_list([{"prompt": "1+1=", "id": "short"}, {"prompt": "1" * 8127, "id": "long"}])
    server = {"use_vllm": True, "vllm_server_base_url": "http://localhost:8000", "vllm_max_model_length": 6000}
    with caplog.at_level(logging.WARNING):
        kept, dropped = drop(dataset, 2048, max_completion_length=3952, **server)
    assert (kept["id"][:], dropped) == (["short"], ["long"])
    assert "Dropped 1 of 2 rows of train_dataset whose prompt is longer than max_prompt_length=2048" in caplog.text
    with pytest.raises(ConfigError, match=r"`vllm_max_model_length` is 6000.*--max-model-len 12080"):
        drop(dataset, 8128, max_completion_length=3952, **server)


def test_no_row_that_fits_is_refused():
    with pytest.raises(ConfigError) as caught:
        drop(rows("12345678", "123456"), 5)
    assert_says(
        caught.value,
        "max_prompt_length",
        "5",
        "at least 7, the shortest prompt of train_dataset in tokens",
        "raise max_prompt_length",
    )


def test_messages_need_a_chat_template():
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = None
    args = MInTRLConfig("runs/x", **settings())
    with pytest.raises(ConfigError) as caught:
        drop_long_rows(rows([USER]), tokenizer, args)
    assert_says(
        caught.value, "processing_class", "Tokenizer", "a tokenizer with a chat template", "set tokenizer.chat_template"
    )
    assert drop_long_rows(rows("1+1="), tokenizer, args)[1] == []


@pytest.mark.parametrize(("thinking", "tokens"), [(False, 4), (True, 9)])
def test_template_arguments_count(thinking, tokens):
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = "{{ messages[0]['content'] }}{% if enable_thinking %}{{ 'think' }}{% endif %}"
    args = MInTRLConfig("runs/x", **settings(max_prompt_length=tokens - 1, enable_thinking=thinking))
    with pytest.raises(ConfigError, match=f"at least {tokens}, the shortest"):
        drop_long_rows(rows([USER]), tokenizer, args)


@given(st.lists(st.integers(1, 12), min_size=1, max_size=8), st.integers(1, 12))
def test_kept_and_dropped_rows_are_a_partition_in_order(lengths, limit):
    dataset = Dataset.from_list([{"prompt": "1" * length, "id": str(i)} for i, length in enumerate(lengths)])
    short = [str(i) for i, length in enumerate(lengths) if length + 1 <= limit]
    if not short:
        with pytest.raises(ConfigError, match=f"at least {min(lengths) + 1}"):
            drop(dataset, limit)
        return
    kept, dropped = drop(dataset, limit)
    assert kept["id"][:] == short
    assert dropped == [str(i) for i in range(len(lengths)) if str(i) not in short]


def test_the_tokenizer_is_loaded_by_the_models_name(tmp_path):
    tiny_tokenizer().save_pretrained(tmp_path)
    args = MInTRLConfig("runs/x", **settings())
    tokenizer = load_tokenizer(str(tmp_path), args)
    assert (tokenizer.padding_side, tokenizer.truncation_side) == ("left", "left")
    model = tiny_model()
    model.config._name_or_path = str(tmp_path)
    assert load_tokenizer(model, args).get_vocab() == tokenizer.get_vocab()


# What a judge may know


def test_the_question_is_the_users_text_unless_the_row_says_otherwise():
    assert problem_of({"prompt": "1+1="}) == Problem("1+1=")
    assert problem_of({"prompt": [{"role": "system", "content": "s"}, USER, ANSWER, USER]}) == Problem("1+1=\n\n1+1=")
    assert problem_of({"prompt": "1+1= Think.", "question": "1+1="}) == Problem("1+1=")
    assert problem_of({"prompt": "1+1=", "question": None}) == Problem("1+1=")


def test_the_rest_of_the_row_reaches_the_judge_only_by_name():
    row = {"prompt": "1+1=", "privileged_context": "2, as 1+1=2", "answer": "2", "tests": ["secret"], "id": "a"}
    assert problem_of(row) == Problem("1+1=", privileged_context="2, as 1+1=2", answer="2")


@pytest.mark.parametrize("answer", [2, None, ["2"]])
def test_an_answer_that_is_no_text_stays_with_the_reward(answer):
    assert problem_of({"prompt": "1+1=", "answer": answer}).answer is None


@pytest.mark.parametrize("name", ["models/SmolLM", "./models/SmolLM", "{folder}/models/SmolLM"])
def test_a_misspelt_folder_is_not_looked_up_at_the_hub(tmp_path, monkeypatch, name):
    folder = tmp_path / "models" / "SmolLM2-135M-Instruct"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("mintrl_trl.training_rows.AutoTokenizer", None)
    with pytest.raises(
        ConfigError, match=r"holds SmolLM2-135M-Instruct.*did you mean '.*models/SmolLM2-135M-Instruct'"
    ):
        load_tokenizer(name.format(folder=tmp_path), MInTRLConfig(str(tmp_path / "run")))
