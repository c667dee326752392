"""Running the model over prefixes, in slices, and scoring continuations of them.

Equal prefixes are computed once: the rows of a group share a prompt, and a judge's possible replies share theirs. The
work is cut into slices of a bounded number of tokens; a generator yields between slices so that the rows that are being
decoded go on meanwhile. Nothing is sampled here.

Shapes: N requests, U different prefixes, P columns of the longest prefix, K of the longest continuation but its last
token, V tokens of the vocabulary. Prefixes are padded on the left, continuations on the right.
"""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass

import torch
from transformers.cache_utils import DynamicCache

from .lent_model import LentModel, Weights
from .requests import ScoreRequest

_LOGITS_AT_ONCE = 2**26  # numbers in the logits of one slice of a continuation: 256 MiB in float32


@dataclass(frozen=True)
class Prefilled:
    """Prefixes the model has read.

    Args:
        cache (`DynamicCache`): Keys and values of the U different prefixes, P columns.
        mask (`torch.Tensor`): (U, P) bool, true where a token stands.
        logits (`torch.Tensor`): (U, V), of the token after each prefix.
        rows (`torch.Tensor`): (N,) int64, which of the U prefixes each request has.
    """

    cache: DynamicCache
    mask: torch.Tensor
    logits: torch.Tensor
    rows: torch.Tensor


def prefill(
    model: LentModel,
    kind: Weights,
    prefixes: Sequence[tuple[int, ...]],
    pad_id: int,
    slice_tokens: Callable[[], int],
) -> Generator[None, None, Prefilled]:
    """Read `prefixes`, about `slice_tokens()` tokens at a time; yields between slices."""
    order = {prefix: row for row, prefix in enumerate(dict.fromkeys(prefixes))}
    columns = max(map(len, order))
    device = model.device
    ids = torch.tensor([(pad_id,) * (columns - len(prefix)) + prefix for prefix in order], device=device)  # (U, P)
    pads = torch.tensor([columns - len(prefix) for prefix in order], device=device)  # (U,)
    positions = torch.arange(columns, device=device) - pads[:, None]  # (U, P), negative on pads
    mask = positions >= 0  # (U, P)
    is_padded = min(map(len, order)) < columns
    positions = positions.clamp(min=0)
    cache = DynamicCache()
    start = 0
    while True:
        stop = min(columns, start + max(1, slice_tokens() // len(order)))
        logits = model.logits(
            kind, ids[:, start:stop], mask[:, :stop] if is_padded else None, positions[:, start:stop], cache, keep=1
        )  # (U, 1, V)
        if stop == columns:
            break
        start = stop
        yield
    return Prefilled(cache, mask, logits[:, -1], torch.tensor([order[prefix] for prefix in prefixes], device=device))


def score(
    model: LentModel,
    kind: Weights,
    requests: Sequence[ScoreRequest],
    pad_id: int,
    temperature: float,
    slice_tokens: Callable[[], int],
) -> Generator[None, None, list[list[float]]]:
    """Log-probability of every token of every continuation, under softmax(logits / temperature), in nats.

    Yields between slices. A log-probability is NaN where the logits hold a NaN or plus infinity.
    """
    read = yield from prefill(model, kind, [request.prefix for request in requests], pad_id, slice_tokens)
    first = torch.tensor([request.continuation[0] for request in requests], device=read.rows.device)
    scores = [[value] for value in _log_probabilities(read.logits[read.rows], first, temperature).tolist()]
    longer = [index for index, request in enumerate(requests) if len(request.continuation) > 1]
    if not longer:
        return scores

    tails = [requests[index].continuation for index in longer]
    count, columns = len(tails), max(map(len, tails)) - 1
    device = read.rows.device
    padded = torch.tensor([tail + (pad_id,) * (columns + 1 - len(tail)) for tail in tails], device=device)  # (N, K + 1)
    lengths = torch.tensor([len(tail) - 1 for tail in tails], device=device)  # (N,)
    rows = read.rows[torch.tensor(longer, device=device)]  # (N,)
    steps = torch.arange(columns, device=device)  # (K,)
    mask = torch.cat([read.mask[rows], steps < lengths[:, None]], dim=1)  # (N, P + K)
    positions = read.mask.sum(1)[rows][:, None] + steps  # (N, K)
    read.cache.batch_select_indices(rows)
    pieces, start, prefix_columns = [], 0, read.mask.shape[1]
    while start < columns:
        yield
        width = max(1, min(slice_tokens() // count, _LOGITS_AT_ONCE // (count * model.vocabulary_size)))
        stop = min(columns, start + width)
        logits = model.logits(
            kind,
            padded[:, start:stop],
            mask[:, : prefix_columns + stop],
            positions[:, start:stop],
            read.cache,
            keep=stop - start,
        )  # (N, stop - start, V)
        pieces.append(_log_probabilities(logits, padded[:, start + 1 : stop + 1], temperature))
        start = stop
    for index, tail, values in zip(longer, tails, torch.cat(pieces, dim=1).tolist(), strict=True):
        scores[index] += values[: len(tail) - 1]
    return scores


def _log_probabilities(logits: torch.Tensor, ids: torch.Tensor, temperature: float) -> torch.Tensor:
    """Log-probability of `ids` (...) under softmax(logits (..., V) / temperature), in float32 or float64."""
    scaled = logits if logits.dtype == torch.float64 else logits.float()
    scaled = scaled / temperature
    return scaled.gather(-1, ids[..., None]).squeeze(-1) - scaled.logsumexp(-1)
