"""`mintrl eval` on a real vLLM server: killed and continued, scored again without it, other weights brought to it.
And `mintrl calibrate`, with the same server as policy and judge.

The checkpoint comes last, since it replaces the server's weights for good.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer

from mintrl_trl.evaluation.samples import SampleFolder

from .recorder import Recorder
from .server import MODEL, ROOT, RealServer

pytestmark = [pytest.mark.servers, pytest.mark.timeout(900)]

GSM8K = ROOT / "recipes" / "data" / "gsm8k_train_200.jsonl"
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT)}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with RealServer(tmp_path_factory.mktemp("server") / "server.log") as real:
        real.wait()
        yield real


def command(*words: object) -> list[str]:
    return [sys.executable, "-m", "mintrl_trl.cli", "eval", *map(str, words)]


def table_of(*words: object) -> str:
    """What the command prints, without its last line, which names folders."""
    done = subprocess.run(command(*words), env=ENVIRONMENT, capture_output=True, text=True, timeout=800)
    assert done.returncode == 0, done.stderr
    return done.stdout[: done.stdout.rindex("Samples and scores: ")]


def killed_and_continued(
    server: RealServer, out: Path, problems: int, samples: int, tokens: int, at_once: int, file: Path = GSM8K
) -> str:
    """Kill the command when a third of its samples are saved, and let it go on; the table at the end."""
    words = [MODEL, "--benchmarks", file, "--limit", problems, "--samples", samples, "--out", out]
    words += ["--max-completion-length", tokens, "--max-concurrent-rollouts", at_once, "--base-url", server.url]
    path = out / Path(MODEL).name / Path(file).stem / "samples.jsonl"
    with subprocess.Popen(command(*words), env=ENVIRONMENT, stderr=subprocess.PIPE) as killed:
        while not path.exists() or path.read_bytes().count(b"\n") < problems * samples // 3:
            assert killed.poll() is None, killed.stderr.read()
            time.sleep(0.05)
        killed.send_signal(signal.SIGKILL)
    saved = path.read_bytes()
    saved = saved[: saved.rindex(b"\n") + 1]
    assert saved.count(b"\n") < problems * samples
    table = table_of(*words)
    assert path.read_bytes().startswith(saved), "what was saved before the kill is as it was"
    found = Counter(sample.key for sample in SampleFolder(path.parent).samples())
    assert len(found) == problems * samples == path.read_bytes().count(b"\n")
    assert set(Counter(problem for problem, _ in found).values()) == {samples}
    return table


def test_killed_and_continued_and_scored_without_a_server(server, tmp_path):
    table = killed_and_continued(server, tmp_path, problems=6, samples=2, tokens=48, at_once=4)
    assert table_of(tmp_path, "--rescore") == table
    (folder,) = (tmp_path / Path(MODEL).name).iterdir()
    for sample in SampleFolder(folder).samples():
        assert 1 <= len(sample.ids) <= 48
        assert sample.logp < 0
        assert sample.stop == "end" or len(sample.ids) == 48


def test_a_budget_is_tried_with_the_base_model_on_the_server_as_its_own_judge(server, tmp_path):
    words = [sys.executable, "-m", "mintrl_trl.cli", "calibrate"]
    words += ["--config", str(GSM8K.parents[1] / "gsm8k_smollm2.yaml")]
    words += ["--model_name_or_path", MODEL, "--dataset", str(GSM8K), "--use_vllm", "true", "--judge_keep_bias", "0"]
    words += ["--vllm_server_base_url", server.url, "--no_verdict_limit", "1.0", "--max_completion_length", "32"]
    words += ["--chunk-tokens", "16", "--max-reviews", "1", "--correction-tokens", "8", "--prompts", "2"]
    words += ["--rollouts", "2", "--shadow-share", "0.5", "--rescue-cases", "1", "--continuations", "1"]
    words += ["--out", str(tmp_path / "out")]
    made = {}
    for _ in range(2):  # the second time everything is there
        done = subprocess.run(words, env=ENVIRONMENT, capture_output=True, text=True, timeout=800)
        assert done.returncode in (0, 1), done.stderr  # whether such a judge helps is another question
        found = json.loads((tmp_path / "out" / "calibration.json").read_text())
        files = {path: path.read_bytes() for path in (tmp_path / "out").rglob("*.jsonl")}
        assert made in ({}, files)
        made = files
    (pilot,) = found["pilots"]
    (reviews,) = (tmp_path / "out" / "budgets").glob("*/reviews.jsonl")
    lines = [json.loads(line) for line in reviews.read_text().splitlines()]
    written = [span for line in lines for span in line["spans"] if span["author"] == "intervention"]
    logps = [logp for span in written for logp in span["logps"]]
    assert len(lines) == 4 == pilot["rollouts"]
    assert all(logp <= 0 for logp in logps) and len(logps) == pilot["kappa_tokens"]
    assert pilot["kappa"] == (pytest.approx(sum(logps) / len(logps)) if logps else None)
    assert pilot["cost"]["judge/review/calls"] >= 1
    assert found["alarms"]["reviews"] == 2


def test_an_adapter_and_a_checkpoint_are_brought_to_the_server(server, tmp_path):
    model = AutoModelForCausalLM.from_pretrained(MODEL)
    adapted = get_peft_model(model, LoraConfig(r=8, target_modules="all-linear"))
    adapted.save_pretrained(tmp_path / "adapter")
    model = adapted.unload()
    for parameter in model.parameters():
        parameter.data.mul_(0.5)
    model.save_pretrained(tmp_path / "halved")
    AutoTokenizer.from_pretrained(MODEL).save_pretrained(tmp_path / "halved")
    words = ["--benchmarks", GSM8K, "--limit", 2, "--samples", 2, "--max-completion-length", 16]
    words += ["--base-url", server.url, "--out", tmp_path / "out"]
    with Recorder(server.url) as recorder:
        words[words.index(server.url)] = recorder.url
        table = table_of(MODEL, tmp_path / "adapter", *words)
        asked = Counter(one.body["model"] for one in recorder.completions())
        table_of(tmp_path / "halved", *words)
    assert sorted(asked.values()) == [4, 4]
    assert MODEL in asked
    folders = {path.parent.name: SampleFolder(path) for path in (tmp_path / "out").glob("*/*")}
    texts = {name: {one.key: one.text for one in folder.samples()} for name, folder in folders.items()}
    new = texts.pop("adapter"), texts.pop(Path(MODEL).name)
    assert new[0] == new[1], "a new adapter changes nothing, and seeds are of problems and numbers"
    assert texts["halved"] != new[0]
    assert re.search(r"adapter.*\+0\.0 \[", table)
