"""Train the small world's base model and write its folder: weights, tokenizer, world, calibrated threshold.

    python scripts/train_chains_base.py        # about three minutes on one CPU core

The model is supervised on *its own kind of mistakes*: solutions simulated line by line with the draw "known entry:
right with 0.99; misconceived entry: right with 0.001, else the wrong belief with 0.97; else uniform among the wrong",
each line going on from the drawn value. So it is good at the chains whose entries it knows and confidently wrong on
the others. A share of the rows has the right solution in front and follows it: under that privileged prompt the same
weights can judge. The result is the same for the same number of threads and the same torch build.
"""

import argparse
import json
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from transformers import GenerationConfig, Qwen3Config, Qwen3ForCausalLM

from mintrl_trl.data import chains
from mintrl_trl.data.chains import Chain, World

PLAIN_ROWS, PRIVILEGED_ROWS = 64, 16  # per update
KNOWN_RIGHT, MISCONCEIVED_RIGHT, BELIEF = 0.99, 0.001, 0.97  # the draw of the module's first paragraph
LEARNING_RATE, WARMUP_UPDATES, FINAL_SHARE, WEIGHT_DECAY, CLIP = 4e-3, 100, 0.02, 0.01, 1.0
SAMPLES = 16


def build_model(width: int = 64, mlp_width: int = 256) -> Qwen3ForCausalLM:
    """A Qwen3 of two layers and heads of width 16; by default 133,120 parameters."""
    config = Qwen3Config(
        vocab_size=len(chains.TOKENS),
        hidden_size=width,
        intermediate_size=mlp_width,
        num_hidden_layers=2,
        num_attention_heads=width // 16,
        num_key_value_heads=width // 16,
        head_dim=16,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        pad_token_id=chains.PAD_ID,
        bos_token_id=chains.BOS_ID,
        eos_token_id=chains.EOS_ID,
        dtype="float32",
    )
    model = Qwen3ForCausalLM(config)
    model.generation_config = GenerationConfig(
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        max_new_tokens=chains.SOLUTION_TOKENS,
        pad_token_id=chains.PAD_ID,
        bos_token_id=chains.BOS_ID,
        eos_token_id=chains.EOS_ID,
    )
    return model


def simulate(world: World, chain: Chain, rng: random.Random) -> str:
    """A solution with the mistakes that the base model is to make."""
    values = [chain.start]
    for operand in chain.operands:
        right, belief = world.result(values[-1], operand), int(world.beliefs[values[-1]][operand])
        if rng.random() < (KNOWN_RIGHT if right == belief else MISCONCEIVED_RIGHT):
            values.append(right)
        elif right != belief and rng.random() < BELIEF:
            values.append(belief)
        else:
            values.append((right + 1 + int(rng.random() * 9)) % 10)
    return chains.solution_text(chain, values)


def training_ids(world: World, rng: random.Random, privileged: bool, rows: int) -> torch.Tensor:
    """Rows of `<bos>`, prompt, response, `<eos>`: all of one length, so nothing is padded.  (rows, tokens) int64"""
    batch = []
    for _ in range(rows):
        chain = chains.draw_chain(rng)
        right = world.continuation(chain, "")
        prompt = f"{right}{chains.SEPARATOR}{chain.question}" if privileged else chain.question
        response = right if privileged else simulate(world, chain, rng)
        batch.append([chains.BOS_ID, *chains.encode(prompt + response), chains.EOS_ID])
    return torch.tensor(batch)


def response_logps(model: Qwen3ForCausalLM, ids: torch.Tensor) -> torch.Tensor:
    """Log-probability of every response token, the last `SOLUTION_TOKENS` of each row.  (rows, response) float32"""
    logits = model(input_ids=ids, logits_to_keep=chains.SOLUTION_TOKENS + 1).logits[:, :-1].float()
    targets = ids[:, -chains.SOLUTION_TOKENS :, None]
    return logits.log_softmax(-1).gather(-1, targets).squeeze(-1)


def train(model: Qwen3ForCausalLM, world: World, updates: int, seed: int, report: Callable[[str], None]) -> None:
    """AdamW with warm-up and a cosine, on both kinds of rows at once; the loss is on the response only."""
    rng = random.Random(seed)
    share = PRIVILEGED_ROWS / (PLAIN_ROWS + PRIVILEGED_ROWS)

    def step() -> tuple[torch.Tensor, str]:
        plain = -response_logps(model, training_ids(world, rng, False, PLAIN_ROWS)).mean()
        privileged = -response_logps(model, training_ids(world, rng, True, PRIVILEGED_ROWS)).mean()
        said = f"loss {plain.item():.4f}, with the reference {privileged.item():.4f}"
        return (1 - share) * plain + share * privileged, said

    fit(model, step, updates, LEARNING_RATE, report)


def fit(
    model: Qwen3ForCausalLM,
    step: Callable[[], tuple[torch.Tensor, str]],
    updates: int,
    learning_rate: float,
    report: Callable[[str], None],
) -> None:
    """Minimise the loss that `step` gives, with what there is to say about it every hundred updates."""
    optimizer = torch.optim.AdamW(model.parameters(), learning_rate, weight_decay=WEIGHT_DECAY)

    def factor(update: int) -> float:
        cosine = (1 + torch.cos(torch.tensor(torch.pi * update / updates)).item()) / 2
        return min(1.0, (update + 1) / WARMUP_UPDATES) * (FINAL_SHARE + (1 - FINAL_SHARE) * cosine)

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
    model.train()
    for update in range(updates):
        loss, said = step()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if (update + 1) % 100 == 0:
            report(f"update {update + 1} of {updates}: {said}")
    model.eval()


@torch.no_grad()
def sample(model: Qwen3ForCausalLM, prompts: Sequence[str], batch: int = 800) -> Iterator[list[int]]:
    """One response per prompt at temperature 1, cut after its end token. Prompts must be equally long."""
    ids = torch.tensor([[chains.BOS_ID, *chains.encode(prompt)] for prompt in prompts])
    for part in ids.split(batch):
        generated = model.generate(input_ids=part, attention_mask=torch.ones_like(part))[:, part.shape[1] :]
        for row in generated.tolist():
            yield row[: row.index(chains.EOS_ID) + 1] if chains.EOS_ID in row else row


def decode(ids: Sequence[int]) -> str:
    """Text of ids; special tokens spell nothing."""
    return "".join(chains.TOKENS[i] for i in ids if i >= len(chains.SPECIALS))


def pass_rates(model: Qwen3ForCausalLM, rows: Sequence[dict], privileged: bool = False) -> tuple[float, float]:
    """Pass@1 and Pass@`SAMPLES`, in per cent."""
    prompts = [
        f"{row['privileged_context']}{chains.SEPARATOR}{row['prompt']}" if privileged else row["prompt"]
        for row in rows
        for _ in range(SAMPLES)
    ]
    ids = list(sample(model, prompts))
    answers = [row["answer"] for row in rows for _ in range(SAMPLES)]
    rewards = torch.tensor(chains.chains_reward(prompts, [decode(i) for i in ids], answers, completion_ids=ids))
    solved = rewards.view(len(rows), SAMPLES)  # (rows, samples)
    return 100 * solved.mean().item(), 100 * solved.amax(1).mean().item()


@torch.no_grad()
def step_scores(model: Qwen3ForCausalLM, world: World, num_rows: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probability under the privileged prompt of every right step and of the first wrong step of sampled responses.

    Problems are drawn without a condition. What follows a wrong step is not scored: the judge has spoken by then.

    Returns:
        `tuple`: Right steps and first wrong steps, 1-D, nats summed over a step's tokens.
    """
    rng = random.Random(seed)
    drawn = [chains.draw_chain(rng) for _ in range(num_rows)]
    responses = [decode(ids) for ids in sample(model, [chain.question for chain in drawn])]
    right: list[float] = []
    wrong: list[float] = []
    for chain, response in zip(drawn, responses, strict=True):
        reference = world.continuation(chain, "")
        lines, expected_lines = response.split(chains.BLANK), reference.split(chains.BLANK)
        ids = chains.encode(response)
        if [*map(len, lines)] != [*map(len, expected_lines)]:
            continue
        prompt = [chains.BOS_ID, *chains.encode(f"{reference}{chains.SEPARATOR}{chain.question}")]
        logps = response_logps(model, torch.tensor([[*prompt, *ids, chains.EOS_ID]]))[0]
        position = 0
        for line, expected in zip(lines, expected_lines, strict=True):
            length = len(line) + 1  # the blank line or, after the answer, the end token
            (right if line == expected else wrong).append(logps[position : position + length].sum().item())
            position += length
            if line != expected:
                break
    return torch.tensor(right), torch.tensor(wrong)


def calibrate(right: torch.Tensor, wrong: torch.Tensor) -> float | None:
    """The threshold with the fewest mistakes (missed wrong steps and false alarms, each as a rate), to one decimal.

    `None` where a model is too young to write whole solutions.
    """
    if not (len(right) and len(wrong)):
        return None
    candidates = torch.arange(-20.0, 0.0, 0.1)
    mistakes = torch.stack([(right < t).float().mean() + (wrong >= t).float().mean() for t in candidates])
    best = candidates[mistakes == mistakes.min()]
    return round(best[len(best) // 2].item(), 1)


@torch.no_grad()
def right_probabilities(model: Qwen3ForCausalLM, world: World, num_rows: int, seed: int) -> dict[bool, torch.Tensor]:
    """Mean probability of the right value per table entry, over simulated contexts, by whether it is misconceived."""
    rng = random.Random(seed)
    sums: dict[tuple[int, int], list[float]] = {}
    for _ in range(num_rows):
        chain = chains.draw_chain(rng)
        response = simulate(world, chain, rng)
        ids = [chains.BOS_ID, *chains.encode(chain.question + response)]
        logits = model(input_ids=torch.tensor([ids]), logits_to_keep=chains.SOLUTION_TOKENS).logits[0]
        after = logits.float().softmax(-1)[1:]  # row p: what follows response token p
        for i, (line, operand) in enumerate(
            zip(response.split(chains.BLANK)[: chains.NUM_OPERANDS], chain.operands, strict=True)
        ):
            value = int(line[0])
            (right,) = chains.encode(str(world.result(value, operand)))
            sums.setdefault((value, operand), []).append(after[4 * i + 3, right].item())
    means = {entry: sum(found) / len(found) for entry, found in sums.items()}
    return {
        kind: torch.tensor([mean for entry, mean in means.items() if (entry in world.misconceived) is kind])
        for kind in (False, True)
    }


def training_parser(doc: str, output: Path, problems: int) -> argparse.ArgumentParser:
    """The flags of every script that trains a model of the small world."""
    parser = argparse.ArgumentParser(description=doc.split("\n\n")[0])
    parser.add_argument("--output", type=Path, default=output, help="folder to write")
    parser.add_argument("--updates", type=int, default=1_000, help="optimizer steps; fewer than 1,000 for trying only")
    parser.add_argument("--seed", type=int, default=0, help="weights, training rows and samples")
    parser.add_argument("--problems", type=int, default=problems, help="problems it is measured on, half of them hard")
    parser.add_argument(
        "--threads", type=int, default=1, help="CPU threads; another number gives slightly other weights"
    )
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, measure, write."""
    parser = training_parser(__doc__, chains.base_model_path(), problems=200)
    parser.add_argument("--world-seed", type=int, default=0, help="which table")
    args = parser.parse_args(arguments)

    console = Console(soft_wrap=True)
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    world, model = World.from_seed(args.world_seed), build_model()
    train(model, world, args.updates, args.seed, console.print)

    half = args.problems // 2
    rows = world.evaluation_rows(half, half)
    measured: dict[str, float] = {}
    table = Table("prompt", "problems", "Pass@1 %", f"Pass@{SAMPLES} %")
    for prompt in ("plain", "privileged"):
        for name, part in (("easy", rows[:half]), ("hard", rows[half:])):
            once, ever = pass_rates(model, part, privileged=prompt == "privileged")
            measured |= {f"{prompt}_{name}_pass_at_1": once, f"{prompt}_{name}_pass_at_{SAMPLES}": ever}
            table.add_row(prompt, name, f"{once:.1f}", f"{ever:.1f}")
    console.print(table)

    for kind, found in right_probabilities(model, world, args.problems, args.seed + 1).items():
        low, middle, high = found.min().item(), found.median().item(), found.max().item()
        name = "misconceived" if kind else "known"
        console.print(f"probability of the right value, {name} entries: {low:.5f} / {middle:.5f} / {high:.5f}")
        measured |= {f"right_{name}_min": low, f"right_{name}_median": middle, f"right_{name}_max": high}

    threshold = calibrate(*step_scores(model, world, 4 * args.problems, args.seed + 2))
    if threshold is not None:
        right, wrong = step_scores(model, world, 4 * args.problems, args.seed + 3)  # fresh problems
        alarms, hits = (100 * (scores < threshold).float().mean().item() for scores in (right, wrong))
        console.print(f"threshold {threshold} nats: {alarms:.2f} % false alarms in {len(right)} right steps,")
        console.print(f"{hits:.2f} % hits in {len(wrong)} wrong steps")
        measured |= {"threshold_false_alarms": alarms, "threshold_hits": hits}

    model.save_pretrained(args.output)
    chains.build_tokenizer().save_pretrained(args.output)
    stored = {
        "world_seed": args.world_seed,
        "seed": args.seed,
        "updates": args.updates,
        "table": world.table,
        "beliefs": world.beliefs,
        "privileged_threshold": threshold,
        "measured": {name: round(value, 5) for name, value in measured.items()},
    }
    (args.output / "chains.json").write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
