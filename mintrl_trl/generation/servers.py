"""Several vLLM servers as one: rollouts are spread over them by load, and all have the same weights.

Owns who samples which rollout, and that a sync reaches every server. It sends no request itself: each server has a
[`VLLMGenerator`] and a [`WeightSync`] of its own. Invariants: a rollout stays with the server that began it, whose
cache holds its tokens; no server counts as synced before all are.

One server with `--data-parallel-size` is the simpler way to use several GPUs of one machine.
"""

from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from concurrent.futures import Future, wait
from contextlib import aclosing
from functools import partial
from typing import Any, TypeVar

from ..errors import GenerationError
from ..rollouts.doors import SampledToken
from .server_sync import ServerSync, on_a_thread
from .vllm import VLLMGenerator

_T = TypeVar("_T")
_R = TypeVar("_R")


class _Place:
    """A server and what it has to do.

    Args:
        generator ([`VLLMGenerator`]): Of the server.
    """

    def __init__(self, generator: VLLMGenerator):
        self.generator = generator
        self.rollouts = 0  # begun and not ended

    def __repr__(self) -> str:
        return f"{self.generator.control.root}: {self.rollouts} rollouts"


class _OneRollout:
    """The generator of one rollout: streams from the server that was least busy when the rollout began."""

    def __init__(self, place: _Place):
        self._place = place

    @property
    def weight_version(self) -> str:
        return self._place.generator.weight_version

    def stream(self, prefix_ids: Sequence[int], max_tokens: int, seed: int) -> AsyncIterator[SampledToken]:
        return self._place.generator.stream(prefix_ids, max_tokens, seed)

    def __enter__(self) -> "_OneRollout":
        self._place.rollouts += 1
        return self

    def __exit__(self, *exc: object) -> None:
        self._place.rollouts -= 1


class SeveralServers:
    """A [`PolicyGenerator`] over several vLLM servers of the same model.

    Args:
        generators (`Sequence[VLLMGenerator]`): One for each server, set up alike.

    Attributes:
        weight_version (`str`): Version of the weights behind all of them.
    """

    def __init__(self, generators: Sequence[VLLMGenerator]):
        self.generators = tuple(generators)
        self._places = [_Place(generator) for generator in self.generators]

    def __repr__(self) -> str:
        return f"SeveralServers({list(self.generators)!r})"

    @property
    def weight_version(self) -> str:
        return self.generators[0].weight_version

    @property
    def model(self) -> str:
        """Name asked for."""
        return self.generators[0].model

    def use_weights(self, weight_version: str, model: str | None = None) -> None:
        """As [`VLLMGenerator.use_weights`], on all of them."""
        for generator in self.generators:
            generator.use_weights(weight_version, model)

    def verify(self, **lengths: float) -> None:
        """As [`VLLMGenerator.verify`], on all of them."""
        for generator in self.generators:
            generator.verify(**lengths)

    def counters(self) -> dict[str, float]:
        """As [`VLLMGenerator.counters`], over all of them."""
        total: Counter[str] = Counter()
        for generator in self.generators:
            total.update(generator.counters())
        return dict(total)

    def for_rollout(self) -> _OneRollout:
        """The generator for one rollout, as a context that lasts as long as the rollout."""
        return _OneRollout(min(self._places, key=lambda place: place.rollouts))

    async def stream(self, prefix_ids: Sequence[int], max_tokens: int, seed: int) -> AsyncIterator[SampledToken]:
        """One stream that belongs to no rollout."""
        with self.for_rollout() as generator:
            async with aclosing(generator.stream(prefix_ids, max_tokens, seed)) as tokens:
                async for token in tokens:
                    yield token

    async def aclose(self) -> None:
        """Close the connections of the running event loop."""
        for generator in self.generators:
            await generator.aclose()

    def close(self) -> None:
        """As [`VLLMGenerator.close`], on all of them."""
        for generator in self.generators:
            generator.close()


class SyncToAll:
    """A [`WeightSync`] that prepares weights once and has all servers load them, at the same time where they can.

    Args:
        syncs (`Sequence[ServerSync]`): One for each server, of one kind and run.
    """

    def __init__(self, syncs: Sequence[ServerSync]):
        self.syncs = tuple(syncs)

    @property
    def run_id(self) -> str:
        """Sets this run apart from others on the same servers."""
        return self.syncs[0].run_id

    @run_id.setter
    def run_id(self, value: str) -> None:
        for sync in self.syncs:
            sync.run_id = value

    def sync(self, version: str, weights: Any) -> str:
        """Bring the weights to every server.

        Raises:
            GenerationError: One of them refused or took too long; all have been asked by then. Or they serve the model
                under different names.
        """
        prepared = self.syncs[0].prepare(version, weights)
        at_once = self.syncs[0].at_once
        names = set(_on_each(lambda sync: sync.load(version, prepared), self.syncs, at_once=at_once))
        if len(names) > 1:
            allowed = ", ".join(map(repr, sorted(names)))
            raise GenerationError(f"the servers have different names for one model ({allowed}): start them alike")
        self.syncs[0].tidy()
        return names.pop()

    def verify(self, version: str) -> None:
        """Check that every server serves `version`.

        Raises:
            GenerationError: One of them does not.
        """
        _on_each(lambda sync: sync.verify(version), self.syncs)

    def restore(self, version: str) -> bool:
        """Have every server that was restarted load `version` again; says whether one had to."""
        return any(_on_each(lambda sync: sync.restore(version), self.syncs))

    def close(self) -> None:
        """As each of them."""
        for sync in self.syncs:
            sync.close()


def _on_each(function: Callable[[_T], _R], items: Iterable[_T], *, at_once: bool = True) -> list[_R]:
    """`function` of all items; the first error is raised once all have ended.

    An interrupt waits for none of them, wherever it comes.
    """
    futures: list[Future[_R]] = []
    for item in items:
        if at_once:
            futures.append(on_a_thread(partial(function, item)))
            continue
        futures.append(Future())
        try:
            futures[-1].set_result(function(item))
        except Exception as error:
            futures[-1].set_exception(error)
    wait(futures)
    return [future.result() for future in futures]
