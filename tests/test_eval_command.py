"""`mintrl eval`: from a command line to a table, again without a model, and on after a kill."""

import json
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mintrl_trl.cli import main
from mintrl_trl.data.chains import base_model_path
from mintrl_trl.errors import GenerationError
from mintrl_trl.evaluation.benchmarks import load_benchmark
from mintrl_trl.evaluation.run import prompts_fingerprint
from mintrl_trl.evaluation.samples import Sample, SampleFolder
from mintrl_trl.reporting.folder_lock import FolderLock

ROOT = Path(__file__).parents[1]
BASE = str(base_model_path())
CHAINS = ["--benchmarks", "chains", "--limit", "4", "--samples", "2"]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """Folders are made in the working folder, and the command's log level ends with the test."""
    monkeypatch.chdir(tmp_path)
    logger = logging.getLogger("mintrl_trl")
    level = logger.level
    yield
    logger.setLevel(level)


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory):
    """The small world's model, evaluated once."""
    folder = tmp_path_factory.mktemp("evaluated")
    assert main(["eval", BASE, *CHAINS, "--out", str(folder)]) == 0
    return folder / "chains_base"


@pytest.fixture
def stored(evaluated):
    shutil.copytree(evaluated, "evaluations/chains_base")
    return SampleFolder("evaluations/chains_base/chains")


def table_of(out: str) -> str:
    """What is printed before the last line, which names folders."""
    return out[: out.rindex("Samples and scores: ")]


def content(folder: SampleFolder) -> dict:
    """Samples and scores; log-probabilities to what another batch may change."""
    scores = folder.scores()
    found = [(sample, scores[sample.key]) for sample in folder.samples()]
    return {s.key: (s.ids, s.text, s.stop, round(s.logp, 3), score.reward) for s, score in found}


def test_a_table_with_samples_behind_it(stored, capsys):
    assert len(content(stored)) == 8
    assert main(["eval", BASE, *CHAINS, "--json", "table.json"]) == 0
    out, _ = capsys.readouterr()
    assert "chains: Pass@1 in %, with 95 % intervals over problems" in out
    cells = {cell["benchmark"]: cell for cell in json.loads(Path("table.json").read_text())["cells"]}
    assert set(cells) == {"chains", "chains/easy", "chains/hard"}
    rewards = [score.reward for score in stored.scores().values()]
    assert cells["chains"]["pass_at"]["1"]["value"] == sum(rewards) / 8 > 0
    assert (cells["chains"]["problems"], cells["chains"]["samples"]) == (4, 2)


def test_a_model_that_holds_its_evaluations_is_still_a_model(tmp_path, capsys):
    shutil.copytree(base_model_path(), tmp_path / "mine")
    for samples in ("1", "2"):
        assert main(["eval", "mine", *CHAINS[:-1], samples, "--out", "mine"]) == 0
    assert len(content(SampleFolder("mine/mine/chains"))) == 8
    assert main(["eval", "mine", "--rescore", "--out", "mine"]) == 0


def test_nothing_is_sampled_twice(stored, monkeypatch):
    monkeypatch.setattr("mintrl_trl.evaluate_models.local_generator", None)
    before = (stored.path / "samples.jsonl").read_bytes()
    assert main(["eval", BASE, *CHAINS]) == 0
    assert (stored.path / "samples.jsonl").read_bytes() == before


def test_scores_without_a_model(stored, monkeypatch, capsys):
    assert main(["eval", BASE, *CHAINS]) == 0
    table = table_of(capsys.readouterr().out)
    monkeypatch.setattr("mintrl_trl.evaluate_models.local_generator", None)
    for models in (["evaluations"], ["evaluations/chains_base"], [BASE], [BASE, *CHAINS]):
        (stored.path / "scores.jsonl").unlink()
        assert main(["eval", *models, "--rescore"]) == 0
        assert table_of(capsys.readouterr().out) == table
    for named in ([], ["--benchmarks", "chains"]):  # nothing is read but the folders
        assert main(["eval", "evaluations", *named]) == 0
        assert table_of(capsys.readouterr().out) == table
    assert main(["eval", "evaluations", "--benchmarks", "math"]) == 2
    assert "Allowed: what there are samples of: chains" in capsys.readouterr().err


def test_samples_are_added(stored):
    first = content(stored)
    assert main(["eval", BASE, *CHAINS[:-1], "3"]) == 0
    assert len(content(stored)) == 12
    assert first.items() <= content(stored).items()
    assert stored.header()["samples"] == 3


def test_two_models_are_compared_with_the_first(stored, capsys):
    shutil.copytree("evaluations/chains_base", "evaluations/other")
    other = SampleFolder("evaluations/other/chains")
    header = other.header()
    header["model"]["label"] = "other"
    (other.path / "evaluation.json").write_text(json.dumps(header))
    assert main(["eval", BASE, "evaluations/other", *CHAINS]) == 0
    out, _ = capsys.readouterr()
    assert "Pass@1 minus that of chains_base" in out
    assert re.search(r"other\s+. chains\s+.\s+\+0\.0 \[", out)


def test_one_model_under_two_settings(stored, capsys):
    """Two folders of one label are two rows, named by the folders, and what differs is said."""
    shutil.copytree("evaluations", "cold[/b]")
    header = SampleFolder("cold[/b]/chains_base/chains").path / "evaluation.json"
    header.write_text(header.read_text().replace('"temperature": 1.0', '"temperature": 0.5'))
    assert main(["eval", "evaluations", "cold[/b]", "--json", "table.json"]) == 0
    out, _ = capsys.readouterr()
    assert "temperature (1.0 for chains_base (evaluations), 0.5 for chains_base (cold[/b]))" in out
    assert "Samples and scores: evaluations, cold[/b]." in out
    labels = {cell["model"] for cell in json.loads(Path("table.json").read_text())["cells"]}
    assert labels == {"chains_base (evaluations)", "chains_base (cold[/b])"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["evaluations", "evaluations"], "each model once"),
        (["evaluations", "--samples", "0"], "`--samples` is 0"),
        (["evaluations", "--samples", "-1"], "`--samples` is -1"),
        (["evaluations", "--samples", "3"], "continue the evaluation"),
        (["twice"], "one folder of what chains_base wrote on chains"),
        (["half"], "half/a/chains/evaluation.json: `domain, ids, model, subsets, label` is None"),
        (["unknown", "--rescore"], "do not say where chains came from"),
    ],
)
def test_stored_samples_that_make_no_table(stored, capsys, words, message):
    for name in "ab":
        shutil.copytree("evaluations/chains_base", f"twice/{name}")
    SampleFolder("half/a/chains").begin({"benchmark": "chains", "samples": 2})
    header = {name: value for name, value in stored.header().items() if name != "origin"}
    SampleFolder("unknown/a/chains").begin(header)
    assert main(["eval", *words]) == 2
    out, err = capsys.readouterr()
    assert (out, message in err) == ("", True), err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--seed", "1"], "`--out` is 'evaluations/chains_base/chains'. Allowed: a folder of samples under the same "),
        (["--temperature", "0.5"], "sampling.temperature (1.0 there, 0.5 now)"),
        (["--limit", "6"], "it has 4 of chains, not 6. Fix: set limit to 4, or name another folder"),
    ],
)
def test_other_settings_are_refused(stored, capsys, flags, message):
    before = content(stored)
    assert main(["eval", BASE, *CHAINS, *flags]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert content(stored) == before


def test_more_and_fewer_problems_of_one_folder(capsys, monkeypatch):
    Path("rows.jsonl").write_text("".join(f'{{"id": "{n}", "prompt": "1a{n}b3", "answer": "5"}}\n' for n in range(3)))
    words = ["eval", BASE, "--benchmarks", "rows.jsonl", "--samples", "2", "--max-completion-length", "4"]

    def problems(*more):
        assert main([*words, *more, "--json", "table.json"]) == 0, capsys.readouterr().err
        (cell,) = json.loads(Path("table.json").read_text())["cells"]
        return cell["problems"]

    assert problems("--limit", "1") == 1
    folder = SampleFolder("evaluations/chains_base/rows")
    first = content(folder)
    assert problems() == 3
    assert first.items() <= content(folder).items()
    assert folder.header()["origin"]["limit"] is None
    monkeypatch.setattr("mintrl_trl.evaluate_models.local_generator", None)  # nothing is sampled
    assert problems("--limit", "2") == 2
    assert main(["eval", "evaluations", "--rescore", "--json", "table.json"]) == 0
    assert json.loads(Path("table.json").read_text())["cells"][0]["problems"] == 3


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([BASE], "`--benchmarks` is None. Allowed: at least one"),
        ([BASE, "--benchmarks", "nonsense"], "`--benchmarks` is 'nonsense'"),
        (["none/such/folder", *CHAINS], "`MODEL` is 'none/such/folder'"),
        ([BASE, *CHAINS, "--samples", "0"], "`--samples` is 0"),
        ([BASE, *CHAINS, "--top-p", "0.9"], "`--top-p` is 0.9. Allowed: 1 in process"),
        ([BASE, *CHAINS, "--temperature", "0"], "`--temperature` is 0.0. Allowed: above 0 in process"),
        (
            [BASE, *CHAINS, "--temperature", "0", "--base-url", "http://x"],
            "`--samples` is 2. Allowed: 1 at temperature 0",
        ),
        ([BASE, *CHAINS, "--served-name", "x"], "`--served-name` is 'x'. Allowed: unset without base_url"),
        ([BASE, *CHAINS, "--base-url", "http://x", "--dtype", "float32"], "`--dtype` is 'float32'. Allowed: unset"),
        ([BASE, *CHAINS, "--max-completion-length", "9999"], "`--max-completion-length` is 9999. Allowed: at most"),
        ([BASE, *CHAINS, "--json", "none/table.json"], "`--json` is 'none/table.json'"),
        ([BASE, *CHAINS, "--json", "."], "`--json` is '.'"),
        ([BASE, *CHAINS, "--out", "/dev/null/x"], "a folder that can be written"),
        ([BASE, "--benchmarks", "rows.jsonl"], "one whose tokenizer has a chat template"),
        ([BASE, "--benchmarks", ".jsonl"], "a file whose name does not begin with a dot"),
        ([BASE, "--benchmarks", "held-out.jsonl"], "a file of another name"),
        ([BASE, "--benchmarks", "rows.jsonl", "--held-out", "rows.jsonl"], "not among --benchmarks"),
        ([BASE, *CHAINS, "--rescore"], "Allowed: a model whose samples are in evaluations"),
    ],
)
def test_mistakes_are_told_before_a_model_is_loaded(capsys, monkeypatch, words, message):
    monkeypatch.setattr("mintrl_trl.evaluate_models.local_generator", None)
    for name in ("rows.jsonl", ".jsonl", "held-out.jsonl"):
        Path(name).write_text('{"problem": "1+1?", "answer": "2"}\n')
    assert main(["eval", *words]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err


@pytest.mark.parametrize(("error", "code"), [(KeyboardInterrupt(), 130), (GenerationError("lost"), 2)])
def test_what_ends_early_says_how_to_go_on(capsys, monkeypatch, error, code):
    def fail(*args, **kwargs):
        raise error

    monkeypatch.setattr("mintrl_trl.evaluate_models.local_generator", fail)
    assert main(["eval", BASE, *CHAINS]) == code
    assert "saved" not in capsys.readouterr().err  # nothing was finished
    SampleFolder("evaluations/chains_base/chains").append(Sample("chains/0", 0, (1,), "", "length"))
    assert main(["eval", BASE, *CHAINS]) == code
    assert "the same command continues" in capsys.readouterr().err


def test_all_is_scored_again_from_the_folder_that_was_named_then(stored, capsys):
    """Two sets of benchmarks make two tables; the data folder is remembered."""
    Path("data").mkdir()
    Path("data/gsm8k.jsonl").write_text('{"id": "one", "problem": "1+1?", "answer": "2"}\n')
    rows = load_benchmark("gsm8k", data="data").rows
    folder = SampleFolder("evaluations/model/gsm8k")
    folder.begin(
        {
            "origin": {"model": "model", "benchmark": "gsm8k", "limit": None, "data": str(Path("data").resolve())},
            "model": {"label": "model", "run": "", "update": None},
            "benchmark": "gsm8k",
            "domain": "math",
            "prompts": prompts_fingerprint(rows),
            "samples": 1,
            "ids": ["one"],
            "subsets": {},
        }
    )
    folder.append(Sample("one", 0, (1,), "\\boxed{2}", "end"))
    assert main(["eval", "evaluations", "--rescore", "--json", "tables.json"]) == 0
    out = capsys.readouterr().out
    assert "chains: Pass@1 in %" in out and "math: Pass@1 in %" in out
    tables = json.loads(Path("tables.json").read_text())
    assert [list(table["domains"]) for table in tables] == [["chains"], ["math"]]


def test_an_evaluation_remembers_its_data_folder(monkeypatch):
    Path("data").mkdir()
    monkeypatch.setenv("MINTRL_DATA", "data")
    assert main(["eval", "chains_base", *CHAINS[:3], "1", "--samples", "1"]) == 0
    origin = SampleFolder("evaluations/chains_base/chains").header()["origin"]
    assert origin == {"model": BASE, "benchmark": "chains", "limit": 1, "data": str(Path("data").resolve())}


def test_a_scheduler_that_ends_it_is_told_how_to_go_on(stored, capsys, monkeypatch):
    monkeypatch.setattr(
        "mintrl_trl.evaluate_models.local_generator", lambda *_, **__: os.kill(os.getpid(), signal.SIGTERM)
    )
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as end:
        main(["eval", BASE, *CHAINS[:-1], "3"])
    assert end.value.code == 143
    assert "the same command continues" in capsys.readouterr().err
    assert signal.getsignal(signal.SIGTERM) is before


def test_maths_is_scored_by_what_stands_in_the_boxes(capsys):
    """Hand-written responses under a hand-written header, as a model would have left them."""
    Path("rows.jsonl").write_text(
        '{"id": "one", "problem": "1+1?", "answer": "2"}\n{"id": "two", "problem": "2+2?", "answer": "4"}\n'
    )
    folder = SampleFolder("mine/model/rows")
    folder.begin(
        {
            "origin": {"model": "model", "benchmark": "rows.jsonl", "limit": None},
            "model": {"label": "model", "run": "", "update": None},
            "benchmark": "rows",
            "domain": "math",
            "prompts": prompts_fingerprint(load_benchmark("rows.jsonl").rows),
            "samples": 2,
            "ids": ["one", "two"],
            "subsets": {},
        }
    )
    texts = {("one", 0): "So \\boxed{2}.", ("one", 1): "It is 2.", ("two", 0): "\\boxed{+4}", ("two", 1): "\\boxed{5}"}
    for number, ((problem, sample), text) in enumerate(texts.items()):
        folder.append(Sample(problem, sample, (1,) * (number + 1), text, "length" if number == 3 else "end"))
    assert main(["eval", "mine", "--rescore", "--json", "table.json"]) == 0
    (cell,) = json.loads(Path("table.json").read_text())["cells"]
    assert {k: one["value"] for k, one in cell["pass_at"].items()} == {"1": 0.5, "2": 1.0}
    assert (cell["length"], cell["truncated"], cell["no_answer"], cell["unscored"]) == (2.5, 0.25, 0.25, 0)
    assert {key: score.why for key, score in folder.scores().items()} == {
        ("one", 0): "correct",
        ("one", 1): "no_box",
        ("two", 0): "correct",
        ("two", 1): "wrong",
    }
    assert folder.scores()["two", 0].detail == "+4"
    rows = Path("rows.jsonl").read_text()
    Path("rows.jsonl").write_text(rows.replace('"4"', '"5"'))  # a corrected answer is no other problem
    capsys.readouterr()
    assert main(["eval", "mine", "--rescore", "--json", "table.json"]) == 0
    assert folder.scores()["two", 1].reward == 1.0
    Path("rows.jsonl").write_text(rows.replace("2+2", "2+3"))
    assert main(["eval", "mine", "--rescore"]) == 2
    assert "with their ids and prompts" in capsys.readouterr().err


def test_problems_that_are_not_those_that_were_sampled(stored, capsys):
    assert main(["eval", "evaluations", "--rescore", "--benchmarks", "chains", "--limit", "6"]) == 2
    assert "`--benchmarks` is 'chains'. Allowed: the problems that evaluations/chains_base/chains has" in (
        capsys.readouterr().err
    )


def test_a_folder_has_one_writer(stored, capsys, monkeypatch):
    monkeypatch.setattr(FolderLock, "take", lambda self: "process 7 on elsewhere")
    assert main(["eval", BASE, *CHAINS]) == 2
    assert "process 7 on elsewhere does" in capsys.readouterr().err


def test_held_out_problems_choose_a_checkpoint(tmp_path, capsys):
    for update in (1, 2):
        shutil.copytree(base_model_path(), tmp_path / "run" / f"checkpoint-{update}")
        (tmp_path / "run" / f"checkpoint-{update}" / "complete.json").write_text(
            json.dumps({"update": update, "resumable": False, "files": {}})
        )
    Path("held.jsonl").write_text('{"id": "h", "prompt": "1a2b3", "answer": "5"}\n')
    words = ["run", "--benchmarks", "chains", "--limit", "2", "--samples", "1", "--max-completion-length", "20"]
    assert main(["eval", *words, "--held-out", "held.jsonl"]) == 0
    out, _ = capsys.readouterr()
    for rule in ("best average (chosen on the test sets", "final checkpoint: run/checkpoint-2", "best on held-out"):
        assert rule in out
    assert Path("evaluations/run--checkpoint-1/held-out/samples.jsonl").exists()


def command(out: Path) -> list[str]:
    words = ["eval", BASE, "--benchmarks", "chains", "--limit", "40", "--samples", "8"]
    return [*words, "--max-concurrent-rollouts", "6", "--out", str(out)]


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_killed_and_continued_equals_one_that_was_not(tmp_path, capsys):
    """Signal 9 while samples are made: what was saved stays byte for byte, and nothing else shows that it happened."""
    whole, other = (tmp_path / name for name in ("whole", "other"))
    samples = other / "chains_base" / "chains" / "samples.jsonl"
    words = [sys.executable, "-m", "mintrl_trl.cli", *command(other)]
    with subprocess.Popen(words, env=os.environ | {"PYTHONPATH": str(ROOT)}, stderr=subprocess.PIPE) as killed:
        while not samples.exists() or samples.read_bytes().count(b"\n") < 60:
            assert killed.poll() is None, killed.stderr.read()
            time.sleep(0.005)
        killed.send_signal(signal.SIGKILL)
    saved = samples.read_bytes()
    saved = saved[: saved.rindex(b"\n") + 1]
    assert 60 <= saved.count(b"\n") < 320
    tables = []
    for words in (command(other), command(whole), ["eval", str(other), "--rescore"]):
        assert main(words) == 0
        tables.append(table_of(capsys.readouterr().out))
    assert tables[0] == tables[1] == tables[2]
    assert samples.read_bytes().startswith(saved)
    first, second = (SampleFolder(out / "chains_base" / "chains") for out in (whole, other))
    assert len(content(first)) == 320 == samples.read_bytes().count(b"\n")
    assert content(first) == content(second)
