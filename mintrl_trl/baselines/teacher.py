"""The teacher as a writer: its tokenizer, and a generator of its responses, in process or on a vLLM server.

Owns what two models must have in common to exchange responses. It trains nothing and scores nothing. Invariant:
responses go between models as ids only where both tokenizers spell every shared id alike.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from accelerate import PartialState
from transformers import AutoConfig, AutoTokenizer, GenerationConfig, PreTrainedTokenizerBase
from trl.trainer.utils import create_model_from_path

from ..errors import ConfigError
from ..generation.local import LocalGenerator
from ..generation.vllm import VLLMGenerator
from ..generation.vocabulary import TokenizerVocabulary, end_ids_of
from ..rollouts.doors import PolicyGenerator

if TYPE_CHECKING:
    from ..config import MInTRLConfig


def load_teacher_tokenizer(teacher: str) -> PreTrainedTokenizerBase:
    """The teacher's tokenizer.

    Raises:
        ConfigError: It cannot be loaded.
    """
    try:
        return AutoTokenizer.from_pretrained(teacher, padding_side="left")
    except (OSError, ValueError) as error:
        why = str(error).strip().partition("\n")[0]
        fix = "correct the path or id"
        if teacher.rstrip("/").endswith("chains_teacher"):
            fix = "run `python scripts/train_chains_teacher.py` first"
        raise ConfigError("teacher_model", teacher, f"a folder or hub id that holds a model ({why})", fix) from error


def spell_alike(first: PreTrainedTokenizerBase, second: PreTrainedTokenizerBase) -> bool:
    """Whether an id of one model is the same token to the other; one may have special tokens that the other lacks."""
    ours, theirs = first.get_vocab(), second.get_vocab()
    shared = ours.keys() & theirs.keys()
    ids = set(ours.values()) & set(theirs.values())
    return len(shared) == len(ids) and all(ours[word] == theirs[word] for word in shared)


def render_prompts(
    prompts: Sequence[str | list[dict[str, str]]],
    tokenizer: PreTrainedTokenizerBase,
    template_kwargs: Mapping[str, Any] | None,
) -> list[list[int]]:
    """Prompts as a model's own tokenizer renders them: messages through its chat template, text as it is."""
    if isinstance(prompts[0], str):
        return tokenizer(text=list(prompts))["input_ids"]
    return tokenizer.apply_chat_template(
        list(prompts), add_generation_prompt=True, tokenize=True, return_dict=True, **(template_kwargs or {})
    )["input_ids"]


def loading_of(settings: "MInTRLConfig", attn_implementation: str | None) -> dict[str, Any]:
    """How a frozen teacher is loaded beside a policy: in bfloat16 where that trains so, with its kind of attention."""
    loading: dict[str, Any] = {"dtype": "bfloat16" if settings.bf16 else "float32"}
    return loading | ({"attn_implementation": attn_implementation} if attn_implementation else {})


@contextmanager
def teacher_generator(
    teacher: str, tokenizer: PreTrainedTokenizerBase, settings: "MInTRLConfig", base_url: str | None, **loading: Any
) -> Iterator[tuple[PolicyGenerator, TokenizerVocabulary]]:
    """Someone who continues token ids as the teacher does, and its vocabulary, while the block lasts.

    Args:
        teacher (`str`): Folder or hub id; on a server, the name it is served under.
        tokenizer (`PreTrainedTokenizerBase`): The teacher's.
        settings ([`MInTRLConfig`]): Temperature and how many rows at once.
        base_url (`str`, *optional*): Of a vLLM server with the teacher; without one it is loaded in this process.
        **loading: For the model in process.

    Raises:
        GenerationError: The server cannot be reached.
    """
    config = AutoConfig.from_pretrained(teacher)
    try:
        ends = end_ids_of(tokenizer, GenerationConfig.from_pretrained(teacher))
    except OSError:  # a model without one
        ends = end_ids_of(tokenizer)
    vocabulary = TokenizerVocabulary(tokenizer, end_ids=ends, size=config.get_text_config().vocab_size)
    if base_url is not None:
        generator: Any = VLLMGenerator(
            base_url,
            teacher,
            end_ids=ends,
            vocabulary_size=vocabulary.size,
            temperature=settings.temperature,
            max_concurrency=settings.max_concurrent_rollouts,
        )
    else:
        model = create_model_from_path(teacher, **loading).to(PartialState().device).eval().requires_grad_(False)
        generator = LocalGenerator(
            model,
            end_ids=ends,
            pad_id=tokenizer.pad_token_id or 0,
            temperature=settings.temperature,
            max_batch=settings.local_max_batch,
        )
    try:
        yield generator, vocabulary
    finally:
        generator.close()
