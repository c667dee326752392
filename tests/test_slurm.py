"""The Slurm script, run by bash with recorders in the place of programs; what they were called with is then parsed."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from .commands import ROOT, heading_commands
from .test_commands import READERS

SCRIPT = ROOT / "recipes" / "slurm" / "two_nodes.slurm"
RECORD = 'printf "%s\\0" "$NODE" "$0" "$@" >> "$CALLS"; printf "\\n" >> "$CALLS"\n'
STUBS = {
    "scontrol": "echo node1; echo node2\n",
    "srun": 'while [[ $1 == --* ]]; do [[ $1 != --nodelist=* ]] || export NODE=${1#*=}; shift; done\nexec "$@"\n',
    # A server runs until the file that is named after it appears.
    "mintrl": RECORD + 'if [ "$1" = serve ]; then\n'
    'for _ in {1..600}; do [ ! -e "$CALLS.$2" ] || break; sleep 0.1; done; rm -f "$CALLS.$2"; exit 0\n'
    'fi\n[ "$1" != doctor ] || exit "${DOCTOR:-0}"\n',
    # As often as LOST says, it ends as it does where a server was lost; those named in ENDED have ended by then.
    "accelerate": RECORD + '[ "$(grep -ac launch "$CALLS")" -le "${LOST:-0}" ] || exit 3\n'
    'for name in ${ENDED:-}; do touch "$CALLS.$name"; while [ -e "$CALLS.$name" ]; do sleep 0.1; done; done\n'
    'sleep 0.3; echo "${LAST_WORDS:-returned non-zero exit status 75.}" >&2; exit 1\n',
    # A server answers once it has started: the second one, on the port after, is the second call.
    "curl": 'case "$*" in *"${DOWN:-none}"*) exit 7;; esac\n'
    '[ "$no_proxy" = node2,example.org ] && [ "$NO_PROXY" = "$no_proxy" ] || exit 7\n'
    'calls=1; case "$*" in *1/health) calls=2;; esac; [ "$(wc -l < "$CALLS")" -ge $calls ]\n',
    "sleep": 'exec /bin/sleep "$(if [ "$1" = 5 ]; then echo 0.05; else echo "$1"; fi)"\n',
}


def run_script(folder: Path, *flags: str, **variables: str) -> tuple[int, list[tuple[str, list[str]]]]:
    """Exit code, and each recorded call with the node it was made on."""
    for name, text in STUBS.items():
        path = folder / name
        path.write_text(f"#!/bin/bash\n{text}")
        path.chmod(0o755)
    (folder / "calls").touch()
    environment = {
        "PATH": f"{folder}:{os.environ['PATH']}",
        "CALLS": str(folder / "calls"),
        "NODE": "",
        "SLURM_JOB_NODELIST": "node[1-2]",
        "SLURM_JOB_ID": "7",
        "SLURM_SUBMIT_DIR": str(ROOT),
        "NO_PROXY": "example.org",
    }
    done = subprocess.run(
        ["bash", str(SCRIPT), *flags], env=environment | variables, capture_output=True, text=True, timeout=50
    )
    calls = []
    for line in (folder / "calls").read_text().split("\0\n")[:-1]:
        node, program, *words = line.split("\0")
        calls.append((node, [Path(program).name, *words]))
    assert done.stderr == "", done.stderr
    return done.returncode, calls


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch):
    monkeypatch.chdir(ROOT)


def test_its_commands_are_read_by_their_own_parsers(tmp_path):
    code, calls = run_script(tmp_path, "--seed", "3")
    assert code == 3  # what training ends with
    assert [(node, words[:3]) for node, words in calls] == [
        ("node2", ["mintrl", "serve", "policy"]),
        ("node2", ["mintrl", "serve", "judge"]),
        ("node1", ["mintrl", "doctor", "--config"]),
        ("node1", ["accelerate", "launch", "--config_file"]),
    ]
    for _, words in calls:
        READERS[words[0]](words[1:])
        assert words[words.index("--vllm_server_base_url") + 1] == "http://node2:8000"
        assert words[words.index("--judge_base_url") + 1] == "http://node2:8001/v1"
        assert words[-2:] == ["--seed", "3"]


def test_variables_choose_recipe_python_and_ports(tmp_path):
    variables = {"RECIPE": "recipes/code_qwen3_1.7b.yaml", "PORT": "9000", "VLLM_PYTHON": sys.executable}
    _, calls = run_script(tmp_path, **variables)
    assert "recipes/train_code.py" in calls[-1][1]
    assert all("http://node2:9001/v1" in words for _, words in calls)
    assert all(("--python" in words) == (words[1] == "serve") for _, words in calls)
    for _, words in calls:
        READERS[words[0]](words[1:])


def test_nothing_trains_where_the_doctor_finds_something(tmp_path):
    code, calls = run_script(tmp_path, DOCTOR="1")
    assert code == 1
    assert [words[0] for _, words in calls] == ["mintrl"] * 3


def test_a_server_that_ends_ends_the_job(tmp_path):
    stub = STUBS["mintrl"]
    try:
        STUBS["mintrl"] = RECORD + "exit 1\n"
        code, calls = run_script(tmp_path, DOWN=":8000/health")
    finally:
        STUBS["mintrl"] = stub
    assert code == 1
    assert len(calls) == 1


def test_a_server_that_never_comes_up_ends_the_job(tmp_path):
    code, calls = run_script(tmp_path, DOWN=":8000/health", WAIT="10")
    assert code == 1
    assert len(calls) == 1


@pytest.mark.parametrize("words", ["died with exit status 75.", "  exitcode  : 75 (pid: 7)"])
def test_training_goes_on_where_a_server_was_lost(tmp_path, words):
    code, calls = run_script(tmp_path, "--seed", "3", LOST="2", ENDED="policy", LAST_WORDS=words)
    assert code == 3  # what it ends with then
    served = [words[2] for _, words in calls if words[:2] == ["mintrl", "serve"]]
    assert served == ["policy", "judge", "policy", "policy"], "one that runs is not started again"
    launched = [words for _, words in calls if words[0] == "accelerate"]
    assert len(launched) == 3
    assert launched[0][-2:] == ["--seed", "3"]
    for words in launched[1:]:
        READERS["accelerate"](words[1:])
        assert words[-2:] == ["--resume_from_checkpoint", "last"]


@pytest.mark.parametrize(
    ("variables", "launches"), [({"RESTARTS": "1"}, 2), ({"RESTARTS": "0"}, 1), ({"LAST_WORDS": "exit status 1."}, 1)]
)
def test_training_does_not_go_on_for_ever_or_after_other_errors(tmp_path, variables, launches):
    code, calls = run_script(tmp_path, LOST="9", **variables)
    assert code == 1
    assert sum(words[0] == "accelerate" for _, words in calls) == launches


def test_its_heading_and_its_lines_for_slurm():
    assert all(words[:2] == ["sbatch", "recipes/slurm/two_nodes.slurm"] for words in heading_commands(SCRIPT))
    text = SCRIPT.read_text()
    names = re.findall(r"^#SBATCH --([a-z-]+)=\S+$", text, re.MULTILINE)
    known = {"job-name", "nodes", "ntasks-per-node", "gpus-per-node", "cpus-per-task", "time", "output"}
    assert set(names) == known and text.count("#SBATCH") == len(names)
    assert text.index("#SBATCH") < text.index("\nset -euo pipefail")  # Slurm stops looking at the first command
