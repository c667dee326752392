"""Train the small world's teacher: a model of 4.7 times the base model's weights that knows the right table.

    python scripts/train_chains_teacher.py     # about five minutes on one CPU core; writes models/chains_teacher

It is supervised on solutions in which a value is wrong now and then, and which go on from what is written. The wrong
values themselves are left out of the loss: the teacher makes hardly any mistakes, and still knows how to go on from
those of another model. The baselines `sft_grpo`, `opd` and `mentor` learn from it. The result is the same for the same
number of threads and the same torch build.
"""

import json
import random
from collections.abc import Sequence
from pathlib import Path

import torch
from rich.console import Console
from train_chains_base import SAMPLES, build_model, fit, pass_rates, response_logps, training_parser

from mintrl_trl.data import chains
from mintrl_trl.data.chains import World

WIDTH, MLP_WIDTH = 128, 640  # 626,624 weights; the base model has 133,120
ROWS, LEARNING_RATE = 64, 3e-3
SLIP = 0.1  # chance that a value is wrong, in a solution that is trained on
LINE_TOKENS = 4  # value, letter, operand, blank line


def training_batch(world: World, rng: random.Random, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of `<bos>`, question, solution, `<eos>`, and which tokens of the solution are learned from.

    Returns:
        `tuple`: (rows, tokens) int64 and (rows, `SOLUTION_TOKENS`) bool, false at wrong values.
    """
    batch = []
    learned = torch.ones(rows, chains.SOLUTION_TOKENS, dtype=torch.bool)
    for row in range(rows):
        chain = chains.draw_chain(rng)
        values = [chain.start]
        for number, operand in enumerate(chain.operands, start=1):
            value = world.result(values[-1], operand)
            if rng.random() < SLIP:
                value = (value + 1 + int(rng.random() * 9)) % 10
                learned[row, LINE_TOKENS * number] = False
            values.append(value)
        solution = chains.solution_text(chain, values)
        batch.append([chains.BOS_ID, *chains.encode(chain.question + solution), chains.EOS_ID])
    return torch.tensor(batch), learned


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, measure, write."""
    args = training_parser(__doc__, Path("models/chains_teacher"), problems=100).parse_args(arguments)

    console = Console(soft_wrap=True)
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    world, model = World.load(), build_model(WIDTH, MLP_WIDTH)
    rng = random.Random(args.seed)

    def step() -> tuple[torch.Tensor, str]:
        ids, learned = training_batch(world, rng, ROWS)
        loss = -response_logps(model, ids)[learned].mean()
        return loss, f"loss {loss.item():.4f}"

    fit(model, step, args.updates, LEARNING_RATE, console.print)

    half = args.problems // 2
    rows = world.evaluation_rows(half, half)
    measured = {}
    for name, part in (("easy", rows[:half]), ("hard", rows[half:])):
        once, ever = pass_rates(model, part)
        console.print(f"{name}: Pass@1 {once:.1f} %, Pass@{SAMPLES} {ever:.1f} %")
        measured |= {f"{name}_pass_at_1": round(once, 2), f"{name}_pass_at_{SAMPLES}": round(ever, 2)}

    model.save_pretrained(args.output)
    chains.build_tokenizer().save_pretrained(args.output)
    described = {"seed": args.seed, "updates": args.updates, "parameters": model.num_parameters(), "measured": measured}
    (args.output / "teacher.json").write_text(json.dumps(described, indent=1) + "\n", encoding="utf-8")
    console.print(f"{model.num_parameters():,} weights in {args.output}")


if __name__ == "__main__":
    main()
