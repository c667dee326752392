"""What is mixed into vLLM's worker: which layers it packs anew after a reload, with modules built as vLLM's are."""

import subprocess
import sys
from pathlib import Path

import torch

from mintrl_trl.generation.vllm_worker import EXTENSION, WholeReload


class Packing:
    """Packs a copy of the weight, as vLLM does on CPU."""

    def process_weights_after_loading(self, layer):
        layer.cpu_linear = layer.weight.detach().clone()
        layer.times_packed = getattr(layer, "times_packed", 0) + 1


def layer(weight: torch.nn.Parameter) -> torch.nn.Module:
    module = torch.nn.Module()
    module.weight, module.quant_method = weight, Packing()
    module.quant_method.process_weights_after_loading(module)
    return module


class Wrapper(torch.nn.Module):
    """Passes on what belongs to the layer inside, as vLLM's LoRA layers do."""

    def __init__(self, inner):
        super().__init__()
        self.base_layer = inner

    @property
    def weight(self):
        return self.base_layer.weight

    @property
    def cpu_linear(self):
        return self.base_layer.cpu_linear


class Worker(WholeReload):
    def __init__(self, model):
        self.model = model

    def get_model(self):
        return self.model

    def reload_weights(self, *, weights_path):
        with torch.no_grad():
            self.model[0].weight.fill_(float(weights_path))
        self.model[0].quant_method.process_weights_after_loading(self.model[0])


def test_a_tied_output_layer_is_packed_anew_and_nothing_else():
    tied = torch.nn.Parameter(torch.zeros(3, 2))
    own = layer(torch.nn.Parameter(torch.empty(0)))  # vLLM drops weights that only their packed copy is needed of
    model = torch.nn.ModuleList([layer(tied), Wrapper(own), layer(tied), torch.nn.LayerNorm(2)])
    assert Worker(model).reload_whole_weights("7") == 2
    assert torch.equal(model[2].cpu_linear, torch.full((3, 2), 7.0))
    assert torch.equal(model[0].cpu_linear, model[2].cpu_linear)
    assert own.times_packed == 1


def test_its_name_is_where_it_is_and_the_server_needs_no_other_package():
    module, _, name = EXTENSION.rpartition(".")
    code = (
        f"import sys; import {module} as m; assert m.{name}; "
        "print(sorted({n.split('.')[0] for n in sys.modules} - sys.stdlib_module_names - {'mintrl_trl', '__main__'}))"
    )
    command = [sys.executable, "-S", "-c", code]
    out = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30, cwd=Path(__file__).parents[1])
    assert out.stdout.strip() == "[]"
