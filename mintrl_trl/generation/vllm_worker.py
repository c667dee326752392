"""Loaded into the worker of a vLLM server on CPU: a reload of weights that leaves nothing of the old ones behind.

On CPU vLLM computes each layer from a packed copy of its weight. Its `reload_weights` packs the layers that a
checkpoint names, and an output layer tied to the input embeddings has no name in it: the server would go on with the
old output layer, without a word. On GPUs tied layers read one tensor and nothing is needed.

Owns that one repair. The standard library alone is imported, so the server's environment needs this package on its
path and none of its dependencies:

    PYTHONPATH=... python -m vllm... --worker-extension-cls mintrl_trl.generation.vllm_worker.WholeReload
"""

from collections import Counter
from typing import Any

EXTENSION = f"{__name__}.WholeReload"


class WholeReload:
    """Mixed into vLLM's worker by `--worker-extension-cls`."""

    def reload_whole_weights(self, weights_path: str) -> int:
        """Reload the checkpoint in `weights_path`, then pack anew every weight that two layers share.

        Returns:
            `int`: Layers packed anew.
        """
        self.reload_weights(weights_path=weights_path)
        packed = [module for module in self.get_model().modules() if _has_packed_copy(module)]
        owners = Counter(id(module.weight) for module in packed)
        shared = [module for module in packed if owners[id(module.weight)] > 1]
        for module in shared:
            module.quant_method.process_weights_after_loading(module)
        return len(shared)


def _has_packed_copy(module: Any) -> bool:
    """Whether a layer itself holds a weight and what was made of it; wrappers pass on those of the layer inside."""
    return "cpu_linear" in vars(module) and "weight" in module._parameters
