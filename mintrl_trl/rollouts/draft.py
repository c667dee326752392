"""A rollout in the making: what stands so far, and how it is shown to the judge.

Owned by the rollout's one coroutine; it never asks anyone anything. The invariant: what stands only grows, and every
chunk and every correction begins a step of its own, so steps keep their numbers from review to review.
"""

from .doors import TokenText, Vocabulary
from .rollout import ReviewRecord, Rollout, RolloutRequest, Span, StopReason, merge_spans
from .segmentation import Segmentation, segment


class Draft:
    """The accepted prefix p of Algorithm 1, with its authors and its history.

    Args:
        request (`RolloutRequest`): What was asked for.
        vocabulary (`Vocabulary`): Spells the ids.
    """

    def __init__(self, request: RolloutRequest, vocabulary: Vocabulary):
        self.request = request
        self.ids: list[int] = []  # the response so far
        self.reviews: list[ReviewRecord] = []
        self.stop: StopReason | None = None
        self.held_up_seconds = 0.0  # waited for the judge while the policy sampled nothing
        self._vocabulary = vocabulary
        self._spans: list[Span] = []
        self._unshown: list[Span] = []  # accepted, but not yet among the steps
        self._steps: list[TokenText] = []
        self._fence = (False, b"")  # whether a code fence is open, and the unfinished line, after the steps

    @property
    def revisions(self) -> int:
        """Cuts so far; almost all are followed by a correction."""
        return sum(review.cuts for review in self.reviews)

    def append(self, span: Span, count: int | None = None) -> None:
        """Accept `span`, or its first `count` tokens."""
        count = len(span) if count is None else count
        if count == 0:
            return
        if count < len(span):
            logps = None if span.logps is None else span.logps[:count]
            span = Span(span.ids[:count], span.author, span.weight_version, logps)
        self.ids.extend(span.ids)
        self._spans.append(span)
        self._unshown.append(span)

    def show(self, chunk: Span) -> tuple[tuple[TokenText, ...], Segmentation]:
        """What a judge reads: the steps that stand, and the steps of a chunk that is not accepted yet."""
        for span in self._unshown:
            standing = segment(span.ids, self._vocabulary, *self._fence)
            self._steps.extend(standing.steps)
            self._fence = standing.inside_fence, standing.open_line
        self._unshown.clear()
        return tuple(self._steps), segment(chunk.ids, self._vocabulary, *self._fence)

    def finished(self, seconds: float) -> Rollout:
        """The rollout, once it has stopped."""
        return Rollout(
            self.request,
            merge_spans(self._spans),
            self.stop,
            tuple(self.reviews),
            seconds=seconds,
            held_up_seconds=self.held_up_seconds,
        )
