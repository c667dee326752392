"""The model that is being trained, lent to the generator for a while and given back exactly as it was.

This file owns everything that touches the `nn.Module`: finding the causal language model under its wrappers, refusing
models the decoding loop cannot serve, evaluation mode, autocast, which weights a forward pass sees, and the pass
itself. It never copies, moves or changes a parameter, and never calls `generate`. Gradient checkpointing and
`config.use_cache` are not touched: neither acts in evaluation mode with an explicit cache. Nor is the attention.
"""

import inspect
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from enum import Enum

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer

from ..errors import ConfigError

_BATCH_DEPENDENT_ROPE = ("dynamic", "longrope")  # their frequencies follow the longest row of the batch


class Weights(Enum):
    """Which weights a request is for."""

    POLICY = "policy"  # as they are trained
    BASE = "base"  # frozen: the model without its adapter, or a separate module


class LentModel:
    """One causal language model, with the two kinds of weights it can be run with.

    Args:
        model (`nn.Module`): The model that is trained; may be wrapped (DDP, `torch.compile`, PEFT).
        base_model (`nn.Module`, *optional*): A frozen module for the base weights. Without it the base weights are
            those of `model` with its PEFT adapter disabled.
        autocast (`Callable`, *optional*): Makes the context manager that forward passes run in, for instance
            `accelerator.autocast`.

    Raises:
        ConfigError: A model that the decoding loop cannot serve correctly.
    """

    def __init__(
        self,
        model: nn.Module,
        base_model: nn.Module | None = None,
        autocast: Callable[[], AbstractContextManager] | None = None,
    ):
        self._adapted = _unwrap(model)
        self._base_root = None if base_model is None else _unwrap(base_model)
        self._autocast = autocast or nullcontext
        self.forwards: Counter[Weights] = Counter()  # passes so far
        self.positions: Counter[Weights] = Counter()  # tokens in them, padding included
        self._used = Weights.POLICY
        self._disabled_adapter = ExitStack()  # closing it enables the adapter again
        self._modules = {Weights.POLICY: _causal_lm(self._adapted, "model")}
        if self._base_root is not None:
            self._modules[Weights.BASE] = _causal_lm(self._base_root, "base_model")
        elif hasattr(self._adapted, "disable_adapter"):
            self._modules[Weights.BASE] = self._modules[Weights.POLICY]
        config = self._modules[Weights.POLICY].config.get_text_config()
        self.vocabulary_size: int = config.vocab_size
        self.max_positions: int | None = getattr(config, "max_position_embeddings", None)
        parameters = inspect.signature(type(self._modules[Weights.POLICY]).forward).parameters
        self._cache_argument = "cache" if "cache" in parameters else "past_key_values"

    @property
    def kinds(self) -> frozenset[Weights]:
        """The kinds of weights there are."""
        return frozenset(self._modules)

    @property
    def device(self) -> torch.device:
        """Where ids go in; looked up anew, because a trainer may move the model after the generator was made."""
        return self._modules[Weights.POLICY].get_input_embeddings().weight.device

    @property
    def switches_slowly(self) -> bool:
        """Whether changing between the kinds of weights costs time: PEFT then visits every layer."""
        return len(self._modules) > 1 and self._base_root is None

    @contextmanager
    def lent(self) -> Iterator[None]:
        """Evaluation mode and autocast while the generator has the model; everything is as before afterwards.

        One autocast context spans the whole loan, so that autocast's copies of the weights are made once.
        """
        roots = [root for root in (self._adapted, self._base_root) if root is not None]
        training = [module for root in roots for module in root.modules() if module.training]
        try:
            for module in training:
                module.training = False
            with self._autocast(), self._disabled_adapter:
                yield
        finally:
            for module in training:
                module.training = True

    def use(self, kind: Weights) -> None:
        """From now on, and until the loan ends, forward passes see the weights `kind`.

        A PEFT adapter is disabled for runs of base batches and for nothing else.
        """
        if kind is self._used:
            return
        self._disabled_adapter.close()
        if kind is Weights.BASE and self._base_root is None:
            self._disabled_adapter.enter_context(self._adapted.disable_adapter())
            self._disabled_adapter.callback(setattr, self, "_used", Weights.POLICY)
        self._used = kind

    def logits(
        self,
        kind: Weights,
        ids: torch.Tensor,
        mask: torch.Tensor | None,
        positions: torch.Tensor,
        cache: Cache,
        keep: int,
    ) -> torch.Tensor:
        """Logits of the last `keep` of T new columns; the new columns are added to `cache`.

        Args:
            kind (`Weights`): The weights; the caller has said [`LentModel.use`] with the same kind.
            ids (`torch.Tensor`): (R, T) int64.
            mask (`torch.Tensor`, *optional*): (R, columns of the cache + T) bool, true where a token may be read;
                `None` if all may.
            positions (`torch.Tensor`): (R, T) int64, each token's index in its own row.
            cache (`Cache`): Filled so far.
            keep (`int`): At most T.

        Returns:
            `torch.Tensor`: (R, keep, V).
        """
        self.forwards[kind] += 1
        self.positions[kind] += ids.numel()
        output = self._modules[kind](
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions,
            use_cache=True,
            logits_to_keep=keep,
            **{self._cache_argument: cache},
        )
        return output.logits


def _unwrap(model: nn.Module) -> nn.Module:
    while True:
        if hasattr(model, "_orig_mod"):  # torch.compile
            model = model._orig_mod
        elif isinstance(model, nn.parallel.DistributedDataParallel):
            model = model.module
        else:
            return model


def _causal_lm(root: nn.Module, field: str) -> nn.Module:
    """The transformers model inside `root`, checked."""

    def refuse(found: object, allowed: str) -> ConfigError:
        fix = 'generate with a vLLM server (generation="vllm")'
        return ConfigError(field, found, f"for generation in process: {allowed}", fix)

    if any(config.is_prompt_learning for config in getattr(root, "peft_config", {}).values()):
        raise refuse("a PEFT prompt-learning adapter", "adapters inside the layers, such as LoRA")
    module = root.get_base_model() if hasattr(root, "get_base_model") else root
    if "logits_to_keep" not in inspect.signature(type(module).forward).parameters:
        raise refuse(type(module).__name__, "a causal language model of transformers")
    if any(isinstance(weight, DTensor) or hasattr(weight, "ds_id") for weight in module.parameters()):
        raise refuse("a model with sharded parameters", "whole parameters on every process")
    config = module.config.get_text_config()
    layers = {type(layer).__name__ for layer in DynamicCache(config=config).layers if type(layer) is not DynamicLayer}
    if layers or getattr(config, "attention_chunk_size", None):
        raise refuse(", ".join(sorted(layers)) or "chunked attention", "full attention in every layer")
    rope_type = (getattr(config, "rope_parameters", None) or {}).get("rope_type")
    if rope_type in _BATCH_DEPENDENT_ROPE:
        raise refuse(f"rope_type {rope_type!r}", "rotary frequencies that do not depend on the batch")
    return module
