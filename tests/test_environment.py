"""`mintrl env`: what a report holds, that it is answered where things are broken, and that it tells no secret."""

import json
import sys

import pytest

from mintrl_trl import environment
from mintrl_trl.cli import main
from mintrl_trl.environment import describe_environment, environment_text
from mintrl_trl.errors import VersionError


def test_versions_devices_and_settings(capsys, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert main(["env"]) == 0
    text = capsys.readouterr().out
    for line in ("trl: 1.16", "vllm: ", "versions: supported", "torch devices: ", "memory: ", "$OMP_NUM_THREADS: 1"):
        assert f"\n{line}" in text
    assert main(["env", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["packages"]["trl"].startswith("1.16")
    assert environment_text(found).splitlines()[1] == f"python: {found['python']}"


SECRET = "hf_abcdefgh1234"


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("HF_TOKEN", SECRET, "set"),
        ("WANDB_API_KEY", SECRET, "set"),
        ("OPENAI_BASE_URL", f"http://me:{SECRET}@host/v1", "set"),
        ("HF_HOME", f"/home/{SECRET}", "set"),
        ("CUDA_VISIBLE_DEVICES", "0,1", "0,1"),
        ("HF_HUB_OFFLINE", "1", "1"),
        ("TERM", f"xterm /{SECRET}", "set"),
        ("VLLM_USE_V1", f"\x1b[2J{SECRET}", "set"),
        ("MY_PASSWORD", SECRET, None),
        ("VLLM_SERVER_API_KEY", SECRET, "set"),
        ("VLLM_SERVER_HOST", "10.0.0.7:8000", "set"),
        ("VLLM_SERVER_DEV_MODE", "1", "1"),
    ],
)
def test_a_value_is_told_only_where_it_cannot_be_private(name, value, shown):
    found = describe_environment({name: value})
    assert found["variables"].get(name) == shown
    assert SECRET not in environment_text(found)
    assert "\x1b" not in environment_text(found)


def test_a_version_that_is_not_supported_is_a_finding(capsys, monkeypatch):
    def refuse():
        raise VersionError("trl 0.9 is installed")

    monkeypatch.setattr(environment, "check_versions", refuse)
    assert main(["env"]) == 1
    assert "versions: trl 0.9 is installed" in capsys.readouterr().out


def test_a_torch_that_does_not_load_is_told(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    assert main(["env"]) == 1
    assert "torch error: ModuleNotFoundError" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("message", "told"),
    [
        (
            "/home/ann/env/lib/python3.11/torch/lib/libtorch_cuda.so: undefined symbol: ncclCommInit",
            "libtorch_cuda.so: undefined symbol: ncclCommInit",
        ),
        ("cannot import name 'x' from 'torch' (/home/ann/torch/__init__.py)", "name 'x' from 'torch' (__init__.py)"),
        (r'[WinError 126] Error loading "C:\Users\ann\torch\lib\c10.dll"', 'Error loading "c10.dll"'),
        ("an and/or text with 1/2 and 16 GiB/s", "an and/or text with 1/2 and 16 GiB/s"),
    ],
)
def test_an_error_tells_no_folder(monkeypatch, message, told):
    def broken(name):
        raise ImportError(message)

    monkeypatch.setattr(environment.importlib, "import_module", broken)
    text = describe_environment({})["torch"]["error"]
    assert text.endswith(told)
    assert "ann" not in text.replace("cannot", "")


def test_a_device_that_fails_when_asked_is_told(monkeypatch):
    class Cuda:
        def is_available(self):
            return True

        def device_count(self):
            raise RuntimeError("CUDA error: unknown error")

    broken = type("torch", (), {"cuda": Cuda(), "version": type("version", (), {"cuda": "12.8"})})
    monkeypatch.setattr(environment.importlib, "import_module", lambda name: broken)
    assert describe_environment({})["torch"] == {"error": "RuntimeError: CUDA error: unknown error"}


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (
            ["/bin/sh", "-c", "printf 'H200, 143771 MiB, 570.1\\nH200, 143771 MiB, 570.1\\n'"],
            "2 x H200, 143771 MiB, 570.1",
        ),
        (["/bin/sh", "-c", "echo no driver >&2; exit 9"], "nvidia-smi failed: no driver"),
        (["no-such-program"], "none that nvidia-smi knows"),
    ],
    ids=["two", "broken", "none"],
)
def test_gpus_as_the_driver_names_them(monkeypatch, command, said):
    monkeypatch.setattr(environment, "_GPU_QUERY", command)
    assert describe_environment({})["machine"]["gpus"] == said
