"""Judges that are programs: they check steps exactly, without a model.

`ChainsJudge` owns the verdicts on the small world's chains. It never samples from a model, never reads the privileged
context or the answer, and keeps no state between calls, so one judge serves any number of rollouts. Its invariant: what
it checks and what it writes both come from the text before that place and from nothing else, so a line is judged by
the value written above it, and everything beyond a corrected line follows from the corrected value.
"""

import random
from collections.abc import Sequence

from ..data.chains import BLANK, DIGITS, EOS_ID, LETTERS, Chain, World, pieces
from ..errors import ConfigError, DataError, JudgeError
from ..rollouts.doors import KEEP, Correction, Revise, Verdict
from ..rollouts.rollout import Problem

WRONG_LINE = "does not follow from the line before"
MISJUDGED = "misjudged"  # the reason of an imperfect judge's mistakes; its correction is then a wrong value


class ChainsJudge:
    """Checks each new line against the value written in the line before, and continues with the right text.

    The cut is at the start of the first wrong line, but never before the chunk. A mistake that was missed earlier is
    not reported again, and the lines that follow from it are right. A correction is the right continuation of the
    accepted text, cut to the limit; it never holds an end token, so where nothing but the end is missing the judge
    keeps.

    Args:
        world (`World`): The rules.
        error_rate (`float`, *optional*, defaults to 0.0): Probability, in [0, 1], that a review goes wrong. If there is
            a mistake in the chunk, half of these miss it and half put a random wrong value in its place; if there is
            none, a random line of the chunk is rejected and gets a random wrong value: the failure of the paper's
            Figure 9. Drawn from the calls' seeds.
        value_error_rate (`float`, *optional*, defaults to 0.0): Probability, in [0, 1], that a value which the judge
            writes is a random wrong one, each value by itself, so that long corrections hold more mistakes. What it
            writes next follows from it.
        terse (`bool`, *optional*, defaults to `False`): Leave letter and operand out of the lines it writes: `7`, `2`
            in place of `7D5`, `2E0`. The values are right, but the policy never wrote so, and has no letters left from
            which to collect its answer. A correction of one token is the same in either form. Such lines are right
            where the policy writes them, too.

    Raises:
        ConfigError: A rate is outside [0, 1].
    """

    def __init__(self, world: World, error_rate: float = 0.0, *, value_error_rate: float = 0.0, terse: bool = False):
        for field, rate in (("error_rate", error_rate), ("value_error_rate", value_error_rate)):
            if not 0.0 <= rate <= 1.0:
                raise ConfigError(field, rate, "a probability in [0, 1]", "give 0 for an exact judge")
        self.world = world
        self.error_rate, self.value_error_rate, self.terse = error_rate, value_error_rate, terse

    def settings(self) -> dict[str, float | bool]:
        """What its verdicts depend on, besides the world."""
        return {"error_rate": self.error_rate, "value_error_rate": self.value_error_rate, "terse": self.terse}

    async def review(self, problem: Problem, steps: Sequence[str], first_new: int, *, seed: int) -> Verdict:
        """Accept the newest chunk or name the step in which the first wrong line starts.

        Raises:
            JudgeError: The question is not a chain of this world.
        """
        chain = _chain(problem)
        written = "".join(steps)
        new_from = len("".join(steps[:first_new]))
        cut = self._first_wrong_line(chain, written, new_from, _ended(steps))
        rng = random.Random(seed)
        reason = WRONG_LINE
        if rng.random() < self.error_rate:
            reason = MISJUDGED
            if cut is None:
                cut = _random_line(written, new_from, rng)
            elif rng.random() < 0.5:
                cut = None
        return KEEP if cut is None else Revise(_step_at(steps, cut, first_new), reason)

    async def intervene(
        self, problem: Problem, accepted: str, verdict: Revise, max_tokens: int, *, seed: int
    ) -> Correction:
        """The right continuation of `accepted`, cut to `max_tokens`; after a misjudgement it opens with a wrong value.

        Raises:
            JudgeError: The question is not a chain of this world.
        """
        chain, rng, text = _chain(problem), random.Random(seed), ""
        for place in range(max_tokens):
            piece = self._next_piece(chain, accepted + text)
            if not piece:
                break
            if piece in DIGITS and _at_line_start(accepted + text):  # a value
                forced = verdict.reason == MISJUDGED and place == 0
                if forced or (self.value_error_rate and rng.random() < self.value_error_rate):
                    piece = DIGITS[(int(piece) + 1 + int(rng.random() * 9)) % 10]
            text += piece
        return Correction(text=text)

    def _next_piece(self, chain: Chain, written: str) -> str:
        """The right next token's text in the judge's own form; empty after a whole answer."""
        rest = self.world.continuation(chain, written)
        if self.terse and rest[:1] in set(LETTERS) and written[-1] in DIGITS and _at_line_start(written[:-1]):
            return BLANK
        return pieces(rest)[0] if rest else ""

    def _first_wrong_line(self, chain: Chain, written: str, new_from: int, ended: bool) -> int | None:
        """Start of the first line with a wrong token at or after `new_from`, or `new_from` if that line began earlier.

        `None` if there is no such line, or if nothing but the end of the response would be right there.
        """
        place = new_from
        for piece in pieces(written[new_from:]):
            before = written[:place]
            follows = self.world.continuation(chain, before).startswith(piece)
            if not follows and piece != self._next_piece(chain, before):
                break
            place += len(piece)
        if place == len(written) and not (ended and self.world.continuation(chain, written)):
            return None
        cut = max(written.rfind(BLANK, 0, place) + len(BLANK) if BLANK in written[:place] else 0, new_from)
        return cut if self.world.continuation(chain, written[:cut]) else None


def _chain(problem: Problem) -> Chain:
    try:
        return Chain.parse(problem.question)
    except DataError as error:
        raise JudgeError(f"ChainsJudge checks chains only. {error}") from error


def _ended(steps: Sequence[str]) -> bool:
    """Whether the policy closed its response; only the ids show it, as an end token spells nothing."""
    return EOS_ID in getattr(steps[-1], "ids", ())[-1:]


def _at_line_start(text: str) -> bool:
    return not text or text.endswith(BLANK)


def _random_line(written: str, new_from: int, rng: random.Random) -> int | None:
    """Start of a random new line that holds a value, or `None` if the chunk has none."""
    starts = [
        place for place in range(new_from, len(written)) if written[place] in DIGITS and _at_line_start(written[:place])
    ]
    return starts[int(rng.random() * len(starts))] if starts else None


def _step_at(steps: Sequence[str], place: int, first_new: int) -> int:
    """Index of the step that holds character `place` of the joined steps; the last one for the end of the text."""
    end = 0
    for i, step in enumerate(steps):
        end += len(step)
        if place < end:
            return max(i, first_new)
    return len(steps) - 1
