"""Models on the hub, against a stand-in of its HTTP interface: what is pushed, what comes back, what failures do."""

import logging
import threading
from types import SimpleNamespace

import huggingface_hub
import pytest
import torch
from huggingface_hub import HfApi, ModelCard
from huggingface_hub.utils import get_session
from peft import LoraConfig, PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

from mintrl_trl.checkpoints import read_checkpoint
from mintrl_trl.errors import HubError
from mintrl_trl.reporting.run_folder import RunFolder
from mintrl_trl.sharing import pusher
from tests.fake_hub import TOKEN, Repo, card_errors, hub
from tests.tiny import tiny_model
from tests.trainers import assert_same_weights, make_trainer

# Of the HTTP client, about how huggingface_hub uploads a file to its large storage.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")]

__all__ = ["hub"]  # a fixture
LOGGER = "mintrl_trl.sharing.pusher"


def pushing(tmp_path, **settings):
    """A tiny trainer that pushes."""
    settings = {"push_to_hub": True, "save_strategy": "steps", "save_steps": 1} | settings
    return make_trainer(tmp_path / "run", **settings)


def trained(trainer):
    trainer.train()
    trainer.save_model()
    trainer.close()
    return trainer


def downloaded(hub, tmp_path) -> str:
    return HfApi(endpoint=hub.url, token=TOKEN).snapshot_download("me/run", cache_dir=tmp_path / "cache")


def last_counts(tmp_path) -> dict:
    return list(RunFolder(tmp_path / "run").metrics())[-1]


def test_a_model_is_pushed_with_card_recipe_and_numbers_and_comes_back(tmp_path, hub):
    trainer = pushing(tmp_path)
    trainer.run_folder.recipe = {
        "task": "math",
        "dataset": "/home/me/secret/rows.jsonl",
        "model_name_or_path": "org/base",
    }
    trained(trainer)
    repo = hub.repos["me/run"]
    assert repo.private
    assert repo.commits[0] == "Training in progress, update 1"
    assert repo.commits[-1] == "Model save"
    named = {"README.md", "recipe.json", "recipe.yaml", "settings.json", "versions.json", "metrics.jsonl"}
    model = {"config.json", "generation_config.json", "model.safetensors"}
    tokenizer = {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja"}
    assert set(repo.files) == named | model | tokenizer | {"learning_curves.png"}
    assert b"![learning curves](learning_curves.png)" in repo.files["README.md"]
    assert not any(TOKEN.encode() in data for data in repo.files.values())
    assert not list((tmp_path / "run").glob(".hub-*"))
    counts = last_counts(tmp_path)
    assert counts["hub/failed_pushes"] == 0.0
    assert counts["hub/pushes"] == len(repo.commits)

    folder = downloaded(hub, tmp_path)
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert_same_weights(dict(model.named_parameters()), dict(trainer.model.named_parameters()))
    assert AutoTokenizer.from_pretrained(folder).get_vocab() == trainer.processing_class.get_vocab()


def test_the_card_passes_the_check_of_huggingface_hub(tmp_path, hub):
    hub.repos["org/base"] = Repo(card_data={"license": "apache-2.0"})
    hub.repos["org/judge"] = Repo(card_data={"license": "gpl-3.0"})
    trainer = pushing(tmp_path)
    trainer.args.judge, trainer.args.judge_model = "llm", "org/judge"
    trainer.run_folder.recipe = {"task": "math", "dataset": "org/rows", "model_name_or_path": "org/base"}
    trained(trainer)
    text = hub.files("me/run")["README.md"].decode()
    card = ModelCard(text)
    card.validate()
    assert card_errors(text) == []
    assert hub.requests.count("POST /api/validate-yaml") >= 1
    data = card.data
    assert (data.base_model, data.license, data.datasets) == ("org/base", "apache-2.0", ["org/rows"])
    assert (data.library_name, data.tags) == ("transformers", ["trl", "mintrl"])
    assert "| Its licence | <code>gpl-3.0</code> |" in text
    assert "## Interventions" in text
    assert "<ins><b>23</b></ins>" in text
    assert 'AutoModelForCausalLM.from_pretrained("me/run")' in text


@pytest.mark.parametrize("merged", [False, True], ids=["adapter", "merged"])
def test_an_adapter_comes_back_as_it_is_or_merged(tmp_path, hub, merged):
    base = tmp_path / "base"
    tiny_model().save_pretrained(base)
    model = AutoModelForCausalLM.from_pretrained(base)
    lora = {"peft_config": LoraConfig(r=2, target_modules="all-linear", init_lora_weights=False)}
    trainer = trained(pushing(tmp_path, model=model, trainer_kwargs=lora, hub_merge_adapter=merged, save_steps=2))
    files = set(hub.files("me/run"))
    weights = {"model.safetensors"} if merged else {"adapter_model.safetensors", "adapter_config.json"}
    assert {file for file in files if "model.s" in file or "adapter" in file} == weights
    folder = downloaded(hub, tmp_path)
    ids = torch.tensor([[5, 6, 7]])
    with torch.no_grad():
        expected = trainer.model(ids).logits
        if merged:
            found = AutoModelForCausalLM.from_pretrained(folder, dtype="float32")(ids).logits
        else:
            found = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), folder)(ids).logits
    torch.testing.assert_close(found, expected, atol=3e-2 if merged else 1e-6, rtol=0)
    card = ModelCard(hub.files("me/run")["README.md"].decode())
    assert card.data.library_name == ("transformers" if merged else "peft")


def warnings(caplog) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.name == LOGGER and r.levelno == logging.WARNING]


@pytest.mark.parametrize(
    "broken", ["/api/repos/create", "/api/models/me/run/commit/main", "/api/models/me/run/preupload/main"]
)
def test_a_failed_push_never_stops_training(tmp_path, hub, caplog, broken):
    hub.fails = lambda path: 403 if path == broken else None
    trained(pushing(tmp_path))
    assert (tmp_path / "run" / "model.safetensors").is_file()
    assert all(TOKEN not in warning and "training goes on" in warning for warning in warnings(caplog))
    assert len(warnings(caplog)) >= 2
    counts = last_counts(tmp_path)
    assert counts["hub/pushes"] == 0.0
    assert counts["hub/failed_pushes"] >= 2.0
    assert not list((tmp_path / "run").glob(".hub-*"))
    with_loss = [line for line in RunFolder(tmp_path / "run").metrics() if "loss" in line]
    assert all("hub/failed_pushes" in line for line in with_loss)


@pytest.mark.parametrize("silent", ["/api/repos/create", "/api/models/me/run/commit/main"])
def test_a_hub_that_never_answers_holds_no_run(tmp_path, hub, caplog, monkeypatch, silent):
    monkeypatch.setattr(pusher, "_ANSWER_SECONDS", 0.2)
    monkeypatch.setattr(pusher, "_UPLOAD_SECONDS", 0.5)
    released = threading.Event()
    hub.before = lambda path: released.wait(20) if path == silent else None
    trained(pushing(tmp_path))
    released.set()
    assert last_counts(tmp_path)["hub/failed_pushes"] >= 2.0
    assert "ReadTimeout" in warnings(caplog)[0]


@pytest.fixture
def pauses(monkeypatch) -> list[float]:
    """Seconds that huggingface_hub would have slept before it tried again; it does not sleep."""
    slept: list[float] = []
    monkeypatch.setattr(huggingface_hub.utils._http, "time", SimpleNamespace(sleep=slept.append))
    return slept


def staged(tmp_path):
    folder = tmp_path / "staged"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    return folder


def test_a_refused_connection_lifts_no_limit_of_the_push(tmp_path, hub, monkeypatch, pauses):
    monkeypatch.setattr(pusher, "_UPLOAD_SECONDS", 0.2)
    client, released, refused = type(get_session()), threading.Event(), []
    request = client.request

    def refused_once(self, method, url, **kwargs):
        if "preupload" in url and not refused:
            refused.append(url)
            url = "http://127.0.0.1:9"
        return request(self, method, url, **kwargs)

    monkeypatch.setattr(client, "request", refused_once)
    hub.before = lambda path: released.wait(10) if "commit" in path else None
    with pytest.raises(HubError, match="ReadTimeout"):
        pusher.HubPusher("run").push(staged(tmp_path), "Held")
    released.set()
    assert refused


@pytest.mark.parametrize(
    ("status", "headers"),
    [(503, {"Retry-After": "86400"}), (429, {"RateLimit": '"api";r=0;t=86400'})],
)
def test_a_hub_that_asks_for_a_day_holds_no_push(tmp_path, hub, pauses, status, headers):
    hub.fails, hub.fault_headers = lambda path: status if "preupload" in path else None, headers
    with pytest.raises(HubError, match=str(status)):
        pusher.HubPusher("run").push(staged(tmp_path), "Put off")
    assert pauses == [301.0] * 5


def test_no_hub_at_all(tmp_path, hub, caplog, monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    trained(pushing(tmp_path, save_strategy="no"))
    assert last_counts(tmp_path)["hub/failed_pushes"] == 1.0
    assert "could not be made or reached: Connect" in warnings(caplog)[0]


def test_a_hub_that_comes_back_gets_the_model(tmp_path, hub):
    hub.fails = lambda path: 503 if path == "/api/repos/create" else None
    trainer = pushing(tmp_path, save_strategy="no")
    hub.fails = lambda path: None
    trained(trainer)
    assert hub.repos["me/run"].commits == ["Model save"]


def test_what_is_public_gets_no_private_model(tmp_path, hub, caplog):
    hub.repos["me/run"] = Repo(private=False)
    trained(pushing(tmp_path, save_strategy="no"))
    assert hub.files("me/run") == {}
    assert "is public, and the model is to be private" in warnings(caplog)[0]
    trained(pushing(tmp_path, save_strategy="no", hub_private_repo=False, set_aside_older_run=True))
    assert "model.safetensors" in hub.files("me/run")


def test_a_push_by_name_says_what_went_wrong(tmp_path, hub):
    trainer = make_trainer(tmp_path / "run", max_steps=1)
    trainer.train()
    hub.fails = lambda path: 500 if "commit" in path else None
    with pytest.raises(HubError, match=r"the push to me/run failed: .*500"):
        trainer.push_to_hub()
    hub.fails = lambda path: None
    trainer.push_to_hub("By name", tags="mine")
    commit = trainer.push_to_hub("Beside", blocking=False)
    trainer.push_to_hub("Elsewhere", private=False)
    assert commit.done()
    assert commit.result().commit_url.startswith(f"{hub.url}/me/run/commit/")
    assert trainer.hub.counters() == {"hub/pushes": 3.0, "hub/failed_pushes": 1.0}
    trainer.close()
    assert hub.repos["me/run"].commits == ["By name", "Beside", "Elsewhere"]
    assert hub.repos["me/run"].private  # as it was made


@pytest.mark.parametrize(
    ("strategy", "folders", "commits"),
    [
        ("end", set(), 1),
        ("every_save", set(), 3),
        ("checkpoint", {"last-checkpoint"}, 3),
        ("all_checkpoints", {"checkpoint-1", "checkpoint-2"}, 3),
    ],
)
def test_strategies_of_pushing_checkpoints(tmp_path, hub, strategy, folders, commits):
    trained(pushing(tmp_path, hub_strategy=strategy, hub_always_push=True))
    repo = hub.repos["me/run"]
    assert len(repo.commits) == commits
    assert {path.partition("/")[0] for path in repo.files if "/" in path} == folders
    for folder in folders:
        inside = {path.removeprefix(f"{folder}/") for path in repo.files if path.startswith(f"{folder}/")}
        assert {"optimizer.pt", "trainer_state.json", "complete.json", "model.safetensors"} <= inside
        assert "training_args.bin" not in inside
    if strategy == "checkpoint":
        place = tmp_path / "got" / "last-checkpoint"
        HfApi(endpoint=hub.url, token=TOKEN).snapshot_download("me/run", local_dir=place.parent)
        assert read_checkpoint(place).problem is None
        trainer = make_trainer(tmp_path / "on", max_steps=3, intervention_updates=2)
        trainer.train(str(place))
        trainer.close()
        assert trainer.state.global_step == 3


def test_training_does_not_wait_for_a_push(tmp_path, hub):
    released, updates = threading.Event(), []

    def reward(completions, **kwargs):
        updates.append(len(hub.repos["me/run"].commits))
        if len(updates) == 3:
            released.set()
        return [0.0] * len(completions)

    hub.before = lambda path: released.wait(20) if "commit" in path else None
    trained(pushing(tmp_path, reward=reward, max_steps=3, intervention_updates=3))
    assert updates == [0, 0, 0]
    assert hub.repos["me/run"].commits[-1] == "Model save"


def test_what_a_killed_run_left_is_removed(tmp_path, hub):
    left = tmp_path / "run" / ".hub-abc" / "files"
    left.mkdir(parents=True)
    trained(make_trainer(tmp_path / "run", max_steps=1))
    assert not left.parent.exists()
