"""`mintrl push`, against a stand-in of the hub: a run that has ended, and one of its checkpoints."""

import json

import pytest

from mintrl_trl.cli import main
from mintrl_trl.sharing.pusher import HubPusher
from tests.fake_hub import Repo, hub
from tests.tiny import tiny_model

# Of the HTTP client, about how huggingface_hub uploads a file to its large storage.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")

__all__ = ["hub"]  # a fixture


@pytest.fixture
def run(tmp_path, capsys):
    """A run folder with a model and a checkpoint."""
    folder = tmp_path / "run"
    for place in (folder, folder / "checkpoint-1"):
        tiny_model().save_pretrained(place)
    (folder / "checkpoint-1" / "complete.json").write_text("{}")
    (folder / "checkpoint-1" / "optimizer.pt").write_text("x")
    (folder / "settings.json").write_text(json.dumps({"anchor": "const", "kappa": -0.3}))
    capsys.readouterr()
    return folder


def test_the_command_pushes_a_run_and_a_checkpoint(tmp_path, run, hub, capsys):
    assert main(["push", str(run), "mine", "--license", "mit", "--message", "Done"]) == 0
    assert capsys.readouterr().out == f"{hub.url}/me/mine/commit/{hub.repos['me/mine'].sha}\n"
    assert (hub.repos["me/mine"].private, hub.repos["me/mine"].commits) == (True, ["Done"])
    assert "license: mit" in hub.files("me/mine")["README.md"].decode()
    checkpoint = run / "checkpoint-1"
    assert main(["push", str(checkpoint), "org/other", "--public", "--examples", "0"]) == 0
    assert not hub.repos["org/other"].private
    files = hub.files("org/other")
    assert files["model.safetensors"] == (checkpoint / "model.safetensors").read_bytes()
    assert not any("optimizer" in name or "complete" in name for name in files)
    assert b"## Interventions" not in files["README.md"]


def test_the_command_shows_what_it_would_push(tmp_path, run, hub, capsys):
    assert main(["push", str(run), "mine", "--stage", str(tmp_path / "look")]) == 0
    assert {"README.md", "model.safetensors"} <= {path.name for path in (tmp_path / "look").iterdir()}
    assert hub.requests == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere", "mine"], "nowhere holds no weights"),
        (["RUN", "a/b/c"], "`REPO` is 'a/b/c'"),
        (["RUN", "mine", "--merge"], "`--merge` is True"),
        (["RUN", "mine", "--stage", "RUN"], "`--stage` is"),
        (["RUN", "mine", "--examples", "-1"], "`--examples` is -1"),
    ],
    ids=["no run", "name", "merge", "stage", "examples"],
)
def test_the_command_says_what_it_cannot_do(run, hub, capsys, words, said):
    assert main(["push", *(str(run) if word == "RUN" else word for word in words)]) == 2
    assert said in capsys.readouterr().err
    assert hub.repos == {}


def test_files_of_other_origin_stay_here(run, hub):
    for name in ("rollouts.jsonl", "training_args.bin", ".env", "notes.txt", "secrets.json", "pytorch_model.bin"):
        (run / name).write_text("x")
    (run / "previous-1").mkdir()
    (run / "previous-1" / "model.safetensors").write_text("x")
    assert main(["push", str(run), "mine"]) == 0
    expected = {"README.md", "config.json", "generation_config.json", "model.safetensors", "settings.json"}
    assert set(hub.files("me/mine")) == expected
    assert (run / "rollouts.jsonl").exists()


def test_licences_are_those_of_the_hub(hub):
    hub.repos |= {"org/a": Repo(card_data={"license": "mit"}), "org/b": Repo(), "org/c": Repo(card_data={"license": 3})}
    pusher = HubPusher("mine")
    assert [pusher.licence_of(f"org/{name}") for name in "abcd"] == ["mit", None, None, None]
    hub.fails = lambda path: 500
    assert pusher.licence_of("org/a") is None


def test_weights_of_an_older_push_make_room(run, hub):
    older = {"adapter_config.json": b"{}", "adapter_model.safetensors": b"x", "model-00001-of-00002.safetensors": b"x"}
    kept = {"last-checkpoint/model.safetensors": b"x", "notes.md": b"x", "config.json": b"old"}
    hub.repos["me/mine"] = Repo(private=True, files=older | kept)
    assert main(["push", str(run), "mine"]) == 0
    files = hub.files("me/mine")
    assert not set(older) & set(files)
    assert {*kept, "model.safetensors"} <= set(files)
    assert files["config.json"] != b"old"
