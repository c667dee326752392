"""The rows that are decoded together: one forward pass gives each of them one token.

Rows join between tokens, with the cache of their prefill, and leave as soon as they end, fail or are closed. All
bookkeeping is in tensors over the rows; the only Python work per row and token is to see whether it ended.

Columns of the batch are counted by one number line that never moves: the next token of every row goes into column
`stop`, and a row that holds n tokens begins in column `stop - n`, its origin. So a token's index in its own row is
column minus origin, and no row has to be touched when others join or leave.

Shapes: B rows, L columns, V tokens of the vocabulary.
"""

import math
from collections import defaultdict
from collections.abc import Sequence

import torch

from ..errors import GenerationError
from .cache import RowCache
from .lent_model import LentModel, Weights
from .noise import draw
from .prefill import Prefilled
from .requests import Mailbox, Outbox, StreamRequest, hand_out


class DecodingBatch:
    """The live rows of one kind of weights.

    Args:
        model ([`LentModel`]): Runs the forward passes.
        kind ([`Weights`]): Which weights.
        end_ids (`frozenset[int]`): Ids that end a row; they are handed out.
        temperature (`float`): Above 0.
        outbox ([`Outbox`]): Takes the tokens.
    """

    def __init__(self, model: LentModel, kind: Weights, end_ids: frozenset[int], temperature: float, outbox: Outbox):
        self._model, self._kind, self._end_ids, self._temperature = model, kind, end_ids, temperature
        self._outbox = outbox
        self.clear()

    def clear(self) -> None:
        """Forget all rows."""
        self.rows: list[StreamRequest] = []
        self._cache: RowCache | None = None
        self._start = self._stop = 0
        self._is_padded = False

    def admit(self, requests: Sequence[StreamRequest], read: Prefilled) -> None:
        """Draw the first token of each request; those that go on become rows."""
        wanted = [index for index, request in enumerate(requests) if not request.gone]
        if not wanted:
            return
        device = read.rows.device
        requests = [requests[index] for index in wanted]
        rows = read.rows[torch.tensor(wanted, device=device)]  # (B,)
        seeds = torch.tensor([request.seed for request in requests], device=device)  # (B,)
        lengths = torch.tensor([len(request.prefix) for request in requests], device=device)  # (B,)
        ids, logps = draw(read.logits[rows], seeds, lengths, self._temperature)
        leaving = set(self._hand_out(requests, ids, logps))
        staying = [index for index in range(len(requests)) if index not in leaving]
        if not staying:
            return
        if self._cache is None:
            self._cache = RowCache(like=read.cache)
            self._ids = self._seeds = self._origins = torch.empty(0, dtype=torch.int64, device=device)
        joining = [requests[index] for index in staying]
        columns = max(len(request.prefix) for request in joining)
        for request in joining:
            request.origin = self._stop - len(request.prefix)
        stay = torch.tensor(staying, device=device)
        self._cache.insert(read.cache, rows[stay], columns)
        self._ids = torch.cat([self._ids, ids[stay]])  # (B,) the newest token of each row, not yet in the cache
        self._seeds = torch.cat([self._seeds, seeds[stay]])  # (B,)
        self._origins = torch.cat([self._origins, self._stop - lengths[stay]])  # (B,)
        self.rows += joining
        self._start = min(self._start, self._stop - columns)
        self._is_padded = any(row.origin > self._start for row in self.rows)

    def step(self) -> None:
        """One token for every row."""
        positions = self._stop - self._origins  # (B,)
        mask = None
        if self._is_padded:
            mask = (
                torch.arange(self._start, self._stop + 1, device=positions.device) >= self._origins[:, None]
            )  # (B, L)
        logits = self._model.logits(self._kind, self._ids[:, None], mask, positions[:, None], self._cache, keep=1)
        self._stop += 1
        self._ids, logps = draw(logits[:, -1], self._seeds, positions + 1, self._temperature)
        self._remove(self._hand_out(self.rows, self._ids, logps))

    def drop_closed(self) -> None:
        """Remove the rows that nobody waits for."""
        self._remove([index for index, row in enumerate(self.rows) if row.gone])

    def _hand_out(self, requests: Sequence[StreamRequest], ids: torch.Tensor, logps: torch.Tensor) -> list[int]:
        """Give each request its token. Returns, ascending, the indices of those that get no more."""
        leaving: list[int] = []
        bundles: defaultdict[Mailbox, tuple[list, list, list]] = defaultdict(lambda: ([], [], []))
        endings: list[tuple[StreamRequest, GenerationError | None]] = []
        for index, (request, token_id, logp) in enumerate(zip(requests, ids.tolist(), logps.tolist(), strict=True)):
            error = None
            if math.isfinite(logp):
                for values, value in zip(bundles[request.mailbox], (request, token_id, logp), strict=True):
                    values.append(value)
                request.remaining -= 1
                if request.remaining and token_id not in self._end_ids:
                    continue
            else:
                error = GenerationError("the model's logits are not finite; its weights may have diverged")
            leaving.append(index)
            endings.append((request, error))
        for mailbox, bundle in bundles.items():
            self._outbox.put(mailbox, hand_out, *bundle, can_wait=True)
        for request, error in endings:
            self._outbox.put(request.mailbox, request.finish, error)
        return leaving

    def _remove(self, leaving: list[int]) -> None:
        """Close the gaps that the rows at the ascending indices `leaving` make with rows from the end."""
        if not leaving:
            return
        count = len(self.rows) - len(leaving)
        if not count:
            self.clear()
            return
        gone = set(leaving)
        targets = [index for index in leaving if index < count]
        sources = [index for index in range(count, len(self.rows)) if index not in gone]
        for target, source in zip(targets, sources, strict=True):
            self.rows[target] = self.rows[source]
        del self.rows[count:]
        to, of = (torch.tensor(indices, dtype=torch.int64, device=self._ids.device) for indices in (targets, sources))
        for values in (self._ids, self._seeds, self._origins):
            values[to] = values[of]
        self._ids, self._seeds, self._origins = self._ids[:count], self._seeds[:count], self._origins[:count]
        first = min(row.origin for row in self.rows)
        self._cache.keep(count, of, to, trim=first - self._start)
        self._start = first
        self._is_padded = any(row.origin > first for row in self.rows)
