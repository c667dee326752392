"""Which rows share a micro-batch, which process takes them, and which need no forward at all.

Pure arithmetic on the tensors of one generated batch. It moves rows and shortens them; it never changes what a row adds
to the gradient. Invariant: every process holds equally many micro-batches of equally many rows, and the rows of one
update stay the rows of that update, so the denominators of the loss are those of the batch as it was generated.

Letters: N rows of all processes, W processes, U updates of a generated batch, M micro-batches of one update on one
process, R rows of one micro-batch (N = W x U x M x R), L tokens of a row.
"""

import torch
from torch import Tensor


def row_costs(lengths: Tensor, hidden_size: int) -> Tensor:
    """What a forward and backward over each row costs, up to a common factor.

    A layer's weights hold about 12 h^2 numbers and meet every token once; causal attention meets L/2 earlier tokens
    with 2 h numbers each. Together L (12 h + L), times h.

    Args:
        lengths (`Tensor`): (N,) tokens of each row, prompt and completion.
        hidden_size (`int`): h, the model's width.

    Returns:
        `Tensor`: (N,) float64.
    """
    lengths = lengths.double()
    return lengths * (12 * hidden_size + lengths)


def split_updates(rows: int, updates: int, seed: int) -> Tensor:
    """Which rows each update of a generated batch trains on: a random partition into equal parts.

    It depends on the seed and the number of rows alone, so it is the same for any number of processes.

    Args:
        rows (`int`): N, a multiple of `updates`.
        updates (`int`): U.
        seed (`int`): At least 0.

    Returns:
        `Tensor`: (U, N / U) row numbers.
    """
    if updates == 1:
        return torch.arange(rows).view(1, -1)
    shuffled = torch.randperm(rows, generator=torch.Generator().manual_seed(seed))
    return shuffled.view(updates, -1)


def deal_rows(costs: Tensor, processes: int, micro_batches: int) -> Tensor:
    """Deal the rows of one update to micro-batches of rows of like cost, and these to processes of like total cost.

    Rows are sorted by cost and cut into micro-batches, so each is padded little. The micro-batches, dearest first, go
    to the process with the least to do so far that has a place left. Every process takes its dearest micro-batch first,
    so that processes which wait for each other in every micro-batch (sharded models) wait little.

    Args:
        costs (`Tensor`): (W x M x R,) cost of each row, at least 0.
        processes (`int`): W.
        micro_batches (`int`): M.

    Returns:
        `Tensor`: (W, M, R) row numbers.

    Raises:
        ValueError: The rows do not divide evenly.
    """
    if len(costs) % (processes * micro_batches):
        raise ValueError(f"{len(costs)} rows do not divide into {processes} x {micro_batches} micro-batches")
    order = torch.argsort(costs, descending=True, stable=True).view(processes * micro_batches, -1)  # (W x M, R)
    dearest = costs[order[:, 0]].tolist()  # a row is padded to the longest of its micro-batch
    taken: list[list[int]] = [[] for _ in range(processes)]
    load = [0.0] * processes
    for place, cost in enumerate(dearest):
        free = [process for process in range(processes) if len(taken[process]) < micro_batches]
        process = min(free, key=lambda p: (load[p], p))
        taken[process].append(place)
        load[process] += cost
    return order[torch.tensor(taken)]


def rows_without_gradient(
    advantages: Tensor,
    *,
    scored: Tensor | None,
    anchored: Tensor | None,
    moved: bool,
) -> Tensor:
    """Which rows have a gradient of exactly zero.

    In the intervention phase (`scored` given) these are the rows that are not scored, and, where the policy in training
    is the one that generated the batch, rows of advantage 0 without a token anchored to anything but that policy: their
    log-ratio is 0, identically, and so is the residual that the gradient is proportional to (Eq. 7). In the on-policy
    phase a token's loss is proportional to the advantage, so rows of advantage 0 are all.

    Args:
        advantages (`Tensor`): (N,) advantages.
        scored (`Tensor`, *optional*): (N,) bool, rows with an advantage. None in the on-policy phase.
        anchored (`Tensor`, *optional*): (N,) bool, rows with a token anchored to a constant or to the judge.
        moved (`bool`): Whether the policy in training may differ from the one that generated the batch.

    Returns:
        `Tensor`: (N,) bool.
    """
    flat = advantages == 0  # (N,)
    if scored is None:
        return flat
    if moved:
        return ~scored
    return ~scored | (flat & ~anchored)


def shorten(batch: dict[str, Tensor], rows: Tensor) -> dict[str, Tensor]:
    """Cut the masks of `rows` to the last prompt token and the first completion token.

    Args:
        batch (`dict[str, Tensor]`): With `prompt_mask` (N, P), prompts at the right end, and `completion_mask` (N, C).
        rows (`Tensor`): (N,) bool.

    Returns:
        `dict[str, Tensor]`: The same keys; the two masks are new tensors.
    """
    rows = rows.unsqueeze(1)  # (N, 1)
    prompt_mask, completion_mask = batch["prompt_mask"], batch["completion_mask"]
    last = torch.arange(prompt_mask.size(1), device=prompt_mask.device) == prompt_mask.size(1) - 1  # (P,)
    first = torch.arange(completion_mask.size(1), device=completion_mask.device) == 0  # (C,)
    return batch | {
        "prompt_mask": torch.where(rows & ~last, 0, prompt_mask),
        "completion_mask": torch.where(rows & ~first, 0, completion_mask),
    }


def kept_columns(attention_mask: Tensor, completion_width: int, multiple: int | None = None) -> slice:
    """The columns of prompt and completion that are not padding in every row, at least one of each.

    Args:
        attention_mask (`Tensor`): (B, P+C), prompts padded on the left, completions on the right.
        completion_width (`int`): C.
        multiple (`int`, *optional*): Keep columns of padding until both widths are multiples of this, while there are.

    Returns:
        `slice`: Of the P+C columns.
    """
    width = attention_mask.size(1)
    prompt_width = width - completion_width
    used = torch.nonzero(attention_mask.any(dim=0)).flatten()
    first, last = (int(used[0]), int(used[-1])) if len(used) else (prompt_width - 1, prompt_width)
    prompt = max(prompt_width - first, 1)
    completion = max(last + 1 - prompt_width, 1)
    if multiple:
        prompt = min(-(-prompt // multiple) * multiple, prompt_width)
        completion = min(-(-completion // multiple) * multiple, completion_width)
    return slice(prompt_width - prompt, prompt_width + completion)
