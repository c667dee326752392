"""The policy's servers, asked what they are: model, room, tokenizer, numbers, and how weights would reach them.

Only reads. What a run would refuse at start-up, or find out hours later, is a problem with the flag that mends it.
"""

import shlex
from collections.abc import Iterator
from typing import Any

from .. import trl_seams
from ..config_combinations import check_weight_sync
from ..errors import ConfigError, GenerationError
from ..generation.nccl_sync import TRANSFER_FLAG
from ..generation.server import ServerControl, ServerError
from ..generation.server_sync import FIRST_WEIGHTS
from ..generation.vllm_worker import EXTENSION
from ..recipe import Recipe
from ..serving import policy_room
from .findings import Finding, note, ok, problem, refused
from .machine import compute_dtype, trains_here
from .policy import Policy

ANSWER_SECONDS = 10.0
# Numbers, formulas, code, scripts and blanks: two tokenizers that agree on all of it are one.
_SAMPLE = (
    "Let $x_1 = \\frac{-3}{8}$; then 1234567 + 89.25 ≠ x², don't:\n\n\tprint(f'{i:>5}',   end='')\n# Grüße, 数学 🎲\n"
)


def examine_servers(recipe: Recipe, policy: Policy | None, flags: str) -> Iterator[Finding]:
    """Ask each server of the policy. `flags` are those of `mintrl serve` that tell of the recipe."""
    urls = recipe.config.server_urls
    for number, url in enumerate(urls, 1):
        which = f" --server {number}" if len(urls) > 1 else ""
        yield from _Server(recipe, policy, url, f"mintrl serve policy {flags}{which}").examine()


class _Server:
    """One server of the policy.

    Args:
        recipe ([`Recipe`]): What is asked of it.
        policy ([`Policy`], *optional*): The policy, where it is known.
        url (`str`): Its address.
        start (`str`): The command that starts one as it should be.
    """

    def __init__(self, recipe: Recipe, policy: Policy | None, url: str, start: str):
        self.recipe, self.policy, self.start = recipe, policy, start
        self.args, self.control = recipe.config, ServerControl(url)
        self.topic, self.root = "policy server", self.control.root

    def examine(self) -> Iterator[Finding]:
        try:
            self.control.call("GET", "/health", seconds=ANSWER_SECONDS)
            cards = self.control.models(seconds=ANSWER_SECONDS)
        except ServerError as fault:
            if fault.status in (404, 405):
                fix = "correct `vllm_server_base_url`, or start one with " + self.start
                yield problem(self.topic, f"{self.root} answers, but is no vLLM server ({fault})", fix)
            else:
                yield problem(self.topic, f"nobody serves at {self.root} ({fault})", f"start it: {self.start}")
            return
        except GenerationError as error:
            yield problem(self.topic, str(error), f"start a vLLM server there: {self.start}")
            return
        model = self.policy.name if self.policy is not None else self.recipe.policy.model_name_or_path
        if model not in cards:
            serves = ", ".join(map(repr, cards)) or "nothing"
            fix = f"restart it: {self.start}; or set `model_name_or_path` to what it serves"
            yield problem(self.topic, f"{self.root} serves {serves}, and not the policy {model!r}", fix)
            return
        yield ok(self.topic, f"{self.root} serves {model}")
        yield from self._room(cards[model].get("max_model_len"))
        yield from self._tokenizer(model)
        yield from self._weights(self._ask("/server_info?config_format=json"), self._ask("/weight_info"))

    def _ask(self, path: str) -> dict[str, Any] | None:
        """The answer of a route; `None` where there is no such route."""
        try:
            answer = self.control.call("GET", path, seconds=ANSWER_SECONDS)
        except ServerError:
            return None
        return answer if isinstance(answer, dict) else None

    def _room(self, room: int | None) -> Iterator[Finding]:
        need = self.args.max_prompt_length + self.args.max_completion_length
        if room is not None and room < need:
            text = f"room for {room} tokens, and prompt and response may have {need}"
            advice, positions = policy_room(self.args), self.policy.positions if self.policy is not None else None
            fix = f"restart it with --max-model-len {min(advice, positions or advice)}"
            if positions is not None and need > positions:
                fix = f"lower max_prompt_length or max_completion_length: the model has {positions} positions"
            yield problem(self.topic, text, fix)
        else:
            yield ok(self.topic, f"room for {room or 'an unknown number of'} tokens, {need} needed")

    def _tokenizer(self, model: str) -> Iterator[Finding]:
        if self.policy is None:
            return
        body = {"model": model, "prompt": _SAMPLE, "add_special_tokens": False}
        try:
            theirs = self.control.call("POST", "/tokenize", body, seconds=ANSWER_SECONDS)["tokens"]
        except (ServerError, KeyError, TypeError):
            return
        if theirs != self.policy.tokenizer(_SAMPLE, add_special_tokens=False)["input_ids"]:
            text = f"{self.root} serves another model under the name {model}: its tokenizer writes other ids"
            yield problem(self.topic, text, f"restart it: {self.start}")
        else:
            yield ok(self.topic, "same tokenizer as the trainer's")

    def _weights(self, info: dict[str, Any] | None, weights: dict[str, Any] | None) -> Iterator[Finding]:
        config = (info or {}).get("vllm_config", {})
        version = (weights or {}).get("weight_version")
        try:
            check_weight_sync(self.args.weight_sync, is_adapter=self.recipe.policy.use_peft)
        except ConfigError as error:
            yield refused(self.topic, error)
            return
        if self.recipe.policy.use_peft:
            yield from self._adapter(config, version)
        else:
            yield from self._checkpoint(config, version)
        yield from self._numbers(config)

    def _adapter(self, config: dict[str, Any], version: str | None) -> Iterator[Finding]:
        try:  # a route of another verb: it is there, and nothing is loaded
            self.control.call("GET", "/v1/load_lora_adapter", seconds=ANSWER_SECONDS)
            loads = True
        except ServerError as fault:
            loads = fault.status != 404
        rank, room = self.recipe.policy.lora_r, (config.get("lora_config") or {}).get("max_lora_rank")
        if not loads or ("lora_config" in config and config["lora_config"] is None):
            needs = "--enable-lora and VLLM_ALLOW_RUNTIME_LORA_UPDATING=True"
            yield problem(self.topic, f"no adapter can be loaded: it lacks {needs}", f"restart it: {self.start}")
        elif isinstance(room, int) and room < rank:
            yield problem(
                self.topic, f"adapters of rank {room} at most, and lora_r is {rank}", f"restart it: {self.start}"
            )
        elif version not in (None, FIRST_WEIGHTS):
            text = f"its base weights are no longer those it started with, but {version!r} of another run"
            yield problem(self.topic, text, f"restart it: {self.start}")
        else:
            yield ok(self.topic, "new weights arrive as adapters, beside the base model")

    def _checkpoint(self, config: dict[str, Any], version: str | None) -> Iterator[Finding]:
        if version is None:
            text = "no weights can be brought to it: it lacks VLLM_SERVER_DEV_MODE=1 in its environment"
            yield problem(self.topic, text, f"restart it: {self.start}")
            return
        if self.args.weight_sync == "nccl":
            yield from self._transfer(config, version)
            return
        on_cpu = config.get("device_config", {}).get("device") == "cpu"
        extension = config.get("parallel_config", {}).get("worker_extension_cls")
        if on_cpu and self.policy is not None and self.policy.ties_embeddings and extension != EXTENSION:
            text = (
                f"on a CPU it would keep the old output layer at each sync: it lacks --worker-extension-cls {EXTENSION}"
            )
            yield problem(self.topic, text, f"restart it: {self.start}")
            return
        if version != FIRST_WEIGHTS:
            yield note(self.topic, f"it has weights {version!r} of another run, which the first sync replaces")
        folder = self.args.weight_sync_dir or f"{self.args.output_dir}/weight_sync"
        yield ok(self.topic, f"new weights arrive as files in {folder}, which the server must see under that path")

    def _transfer(self, config: dict[str, Any], version: str) -> Iterator[Finding]:
        transfer = config.get("weight_transfer_config", {"backend": "nccl"}) or {}
        flag = shlex.join(TRANSFER_FLAG)
        if transfer.get("backend") != "nccl":
            text = f"it takes no weights from GPU to GPU: it lacks {flag}"
            yield problem(self.topic, text, f"restart it: {self.start}")
        elif trains_here(self.args) and trl_seams.weight_transfer() is None:
            text = "weights cannot be sent from GPU to GPU: vLLM is not installed in the trainer's environment"
            yield problem(self.topic, text, "pip install 'mintrl_trl[vllm]' here, or set `weight_sync: checkpoint`")
        else:
            if version != FIRST_WEIGHTS:
                yield note(self.topic, f"it has weights {version!r} of another run, which the first sync replaces")
            yield ok(self.topic, "new weights arrive from GPU to GPU")

    def _numbers(self, config: dict[str, Any]) -> Iterator[Finding]:
        mode = config.get("model_config", {}).get("logprobs_mode")
        if self.args.temperature != 1 and mode not in (None, "processed_logprobs"):
            text = f"its log-probabilities are {mode}: they ignore temperature {self.args.temperature:g}"
            yield note(self.topic, text, "restart it with --logprobs-mode processed_logprobs")
        found = str(config.get("model_config", {}).get("dtype") or "").removeprefix("torch.")
        wanted = compute_dtype(self.args)
        if found and not trains_here(self.args):
            yield note(self.topic, f"computes in {found}; whether the trainer does, only its own machine can tell")
        elif found and found != wanted:
            text = f"it computes in {found}, the trainer here in {wanted}: their log-probabilities will differ"
            yield note(self.topic, text, f"restart it with --dtype {wanted}")
        elif found:
            yield ok(self.topic, f"computes in {found}, as the trainer does")
