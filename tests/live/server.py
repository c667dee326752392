"""A real vLLM server on CPU: started, asked, killed and started again.

Its Python is another environment's (`MINTRL_VLLM_PYTHON`, by default `.venv-vllm`), its model a folder
(`MINTRL_SMOLLM2`, by default that of `scripts/get_smollm2.py`); `make test-servers` makes both.
"""

import os
import signal
import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import openai

from mintrl_trl.generation.server import ServerControl, ServerError
from mintrl_trl.generation.vllm_worker import EXTENSION

ROOT = Path(__file__).parents[2]
PYTHON = Path(os.environ.get("MINTRL_VLLM_PYTHON", ROOT / ".venv-vllm" / "bin" / "python"))
MODEL = os.environ.get("MINTRL_SMOLLM2", str(ROOT / "models" / "SmolLM2-135M-Instruct"))
START_SECONDS = 300.0


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


class RealServer:
    """One server process. Use as a context manager.

    Args:
        log (`Path`): Where its output goes, over all starts.
        options (`str`): More of its command line.
    """

    def __init__(self, log: Path, *options: str):
        self.port, self.log, self.options = free_port(), log, options
        self.url = f"http://127.0.0.1:{self.port}"
        self.control = ServerControl(self.url)
        self._process: subprocess.Popen | None = None

    def start(self) -> None:
        """Start it, without waiting."""
        assert PYTHON.exists() and Path(MODEL, "config.json").exists(), (
            f"{PYTHON} and {MODEL} are needed: run `make test-servers`, or set MINTRL_VLLM_PYTHON and MINTRL_SMOLLM2"
        )
        command = [str(PYTHON), "-m", "vllm.entrypoints.openai.api_server", "--model", MODEL, "--dtype", "float32"]
        command += ["--host", "127.0.0.1", "--port", str(self.port), "--max-model-len", "4096", "--enforce-eager"]
        command += ["--enable-lora", "--max-lora-rank", "8", "--max-logprobs", "-1"]
        command += ["--logprobs-mode", "processed_logprobs", "--enable-prompt-tokens-details"]
        # vLLM 0.31 dies on a CPU where a prompt with a seed is cut into chunks ("CPU Generator does not use offset").
        command += ["--no-enable-chunked-prefill", "--max-num-batched-tokens", "8192"]
        command += ["--worker-extension-cls", EXTENSION, *self.options]
        environment = os.environ | {
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
            "VLLM_SERVER_DEV_MODE": "1",
            "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # by default every server takes the same cores
            "VLLM_NO_USAGE_STATS": "1",
        }
        with self.log.open("ab") as out:
            self._process = subprocess.Popen(
                command, stdout=out, stderr=out, env=environment, cwd=self.log.parent, start_new_session=True
            )

    def wait(self) -> None:
        """Wait until it answers."""
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                return self.control.call("GET", "/health", seconds=5)
            except ServerError:
                ended = self._process.poll()
                if ended is not None or time.monotonic() > deadline:
                    tail = self.log.read_text(errors="replace")[-3000:]
                    raise AssertionError(f"the server is not up (exit code {ended}):\n{tail}") from None
            time.sleep(0.5)

    def kill(self) -> None:
        """End the server and its workers at once, as a lost machine would."""
        if self._process is not None:
            with suppress(ProcessLookupError):  # it ended by itself
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def __enter__(self) -> "RealServer":
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.kill()

    def logps(self, ids: list[int], model: str = MODEL) -> list[float]:
        """Log-probability of each id after the first, by the weights that `model` names now."""
        client = openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=120)
        with client:
            reply = client.completions.create(
                model=model, prompt=ids, max_tokens=1, temperature=1.0, extra_body={"prompt_logprobs": 0}
            )
        found = reply.choices[0].model_dump()["prompt_logprobs"][1:]
        return [float(values[str(token)]["logprob"]) for values, token in zip(found, ids[1:], strict=True)]

    def counter(self, name: str) -> float:
        """Sum of one of the server's own Prometheus counters."""
        text = self.control.call("GET", "/metrics", seconds=30)
        lines = [line for line in text.splitlines() if line.startswith((f"{name}{{", f"{name} "))]
        assert lines, f"the server has no metric {name}"
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines)
