"""`mintrl push`, against a stand-in of the hub: a run that has ended, and one of its checkpoints."""

import json

import pytest
from huggingface_hub import ModelCard
from huggingface_hub.errors import RepositoryNotFoundError

from mintrl_trl.cli import main
from mintrl_trl.errors import HubError
from mintrl_trl.sharing import push_run
from mintrl_trl.sharing.pusher import HubPusher
from tests.analyzed_runs import write_run
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
    before = (run / "config.json").read_bytes()
    (tmp_path / "look" / "config.json").write_text("{}")
    assert (run / "config.json").read_bytes() == before
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
    assert [pusher.licence_of(f"org/{name}") for name in "abc"] == ["mit", None, None]
    with pytest.raises(RepositoryNotFoundError):
        pusher.licence_of("org/d")
    hub.fails = lambda path: 500
    assert pusher.licence_of("org/a") is None


@pytest.mark.parametrize("where", ["beside the run", "nowhere"])
def test_a_base_model_that_lies_on_this_machine_is_not_one_of_the_hub(tmp_path, run, hub, monkeypatch, where):
    (run / "settings.json").write_text(json.dumps({"output_dir": "./run/"}))
    (run / "recipe.json").write_text(json.dumps({"model_name_or_path": "models/base", "dataset": "data/rows.csv"}))
    hub.repos["models/base"] = Repo(card_data={"license": "mit"})  # somebody else's
    if where == "nowhere":
        del hub.repos["models/base"]
    else:
        (tmp_path / "models" / "base").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert main(["push", str(run), "mine"]) == 0
    card = ModelCard(hub.files("me/mine")["README.md"].decode())
    assert (card.data.base_model, card.data.license, card.data.datasets) == (None, None, None)
    assert "A version of a local model" in card.text


def test_a_checkpoint_goes_with_the_numbers_up_to_it(tmp_path, run, hub, capsys):
    lines = {update: {"rewards/control": update / 10} for update in range(1, 5)}
    write_run(run, lines=lines, solved={0: (1, 0), 2: (2, 1), 4: (4, 2)})
    mark = {"update": 2, "resumable": False, "files": {}}
    (run / "checkpoint-1").rename(run / "checkpoint-2")
    (run / "checkpoint-2" / "complete.json").write_text(json.dumps(mark))
    assert main(["push", str(run / "checkpoint-2"), "mine", "--stage", str(tmp_path / "look")]) == 0
    updates = [json.loads(line)["update"] for line in (tmp_path / "look" / "metrics.jsonl").read_text().splitlines()]
    assert max(updates) == 2
    assert (run / "learning_curves.png").read_bytes() != (tmp_path / "look" / "learning_curves.png").read_bytes()
    capsys.readouterr()
    figures = str(tmp_path / "figures")
    assert main(["analyze", str(tmp_path / "look"), "--figures", "3", "4a", "--output", figures]) == 0
    printed, card = capsys.readouterr().out, (tmp_path / "look" / "README.md").read_text()
    assert "training reward: MInTRL-Const 0.1 to 0.2" in printed
    assert "Reward of control rollouts in training: 0.1 to 0.2," in card
    assert "Pass@k, easy: Base 25.0% to 100.0%, MInTRL-Const 50.0% to 100.0%" in printed
    assert "Pass@k, hard: Base 0.0% to 0.0%, MInTRL-Const 25.0% to 100.0%" in printed
    for k, subset, before, after in (
        (1, "easy", 25, 50),
        (4, "easy", 100, 100),
        (1, "hard", 0, 25),
        (4, "hard", 0, 100),
    ):
        assert f"| pass@{k}, <code>{subset}</code> | {before}.0% | {after}.0% (" in card


def test_a_folder_that_may_not_be_written_to_is_pushed_all_the_same(run, hub, monkeypatch):
    def refuse(*args):
        raise PermissionError("read-only file system")

    monkeypatch.setattr(push_run, "learning_curves", refuse)
    monkeypatch.setattr(push_run.os, "access", lambda path, mode: path != run)
    before = sorted(run.iterdir())
    assert main(["push", str(run), "mine"]) == 0
    assert "model.safetensors" in hub.files("me/mine")
    assert sorted(run.iterdir()) == before


def test_a_full_disk_is_an_error_in_words(run, hub, monkeypatch, capsys):
    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(push_run, "fill", full)
    assert main(["push", str(run), "mine"]) == 2
    assert "could not be gathered: [Errno 28] No space left" in capsys.readouterr().err
    assert hub.repos == {}


def test_a_repository_that_was_opened_meanwhile_gets_nothing_more(tmp_path, hub):
    pusher = HubPusher("mine")
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(name)
    pusher.push(tmp_path / "first", "First")
    hub.repos["me/mine"].private = False
    with pytest.raises(HubError, match="is public"):
        pusher.push(tmp_path / "second", "Second")
    hub.repos["me/mine"].private = None  # a hub that does not say
    with pytest.raises(HubError, match="is public"):
        pusher.prepare()
    assert hub.files("me/mine")["config.json"] == b"first"


def test_weights_of_an_older_push_make_room(run, hub):
    older = {"adapter_config.json": b"{}", "adapter_model.safetensors": b"x", "model-00001-of-00002.safetensors": b"x"}
    kept = {"last-checkpoint/model.safetensors": b"x", "notes.md": b"x", "config.json": b"old"}
    hub.repos["me/mine"] = Repo(private=True, files=older | kept)
    assert main(["push", str(run), "mine"]) == 0
    files = hub.files("me/mine")
    assert not set(older) & set(files)
    assert {*kept, "model.safetensors"} <= set(files)
    assert files["config.json"] != b"old"
