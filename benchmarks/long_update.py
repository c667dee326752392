"""Memory of one update on a response of 16,384 tokens, with a vocabulary of 151,936 words.

    python benchmarks/long_update.py                      # both phases, with and without gradient checkpointing
    python benchmarks/long_update.py --tokens 1024        # shorter, so quicker
    python benchmarks/long_update.py --cases intervention # phase 1, without checkpointing

The logits of such a row are 9.6 GiB in float32, and a loss that keeps them needs their gradient too. The trainer's
forward never makes them: TRL's fused head projects 4,096 tokens on 32,768 words at a time, and its backward pass makes
each of these tiles anew. A Qwen3 of two layers and 32 columns is trained for one update per case, on one
row after a prompt of 512 tokens, in a process of its own. Every tensor that any operation makes is looked at, in the
backward pass too. Printed are the elements of the largest, the peak of resident memory, and the last line
`LARGEST X% of tokens x words, PEAK Y of Z GiB`.
"""

import argparse
import multiprocessing
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # large pages, read when torch is imported: faster

import torch
from datasets import Dataset
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import Qwen3Config, Qwen3ForCausalLM

sys.path.insert(0, str(Path(__file__).parents[1]))

from mintrl_trl import Correction, MInTRLConfig, MInTRLTrainer, Revise, SampledToken
from mintrl_trl.memory import ProcessMemory
from tests.tiny import tiny_tokenizer

WORDS = 151_936  # of Qwen3's embeddings
PROMPT_TOKENS = 512
GIB = 2**30
CASES = ("intervention", "intervention+checkpointing", "on-policy", "on-policy+checkpointing")


class LargestTensor(TorchDispatchMode):
    """Watches every operation, those of the backward pass too, for the tensor with the most elements."""

    def __init__(self):
        super().__init__()
        self.elements, self.operation = 0, ""

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor) and leaf.numel() > self.elements:
                self.elements, self.operation = leaf.numel(), str(func)
        return result


class Writer:
    """A policy whose first response ends at once; all others never end."""

    weight_version = "script"

    def __init__(self):
        self.responses = 0

    async def stream(self, prefix_ids: tuple[int, ...], max_tokens: int, seed: int) -> Any:
        self.responses += 1
        if self.responses == 1:
            yield SampledToken(2, None)
            return
        for position in range(max_tokens):
            yield SampledToken(3 + position % 40, None)


class Corrector:
    """Rejects the first step it sees and writes two words."""

    async def review(self, problem: Any, steps: Any, first_new: int, *, seed: int) -> Any:
        return Revise(first_new, "no")

    async def intervene(self, problem: Any, accepted: Any, verdict: Any, max_tokens: int, *, seed: int) -> Any:
        return Correction(ids=(5, 6)[:max_tokens])


class Watched(MInTRLTrainer):
    """Looks at every tensor of the update, once the rollouts are there."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.memory, self.largest, self.longest_row, self.saw_regression = ProcessMemory(), LargestTensor(), 0, False

    def compute_loss(self, model: Any, inputs: dict, *args: Any, **kwargs: Any) -> torch.Tensor:
        if not self.longest_row:
            self.memory.reset()
        row = inputs["prompt_ids"].size(1) + inputs["completion_ids"].size(1)
        self.longest_row, self.saw_regression = max(self.longest_row, row), "policy_authored" in inputs
        return super().compute_loss(model, inputs, *args, **kwargs)

    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        with self.largest:
            return super().training_step(*args, **kwargs)


def measure(case: str, tokens: int) -> dict[str, Any]:
    """One update of one case, in this process."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    phase, _, checkpointed = case.partition("+")
    model = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=WORDS,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=2,
            head_dim=16,
            max_position_embeddings=40_960,
            tie_word_embeddings=True,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
        )
    )
    with tempfile.TemporaryDirectory() as folder:
        trainer = Watched(
            model=model,
            reward_funcs=lambda completions, **kwargs: [float(row) for row in range(len(completions))],
            args=MInTRLConfig(
                folder,
                prompts_per_update=1,
                num_control=1,
                num_intervened=1,
                chunk_tokens=256,
                max_reviews=1,
                intervention_updates=1 if phase == "intervention" else 0,
                max_steps=1,
                max_prompt_length=PROMPT_TOKENS,
                max_completion_length=tokens,
                per_device_train_batch_size=1,
                gradient_checkpointing=bool(checkpointed),
                learning_rate=1e-3,
                use_cpu=True,
                save_strategy="no",
                report_to="none",
            ),
            train_dataset=Dataset.from_list([{"prompt": "1" * (PROMPT_TOKENS - 1)}]),
            processing_class=tiny_tokenizer(),
            judge=Corrector(),
            generator=Writer(),
        )
        trainer.train()
        trainer.close()
    return {
        "row": trainer.longest_row,
        "phase": "intervention" if trainer.saw_regression else "on-policy",
        "elements": trainer.largest.elements,
        "operation": trainer.largest.operation,
        "peak": trainer.memory.peak(),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=16_384, help="Tokens of the response.")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=CASES)
    options = parser.parse_args()
    results = []
    for case in options.cases:
        with multiprocessing.get_context("fork").Pool(1) as process:
            result = process.apply(measure, (case, options.tokens))
        results.append(result)
        print(
            f"{case}: a row of {result['row']:,} tokens; largest tensor {result['elements']:,} elements "
            f"({result['operation']}); peak of resident memory {result['peak'] / GIB:.2f} GiB",
            flush=True,
        )
    logits = (PROMPT_TOKENS + options.tokens) * WORDS
    largest, peak = max(result["elements"] for result in results), max(result["peak"] for result in results)
    print(f"LARGEST {largest / logits:.0%} of tokens x words, PEAK {peak / GIB:.2f} of {4 * logits / GIB:.2f} GiB")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
