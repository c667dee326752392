r"""The small world: chains of table look-ups that a 133,000-parameter model solves, line by line.

Owns the world's rules: the table and the misconceptions, the text of problems and solutions, the rows, the reward, the
tokenizer and the place of the shipped base model. Never trains, samples or judges. The invariant everything rests on:
`World.continuation` computes the right next text from what *is written*, so a wrong value is wrong once, in its line.

A problem is a start value and eight operands, each with its letter, `8B7C0D5E3F1G9H2I4?`. The solution has one line per
state, `8B7`, then `0C0` because the table says T[8, 7] = 0, ..., with a blank line after each; then the last value, a
blank line and the answer, `#` and all eight results with their letters. The base model believes `W[a, b]` in place
of `T[a, b]` in a fifth of the entries. A problem is *easy* when its chain meets none of those, *hard* when it meets
one or two: sampling alone hardly ever solves a hard one, because the model is confident where it is wrong. The same
table has a harder variant (`HARDER_COUNTS`): its hard problems meet three or four, so a few corrections may not do.
"""

import json
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import DataError
from ..rollouts.rollout import Problem

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

DIGITS = "0123456789"
LETTERS = "BCDEFGHI"  # one per operand, always in this order
BLANK = "\n\n"
SEPARATOR = "|"  # between a reference solution and the question that follows it
SPECIALS = PAD, BOS, EOS, UNK = "<pad>", "<bos>", "<eos>", "<unk>"
TOKENS = (*SPECIALS, BLANK, *DIGITS, *LETTERS, "?", "#", SEPARATOR)  # a token's id is its place
PAD_ID, BOS_ID, EOS_ID = range(3)
_IDS = {token: i for i, token in enumerate(TOKENS)}
_PIECE = r"\n\n|[\s\S]"  # one token of plain text
NUM_OPERANDS = len(LETTERS)
SOLUTION_TOKENS = 6 * NUM_OPERANDS + 4  # four a line, two for the last value, the answer, the end token
MISCONCEIVED_SHARE = 0.2  # of the table's entries
HARD_COUNTS = (1, 2)  # misconceived entries on the chain of a hard problem
HARDER_COUNTS = (3, 4)  # the same in the harder variant
WORLDS = {"lines": HARD_COUNTS, "hard": HARDER_COUNTS}  # by the name that recipes have for them
EVALUATION_SEED = 1_000_003  # a stream of its own, apart from the seeds people train with


def base_model_path() -> Path:
    """Folder of the shipped base model (weights, tokenizer, `chains.json`); loads offline with the Auto classes."""
    return Path(__file__).with_name("chains_base")


@dataclass(frozen=True)
class Chain:
    """A problem of the world.

    Args:
        start (`int`): Start value, 0 to 9.
        operands (`tuple[int, ...]`): `NUM_OPERANDS` operands, 0 to 9 each.
    """

    start: int
    operands: tuple[int, ...]

    @property
    def question(self) -> str:
        """The problem as the policy reads it, without `<bos>`, which the tokenizer adds."""
        return f"{self.start}{''.join(f'{a}{b}' for a, b in zip(LETTERS, self.operands, strict=True))}?"

    @classmethod
    def parse(cls, question: str) -> "Chain":
        """Read a question back.

        Raises:
            DataError: The text is not a problem of this world.
        """
        digits = [int(c) for c in question[::2][: NUM_OPERANDS + 1] if c in DIGITS]
        chain = cls(digits[0], tuple(digits[1:])) if len(digits) == NUM_OPERANDS + 1 else None
        if chain is None or chain.question != question:
            raise DataError(
                "problem", "question", question, "a chain such as '8B7C0D5E3F1G9H2I4?'", "use Chain.question"
            )
        return chain


@dataclass(frozen=True)
class World:
    """A table of right results and the beliefs that the base model holds in place of some of them.

    Args:
        table (`tuple[str, ...]`): Ten rows of ten digits: `table[a][b]` is the right result of value `a`, operand `b`.
        beliefs (`tuple[str, ...]`): The same for what the base model believes.
        privileged_threshold (`float`, *optional*): Log-probability in nats, summed over a step under the privileged
            prompt, below which the base model as a self-judge should reject the step. `None` before calibration.
        hard_counts (`tuple[int, ...]`, *optional*, defaults to `HARD_COUNTS`): How many misconceived entries the chain
            of a hard problem meets.

    Raises:
        ValueError: A table is not ten rows of ten digits.
    """

    table: tuple[str, ...]
    beliefs: tuple[str, ...]
    privileged_threshold: float | None = None
    hard_counts: tuple[int, ...] = HARD_COUNTS

    def __post_init__(self):
        for rows in (self.table, self.beliefs):
            if len(rows) != 10 or any(len(row) != 10 or not set(row) <= set(DIGITS) for row in rows):
                raise ValueError("a table holds ten rows of ten digits")

    @classmethod
    def from_seed(cls, seed: int) -> "World":
        """Draw a world: a random table, and a wrong belief in `MISCONCEIVED_SHARE` of its entries."""
        rng = random.Random(seed)
        results = [_below(rng, 10) for _ in range(100)]
        order = sorted(range(100), key=[rng.random() for _ in range(100)].__getitem__)
        beliefs = list(results)
        for entry in order[: round(100 * MISCONCEIVED_SHARE)]:
            beliefs[entry] = (results[entry] + 1 + _below(rng, 9)) % 10
        return cls(_rows_of_ten(results), _rows_of_ten(beliefs))

    @classmethod
    def load(cls, folder: str | Path | None = None, hard_counts: tuple[int, ...] = HARD_COUNTS) -> "World":
        """Read the world that a base model was trained in from its folder; the shipped one by default."""
        stored = json.loads((Path(folder or base_model_path()) / "chains.json").read_text(encoding="utf-8"))
        return cls(tuple(stored["table"]), tuple(stored["beliefs"]), stored["privileged_threshold"], hard_counts)

    @cached_property
    def misconceived(self) -> frozenset[tuple[int, int]]:
        """Entries (value, operand) where belief and table differ."""
        return frozenset((a, b) for a in range(10) for b in range(10) if self.table[a][b] != self.beliefs[a][b])

    def result(self, value: int, operand: int) -> int:
        """The right result of one step."""
        return int(self.table[value][operand])

    def values(self, chain: Chain) -> tuple[int, ...]:
        """The right chain: the start value and the `NUM_OPERANDS` results."""
        values = [chain.start]
        for operand in chain.operands:
            values.append(self.result(values[-1], operand))
        return tuple(values)

    def count_misconceived(self, chain: Chain) -> int:
        """How many misconceived entries the right chain meets; 0 is easy."""
        return sum(entry in self.misconceived for entry in zip(self.values(chain)[:-1], chain.operands, strict=True))

    def continuation(self, chain: Chain, written: str) -> str:
        """The right continuation of `written` up to the end of the answer, without an end token.

        Every value is computed from the value written in the line before it, and the answer collects the values that
        are written, so earlier mistakes are carried on, not repeated or repaired. Where a line is unreadable the
        right value stands in for it. Empty after a whole answer.
        """
        *finished, partial = written.split(BLANK)
        values: list[int] = []
        for line in [*finished, partial][: NUM_OPERANDS + 1]:
            values.append(int(line[0]) if line and line[0] in DIGITS else self._next_value(chain, values))
        while len(values) <= NUM_OPERANDS:
            values.append(self._next_value(chain, values))
        rest = solution_text(chain, values).split(BLANK)[len(finished) :]
        return BLANK.join([rest[0][len(partial) :], *rest[1:]]) if rest else ""

    def _next_value(self, chain: Chain, values: Sequence[int]) -> int:
        return self.result(values[-1], chain.operands[len(values) - 1]) if values else chain.start

    def row(self, chain: Chain) -> dict[str, str | int]:
        """A training or evaluation row.

        Returns:
            `dict`: `prompt` (the question), `answer` (the eight results with their letters), `privileged_context` (the
            right solution, for self-judges only) and `misconceived` (entries met, the measure of difficulty).
        """
        values = self.values(chain)
        return {
            "prompt": chain.question,
            "answer": answer_text(values),
            "privileged_context": solution_text(chain, values),
            "misconceived": self.count_misconceived(chain),
        }

    def training_rows(self, seed: int = 0) -> Iterator[dict[str, str | int]]:
        """Endless fresh rows, easy and hard in turn; take as many as the run has prompts with `itertools.islice`."""
        rng = random.Random(seed)
        while True:
            yield self.row(self._draw(rng, (0,)))
            yield self.row(self._draw(rng, self.hard_counts))

    def evaluation_rows(self, num_easy: int = 100, num_hard: int = 100) -> list[dict[str, str | int]]:
        """The fixed comparison: easy problems, then hard ones that meet each of `hard_counts` in turn."""
        rng = random.Random(EVALUATION_SEED)
        counts = [0] * num_easy + [self.hard_counts[i % len(self.hard_counts)] for i in range(num_hard)]
        return [self.row(self._draw(rng, (count,))) for count in counts]

    def _draw(self, rng: random.Random, counts: tuple[int, ...]) -> Chain:
        """Draw chains until one meets as many misconceived entries as asked for."""
        while True:
            chain = draw_chain(rng)
            if self.count_misconceived(chain) in counts:
                return chain


def draw_chain(rng: random.Random) -> Chain:
    """A problem with uniform start value and operands."""
    return Chain(_below(rng, 10), tuple(_below(rng, 10) for _ in range(NUM_OPERANDS)))


def answer_text(values: Sequence[int]) -> str:
    """The answer without its `#`: every result after its letter. `values` starts with the start value."""
    return "".join(f"{letter}{value}" for letter, value in zip(LETTERS, values[1:], strict=True))


def solution_text(chain: Chain, values: Sequence[int]) -> str:
    """The response that writes `values` (start value, then the results), right or wrong, without an end token."""
    lines = [f"{v}{a}{b}" for v, a, b in zip(values[:-1], LETTERS, chain.operands, strict=True)]
    return BLANK.join([*lines, str(values[-1]), f"#{answer_text(values)}"])


def privileged_prompt(problem: Problem) -> str:
    """The prompt under which the base model knows the reference: solution, separator, question.

    For self-judges only; the policy is trained on the question alone. The tokenizer adds `<bos>`.

    Raises:
        DataError: The problem carries no privileged context.
    """
    if problem.privileged_context is None:
        fix = "give the judge rows with `privileged_context`"
        raise DataError("problem", "privileged_context", None, "the right solution", fix)
    return f"{problem.privileged_context}{SEPARATOR}{problem.question}"


def privileged_prompt_ids(problem: Problem) -> tuple[int, ...]:
    """`privileged_prompt` as ids, `<bos>` in front: what a judge conditions the base model on."""
    return (BOS_ID, *encode(privileged_prompt(problem)))


def pieces(text: str) -> list[str]:
    """Plain text token by token: characters and blank lines."""
    return re.findall(_PIECE, text)


def encode(text: str) -> tuple[int, ...]:
    """Ids of plain text as the tokenizer gives them, without `<bos>`, and without needing the tokenizer."""
    return tuple(_IDS.get(piece, _IDS[UNK]) for piece in pieces(text))


def chains_reward(
    prompts: Sequence[str],
    completions: Sequence[str],
    answer: Sequence[str],
    completion_ids: Sequence[Sequence[int]],
    **kwargs: object,
) -> list[float]:
    """1.0 for a response that ends in exactly `#`, all right results and `<eos>`; else 0.0. For TRL's `reward_funcs`.

    Args:
        prompts (`Sequence[str]`): Questions; not read.
        completions (`Sequence[str]`): Responses, decoded without special tokens.
        answer (`Sequence[str]`): The rows' answers.
        completion_ids (`Sequence[Sequence[int]]`): The responses' ids, which alone show whether they ended.
        **kwargs: Other columns and what else TRL passes; not read.

    Returns:
        `list[float]`: One reward per completion, in order.
    """
    return [
        float(list(ids[-1:]) == [EOS_ID] and text.endswith(f"#{results}"))
        for text, results, ids in zip(completions, answer, completion_ids, strict=True)
    ]


def build_tokenizer() -> "PreTrainedTokenizerFast":
    """The world's tokenizer: a character is a token, and so is a blank line.

    Encoding adds `<bos>` in front unless `add_special_tokens=False`; decoding joins without spaces, so text comes back
    as it went in. A character outside the vocabulary becomes `<unk>`.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.WordLevel(dict(_IDS), unk_token=UNK))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(_PIECE), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A $B", special_tokens=[(BOS, BOS_ID)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        bos_token=BOS,
        eos_token=EOS,
        unk_token=UNK,
        padding_side="left",
        clean_up_tokenization_spaces=False,
        model_max_length=256,
    )


def _below(rng: random.Random, limit: int) -> int:
    """Uniform in [0, limit), from `random()` alone: the one draw whose sequence Python keeps across versions."""
    return int(rng.random() * limit)


def _rows_of_ten(entries: Sequence[int]) -> tuple[str, ...]:
    return tuple("".join(map(str, entries[a : a + 10])) for a in range(0, 100, 10))
