"""Speed of generating in process: the local generator, `generate`, and transformers' continuous batching.

    python benchmarks/generation.py                  # tiny random Qwen3: 128 rows of 52 tokens after 19
    python benchmarks/generation.py --model DIR      # also a model on disk: 16 rows of 64 tokens after 128
    python benchmarks/generation.py --rounds 7 --threads 1

All three sample at temperature 1, from the same prompts (each is asked for by a group of 16 rows), the same number of
tokens. They take turns within one run, so that a busy machine slows them alike. `generate` gets all rows at once and
can admit none later; the local generator gets them as streams and hands out every token to an event loop. Printed are
the median tokens per second of each, and last the local generator's speed as a multiple of `generate`'s.
"""

import argparse
import asyncio
import random
import statistics
import time
from collections.abc import Callable

import torch
from transformers import (
    AutoModelForCausalLM,
    ContinuousBatchingConfig,
    GenerationConfig,
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from mintrl_trl.generation.local import LocalGenerator

GROUP_ROWS = 16
PAGE_TOKENS = 32
Case = tuple[str, PreTrainedModel, list[list[int]], int]  # name, model, prompts, new tokens


def tiny_case() -> Case:
    """The size of the small synthetic world: 128 rows, 52 tokens after prompts of 19."""
    config = Qwen3Config(
        vocab_size=29,
        hidden_size=64,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=16,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    return "tiny Qwen3", Qwen3ForCausalLM(config).eval(), prompts(128, 19, 29), 52


def folder_case(folder: str, device: str) -> Case:
    """A model on disk: 16 rows, 64 tokens after prompts of 128."""
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).to(device).eval()
    return folder, model, prompts(16, 128, model.config.vocab_size), 64


def prompts(rows: int, length: int, vocabulary_size: int) -> list[list[int]]:
    """Random ids; neighbours of one group have the same prompt."""
    rng = random.Random(0)
    groups = [[rng.randrange(3, vocabulary_size) for _ in range(length)] for _ in range(-(-rows // GROUP_ROWS))]
    return [groups[row // GROUP_ROWS] for row in range(rows)]


def run_local(generator: LocalGenerator, rows: list[list[int]], new_tokens: int) -> int:
    """All rows as concurrent streams."""

    async def one(seed: int, row: list[int]) -> int:
        return len([token async for token in generator.stream(row, new_tokens, seed)])

    async def together() -> list[int]:
        return await asyncio.gather(*(one(seed, row) for seed, row in enumerate(rows)))

    with generator.active():
        return sum(asyncio.run(together()))


def sampling(new_tokens: int, **options) -> GenerationConfig:
    return GenerationConfig(do_sample=True, top_k=0, top_p=1.0, max_new_tokens=new_tokens, pad_token_id=0, **options)


def run_generate(model: PreTrainedModel, rows: list[list[int]], new_tokens: int) -> int:
    """All rows as one batch."""
    ids = torch.tensor(rows, device=model.device)
    config = sampling(new_tokens, min_new_tokens=new_tokens)
    output = model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=config)
    return output.numel() - ids.numel()


def run_continuous(model: PreTrainedModel, rows: list[list[int]], new_tokens: int) -> int:
    """All rows through transformers' continuous batching manager, with memory for exactly these."""
    pages = -(-(len(rows[0]) + new_tokens) // PAGE_TOKENS)
    memory = ContinuousBatchingConfig(
        page_size=PAGE_TOKENS, num_blocks=2 * len(rows) * pages, max_batch_tokens=len(rows) * len(rows[0])
    )
    outputs = model.generate_batch(
        rows,
        generation_config=sampling(new_tokens, eos_token_id=-1),
        continuous_batching_config=memory,
        progress_bar=False,
        warmup=False,
    )
    return sum(len(output.generated_tokens) for output in outputs.values())


def measure(case: Case, rounds: int) -> float:
    """Print the speeds of one case and return the local generator's as a multiple of `generate`'s."""
    name, model, rows, new_tokens = case
    generator = LocalGenerator(model, end_ids=())
    runners: dict[str, Callable[[], int]] = {
        "local generator": lambda: run_local(generator, rows, new_tokens),
        "generate": lambda: run_generate(model, rows, new_tokens),
        "continuous batching": lambda: run_continuous(model, rows, new_tokens),
    }
    speeds: dict[str, list[float]] = {runner: [] for runner in runners}
    for turn in range(rounds + 1):  # the first turn warms up
        for runner, run in runners.items():
            if runner == "continuous batching" and turn > 1:
                continue  # many times slower on a CPU: once is enough to see it
            start = time.perf_counter()
            tokens = run()
            seconds = time.perf_counter() - start
            if tokens != len(rows) * new_tokens:
                raise RuntimeError(f"{runner} made {tokens} tokens, not {len(rows) * new_tokens}")
            if turn or not rounds:
                speeds[runner].append(tokens / seconds)
    generator.close()
    print(f"{name}: {len(rows)} rows, {len(rows[0])} + {new_tokens} tokens, {rounds} rounds")
    medians = {runner: statistics.median(values) for runner, values in speeds.items()}
    for runner, speed in medians.items():
        print(f"  {runner:20} {speed:10.0f} tokens/s  (from {min(speeds[runner]):.0f} to {max(speeds[runner]):.0f})")
    return medians["local generator"] / medians["generate"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", metavar="DIR", help="also measure the model in this folder")
    parser.add_argument("--device", default="cpu", help="for both models")
    parser.add_argument("--rounds", type=int, default=5, help="turns that count, after one to warm up")
    parser.add_argument("--threads", type=int, default=1, help="torch's threads on a CPU")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    name, model, rows, new_tokens = tiny_case()
    ratios = {name: measure((name, model.to(arguments.device), rows, new_tokens), arguments.rounds)}
    if arguments.model:
        case = folder_case(arguments.model, arguments.device)
        ratios[case[0]] = measure(case, arguments.rounds)
    for case_name, ratio in ratios.items():
        print(f"local generator / generate, {case_name}: {ratio:.2f}")


if __name__ == "__main__":
    main()
