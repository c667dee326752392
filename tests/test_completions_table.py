"""Who wrote what, in the table that trackers get: columns of TRL's table, and TensorBoard's text."""

from collections import deque
from contextlib import nullcontext
from types import SimpleNamespace

import pandas as pd
import pytest
from trl.trainer import grpo_trainer

from mintrl_trl import config_combinations
from mintrl_trl.completions_table import ALL_BY_POLICY, CompletionsText, _markdown, show_texts
from mintrl_trl.errors import ConfigError
from mintrl_trl.sharing import pusher
from tests.trainers import make_trainer


class Tracker:
    """What TRL calls of wandb and trackio."""

    run = object()

    def __init__(self):
        self.tables: list[pd.DataFrame] = []

    @staticmethod
    def Table(dataframe):  # noqa: N802 - theirs
        return dataframe

    def log(self, values):
        self.tables.append(values["completions"])


@pytest.mark.parametrize("name", ["wandb", "trackio"])
def test_a_tracker_gets_who_wrote_what(tmp_path, monkeypatch, name):
    tracker = Tracker()
    monkeypatch.setattr(grpo_trainer, name, tracker, raising=False)
    trainer = make_trainer(tmp_path, log_completions=True, num_completions_to_print=1, max_steps=1)
    trainer.args.report_to = [name]
    trainer.train()
    trainer.close()
    table = tracker.tables[0]
    assert table["role"].tolist() == ["control", "control", "intervened", "intervened"] * 2
    for role, authors in zip(table["role"], table["authors"], strict=True):
        assert (authors == ALL_BY_POLICY) == (role == "control")
        assert role == "control" or ("{+23+}" in authors and "not good] " in authors and "[-" in authors)
    on_disk = pd.read_parquet(tmp_path / "completions" / "completions_00001.parquet")
    assert on_disk["authors"].tolist() == table["authors"].tolist()


@pytest.mark.parametrize("conversational", [False, True])
def test_a_terminal_obeys_no_text_of_a_model(tmp_path, capsys, monkeypatch, conversational):
    monkeypatch.setenv("COLUMNS", "500")
    trainer = make_trainer(tmp_path, log_completions=True)
    hostile = "a\x1b[2J\x1b]0;owned\x07\x9b31m\u202eb"
    logs = trainer._logs
    logs["prompt"].append([{"role": "user", "content": hostile}] if conversational else hostile)
    logs["completion"].append([{"role": "assistant", "content": hostile}] if conversational else hostile)
    logs["rewards"]["parity_reward"].append(1.0)
    logs["advantages"].append(0.0)
    logs["extra"]["why"].append(hostile)
    logs["extra"]["seconds"].append(1.5)
    capsys.readouterr()
    trainer.log({"loss": 1.0})
    trainer.close()
    printed = capsys.readouterr().out
    assert "owned" in printed
    assert not {"\x1b", "\x07", "\x9b", "\u202e"} & set(printed)
    on_disk = pd.read_parquet(tmp_path / "completions" / "completions_00000.parquet")
    assert (on_disk["why"][0], on_disk["seconds"][0]) == (r"a\x1b[2J\x1b]0;owned\x07\x9b31m\u202eb", 1.5)


def test_a_table_without_further_columns_is_shown_too():
    logs = {"prompt": deque(["\x1b"], 4), "completion": deque([[{"role": "user", "content": None}]], 4)}
    main = SimpleNamespace(is_main_process=True)
    show_texts(SimpleNamespace(log_completions=True, accelerator=main, _logs=logs))
    assert (list(logs["prompt"]), logs["prompt"].maxlen) == (["\\x1b"], 4)


class Writer:
    """As TensorBoard's."""

    def __init__(self):
        self.texts: list[tuple[str, str, int]] = []

    def add_text(self, tag, text, step):
        self.texts.append((tag, text, step))


def test_tensorboard_gets_the_table_with_each_update(tmp_path):
    trainer = make_trainer(tmp_path, log_completions=True, num_completions_to_print=1)
    trainer.args.report_to = ["tensorboard"]
    assert CompletionsText.wanted(trainer.args)
    callback = CompletionsText(trainer)
    callback.tb_writer = writer = Writer()  # where transformers' callback has its writer
    trainer.add_callback(callback)
    trainer.train()
    trainer.close()
    assert [(tag, step) for tag, _, step in writer.texts] == [("completions", 1), ("completions", 2)]
    first = writer.texts[0][1].split("\n\n")
    assert first[:2] == ["8 of 8 rollouts", first[1]]
    assert first[1].startswith("rollout · intervened · parity_reward ")
    assert "    [-" in first[2]


def test_without_table_or_tensorboard_there_is_no_text(tmp_path):
    trainer = make_trainer(tmp_path, log_completions=False)
    assert not CompletionsText.wanted(trainer.args)
    trainer.args.log_completions = True
    assert not CompletionsText.wanted(trainer.args)


def test_text_of_a_model_is_code_to_tensorboard_and_reaches_no_terminal():
    hostile = "# title\n</pre><script>x</script>\x1b[2J\u2028![](http://a/b.png)"
    rows = [
        {"prompt": [{"role": "user", "content": "q\nr"}], "completion": hostile, "role": "control", "mine": 1.0}
    ] * 20
    head, facts, code, *_ = _markdown(rows).split("\n\n")
    assert (head, facts) == ("16 of 20 rollouts", "rollout · control · mine 1")
    assert code.splitlines()[:3] == ["    q", "    r", "    # title"]
    assert all(line.startswith("    ") for line in code.splitlines())
    assert "\\x1b[2J\\u2028" in code


@pytest.mark.parametrize("name", ["wandb", "trackio", "tensorboard"])
def test_a_tracker_that_is_not_installed_is_refused_before_a_model_loads(tmp_path, monkeypatch, name):
    monkeypatch.setattr(config_combinations, "find_spec", lambda package: None)
    with pytest.raises(ConfigError, match=f"pip install {name}"):
        make_trainer(tmp_path, model="no/such-model", report_to=name)


def test_other_trackers_are_left_to_transformers(monkeypatch):
    monkeypatch.setattr(config_combinations, "find_spec", lambda package: package == "tensorboardX" or None)
    config_combinations.check_trackers(SimpleNamespace(report_to=["tensorboard", "mlflow"]))


@pytest.mark.parametrize(
    ("private", "changes", "refused"),
    [
        (False, {}, True),
        (True, {}, False),
        (None, {}, True),
        (False, {"hub_private_repo": False}, False),
        (False, {"log_completions": False}, False),
        (OSError("no connection"), {}, False),
    ],
)
def test_the_table_goes_to_no_public_data_set_while_private_is_wanted(monkeypatch, private, changes, refused):
    def answer(self, repo, repo_type):
        if isinstance(private, Exception):
            raise private
        return SimpleNamespace(private=private)

    monkeypatch.setattr(pusher.HfApi, "repo_info", answer)
    values = {"log_completions": True, "log_completions_hub_repo": "me/table", "hub_private_repo": True}
    args = SimpleNamespace(**values | {"hub_token": None} | changes)
    with pytest.raises(ConfigError, match="me/table") if refused else nullcontext():
        pusher.refuse_public_table(args)
