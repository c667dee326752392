"""How long prompts are: in the tokens of the policy, or without its tokenizer in words and characters.

Owns: the text that a prompt becomes and its percentiles. Loads no tokenizer and cuts nothing off. Invariant: tokens are
those that the trainer counts, so messages go through the chat template; without one they are counted as plain text.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

PERCENTILES = (0, 50, 90, 99, 100)
Prompt = str | Sequence[dict[str, str]]


@dataclass(frozen=True)
class Lengths:
    """How long the prompts are.

    Args:
        unit (`str`): `tokens`, `words` or `characters`.
        percentiles (`tuple[int, ...]`): The lengths at `PERCENTILES`, of which the first is the least, the last the
            greatest.
    """

    unit: str
    percentiles: tuple[int, ...]


def prompt_lengths(prompts: Sequence[Prompt], tokenizer: "PreTrainedTokenizerBase | None") -> dict[str, list[int]]:
    """The length of each prompt in tokens, or without a tokenizer in words and in characters.

    Raises:
        ConfigError: The tokenizer's chat template refuses a prompt.
    """
    if tokenizer is not None:
        return {"tokens": _tokens(prompts, tokenizer)}
    texts = [_text(prompt) for prompt in prompts]
    return {"words": [len(text.split()) for text in texts], "characters": [len(text) for text in texts]}


def percentiles(values: Sequence[int]) -> tuple[int, ...]:
    """At each of `PERCENTILES` the least value that so many per cent of all do not pass.

    Examples:
        >>> percentiles(range(1, 101))
        (1, 50, 90, 99, 100)
    """
    ordered = sorted(values)
    return tuple(ordered[max(0, -(-percent * len(ordered) // 100) - 1)] for percent in PERCENTILES)


def _tokens(prompts: Sequence[Prompt], tokenizer: "PreTrainedTokenizerBase") -> list[int]:
    lengths = dict.fromkeys(range(len(prompts)), 0)
    by_template = {
        number: _rendered(prompt, tokenizer)
        for number, prompt in enumerate(prompts)
        if tokenizer.chat_template and not isinstance(prompt, str)
    }
    as_text = {number: _text(prompt) for number, prompt in enumerate(prompts) if number not in by_template}
    for texts, with_special_tokens in ((by_template, False), (as_text, True)):  # a template writes its own
        if texts:
            encoded = tokenizer(list(texts.values()), add_special_tokens=with_special_tokens, verbose=False)
            lengths |= dict(zip(texts, map(len, encoded["input_ids"]), strict=True))
    return list(lengths.values())


def _rendered(prompt: Sequence[dict[str, str]], tokenizer: "PreTrainedTokenizerBase") -> str:
    try:
        return tokenizer.apply_chat_template(prompt, add_generation_prompt=True, tokenize=False)
    except Exception as error:  # templates raise what they like
        allowed = f"one whose chat template takes the prompts ({error})"
        fix = "name the policy's own tokenizer"
        raise ConfigError("tokenizer", tokenizer.name_or_path, allowed, fix) from error


def _text(prompt: Prompt) -> str:
    return prompt if isinstance(prompt, str) else "\n\n".join(message["content"] for message in prompt)
