"""Rewards that begin while other rollouts are still being made.

As soon as a rollout is finished, its text goes to every reward function that offers `begin`, which starts the check and
keeps it; when TRL calls the function for the whole batch, that check is found under way or done. Functions without
`begin` keep TRL's path. It computes no reward. Invariant: rewards are the same with and without it. What goes wrong
here is done again, and said, in TRL's path.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from typing import TYPE_CHECKING, Any

from .generation.local import LocalGenerator
from .rollouts.rollout import Rollout

if TYPE_CHECKING:
    from .trainer import MInTRLTrainer

logger = logging.getLogger(__name__)

Begin = Callable[[str, Mapping[str, Any]], Any]  # of the text of a completion and the row it answers


def begin_of(reward: Callable[..., Any]) -> Begin | None:
    """What starts the check of one completion before the batch is whole: `reward.begin`, or that of its object.

    Args:
        reward (`Callable`): A reward function, such as `math_reward` or `MathChecker(...).reward`.

    Returns:
        `Callable`, *optional*: `None` where it has to wait for the batch.
    """
    begin = getattr(reward, "begin", None) or getattr(getattr(reward, "__self__", None), "begin", None)
    return begin if callable(begin) else None


class EarlyRewards:
    """Hands finished rollouts to reward functions, on a thread of its own, so that no stream of tokens waits for it.

    Args:
        rewards (`Iterable[Callable]`): Reward functions.
        decode (`Callable[[Sequence[int]], str]`): Spells the ids of a response as TRL does for rewards.
    """

    def __init__(self, rewards: Iterable[Callable[..., Any]], decode: Callable[[Sequence[int]], str]):
        self._begins = [begin for reward in rewards if (begin := begin_of(reward)) is not None]
        self._decode = decode
        self._thread = ThreadPoolExecutor(1, "mintrl-early-rewards") if self._begins else None
        self._rows: Mapping[int, Mapping[str, Any]] = {}
        self._pending: list[Future] = []

    @classmethod
    def of(cls, trainer: "MInTRLTrainer") -> "EarlyRewards":
        """Those of a trainer. Where rollouts need the CPU none begin early: checks have limits on the wall clock."""
        generator, tokenizer = trainer.policy.generator, trainer.processing_class
        busy = isinstance(generator, LocalGenerator) and trainer.accelerator.device.type == "cpu"
        return cls([] if busy else trainer.reward_funcs, partial(tokenizer.decode, skip_special_tokens=True))

    def expect(self, rows: Mapping[int, Mapping[str, Any]]) -> None:
        """The rows that are about to be rolled out, by the number that their requests have."""
        self._rows, self._pending = rows, []

    def on_finished(self, rollout: Rollout) -> None:
        """Take a finished rollout; returns at once."""
        if self._thread is not None:
            self._pending.append(self._thread.submit(self._start, rollout))

    def finish(self) -> None:
        """Start no more checks; called before the rewards of the batch are asked for."""
        for future in self._pending:
            future.cancel()
        wait(self._pending)
        self._pending = []

    def close(self) -> None:
        """End the thread. Rollouts that finish later are left to TRL's path."""
        if self._thread is not None:
            thread, self._thread = self._thread, None
            thread.shutdown(cancel_futures=True)

    def _start(self, rollout: Rollout) -> None:
        try:
            row, text = self._rows[rollout.request.row], self._decode(rollout.ids)
            for begin in self._begins:
                begin(text, row)
        except Exception as error:  # TRL's path meets it again, where it is raised in all processes
            logger.debug("row %d: its check did not begin early: %r", rollout.request.row, error)
