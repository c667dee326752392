"""What the bytes of each token id are, for any tokenizer whose decoding is plain concatenation.

Owns the reading of Hugging Face tokenizers for the core, which works on ids and bytes. It never renders chat templates
and never re-encodes policy text. Invariant: joining `token_bytes` of any ids without special ones gives what
`tokenizer.decode` gives; this is checked on the tokenizer at hand when the vocabulary is made, and a tokenizer that
does something else is refused.
"""

import copy
import re
from collections.abc import Callable, Collection, Iterable

from transformers import PreTrainedTokenizerBase
from transformers.convert_slow_tokenizer import bytes_to_unicode

from ..errors import ConfigError

_CHECKED_PIECES = 3000  # ids, spread evenly, that are compared with the tokenizer's own decoding
_CHECKED_TEXT = (
    "Let x = 3.\n\n  Then 2x = 6, d\u00e9j\u00e0 vu \u2014 \u6f22\u5b57 \U0001f642\n```python\n\tif a[0] != b:\n```\n"
)
_BYTE_OF_CHARACTER = {character: byte for byte, character in bytes_to_unicode().items()}
_BYTE_PIECE = re.compile("<0x([0-9A-F]{2})>")


def _plain(piece: str) -> bytes:
    """Pieces are the text itself: tokenizers of characters or words."""
    return piece.encode()


def _byte_level(piece: str) -> bytes:
    """Each character stands for one byte: GPT-2, Llama 3, Qwen, SmolLM."""
    if all(character in _BYTE_OF_CHARACTER for character in piece):
        return bytes(_BYTE_OF_CHARACTER[character] for character in piece)
    return piece.encode()


def _sentence_piece(piece: str) -> bytes:
    """U+2581 stands for a space, `<0x0A>` for one byte: Llama 2, Mistral, Gemma."""
    byte = _BYTE_PIECE.fullmatch(piece)
    return bytes([int(byte[1], 16)]) if byte else piece.replace("\u2581", " ").encode()


class TokenizerVocabulary:
    """Implements [`Vocabulary`] over a Hugging Face tokenizer.

    Args:
        tokenizer (`PreTrainedTokenizerBase`): The policy's tokenizer.
        end_ids (`Collection[int]`): Ids that end a response; see [`end_ids_of`].
        size (`int`): Number of ids the model can be fed; may exceed the tokenizer's, and the ids beyond it count as
            special.

    Raises:
        ConfigError: No end ids, ids out of range, or a tokenizer whose decoding is not a concatenation of pieces.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, end_ids: Collection[int], size: int):
        if not end_ids or not all(0 <= end_id < size for end_id in end_ids):
            raise ConfigError("end_ids", end_ids, f"one or more ids from 0 to {size - 1}", "see end_ids_of(tokenizer)")
        if len(tokenizer) > size:
            fix = "resize the model's embeddings or use the model's own tokenizer"
            raise ConfigError("size", size, f"at least the tokenizer's {len(tokenizer)} ids", fix)
        # A copy: encoding below switches a flag inside the tokenizer, which other threads may be using meanwhile.
        self._tokenizer = copy.deepcopy(tokenizer)
        self.size = size
        self.end_ids = frozenset(end_ids)
        added = tokenizer.added_tokens_decoder
        pieces: list[str | None] = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
        pieces += [None] * (size - len(pieces))
        self.special_ids = (
            self.end_ids
            | frozenset(tokenizer.all_special_ids)
            | {token_id for token_id, token in added.items() if token.special}
            | {token_id for token_id, piece in enumerate(pieces) if piece is None}
        )
        texts = {pieces[token_id] for token_id in self.special_ids} - {None, ""}
        self.special_texts = tuple(sorted(texts, key=lambda text: (-len(text), text)))
        literal = {token_id: token.content.encode() for token_id, token in added.items()}
        ordinary = [token_id for token_id in range(size) if token_id not in self.special_ids]
        for spell in (_plain, _byte_level, _sentence_piece):
            self._bytes = _spell_all(pieces, ordinary, literal, spell)
            mismatch = self._mismatch(ordinary)
            if mismatch is None:
                break
        else:
            raise ConfigError(
                "processing_class",
                f"{type(tokenizer).__name__} ({mismatch})",
                "a tokenizer that decodes by joining its pieces (byte-level, SentencePiece, characters)",
                "use a tokenizer of one of these kinds, with clean_up_tokenization_spaces=False",
            )

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that `token_id` spells in running text; empty for special tokens."""
        return self._bytes[token_id]

    def encode(self, text: str) -> tuple[int, ...]:
        """Ids of plain text, in the middle of running text: no special token, and no space put in front of it.

        Text that happens to spell a special token is encoded as the letters it consists of.
        """
        ids = self._encode(text)
        if self._spelled(ids) != text and self._anchor is not None:
            # SentencePiece puts a space before a text: encode behind one ordinary piece and take that off again.
            before = self._spelled([self._anchor])
            anchored, anchor = self._encode(before + text), self._encode(before)
            if anchored[: len(anchor)] == anchor and self._spelled(anchored[len(anchor) :]) == text:
                return tuple(anchored[len(anchor) :])
        return tuple(ids)

    def _encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)

    def _spelled(self, ids: Iterable[int]) -> str:
        return b"".join(self._bytes[token_id] for token_id in ids).decode("utf-8", errors="replace")

    def _mismatch(self, ordinary: list[int]) -> str | None:
        """Where joining bytes differs from the tokenizer's own decoding, in words; `None` if nowhere."""
        letters = (token_id for token_id in ordinary if self._bytes[token_id].isalnum())
        self._anchor = next(letters, None)  # decoders treat the first piece of a text in their own way
        start = [] if self._anchor is None else [self._anchor]
        spread = ordinary[:: max(1, len(ordinary) // _CHECKED_PIECES)]
        text_ids = [token_id for token_id in self._encode(_CHECKED_TEXT) if token_id not in self.special_ids]
        for ids in [text_ids, *([token_id] for token_id in spread if _is_text(self._bytes[token_id]))]:
            decoded = self._tokenizer.decode(start + ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
            if decoded != self._spelled(start + ids):
                return f"ids {(start + ids)[:8]} decode to {decoded[:40]!r}, not to {self._spelled(start + ids)[:40]!r}"
        return None


def end_ids_of(tokenizer: PreTrainedTokenizerBase, generation_config: object | None = None) -> frozenset[int]:
    """Ids that end a response: the tokenizer's end token and those of the model's generation config.

    Args:
        tokenizer (`PreTrainedTokenizerBase`): The policy's tokenizer.
        generation_config (`GenerationConfig`, *optional*): `model.generation_config`; may name one id or several.
    """
    named = getattr(generation_config, "eos_token_id", None)
    ids = [named] if isinstance(named, int) else list(named or ())
    if tokenizer.eos_token_id is not None:
        ids.append(tokenizer.eos_token_id)
    return frozenset(ids)


def _spell_all(
    pieces: list[str | None], ordinary: list[int], literal: dict[int, bytes], spell: Callable[[str], bytes]
) -> list[bytes]:
    spelled = [b""] * len(pieces)
    for token_id in ordinary:
        spelled[token_id] = literal[token_id] if token_id in literal else spell(pieces[token_id])
    return spelled


def _is_text(spelled: bytes) -> bool:
    """Whether bytes are whole characters; tokenizers differ in how they show halves."""
    try:
        spelled.decode()
    except UnicodeDecodeError:
        return False
    return True
