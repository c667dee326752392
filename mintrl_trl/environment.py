"""What a bug report needs to know of a machine: versions, devices, and which settings of the environment are set.

It reads, changes nothing and opens no connection. Invariants: it answers where a package is missing, broken or of a
version that this one refuses, since that is when it is asked; of environment variables it tells values of those alone
that hold no secret, no address and no path.
"""

import importlib
import os
import platform
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Mapping
from typing import Any

import mintrl_trl

from .errors import VersionError
from .reporting.run_folder import installed_version, versions
from .versions import check_versions

_GIB = 2**30
_GPU_QUERY = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
# Other packages that a run may lean on; those of every run folder come first.
_MORE_PACKAGES = ("numpy", "huggingface_hub", "tokenizers", "safetensors", "math-verify", "rich", "matplotlib")
_OPTIONAL_PACKAGES = ("deepspeed", "flash_attn", "bitsandbytes", "wandb", "trackio", "tensorboard", "hf_xet", "gguf")
# Environment variables by what may be said of them: their value, or only that they are set.
_SAID = re.compile(
    r"(CUDA_VISIBLE_DEVICES|OMP_NUM_THREADS|WORLD_SIZE|LOCAL_RANK|RANK|TOKENIZERS_PARALLELISM|NO_COLOR|COLUMNS|TERM|"
    r"PYTORCH_\w*ALLOC_CONF|(HF|TRANSFORMERS|HF_HUB|HF_DATASETS)_(OFFLINE|DISABLE_\w+)|HF_HUB_ENABLE_\w+|"
    r"NCCL_(DEBUG|P2P_DISABLE|IB_DISABLE|SHM_DISABLE|SOCKET_IFNAME)|VLLM_(USE|SERVER|ALLOW|ATTENTION|ENABLE)_\w+)"
)
_PLAIN = re.compile(r"[\w.,:+-]{0,60}")
# In a name: its value is not told.
_PRIVATE = re.compile(r"KEY|TOKEN|SECRET|PASS|AUTH|HOST|ADDR|URL|IP$|PATH|DIR|ROOT|USER")
_FOLDERS = re.compile(r"(?<![\w.])(?:[A-Za-z]:)?(?:[/\\][^\s/\\:;,'\"()]+)*[/\\](?=[^\s/\\])")  # of a path in a message
_NAMED = re.compile(r"(CUDA|NCCL|HF|HUGGING|VLLM|TORCH|PYTORCH|ACCELERATE|WANDB|TRACKIO|MINTRL|SLURM|OPENAI)_?\w*")


def describe_environment(variables: Mapping[str, str] | None = None) -> dict[str, Any]:
    """What runs here, as plain JSON values.

    Args:
        variables (`Mapping[str, str]`, *optional*): Environment variables. By default those of the process.

    Returns:
        `dict[str, Any]`: `mintrl_trl`, `python`, `platform`, `git_commit`, `packages` (name to version, `None` where
        one is not installed), `supported` (what is wrong with the versions, `None` where nothing is), `machine`,
        `torch` (what it can compute on), `variables`.
    """
    known = versions()
    packages = known["packages"] | {name: installed_version(name) for name in _MORE_PACKAGES}
    packages |= {name: version for name in _OPTIONAL_PACKAGES if (version := installed_version(name)) is not None}
    packages.pop("mintrl_trl", None)
    return {
        "mintrl_trl": mintrl_trl.__version__,
        "python": known["python"],
        "platform": known["platform"],
        "git_commit": known["git_commit"],
        "packages": packages,
        "supported": _unsupported(),
        "machine": _machine(),
        "torch": _torch(),
        "variables": _variables(os.environ if variables is None else variables),
    }


def environment_text(found: Mapping[str, Any]) -> str:
    """The same as lines to paste into a report."""
    commit = f" (commit {found['git_commit']})" if found["git_commit"] else ""
    lines = [
        f"mintrl_trl: {found['mintrl_trl']}{commit}",
        f"python: {found['python']}",
        f"platform: {found['platform']}",
        *(f"{name}: {value}" for name, value in found["machine"].items()),
        *(f"torch {name}: {value}" for name, value in found["torch"].items()),
        "",
        *(f"{name}: {version or 'not installed'}" for name, version in found["packages"].items()),
        f"versions: {found['supported'] or 'supported'}",
        "",
        *(f"${name}: {value}" for name, value in found["variables"].items()),
    ]
    return "\n".join(lines).rstrip() + "\n"


def _unsupported() -> str | None:
    try:
        check_versions()
    except VersionError as error:
        return str(error)
    return None


def _machine() -> dict[str, str]:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    found = {"processor": f"{platform.machine()}, {usable} cores"}
    try:
        found["memory"] = f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / _GIB:.0f} GiB"
    except (AttributeError, OSError, ValueError):  # not of this system
        found["memory"] = "unknown"
    try:
        found["disk"] = f"{shutil.disk_usage('.').free / _GIB:.0f} GiB free here"
    except OSError:  # a folder that was deleted meanwhile
        found["disk"] = "unknown"
    found["gpus"] = _gpus()
    return found


def _gpus() -> str:
    """As the driver names them, so that a torch without CUDA shows beside a GPU that is there."""
    try:
        done = subprocess.run(_GPU_QUERY, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired) as error:
        return "none that nvidia-smi knows" if isinstance(error, OSError) else "nvidia-smi does not answer"
    lines = [line.strip() for line in done.stdout.splitlines() if line.strip()]
    if done.returncode or not lines:
        return f"nvidia-smi failed: {_without_folders(done.stderr or done.stdout)[:200]}"
    return _counted(lines)


def _counted(names: list[str]) -> str:
    """`2 x H100; 1 x A100`, in the order of their first."""
    return "; ".join(f"{number} x {name}" for name, number in Counter(names).items())


def _torch() -> dict[str, str]:
    try:
        return _devices(importlib.import_module("torch"))
    except Exception as error:  # broken installations fail in many ways, and this is where one asks why
        return {"error": f"{type(error).__name__}: {_without_folders(str(error))[:300]}"}


def _devices(torch: Any) -> dict[str, str]:
    found = {"cuda": f"{torch.version.cuda or 'not built in'}"}
    if torch.cuda.is_available():
        found["devices"] = _counted([torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())])
        found["bfloat16"] = "yes" if torch.cuda.is_bf16_supported() else "no"
    else:
        found["devices"] = "CPU only"
    found["threads"] = str(torch.get_num_threads())
    return found


def _without_folders(message: str) -> str:
    """A message on one line, with files in it by their names alone: folders say whose machine it is."""
    message = message.replace(os.path.expanduser("~") + os.sep, os.sep)
    return _FOLDERS.sub("", " ".join(message.split()))


def _variables(variables: Mapping[str, str]) -> dict[str, str]:
    """Those that change how a run behaves; `set` in place of a value that could be private."""
    found = {}
    for name in sorted(variables):
        if _SAID.fullmatch(name) and not _PRIVATE.search(name):
            found[name] = variables[name] if _PLAIN.fullmatch(variables[name]) else "set"
        elif _NAMED.fullmatch(name):
            found[name] = "set"
    return found
