"""What the micro-batches of one update add up to: loss terms, entropy, mismatch, and whether every loss is a number.

It collects while an update runs and reports once, at its last micro-batch; it changes neither loss nor gradients.
Invariant: every process makes the same collective calls, and nothing is read back from the device before the last
micro-batch.
"""

import logging
from typing import TYPE_CHECKING, Any

import torch
from accelerate.utils import gather
from torch import Tensor

from . import trl_seams
from .batch_report import reduce_totals
from .errors import NumericsError
from .failures import leave_weights
from .objective.metrics import Totals, entropy_totals
from .objective.mismatch import mismatch_terms
from .processes import FiniteLosses

if TYPE_CHECKING:
    from .trainer import MInTRLTrainer

logger = logging.getLogger(__name__)


class UpdateWindow:
    """The micro-batches of the update that is being made.

    Args:
        trainer ([`MInTRLTrainer`]): Whose update.
    """

    def __init__(self, trainer: "MInTRLTrainer"):
        self.trainer = trainer
        self._above_limit = False  # whether the update before was, too
        self.clear()

    def clear(self) -> None:
        """Forget a window that was not finished."""
        self._totals, self._losses = Totals(), FiniteLosses()
        self._mismatch: Tensor | None = None  # (3,) of the micro-batches so far

    def add(self, totals: Totals) -> None:
        """Add terms of one micro-batch."""
        self._totals = Totals.merge([self._totals, totals])

    def add_micro_batch(self, loss: Tensor, inputs: dict[str, Any]) -> None:
        """Add what the trainer's newest forward says, and report where it was the last one of the update.

        Args:
            loss (`Tensor`): () of the micro-batch.
            inputs (`dict`): Its tensors.

        Raises:
            NumericsError: At the last micro-batch, in all processes: some loss of the update is not finite.
        """
        response_mask, live = inputs["completion_mask"].bool(), inputs[trl_seams.LIVE]  # (B, C), (B,)
        lean = self.trainer.lean
        self.add(entropy_totals(lean.entropies, response_mask, live, inputs[trl_seams.ENTROPY_SAMPLE]))
        self._losses.add(loss)
        if (sampled := inputs.get(trl_seams.SAMPLED_LOGPS)) is not None:
            logps = inputs.get("old_per_token_logps")  # of the weights that sampled, where they have moved since
            logps = lean.logps if logps is None else logps
            self._add_mismatch(mismatch_terms(logps, sampled, response_mask & live.unsqueeze(1)))
        if self.trainer.accelerator.sync_gradients:
            self._report()

    def _add_mismatch(self, terms: Tensor) -> None:
        before = torch.zeros_like(terms) if self._mismatch is None else self._mismatch
        self._mismatch = torch.cat([before[:2] + terms[:2], torch.maximum(before[2:], terms[2:])])

    def _report(self) -> None:
        trainer, update = self.trainer, self.trainer.state.global_step + 1
        own = torch.zeros(3, device=trainer.accelerator.device) if self._mismatch is None else self._mismatch
        terms = gather(own.unsqueeze(0)).cpu()  # (processes, 3)
        metrics, losses = reduce_totals(self._totals), self._losses
        self.clear()
        tokens = terms[:, 1].sum().item()
        if tokens:
            metrics["mismatch/kl"] = terms[:, 0].sum().item() / tokens
            metrics["mismatch/max"] = terms[:, 2].max().item()
            self._warn(update, metrics["mismatch/kl"], metrics["mismatch/max"])
        trl_seams.add_metrics(trainer, metrics)
        try:
            losses.check(update)
        except NumericsError as error:
            leave_weights(trainer, update, error)
            raise

    def _warn(self, update: int, kl: float, largest: float) -> None:
        """Once for each stretch of updates above the limit."""
        limit = self.trainer.args.mismatch_limit
        above = limit is not None and not kl <= limit
        if above and not self._above_limit and self.trainer.accelerator.is_main_process:
            logger.warning(
                "Update %d: trainer and sampler disagree on the sampled tokens by a KL of %.3g nats per token, above "
                "mismatch_limit=%g; by %.3g nats on one token. With the same weights they differ by rounding only. "
                "Look at the sampler's weights (another run on the same server?), its adapter, precision, "
                "--logprobs-mode and --hf-overrides, and at temperature, top_p and top_k. Said once, until it is below "
                "the limit again.",
                update,
                kl,
                limit,
                largest,
            )
        self._above_limit = above
