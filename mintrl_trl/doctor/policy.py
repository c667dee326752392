"""The policy without its weights: tokenizer, shape, the prompt it will see.

Reads the model's small files and a few rows. Invariant: the prompt that is shown is the one that training renders.
"""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerBase

from ..config import MInTRLConfig
from ..data.chains import World, base_model_path
from ..data.sources import load_rows
from ..errors import MInTRLError
from ..recipe import Recipe
from ..training_rows import load_tokenizer
from .findings import Finding, note, ok, problem, refused

if TYPE_CHECKING:
    from ..recipe import PolicyArguments

ROWS = 100  # looked at, of a data set
_SHOWN_CHARS = 1500  # of a prompt: its beginning and its end
_THINK, _END_THINK = "<think>", "</think>"


@dataclass(frozen=True)
class Policy:
    """What is known of a model without its weights.

    Args:
        name (`str`): Hub id or folder.
        tokenizer (`PreTrainedTokenizerBase`): Its tokenizer.
        shape (`torch.nn.Module`, *optional*): The model without memory; `None` where its config cannot be read.
    """

    name: str
    tokenizer: PreTrainedTokenizerBase
    shape: Any = None

    @property
    def parameters(self) -> int | None:
        """Number of weights."""
        return None if self.shape is None else sum(weight.numel() for weight in self.shape.parameters())

    @property
    def ties_embeddings(self) -> bool:
        """Whether the output layer is the input embeddings."""
        return self.shape is not None and bool(self.shape.config.get_text_config().tie_word_embeddings)

    @property
    def positions(self) -> int | None:
        """Tokens that the model was made for."""
        if self.shape is None:
            return None
        return getattr(self.shape.config.get_text_config(), "max_position_embeddings", None)

    def adapter_parameters(self, arguments: "PolicyArguments") -> int:
        """Number of weights of an adapter, at most: where it names no layers, one on each of them."""
        targets = arguments.lora_target_modules or ()
        ends = (
            ()
            if targets in ("all-linear", ["all-linear"])
            else tuple([targets] if isinstance(targets, str) else targets)
        )
        layers = (
            module
            for name, module in self.shape.named_modules()
            if isinstance(module, torch.nn.Linear) and (not ends or name.endswith(ends))
        )
        return sum(arguments.lora_r * (layer.in_features + layer.out_features) for layer in layers)


def load_policy(recipe: Recipe) -> Policy:
    """Tokenizer and shape of a recipe's policy.

    Raises:
        ConfigError: There is no such model, or it has no tokenizer.
    """
    from ..serving import policy_model

    is_chains = recipe.arguments.task == "chains" and recipe.policy.model_name_or_path is None
    name = str(base_model_path()) if is_chains else policy_model(recipe)
    tokenizer = load_tokenizer(name, recipe.config)
    options = {"revision": recipe.policy.model_revision, "trust_remote_code": recipe.config.trust_remote_code}
    try:
        config = AutoConfig.from_pretrained(name, **options)
        with torch.device("meta"):
            shape = AutoModelForCausalLM.from_config(config, trust_remote_code=recipe.config.trust_remote_code)
    except (OSError, ValueError):
        return Policy(name, tokenizer)
    return Policy(name, tokenizer, shape)


def examine_prompts(recipe: Recipe, policy: Policy) -> Iterator[Finding]:
    """The model's room, and the rows as it will see them."""
    args = recipe.config
    size = "unknown size" if policy.parameters is None else f"{policy.parameters / 1e9:.2f} billion parameters"
    yield ok("model", f"{policy.name}: {size}, tokenizer of {len(policy.tokenizer):,} tokens")
    if policy.tokenizer.eos_token_id is None:
        text = f"{policy.name} has no end token, so no response would end"
        yield problem("tokenizer", text, "set eos_token in its tokenizer_config.json")
    need = args.max_prompt_length + args.max_completion_length
    if policy.positions is not None and need > policy.positions:
        left = policy.positions - args.max_prompt_length
        fix = f"set `max_completion_length: {left}` or less" if left > 0 else "lower `max_prompt_length` too"
        text = f"prompt and response may have {need} tokens, the model {policy.positions} positions"
        yield problem("lengths", text, fix)
    try:
        rows = _first_rows(recipe)
    except MInTRLError as error:
        yield refused("data set", error)
        return
    if not rows:
        yield problem("data set", f"{recipe.arguments.dataset} has no rows", "name another with `dataset`")
        return
    if policy.tokenizer.chat_template is None and not isinstance(rows[0]["prompt"], str):
        text = f"{policy.name} has no chat template, and the prompts are messages"
        yield problem("chat template", text, "take an instruct model, or write prompts as text")
        return
    yield from _template(rows[0]["prompt"], policy, args)
    yield from _lengths(rows, policy, args)
    if args.needs_judge and args.judge == "self" and not any(row.get("privileged_context") for row in rows):
        text = "the judge is the policy itself, and the rows have no privileged context: it would know no more"
        fix = "give the rows `solution` (it becomes the privileged context), or name another judge"
        yield problem("data set", text, fix)


def examine_rows(recipe: Recipe) -> Iterator[Finding]:
    """The rows by themselves, where no tokenizer is there to render them."""
    try:
        rows = _first_rows(recipe)
    except MInTRLError as error:
        yield refused("data set", error)
        return
    if rows:
        yield ok("data set", f"{len(rows)} rows read; prompts are not looked at without a tokenizer")
    else:
        yield problem("data set", f"{recipe.arguments.dataset} has no rows", "name another with `dataset`")


def render(prompt: Any, tokenizer: PreTrainedTokenizerBase, variables: Mapping[str, Any]) -> str:
    """The text of a prompt as the policy sees it."""
    if isinstance(prompt, str):
        return prompt
    return tokenizer.apply_chat_template(prompt, add_generation_prompt=True, tokenize=False, **variables)


def _first_rows(recipe: Recipe) -> list[dict[str, Any]]:
    arguments = recipe.arguments
    if arguments.task == "chains":
        return list(islice(World.load().training_rows(recipe.config.seed), ROWS))
    limit = min(ROWS, arguments.dataset_limit or ROWS)
    options = {"task": arguments.task, "split": arguments.dataset_split, "skip_bad_rows": arguments.drop_bad_rows}
    logger = logging.getLogger("mintrl_trl.data.sources")
    before, logger.disabled = logger.disabled, True  # of bad rows training itself will tell
    try:
        return load_rows(arguments.dataset, limit=limit, **options)
    finally:
        logger.disabled = before


def _template(prompt: Any, policy: Policy, args: MInTRLConfig) -> Iterator[Finding]:
    text = render(prompt, policy.tokenizer, args.chat_template_kwargs)
    thinks = text.rfind(_THINK) > text.rfind(_END_THINK)
    if isinstance(prompt, str):
        yield ok("prompt", f"text, without a chat template; the first:\n{_shown(text)}")
        return
    yield ok("prompt", f"the first, as the policy sees it:\n{_shown(text)}")
    other = render(
        prompt, policy.tokenizer, dict(args.chat_template_kwargs) | {"enable_thinking": not args.enable_thinking}
    )
    if thinks and not args.enable_thinking:
        fix = "take a model that can do without (Qwen3-1.7B, ...-Instruct-2507), or set `enable_thinking: true`"
        yield problem("thinking", "the chat template opens a thinking block although thinking is off", fix)
    elif not thinks and args.enable_thinking and _END_THINK in text:
        yield problem(
            "thinking", "the chat template closes the thinking block although thinking is on", "take another model"
        )
    elif other == text:
        yield ok("thinking", "the chat template has no switch for it, and opens no thinking block")
    else:
        yield ok("thinking", "on" if args.enable_thinking else "off, by the chat template's switch")


def _lengths(rows: list[dict[str, Any]], policy: Policy, args: MInTRLConfig) -> Iterator[Finding]:
    tokenizer, limit = policy.tokenizer, args.max_prompt_length
    texts = [render(row["prompt"], tokenizer, args.chat_template_kwargs) for row in rows]
    plain = [isinstance(row["prompt"], str) for row in rows]
    lengths = [
        len(tokenizer(text, add_special_tokens=is_text)["input_ids"])  # a template writes its own
        for text, is_text in zip(texts, plain, strict=True)
    ]
    longer = sum(length > limit for length in lengths)
    text = f"prompts of {min(lengths)} to {max(lengths)} tokens in the first {len(rows)} rows"
    if longer == len(rows):
        fix = f"set `max_prompt_length: {max(lengths)}`"
        yield problem("lengths", f"{text}, all above max_prompt_length={limit}: none is left", fix)
    elif longer:
        yield note("lengths", f"{text}; {longer} above max_prompt_length={limit} will be left out")
    else:
        yield ok("lengths", text)


def _shown(text: str) -> str:
    half = _SHOWN_CHARS // 2
    return text if len(text) <= _SHOWN_CHARS else f"{text[:half]}\n[...]\n{text[-half:]}"
