"""The run folder: nothing is overwritten, nothing secret is written, and a torn line costs only itself."""

import json
import logging
import math
import subprocess
import threading
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import TrainerControl, TrainerState

from mintrl_trl.errors import DataError
from mintrl_trl.reporting import run_folder as module
from mintrl_trl.reporting.callback import RunFolderCallback
from mintrl_trl.reporting.run_folder import RunFolder, jsonable, versions

from .samples import corrected_record


class Anchor(Enum):
    CONST = "const"


@dataclass
class Settings:
    anchor: Anchor = Anchor.CONST
    kappa: float = -0.2
    output_dir: Path = Path("runs/demo")
    hub_token: str | None = "hf_abcdefghijklmnop"
    extra: dict = field(default_factory=lambda: {"headers": {"X-Api-Key": "k", "Authorization": "Bearer abc"}})


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_metrics_come_back_in_order(tmp_path):
    folder = RunFolder(tmp_path / "new" / "run")
    assert list(folder.metrics()) == []
    folder.append_metrics(1, {"loss": 0.5, "rewards/control": torch.tensor(0.25)})
    folder.append_metrics(2, {"loss": math.nan, "grad_norm": math.inf})
    assert list(folder.metrics()) == [
        {"update": 1, "loss": 0.5, "rewards/control": 0.25},
        {"update": 2, "loss": None, "grad_norm": None},
    ]


def test_rollouts_come_back_equal(tmp_path):
    folder = RunFolder(tmp_path)
    records = [corrected_record(row=row) for row in range(3)]
    folder.append_rollouts(records[:2])
    folder.append_rollouts([])
    folder.append_rollouts(records[2:])
    assert list(folder.rollouts()) == records
    assert "\x1b" not in (tmp_path / "rollouts.jsonl").read_text()


def test_text_of_any_script_and_broken_surrogates_are_written(tmp_path):
    folder = RunFolder(tmp_path)
    record = corrected_record(reward_why="数学 \ud800 \u2028 \x1b[31m")
    folder.append_rollouts([record])
    assert list(folder.rollouts()) == [record]


def test_lines_that_are_no_objects_are_skipped(tmp_path):
    (tmp_path / "metrics.jsonl").write_bytes(b'5\n[1]\nnull\n{"update": 1}\n"x"\n')
    assert list(RunFolder(tmp_path).metrics()) == [{"update": 1}]


def test_rollouts_of_earlier_updates_are_not_even_parsed(tmp_path):
    (tmp_path / "rollouts.jsonl").write_bytes(b'{"update": 9, "row": 0}\n{"update": 10, "row": 0}\n')
    with pytest.raises(DataError, match="line 2"):  # which is no rollout, as line 1 is none
        list(RunFolder(tmp_path).rollouts(10))


@pytest.mark.parametrize("torn", [b'{"update": 2, "lo', b'{"update": 2, "name": "\xc3', b"\x00\x00"])
def test_a_torn_last_line_is_skipped_and_the_next_one_is_whole(tmp_path, torn, caplog):
    folder = RunFolder(tmp_path)
    folder.append_metrics(1, {"loss": 1.0})
    before = (tmp_path / "metrics.jsonl").read_bytes()
    (tmp_path / "metrics.jsonl").write_bytes(before + torn)
    with caplog.at_level(logging.WARNING):
        assert [line["update"] for line in folder.metrics()] == [1]
    assert "line 2" in caplog.text
    RunFolder(tmp_path).append_metrics(3, {"loss": 3.0})
    assert [line["update"] for line in folder.metrics()] == [1, 3]
    assert (tmp_path / "metrics.jsonl").read_bytes().startswith(before + torn), "what was written stays"


@given(st.lists(st.integers(0, 9), min_size=1, max_size=5), st.data())
def test_a_cut_at_any_byte_loses_one_line_at_most(tmp_path_factory, updates, data):
    folder = RunFolder(tmp_path_factory.mktemp("run"))
    for update in updates:
        folder.append_metrics(update, {"text": "é"})
    path = folder.path / "metrics.jsonl"
    whole = path.read_bytes()
    cut = data.draw(st.integers(0, len(whole)))
    path.write_bytes(whole[:cut])
    kept = [line["update"] for line in folder.metrics()]
    assert kept == updates[: len(kept)]
    assert len(kept) >= whole[:cut].count(b"\n")


def test_a_line_that_is_no_rollout_says_where(tmp_path):
    (tmp_path / "rollouts.jsonl").write_text('{"update": 1}\n')
    with pytest.raises(DataError, match=r"rollouts\.jsonl, line 1"):
        list(RunFolder(tmp_path).rollouts())


def test_threads_do_not_tear_each_others_lines(tmp_path):
    folder = RunFolder(tmp_path)
    threads = [
        threading.Thread(target=lambda n=n: [folder.append_metrics(n, {"text": "x" * 5000}) for _ in range(20)])
        for n in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(line["update"] for line in folder.metrics()) == sorted(list(range(4)) * 20)


def test_secrets_are_never_written(tmp_path):
    config = Settings()
    config.extra |= {
        "vllm_server_base_url": "http://user:pass@host:8000/v1",
        "note": "use sk-aaaaaaaaaaaaaaaa or Bearer hf_zzzz9999yyyy",
        "judge_api_key_env": "OPENAI_API_KEY",
        "openai_api_key": "",
        "max_tokens": 64,
        "chunk_tokens": 512,
        "pad_token": "<pad>",
    }
    path = RunFolder(tmp_path).write_config(config)
    text = path.read_text()
    for secret in ("hf_", "sk-", "user", "pass@", '"k"', "abc"):
        assert secret not in text
    written = json.loads(text)
    assert written["hub_token"] == written["extra"]["headers"]["X-Api-Key"] == "<hidden>"
    assert written["extra"]["vllm_server_base_url"] == "http://<hidden>@host:8000/v1"
    assert written["extra"]["openai_api_key"] is None
    assert (written["extra"]["max_tokens"], written["extra"]["chunk_tokens"]) == (64, 512)
    assert written["extra"]["judge_api_key_env"] == "OPENAI_API_KEY"
    assert written["extra"]["pad_token"] == "<pad>"
    assert (written["anchor"], written["kappa"], written["output_dir"]) == ("const", -0.2, "runs/demo")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("accessToken", "S3CRET"),
        ("aws_secret_access_key", "S3CRET"),
        ("X-Auth-Key", "S3CRET"),
        ("Cookie", "session=S3CRET"),
        ("url", "https://me:pa@S3CRET@host/v1"),
        ("url", "https://host/v1?api-version=2&api-key=S3CRET&x=1"),
        ("url", "https://host/v1?sig=S3CRET"),
        ("header", "Basic S3CRETS3CRET=="),
        ("header", "Bearer S3CRET"),
        ("note", "ghp_S3CRETS3CRET and gsk_S3CRETS3CRET"),
        ("note", "AKIAS3CRETS3CRET"),
    ],
)
def test_secrets_of_other_forms_are_hidden_too(name, value):
    text = json.dumps(jsonable({name: value}))
    assert "S3CRET" not in text
    assert "<hidden>" in text


@pytest.mark.parametrize(
    "text", ["https://host/v1?api-version=2&x=1", "Basic arithmetic", "tokens per key=value", "a@b"]
)
def test_what_is_no_secret_stays(text):
    assert jsonable({"note": text, "max_tokens": 3}) == {"note": text, "max_tokens": 3}


def test_config_is_kept_and_another_one_stands_beside_it(tmp_path):
    folder = RunFolder(tmp_path)
    assert folder.write_config({"kappa": -0.2}).name == "settings.json"
    assert folder.write_config({"kappa": -0.2}).name == "settings.json"
    assert folder.write_config({"kappa": -0.1}).name == "settings-2.json"
    assert folder.write_config({"kappa": -0.3}).name == "settings-3.json"
    assert folder.write_config({"kappa": -0.1}).name == "settings-2.json"
    assert json.loads((tmp_path / "settings.json").read_text()) == {"kappa": -0.2}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (Anchor.CONST, "const"),
        (float("-inf"), None),
        ({1: (2, 3)}, {"1": [2, 3]}),
        ({"b", "a"}, ["a", "b"]),
        (torch.tensor(3), 3),
        (SimpleNamespace(to_dict=lambda: {"a": 1}), {"a": 1}),
        (corrected_record, "tests.samples.corrected_record"),
        (torch.float32, "torch.float32"),
        (True, True),
    ],
    ids=["enum", "infinite", "mapping", "set", "tensor", "to_dict", "function", "dtype", "bool"],
)
def test_settings_become_plain_values(value, expected):
    assert jsonable(value) == expected


def test_versions_name_packages_python_and_platform(tmp_path):
    written = json.loads(RunFolder(tmp_path).write_versions().read_text())
    assert written == versions()
    assert written["packages"]["torch"].startswith(torch.__version__.split("+")[0])
    assert {"python", "platform", "git_commit"} <= set(written)


def test_git_commit_is_that_of_the_checkout_that_tracks_the_folder(tmp_path, monkeypatch):
    assert module._git_commit(tmp_path) is None
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    subprocess.run([*git, "init", "-q"], check=True)
    assert module._git_commit(tmp_path) is None, "a folder that git does not track has no commit"
    (tmp_path / "run_folder.py").write_text("1\n")
    subprocess.run([*git, "add", "run_folder.py"], check=True)
    subprocess.run([*git, "commit", "-qm", "one"], check=True)
    commit = module._git_commit(tmp_path)
    assert len(commit) == 40
    (tmp_path / "run_folder.py").write_text("2\n")
    assert module._git_commit(tmp_path) == f"{commit}-dirty"
    monkeypatch.setenv("PATH", "")
    assert module._git_commit(tmp_path) is None


def test_callback_writes_what_a_trainer_logs(tmp_path):
    callback = RunFolderCallback(RunFolder(tmp_path), {"kappa": -0.2})
    args, control = SimpleNamespace(output_dir=str(tmp_path)), TrainerControl()
    main = TrainerState(global_step=4, is_world_process_zero=True)
    other = TrainerState(global_step=4, is_world_process_zero=False)
    for state in (other, main):
        callback.on_train_begin(args, state, control)
        callback.on_log(args, state, control, logs={"loss": 0.5})
    assert lines(tmp_path / "metrics.jsonl") == [{"update": 4, "loss": 0.5}]
    callback.run_folder.describe(tmp_path / "checkpoint-4", callback.config)
    for folder in (tmp_path, tmp_path / "checkpoint-4"):
        assert json.loads((folder / "settings.json").read_text()) == {"kappa": -0.2}
        assert (folder / "versions.json").exists()


def test_a_run_that_goes_on_takes_back_what_came_after(tmp_path):
    """Lines of later updates, a torn one and what follows them move; earlier ones stay byte for byte."""
    folder = RunFolder(tmp_path)
    assert not folder.holds_data
    for update in (0, 1, 2, 3, 4):
        folder.append_metrics(update, {"loss": 0.5})
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write('{"update": 5, "lo')
    folder.append_evaluation(0, {"problems": []})
    for name in ("checkpoint-4", "weights-before-2", "weights-before-5", "weights-before-the-storm"):
        (tmp_path / name).mkdir()
    assert folder.holds_data
    assert folder.rewind(2, [tmp_path / "checkpoint-4"]) == tmp_path / "abandoned-1"
    assert [line["update"] for line in folder.metrics()] == [0, 1, 2]
    torn = (tmp_path / "abandoned-1" / "metrics.jsonl").read_text()
    assert torn == '{"update": 3, "loss": 0.5}\n{"update": 4, "loss": 0.5}\n{"update": 5, "lo'
    moved = {path.name for path in (tmp_path / "abandoned-1").iterdir() if path.is_dir()}
    assert moved == {"checkpoint-4", "weights-before-5"}
    assert [line["update"] for line in folder.evaluations()] == [0]
    assert folder.rewind(2) is None
    folder.append_metrics(3, {"loss": 0.25})
    assert folder.rewind(2) == tmp_path / "abandoned-2"
    assert folder.set_aside_older_run() == tmp_path / "previous-1"
    assert (tmp_path / "previous-1" / "abandoned-2").is_dir()
    assert (tmp_path / "previous-1" / "weights-before-2").is_dir()


def test_a_new_run_sets_an_older_one_aside_with_its_model(tmp_path):
    folder = RunFolder(tmp_path, recipe={"task": "chains"})
    (tmp_path / "notes.txt").write_text("mine")
    assert folder.set_aside_older_run() is None
    for run in (1, 2):
        folder.write_recipe(folder.recipe)
        folder.append_metrics(1, {"run": run})
        (tmp_path / "model.safetensors").write_text(f"of run {run}")
        (tmp_path / f"checkpoint-{run}").mkdir()
        assert folder.set_aside_older_run() == tmp_path / f"previous-{run}"
        assert not [path for path in tmp_path.iterdir() if not path.name.startswith("previous-")]
        previous = tmp_path / f"previous-{run}"
        assert lines(previous / "metrics.jsonl") == [{"update": 1, "run": run}]
        assert json.loads((previous / "recipe.json").read_text()) == {"task": "chains"}
        assert (previous / "model.safetensors").read_text() == f"of run {run}"
        assert (previous / f"checkpoint-{run}").is_dir()
