"""Where the time of an update goes, and what the devices made of it.

| name | meaning |
| --- | --- |
| `step/seconds` | from the first micro-batch to the optimizer's step; evaluations and checkpoints are not in it |
| `share/rollout` | of that: the policy samples, apart from the next one |
| `share/review` | rollouts held up by the judge: the part of the rollouts' time that this is, of the time of rollouts |
| `share/reward`, `share/sync` | rewards; bringing weights to the generator |
| `share/update` | forward and backward passes, the optimizer; reference log-probabilities too |
| `share/idle` | the rest: padding, metrics, waiting for processes whose rollouts take longer |
| `seconds/rollout`, `seconds/reward`, `seconds/sync` | the same in seconds, reviews within rollouts |
| `tokens/live`, `tokens/forwarded` | positions of the passes with gradient: of rows trained on, and all |
| `tokens_per_second/rollout`, `tokens_per_second/update` | response tokens, live tokens; of all processes together |
| `mfu` | arithmetic that the live tokens need, over what the devices could do in the time of the update |

Times are means over processes, so the shares add up to 1. Nothing here changes training. Invariant: a number that
cannot be known (no rollouts in this update, a device of unknown speed) is absent, never 0.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from accelerate.utils import gather_object
from torch import nn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from . import trl_seams
from .rollouts.rollout import Rollout

if TYPE_CHECKING:
    from .trainer import MInTRLTrainer

STAGES = ("sync", "rollout", "reward", "update", "idle")

# Dense bfloat16 operations per second of devices that TRL's table lacks, from the maker's data sheets.
_MORE_PEAK_FLOPS = {
    "RTX 5090": 209.5e12,
    "RTX 4090": 165.2e12,
    "RTX 3090": 71e12,
    "GH200": 989e12,
    "H800": 989e12,
    "A800": 312e12,
    "A40": 149.7e12,
    "A30": 165e12,
}


class Tokens(NamedTuple):
    """Positions of forward passes with gradient, on one process; the arguments of [`TokenCount.add`]."""

    live: int = 0
    forwarded: int = 0
    squared: int = 0


_NO_TOKENS = Tokens()


class TokenCount:
    """Tokens of the forward passes with gradient since they were last asked for, on this process.

    Example:

    ```python
    >>> count = TokenCount()
    >>> count.add(live=90, forwarded=100)
    >>> count.take()
    Tokens(live=90, forwarded=100, squared=0)
    >>> count.take().live
    0

    ```
    """

    def __init__(self):
        self._tokens = _NO_TOKENS

    def add(self, live: int, forwarded: int, squared: int = 0) -> None:
        """Count a forward pass.

        Args:
            live (`int`): Prompt and response tokens of the rows that are trained on.
            forwarded (`int`): All positions, padding and rows without gradient included.
            squared (`int`, *optional*, defaults to 0): Squares of the live rows' lengths, added up: what attention
                costs. 0 where it is not known; then `mfu` is not either.
        """
        old = self._tokens
        self._tokens = Tokens(old.live + int(live), old.forwarded + int(forwarded), old.squared + int(squared))

    def take(self) -> Tokens:
        """What was added since the last call."""
        taken, self._tokens = self._tokens, _NO_TOKENS
        return taken


class StepClock:
    """Splits the wall-clock time of an update over its stages. Time of a stage inside another counts once, as its own.

    It runs between `start` and `stop`; stages outside of that (an evaluation) count nothing.

    Args:
        now (`Callable[[], float]`, *optional*): The time in seconds, from any start.
    """

    def __init__(self, now: Callable[[], float] = time.perf_counter):
        self._now = now
        self._seconds: Counter[str] = Counter()
        self._stages: list[str] = []  # the innermost is last; empty while the clock stands
        self._since = 0.0

    def start(self, stage: str) -> None:
        """Begin an update in `stage`, whatever was before."""
        self._seconds.clear()
        self._since = self._now()  # first: `current` may be asked in between
        self._stages = [stage]

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Time of the `with` block belongs to `name`."""
        if not self._stages:
            yield
            return
        self._count()
        self._stages.append(name)
        try:
            yield
        finally:
            self._count()
            if len(self._stages) > 1:
                self._stages.pop()

    def current(self) -> tuple[str, float] | None:
        """The innermost stage and for how many seconds it lasts; `None` while the clock stands. From any thread."""
        stages, since = self._stages[-1:], self._since
        return (stages[0], self._now() - since) if stages else None

    def stop(self) -> dict[str, float]:
        """End the update. Seconds by stage, over all stages there are."""
        self._count()
        self._stages = []
        return {name: self._seconds[name] for name in STAGES}

    def _count(self) -> None:
        now = self._now()
        if self._stages:
            self._seconds[self._stages[-1]] += now - self._since
        self._since = now


@dataclass(frozen=True)
class StepRecord:
    """What one process measured in one update.

    Args:
        seconds (`dict[str, float]`): By stage; together the whole update.
        held_up_share (`float`): Part of its rollouts' time in which they waited for the judge and nothing was sampled
            for them, in [0, 1].
        response_tokens (`int`): Of its rollouts; 0 in an update that uses older ones.
        tokens ([`Tokens`]): Of its passes with gradient.
        flops (`float`, *optional*): Floating-point operations that its live tokens need; `None` where unknown.
        peak_flops (`float`, *optional*): Operations per second of its device at best; `None` where unknown.
    """

    seconds: dict[str, float]
    held_up_share: float = 0.0
    response_tokens: int = 0
    tokens: Tokens = _NO_TOKENS
    flops: float | None = None
    peak_flops: float | None = None


def step_metrics(records: Sequence[StepRecord]) -> dict[str, float]:
    """Metrics of an update from the records of all processes, as the table above names them."""
    sums = {stage: sum(record.seconds[stage] for record in records) for stage in STAGES}
    total = sum(sums.values())
    review = sum(record.seconds["rollout"] * record.held_up_share for record in records)
    shares = sums | {"rollout": sums["rollout"] - review, "review": review}
    metrics = {"step/seconds": total / len(records)}
    metrics |= {f"share/{stage}": seconds / total for stage, seconds in shares.items()}
    sampled = sum(record.response_tokens for record in records)
    if sampled:
        metrics |= {f"seconds/{stage}": sums[stage] / len(records) for stage in ("sync", "rollout", "reward")}
        metrics["tokens_per_second/rollout"] = sampled * len(records) / sums["rollout"]
    live = sum(record.tokens.live for record in records)
    if live:
        metrics["tokens/live"] = live
        metrics["tokens/forwarded"] = sum(record.tokens.forwarded for record in records)
        metrics["tokens_per_second/update"] = live * len(records) / sums["update"]
        if all(record.peak_flops and record.flops is not None for record in records):
            possible = sum(record.peak_flops * record.seconds["update"] for record in records)
            metrics["mfu"] = sum(record.flops for record in records) / possible
    return metrics


@dataclass(frozen=True)
class TrainingFlops:
    """Floating-point operations of a forward and a backward pass, without recomputation.

    Args:
        per_token (`float`): Of the weights: 6 per trained one, 4 per frozen one, 2 for each of forward, gradient of
            the input and gradient of the weight. Of a mixture of experts those that a token passes through.
        per_squared_token (`float`): Of causal attention, per token and token of its row.
    """

    per_token: float
    per_squared_token: float

    @classmethod
    def of(cls, model: nn.Module) -> "TrainingFlops":
        """Those of a causal language model of transformers, an adapter included."""
        config = model.config.get_text_config()
        head = model.get_output_embeddings()
        lookup = None if model.get_input_embeddings().weight is head.weight else model.get_input_embeddings().weight
        experts = next((n for name in _EXPERTS if (n := getattr(config, name, None))), None)
        used = (getattr(config, "num_experts_per_tok", None) or 1) / experts if experts else 1.0
        per_token = 0.0
        for name, weight in model.named_parameters():
            if weight is lookup:
                continue
            size = getattr(weight, "ds_numel", 0) or weight.numel()
            per_token += (6 if weight.requires_grad else 4) * size * (used if ".experts." in name else 1.0)
        kinds = getattr(config, "layer_types", None)
        layers = kinds.count("full_attention") if kinds else config.num_hidden_layers
        heads = config.num_attention_heads
        width = heads * (getattr(config, "head_dim", None) or config.hidden_size // heads)
        # Scores and their product with the values: 2 x 2 operations per pair of positions, half of the pairs, 3 passes.
        return cls(per_token, 6.0 * layers * width)

    def __call__(self, tokens: int, squared_tokens: int) -> float:
        """Operations of rows with `tokens` in all, and `squared_tokens` as the sum of the squares of their lengths."""
        return self.per_token * tokens + self.per_squared_token * squared_tokens


class StepMeter(TrainerCallback):
    """Measures the updates of a trainer and hands the metrics to its log. Every process takes part.

    The update ends with the optimizer's step, so that what other callbacks do after it (an evaluation) is not in it.

    Args:
        trainer ([`MInTRLTrainer`]): Whose updates.
    """

    def __init__(self, trainer: "MInTRLTrainer"):
        self.trainer = trainer
        self.clock = StepClock()
        self.tokens = TokenCount()
        self._rollouts: list[Rollout] = []
        self._flops: TrainingFlops | None = None
        self._peak_flops: float | None = None

    def add_rollouts(self, rollouts: Sequence[Rollout]) -> None:
        """Rollouts that this update made, on this process."""
        self._rollouts.extend(rollouts)

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        accelerator = self.trainer.accelerator
        model = accelerator.unwrap_model(self.trainer.model)
        dtype = _PRECISIONS.get(accelerator.mixed_precision, model.dtype)
        self._peak_flops = peak_flops(accelerator.device, dtype)
        self._flops = None if self._peak_flops is None else TrainingFlops.of(model)

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.tokens.take()
        self._rollouts.clear()
        self.clock.start("update")

    def on_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self.trainer.accelerator.device.type == "cuda":
            torch.cuda.synchronize()  # or the last backward pass would count as time of what comes next
        lifetimes = sum(rollout.seconds for rollout in self._rollouts)
        tokens = self.tokens.take()
        known = self._flops is not None and tokens.squared
        record = StepRecord(
            seconds=self.clock.stop(),
            held_up_share=sum(rollout.held_up_seconds for rollout in self._rollouts) / lifetimes if lifetimes else 0.0,
            response_tokens=sum(len(rollout.ids) for rollout in self._rollouts),
            tokens=tokens,
            flops=self._flops(tokens.live, tokens.squared) if known else None,
            peak_flops=self._peak_flops,
        )
        self._rollouts.clear()
        trl_seams.add_metrics(self.trainer, step_metrics(gather_object([record])))


_PRECISIONS = {"bf16": torch.bfloat16, "fp16": torch.float16}
_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")


def peak_flops(device: torch.device, dtype: torch.dtype) -> float | None:
    """Dense operations per second that a device reaches at best; `None` where that is not known."""
    if device.type != "cuda":
        return None
    return named_peak_flops(torch.cuda.get_device_name(device), dtype)


def named_peak_flops(name: str, dtype: torch.dtype) -> float | None:
    """The same by the device's name; known for bfloat16 and float16 only."""
    known = trl_seams.peak_flops(name, dtype)
    if known is None and dtype in (torch.bfloat16, torch.float16):
        words = f" {name} "
        known = next((flops for part, flops in _MORE_PEAK_FLOPS.items() if f" {part} " in words), None)
    return known
