"""Updates that pay for their live tokens only: TRL's batches, laid out anew before any forward.

TRL pads the generated batch of a process to its longest row and forwards all of it. Here every forward drops the
columns that are padding in all its rows, rows are dealt to micro-batches and processes by cost, and rows whose gradient
is exactly zero are cut to two tokens. It knows no formula: which rows those are, and who takes which, is
`objective.layout`'s. Invariant: loss and gradients are those of TRL's own layout; where a setting of TRL's loss looks
at more than one row at a time, rows stay where TRL put them.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from accelerate.utils import gather, gather_object
from torch import Tensor
from torch.nn.functional import pad

from . import trl_seams
from .objective.layout import deal_rows, kept_columns, row_costs, rows_without_gradient, shorten, split_updates
from .objective.loss import Anchor
from .rollouts.schedule import request_seed

if TYPE_CHECKING:
    from .trainer import MInTRLTrainer

# Tensors of the batch dict whose padding is on the left; all other (B, width) tensors are padded on the right.
_PADDED_LEFT = ("prompt_ids", "prompt_mask")
# Tensors that the loss takes ratios with: 0 wherever the forward of the update gives 0.
_OLDER_LOGPS = ("old_per_token_logps", "ref_per_token_logps")


def trimmed_forward(
    forward: Callable[..., tuple[Tensor, Tensor | None, Tensor | None]],
    model: torch.nn.Module,
    input_ids: Tensor,
    attention_mask: Tensor,
    completion_width: int,
    batch_size: int | None = None,
    *,
    multiple: int | None = None,
    **options: Any,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """TRL's forward, on no column that is padding in all rows of a chunk, and on chunks of rows of like length.

    Args:
        forward (`Callable`): TRL's `_get_per_token_logps_and_entropies`.
        model (`torch.nn.Module`): What it runs.
        input_ids (`Tensor`): (B, P+C).
        attention_mask (`Tensor`): (B, P+C).
        completion_width (`int`): C.
        batch_size (`int`, *optional*): Rows of one chunk; all of them by default.
        multiple (`int`, *optional*): Widths are multiples of this, as far as there is padding.
        **options: Handed on.

    Returns:
        `tuple`: Log-probabilities (B, C), entropies (B, C) or None, auxiliary loss or None. Log-probabilities of all
        padding are 0, so that TRL's ratios are 1 there: one of infinity would not be masked away, but make NaN.
    """
    rows = input_ids.size(0)
    if batch_size is None or batch_size >= rows:
        index = [slice(None)]
    else:
        order = torch.argsort(attention_mask.sum(dim=1), descending=True, stable=True)
        index = list(order.split(batch_size))
    chunks = []
    for part in index:
        mask = attention_mask[part]
        columns = kept_columns(mask, completion_width, multiple)
        kept = columns.stop - (mask.size(1) - completion_width)  # completion columns
        logps, entropies, aux_loss = forward(
            model, input_ids[part, columns], mask[:, columns], kept, batch_size, **options
        )
        logps = torch.where(mask[:, columns][:, -kept:].bool(), logps, 0)  # the same whether columns are dropped or not
        if kept < completion_width:
            logps = pad(logps, (0, completion_width - kept))
            entropies = None if entropies is None else pad(entropies, (0, completion_width - kept))
        chunks.append((logps, entropies, aux_loss))
    if len(chunks) == 1:
        return chunks[0]
    back = torch.argsort(order)
    logps, entropies, aux_losses = zip(*chunks, strict=True)
    return (
        torch.cat(logps)[back],
        None if entropies[0] is None else torch.cat(entropies)[back],
        None if aux_losses[0] is None else torch.stack(aux_losses).mean(),
    )


class LeanUpdates:
    """Lays the rows of a generated batch out for its updates.

    Args:
        trainer ([`MInTRLTrainer`]): Whose batches they are.
    """

    def __init__(self, trainer: "MInTRLTrainer"):
        self.trainer, self.args = trainer, trainer.args
        self.entropies: Tensor | None = None  # (B, C) of the micro-batch that was forwarded last
        self.logps: Tensor | None = None  # (B, C) of the same
        config = trainer.accelerator.unwrap_model(trainer.model).config.get_text_config()
        self.hidden_size = config.hidden_size
        # Means over the tokens of a micro-batch, and quantiles over them, change when rows change places.
        args = self.args
        self._grpo_takes_rows_apart = (
            args.loss_type != "bnpo"
            and args.entropy_coef == 0
            and not args.use_adaptive_entropy
            and args.top_entropy_quantile == 1.0
        )

    def moves_rows(self, regression: bool) -> bool:
        """Whether rows of such a batch change places."""
        apart = regression or self._grpo_takes_rows_apart
        return self.args.lean_updates and apart and not self.trainer.aux_loss_enabled

    def cuts_rows(self, regression: bool) -> bool:
        """Whether rows of such a batch are cut short where they have no gradient."""
        return self.moves_rows(regression) and (regression or self.args.beta == 0)  # the reference pulls on every row

    def forward(
        self,
        trls: Callable[..., tuple],
        model: torch.nn.Module,
        input_ids: Tensor,
        attention_mask: Tensor,
        *args: Any,
        **options: Any,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """[`trimmed_forward`] where updates are lean, else TRL's. Counts an update's tokens, and keeps what it says.

        Args:
            trls (`Callable`): TRL's `_get_per_token_logps_and_entropies`.
            model, input_ids, attention_mask, *args, **options: Its arguments.

        Returns:
            `tuple`: As TRL's.
        """
        in_update = torch.is_grad_enabled()

        def counted(
            model: torch.nn.Module, input_ids: Tensor, attention_mask: Tensor, *args: Any, **options: Any
        ) -> tuple:
            if in_update:
                lengths = attention_mask.sum(dim=1)  # (B,)
                live, squared = torch.stack([lengths.sum(), lengths.square().sum()]).tolist()
                self.trainer.token_count.add(live, attention_mask.numel(), squared)
            return trls(model, input_ids, attention_mask, *args, **options)

        if self.args.lean_updates:
            multiple = self.trainer.pad_to_multiple_of
            output = trimmed_forward(counted, model, input_ids, attention_mask, *args, multiple=multiple, **options)
        else:
            output = counted(model, input_ids, attention_mask, *args, **options)
        if in_update:
            self.logps = output[0].detach()  # the graph would stay, too
            self.entropies = None if output[1] is None else output[1].detach()
        return output

    def row_keys(self, rows: int) -> dict[str, Tensor]:
        """What must travel with the rows of this process, in the batch dict.

        Args:
            rows (`int`): B.

        Returns:
            `dict[str, Tensor]`: (B,) place in the batch of all processes; (B,) bool, whether the row is forwarded
            whole, for now all of them; (B,) bool, whether the entropy is measured on it.
        """
        accelerator = self.trainer.accelerator
        place = torch.arange(rows, device=accelerator.device) + accelerator.process_index * rows  # (B,)
        sample = self._entropy_sample(rows * accelerator.num_processes).to(place.device)
        return {
            trl_seams.ROW: place,
            trl_seams.LIVE: torch.ones_like(place, dtype=torch.bool),
            trl_seams.ENTROPY_SAMPLE: torch.isin(place, sample),
        }

    def arrange(self, micro_batches: list[dict[str, Tensor]]) -> list[dict[str, Tensor]]:
        """This process's micro-batches of a generated batch, laid out anew.

        Every process must call it.

        Args:
            micro_batches (`list[dict]`): As TRL shuffled and split them.

        Returns:
            `list[dict]`: As many, of as many rows.
        """
        trainer, args = self.trainer, self.args
        regression = trl_seams.is_regression_batch(micro_batches[0])
        if not self.moves_rows(regression):
            return micro_batches
        batch = _all_rows(micro_batches)
        dead = self._dead(batch, regression) & ~batch[trl_seams.ENTROPY_SAMPLE]  # (N,) bool
        lengths = batch["prompt_mask"].sum(dim=1) + batch["completion_mask"].sum(dim=1)  # (N,)
        trl_seams.add_metrics(trainer, {"tokens/without_gradient": lengths[dead].sum().item()})
        batch = shorten(batch, dead) | {trl_seams.LIVE: ~dead}
        forwarded = batch["completion_mask"].bool()  # (N, C)
        batch |= {key: torch.where(forwarded, batch[key], 0) for key in _OLDER_LOGPS if key in batch}
        lengths = torch.where(dead, 2, lengths).cpu()
        updates = args.steps_per_generation // args.gradient_accumulation_steps
        seed = request_seed(args.seed, trainer.state.global_step, row=0, revisions=0, purpose="layout")
        own = []
        for rows in split_updates(len(dead), updates, seed):  # (N/U,)
            costs = row_costs(lengths[rows], self.hidden_size)
            dealt = deal_rows(costs, trainer.accelerator.num_processes, args.gradient_accumulation_steps)
            own += list(rows[dealt[trainer.accelerator.process_index]])
        return [{key: v if v.ndim == 0 else v[index.to(v.device)] for key, v in batch.items()} for index in own]

    def _dead(self, batch: dict[str, Tensor], regression: bool) -> Tensor:
        """(N,) bool: rows whose gradient is exactly zero."""
        advantages = batch["advantages"]
        if not self.cuts_rows(regression):
            return torch.zeros_like(advantages, dtype=torch.bool)
        if not regression:
            return rows_without_gradient(advantages, scored=None, anchored=None, moved=True)
        by_judge = (batch["completion_mask"].bool() & ~batch[trl_seams.POLICY_AUTHORED]).any(dim=1)  # (N,)
        anchored = torch.zeros_like(by_judge) if self.trainer.regression.anchor is Anchor.PROXY else by_judge
        moved = "old_per_token_logps" in batch
        return rows_without_gradient(advantages, scored=batch[trl_seams.SCORED], anchored=anchored, moved=moved)

    def _entropy_sample(self, rows: int) -> Tensor:
        """Places that the entropy is measured on: controls, of as many groups as there are, spread evenly."""
        group, controls = self.trainer.num_generations, self.args.num_control
        groups = rows // group
        wanted = min(self.args.entropy_sample * self.args.updates_per_generation, groups * controls)
        places = []
        for position in range(controls):
            number = min(wanted - len(places), groups)
            places += [group * (index * groups // number) + position for index in range(number)]
        return torch.tensor(places, dtype=torch.long)


def _all_rows(micro_batches: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    """The rows of all processes, each tensor as wide as its widest part, in the order they were generated in."""
    batch = {
        key: value if value.ndim == 0 else torch.cat([part[key] for part in micro_batches])
        for key, value in micro_batches[0].items()
        if value is not None
    }
    widths = gather_object([{key: value.size(1) for key, value in batch.items() if value.ndim == 2}])
    gathered = {}
    for key in sorted(batch):  # the same order on every process
        value = batch[key]
        if value.ndim == 2:
            missing = max(width[key] for width in widths) - value.size(1)
            value = pad(value, (missing, 0) if key in _PADDED_LEFT else (0, missing))
        if value.ndim:
            flags = value.dtype == torch.bool  # not every backend carries bool
            value = gather((value.byte() if flags else value).contiguous())
            value = value.bool() if flags else value
        gathered[key] = value
    order = torch.argsort(gathered[trl_seams.ROW])
    return {key: value if value.ndim == 0 else value[order] for key, value in gathered.items()}
