"""What an update costs: MInTRL's regression with lean updates against TRL's GRPO update, on the same rows.

    python benchmarks/update_overhead.py                 # a quarter of an hour on one free core
    python benchmarks/update_overhead.py --rounds 1 --rows 40    # a first look: 2 minutes
    python benchmarks/update_overhead.py --device cuda   # seconds by the clock, memory of the device

Three batches for a Qwen3 of 6 million weights (width 256, 4 layers, 8,192 tokens); prompts have 16 tokens:

- equal: all responses of 480 tokens. What MInTRL's bookkeeping costs where there is nothing to save.
- lognormal: mean 120, sigma 0.8, cap 480, at micro-batches of 1 and 4 rows; the proportions of 4,000 and 16,384.
- dead: the lognormal rows with 40 % of the groups solved by every rollout, so that their advantages are 0.

Each measurement is a process of its own that makes two updates. The first, on short rows, warms up; of the second the
seconds from the moment the completions are there to the end of the optimizer's step are counted: padding, rewards,
advantages, layout, forward and backward passes, the optimizer, metrics and records. On a CPU they are seconds of CPU
time, which a busy machine stretches less than the clock's. Memory is the largest resident size of the process (of the
device: the most that was allocated). Variants take turns; the medians of all rounds are compared. The rollouts come
from a script, with corrections of the judge in half of them, and TRL is given the same ids.

The last line has the ratios MInTRL / TRL: time and memory of the equal batch, time of the lognormal batch (the worse of
both micro-batches) and MInTRL's forwarded over live tokens there (the worse, too).
"""

import argparse
import json
import math
import random
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

# torch, TRL and MInTRL are imported in the measured processes alone, so that none inherits another's memory.

GROUP_ROWS = 8  # half of them controls
PROMPT_TOKENS = 16
CAP_TOKENS = 480
MEAN_TOKENS, SIGMA = 120, 0.8
CORRECTION_TOKENS = 8
WARM_UP_TOKENS = 12
VOCABULARY = 8192
FIRST_CHARACTER = 0x4E00  # the vocabulary is one token per character, from here on


@dataclass(frozen=True)
class Case:
    """One measurement.

    Args:
        batch (`str`): `"equal"`, `"lognormal"` or `"dead"`.
        trainer (`str`): `"mintrl"` or `"trl"`.
        micro_batch (`int`): Rows of one forward pass.
        rows (`int`): Of the batch; a multiple of `GROUP_ROWS` and of the micro-batch.
        device (`str`): `"cpu"` or `"cuda"`.
        threads (`int`): torch's, on a CPU.
    """

    batch: str
    trainer: str
    micro_batch: int
    rows: int
    device: str
    threads: int

    @property
    def name(self) -> str:
        return f"{self.batch}, micro-batch {self.micro_batch}, {self.trainer}"


@dataclass(frozen=True)
class Cost:
    """What a measured process reports.

    Args:
        seconds (`float`): Of the second update.
        peak_bytes (`int`): Most memory held at once.
        loaded_bytes (`int`): Memory held before the model was built, libraries alone; 0 on a device.
        live (`int`): Tokens of the rows trained on, prompts included.
        forwarded (`int`): Positions that the passes with gradient ran over.
        dead_share (`float`): Tokens of rows without gradient, of all tokens of the batch.
    """

    seconds: float
    peak_bytes: int
    loaded_bytes: int
    live: int
    forwarded: int
    dead_share: float


# The rows, the same for both trainers


def response_lengths(batch: str, rows: int) -> list[int]:
    """Tokens of each response: quantiles of the distribution, every group with its share of short and long ones."""
    if batch == "equal":
        return [CAP_TOKENS] * rows
    groups = rows // GROUP_ROWS
    normal = statistics.NormalDist()
    factors = [math.exp(SIGMA * normal.inv_cdf((row + 0.5) / rows)) for row in range(rows)]  # ascending
    scale = MEAN_TOKENS / statistics.fmean(factors)
    quantiles = [min(CAP_TOKENS, max(1, round(scale * factor))) for factor in factors]
    rng = random.Random(0)
    lengths = []
    for group in range(groups):
        places = [turn * groups + (groups - 1 - group if turn % 2 else group) for turn in range(GROUP_ROWS)]
        own = [quantiles[place] for place in places]
        rng.shuffle(own)
        lengths += own
    return lengths


def responses(case: Case, update: int) -> list[list[int]]:
    """Ids of each response; none is special."""
    rng = random.Random(update)
    lengths = response_lengths(case.batch, case.rows) if update else [WARM_UP_TOKENS] * case.rows
    return [[rng.randrange(3, VOCABULARY) for _ in range(length)] for length in lengths]


def rewards_of(case: Case) -> list[float]:
    """Different within every group; in a dead group all 1."""
    rng = random.Random(1)
    dead_groups = 2 / 5 if case.batch == "dead" else 0
    values = []
    for group in range(case.rows // GROUP_ROWS):
        dead = (group + 1) * dead_groups // 1 > group * dead_groups // 1  # spread evenly
        values += [1.0 if dead else rng.random() for _ in range(GROUP_ROWS)]
    return values


# The measured process


def measure_here(case: Case) -> Cost:
    """Two updates in this process."""
    import torch
    import transformers
    import trl
    from datasets import Dataset

    import mintrl_trl

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(case.threads)
    on_cpu = case.device == "cpu"
    loaded = resident_bytes("VmRSS") if on_cpu else 0
    now = time.process_time if on_cpu else time.perf_counter
    lengths = response_lengths(case.batch, case.rows)
    rewards = rewards_of(case)

    class Stopwatch(transformers.TrainerCallback):
        began = seconds = 0.0

        def start(self) -> None:
            if not on_cpu:
                torch.cuda.synchronize()
            self.began = now()

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if not on_cpu:
                torch.cuda.synchronize()
            self.seconds = now() - self.began

    watch = Stopwatch()
    forwarded = [0]

    class Grpo(trl.GRPOTrainer):
        def _generate_single_turn(self, *args: Any, **kwargs: Any) -> tuple[list[list[int]], None]:
            ids = responses(case, self.state.global_step)
            forwarded[0] = 0
            watch.start()
            return ids, None

        def _get_per_token_logps_and_entropies(self, model: Any, input_ids: Any, *args: Any, **kwargs: Any) -> Any:
            forwarded[0] += input_ids.numel()
            return super()._get_per_token_logps_and_entropies(model, input_ids, *args, **kwargs)

    class Mintrl(mintrl_trl.MInTRLTrainer):
        def _sample(self, requests: Any, **kwargs: Any) -> list:
            ids = responses(case, self.state.global_step)
            rollouts = [scripted_rollout(*pair) for pair in zip(requests, ids, strict=True)]
            watch.start()
            return rollouts

    with tempfile.TemporaryDirectory() as folder:
        common = dict(
            output_dir=folder,
            per_device_train_batch_size=case.micro_batch,
            max_completion_length=CAP_TOKENS,
            max_steps=2,
            lr_scheduler_type="constant",
            learning_rate=1e-6,
            weight_decay=0.01,
            delta=3.0,
            logging_steps=1,
            report_to="none",
            use_cpu=on_cpu,
            bf16=not on_cpu,
            gradient_checkpointing=False,
            save_strategy="no",
            shuffle_dataset=False,
            disable_tqdm=True,
        )
        arguments: dict[str, Any] = {
            "model": small_model().to(case.device),
            "reward_funcs": lambda completions, **kwargs: rewards,
            "train_dataset": Dataset.from_list(prompt_rows(2 * case.rows // GROUP_ROWS)),
            "processing_class": small_tokenizer(),
            "callbacks": [watch],
        }
        if case.trainer == "trl":
            accumulation = case.rows // case.micro_batch
            args = trl.GRPOConfig(**common, gradient_accumulation_steps=accumulation, num_generations=GROUP_ROWS)
            trainer = Grpo(**arguments, args=args)
            trainer.train()
            live, total = case.rows * PROMPT_TOKENS + sum(lengths), forwarded[0]
        else:
            args = mintrl_trl.MInTRLConfig(
                **common,
                prompts_per_update=case.rows // GROUP_ROWS,
                num_control=GROUP_ROWS // 2,
                num_intervened=GROUP_ROWS // 2,
                intervention_updates=2,
                max_prompt_length=PROMPT_TOKENS,
                correction_tokens=CORRECTION_TOKENS,
                anchor="proxy" if case.batch == "dead" else "const",  # a constant anchor leaves no row without gradient
                entropy_sample=1,  # of 80 rows, as 8 of the paper's 512
                show_progress=False,
            )
            doors = {"judge": Scripted(), "generator": Scripted()}
            trainer = Mintrl(**arguments, args=args, **doors)
            trainer.train()
            logged = trainer.state.log_history[1]
            live, total = int(logged["tokens/live"]), int(logged["tokens/forwarded"])
            trainer.close()
    peak = resident_bytes("VmHWM") if on_cpu else torch.cuda.max_memory_allocated()
    dead = [
        PROMPT_TOKENS + length
        for row, length in enumerate(lengths)
        if len(set(rewards[row - row % GROUP_ROWS :][:GROUP_ROWS])) == 1
    ]
    dead_share = sum(dead) / (case.rows * PROMPT_TOKENS + sum(lengths))
    return Cost(watch.seconds, peak, loaded, live, total, dead_share)


class Scripted:
    """Stands in for judge and generator, which are never asked."""

    weight_version = "script"

    async def review(self, *args: Any, **kwargs: Any) -> None:
        raise AssertionError("rollouts come from a script")

    stream = intervene = review


def scripted_rollout(request: Any, ids: list[int]) -> Any:
    """The response as one span of the policy; for an intervened rollout with a correction in its middle."""
    from mintrl_trl.rollouts.rollout import Author, Role, Rollout, Span, StopReason

    middle = len(ids) // 2
    cuts = [(0, middle, Author.POLICY), (middle, middle + CORRECTION_TOKENS, Author.INTERVENTION)]
    cuts.append((middle + CORRECTION_TOKENS, len(ids), Author.POLICY))
    if request.role is Role.CONTROL or len(ids) < 2 * CORRECTION_TOKENS + 2:
        cuts = [(0, len(ids), Author.POLICY)]
    spans = tuple(Span(tuple(ids[start:stop]), author, "script") for start, stop, author in cuts)
    return Rollout(request, spans, StopReason.LENGTH)


def small_model() -> Any:
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=256,
        intermediate_size=768,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    return Qwen3ForCausalLM(config)


def small_tokenizer() -> Any:
    """One token per character."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    pieces = ["<pad>", "<bos>", "<eos>", *(chr(FIRST_CHARACTER + index) for index in range(VOCABULARY - 3))]
    tokenizer = Tokenizer(models.WordLevel({piece: index for index, piece in enumerate(pieces)}, unk_token=pieces[3]))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    special = {"pad_token": "<pad>", "bos_token": "<bos>", "eos_token": "<eos>"}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, padding_side="left", **special)


def prompt_rows(count: int) -> list[dict[str, str]]:
    rng = random.Random(2)
    characters = range(FIRST_CHARACTER, FIRST_CHARACTER + VOCABULARY - 3)
    return [{"prompt": "".join(map(chr, rng.choices(characters, k=PROMPT_TOKENS)))} for _ in range(count)]


def resident_bytes(field: str) -> int:
    """`VmRSS` (now) or `VmHWM` (at most so far) of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"this system does not tell {field} in /proc/self/status")


# The table


def measure(case: Case) -> Cost:
    """The cost of a case, in a fresh process."""
    command = [sys.executable, __file__, "--case", json.dumps(asdict(case))]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{case.name} failed:\n{done.stdout}\n{done.stderr}")
    return Cost(**json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="turns; the medians are compared")
    parser.add_argument("--rows", type=int, default=80, help="of the lognormal batches, a multiple of 40")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--threads", type=int, default=1, help="torch's threads on a CPU")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.case:
        print(json.dumps(asdict(measure_here(Case(**json.loads(arguments.case))))))
        return

    machine = {"device": arguments.device, "threads": arguments.threads}
    cases = [Case("equal", trainer, 4, 16, **machine) for trainer in ("trl", "mintrl")]
    cases += [
        Case("lognormal", trainer, size, arguments.rows, **machine) for size in (1, 4) for trainer in ("trl", "mintrl")
    ]
    cases.append(Case("dead", "mintrl", 4, arguments.rows, **machine))
    costs: dict[Case, list[Cost]] = {case: [] for case in cases}
    for turn in range(arguments.rounds):
        for case in cases:
            cost = measure(case)
            costs[case].append(cost)
            print(
                f"round {turn + 1}: {case.name:34} {cost.seconds:7.2f} s  {cost.peak_bytes / 2**20:6.0f} MiB",
                flush=True,
            )

    def median(case: Case, what: str) -> float:
        return statistics.median(getattr(cost, what) for cost in costs[case])

    print(f"\n{'medians':34} {'seconds':>8} {'MiB':>6} {'less libraries':>14} {'live':>7} {'forwarded':>9}")
    for case in cases:
        peak, loaded = median(case, "peak_bytes"), median(case, "loaded_bytes")
        print(
            f"{case.name:34} {median(case, 'seconds'):8.2f} {peak / 2**20:6.0f} {(peak - loaded) / 2**20:14.0f} "
            f"{median(case, 'live'):7.0f} {median(case, 'forwarded'):9.0f}"
        )
    equal, lognormal = cases[:2], (cases[2:4], cases[4:6])
    ratios = [median(ours, "seconds") / median(theirs, "seconds") for theirs, ours in (equal, *lognormal)]
    memory = median(equal[1], "peak_bytes") / median(equal[0], "peak_bytes")
    forwarded = [median(ours, "forwarded") / median(ours, "live") for _, ours in lognormal]
    alive, dead = cases[5], cases[6]
    left = median(dead, "seconds") / median(alive, "seconds")
    share = median(dead, "dead_share")
    print(f"dead rows: {share:.0%} of the tokens have no gradient; MInTRL's lognormal update takes {1 - left:.0%} less")
    print(
        f"RATIO equal {ratios[0]:.3f} memory {memory:.3f} lognormal {max(ratios[1:]):.3f} "
        f"forwarded {max(forwarded):.3f}"
    )


if __name__ == "__main__":
    main()
