"""The key-value cache of a decoding batch whose rows come and go.

transformers grows a `DynamicCache` by copying all of it for every token, and can neither add nor move rows. Here each
layer keeps one roomy buffer for keys and one for values. A token is written into the next free column, joining rows
into free slots, and a leaving row's slot is filled with a row from the end, so each costs no more than what it touches.

Invariant: the rows are right-aligned. Live cells are the slots [0, rows) and the columns [start, stop) of each buffer;
a row shorter than that is padded on the left with finite values, which an attention mask hides.

Shapes: R slots, H key-value heads, L live columns, D head width.
"""

import torch
from transformers.cache_utils import Cache, DynamicLayer

_SPARE_COLUMNS = 64  # free columns after an allocation, at least; half of the live ones, if that is more


class RowLayer(DynamicLayer):
    """Keys and values of one attention layer. The model sees a `DynamicLayer`: `keys` and `values` (R, H, L, D)."""

    def __init__(self, keys: torch.Tensor, values: torch.Tensor):
        super().__init__()
        self.rows = self.start = self.stop = 0
        self._buffers = [states.new_empty(0, states.shape[1], 0, states.shape[3]) for states in (keys, values)]
        self.is_initialized = True
        self._expose()

    def _expose(self) -> None:
        self.keys, self.values = (buffer[: self.rows, :, self.start : self.stop] for buffer in self._buffers)

    def _reallocate(self, slots: int, columns: int) -> None:
        """Move to zeroed buffers with room for `slots` rows and `columns` live columns, and spare room beyond."""
        length = self.stop - self.start
        capacity = columns + max(_SPARE_COLUMNS, columns // 2)
        for index, old in enumerate(self._buffers):
            new = old.new_zeros(slots, old.shape[1], capacity, old.shape[3])
            new[: self.rows, :, columns - length : columns] = old[: self.rows, :, self.start : self.stop]
            self._buffers[index] = new
        self.start, self.stop = 0, columns

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args, **kwargs):
        """Write the next columns of all rows; returns keys and values up to and including them."""
        count = key_states.shape[-2]
        if self.stop + count > self._buffers[0].shape[2]:
            self._reallocate(self._buffers[0].shape[0], self.stop - self.start)
        for buffer, states in zip(self._buffers, (key_states, value_states), strict=True):
            buffer[: self.rows, :, self.stop : self.stop + count] = states
        self.stop += count
        self._expose()
        return self.keys, self.values

    def insert(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Add rows at the end; `keys` and `values` (R', H, L', D) are padded on the left, as everything here."""
        count, length = keys.shape[0], keys.shape[2]
        slots, columns = self.rows + count, max(self.stop - self.start, length)
        start = self.stop - columns
        if slots > self._buffers[0].shape[0]:
            self._reallocate(max(slots, 2 * self.rows), columns)
        elif start < 0:
            self._reallocate(self._buffers[0].shape[0], columns)
        else:
            for buffer in self._buffers:
                buffer[: self.rows, :, start : self.start] = 0
            self.start = start
        for buffer, states in zip(self._buffers, (keys, values), strict=True):
            buffer[self.rows : slots, :, self.start : self.stop - length] = 0
            buffer[self.rows : slots, :, self.stop - length : self.stop] = states
        self.rows = slots
        self._expose()

    def forget(self, least: int, columns: torch.Tensor | None) -> None:
        """Drop the `least` newest columns; then put column `columns[row, i]` (R, L) of each row into its column i."""
        self.stop -= least
        if columns is not None:
            for buffer in self._buffers:
                live = buffer[: self.rows, :, self.start : self.stop]
                live.copy_(live.gather(2, columns[:, None, :, None].expand_as(live)))
        self._expose()

    def keep(self, rows: int, sources: torch.Tensor, targets: torch.Tensor, trim: int) -> None:
        """Copy the slots `sources` over the slots `targets`, keep the first `rows`, drop `trim` columns on the left."""
        for buffer in self._buffers:
            buffer[targets, :, self.start : self.stop] = buffer[sources, :, self.start : self.stop]
        self.rows, self.start = rows, self.start + trim
        self._expose()


class RowCache(Cache):
    """The layers of a decoding batch. It starts empty, shaped like the cache of the first rows that join.

    Args:
        like (`Cache`): Cache of a prefill, filled; gives the number of layers, heads, widths and dtypes.
    """

    def __init__(self, like: Cache):
        super().__init__(layers=[RowLayer(layer.keys, layer.values) for layer in like.layers])

    def insert(self, other: Cache, rows: torch.Tensor, columns: int) -> None:
        """Add the rows `rows` (int64; may repeat) of `other`, each with its last `columns` columns."""
        for layer, source in zip(self.layers, other.layers, strict=True):
            layer.insert(source.keys[rows, :, -columns:], source.values[rows, :, -columns:])

    def forget(self, counts: torch.Tensor) -> None:
        """Drop each row's `counts` (R,) newest columns, and move the rest of the row to the right again."""
        layer = self.layers[0]
        least = int(counts.min())
        shift, length = (counts - least)[:, None], layer.stop - layer.start - least
        columns = (torch.arange(length, device=counts.device) - shift).clamp(min=0) if shift.any() else None  # (R, L)
        for layer in self.layers:
            layer.forget(least, columns)

    def keep(self, rows: int, sources: torch.Tensor, targets: torch.Tensor, trim: int) -> None:
        """See [`RowLayer.keep`]."""
        for layer in self.layers:
            layer.keep(rows, sources, targets, trim)
