"""Which rows the trainer refuses and which it drops, and what a judge learns of a row."""

import logging

import pytest
from datasets import Dataset
from hypothesis import given
from hypothesis import strategies as st

from mintrl_trl import ConfigError, DataError, MInTRLConfig, Problem
from mintrl_trl.training_rows import check_rows, drop_long_rows, load_tokenizer, problem_of
from tests.refusals import assert_says, build, rows
from tests.tiny import tiny_model, tiny_tokenizer
from tests.trainers import settings

USER = {"role": "user", "content": "1+1="}
ANSWER = {"role": "assistant", "content": "2"}


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
