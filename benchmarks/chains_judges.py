"""What a judge makes of the small world's hard problems, before any training: which questions a setting can answer.

    python benchmarks/chains_judges.py                             # about a minute on one free core
    python benchmarks/chains_judges.py --teacher models/chains_teacher

For each world, judge, number of reviews and length of a correction the untrained base model writes one rollout with
interventions per hard problem (64, chunks of 16 tokens). Columns:

- solved: share of them that end right. Where all do, Const's bonus and the judge's mistakes have nothing to act on.
- foreign: the judge's tokens, as a share of all; and per rollout.
- policy's: the policy's mean log-probability of a foreign token, in nats: how far from its own words it is led.
- judge's: the judge's own, where it is a model: what kappa stands for.
- bonus: the reward that Const gives such a rollout besides its outcome, beta2 x sum(kappa - policy's), kappa -0.2.
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product

import torch
from rich.console import Console
from rich.table import Table
from transformers import AutoModelForCausalLM, PreTrainedModel

from mintrl_trl.chains_task import teacher_judge
from mintrl_trl.data import chains
from mintrl_trl.data.chains import BOS_ID, EOS_ID, PAD_ID, World
from mintrl_trl.generation.local import LocalGenerator
from mintrl_trl.generation.vocabulary import TokenizerVocabulary
from mintrl_trl.judges.exact import ChainsJudge
from mintrl_trl.judges.variants import PlaceboJudge, RandomCutJudge
from mintrl_trl.rollouts.doors import Judge
from mintrl_trl.rollouts.rollout import Problem, Role, Rollout, RolloutRequest
from mintrl_trl.rollouts.sampler import InterventionSampler, SamplerSettings
from mintrl_trl.rollouts.schedule import InterventionBudget

CHUNK_TOKENS = 16
KAPPA = -0.2
INTENSITIES = ((1, 1), (2, 1), (4, 1), (4, 4), (4, 16), (4, 52))  # reviews, tokens of a correction


def judges(world: World, teacher: str | None) -> dict[str, Judge]:
    """The judges to compare, by what a recipe says of them."""
    found = {
        "exact": ChainsJudge(world),
        "error_rate 0.15": ChainsJudge(world, 0.15),
        "value_error_rate 0.2": ChainsJudge(world, value_error_rate=0.2),
        "terse": ChainsJudge(world, terse=True),
        "random_cut": RandomCutJudge(ChainsJudge(world)),
        "placebo": PlaceboJudge(ChainsJudge(world)),
    }
    return found | ({"local": teacher_judge(teacher)} if teacher else {})


@dataclass(frozen=True)
class Outcome:
    """Rollouts with one setting."""

    rollouts: tuple[Rollout, ...]
    solved: float
    foreign_logp: float  # mean over foreign tokens, under the policy; NaN without any

    @property
    def foreign(self) -> float:
        """Foreign tokens of a rollout, on average."""
        return sum(rollout.intervention_tokens for rollout in self.rollouts) / len(self.rollouts)

    @property
    def judge_logp(self) -> float | None:
        """The judge's mean log-probability of its own tokens; `None` for a program."""
        known = [logp for rollout in self.rollouts for logp in rollout.intervention_logps if logp is not None]
        return sum(known) / len(known) if known else None

    @property
    def share(self) -> float:
        """Foreign tokens over all tokens."""
        return self.foreign * len(self.rollouts) / sum(len(rollout.ids) for rollout in self.rollouts)


class Policy:
    """The base model, as sampler and as scorer."""

    def __init__(self):
        self.model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(chains.base_model_path()).eval()
        self.generator = LocalGenerator(self.model, end_ids=(EOS_ID,), pad_id=PAD_ID)
        self.vocabulary = TokenizerVocabulary(chains.build_tokenizer(), end_ids={EOS_ID}, size=len(chains.TOKENS))

    def outcome(self, rows: list[dict], judge: Judge, reviews: int, correction_tokens: int) -> Outcome:
        """One rollout of every problem."""
        budget = InterventionBudget(CHUNK_TOKENS, reviews, correction_tokens, chains.SOLUTION_TOKENS)
        requests = [
            RolloutRequest(
                number, (BOS_ID, *chains.encode(row["prompt"])), Problem(row["prompt"]), Role.INTERVENED, update=0
            )
            for number, row in enumerate(rows)
        ]
        settings = SamplerSettings(budget, run_seed=0)
        with InterventionSampler(self.generator, judge, self.vocabulary, settings) as sampler:
            sampler.start(requests)
            rollouts = tuple(sampler.collect().values())
        ids = [rollout.ids for rollout in rollouts]
        texts = ["".join(chains.TOKENS[token] for token in own if token >= len(chains.SPECIALS)) for own in ids]
        answers = [row["answer"] for row in rows]
        solved = sum(chains.chains_reward([], texts, answers, completion_ids=ids)) / len(rows)
        logps = [logp for rollout in rollouts for logp in self.foreign_logps(rollout)]
        return Outcome(rollouts, solved, sum(logps) / len(logps) if logps else float("nan"))

    @torch.no_grad()
    def foreign_logps(self, rollout: Rollout) -> list[float]:
        """The policy's log-probability of each token of the judge."""
        ids = torch.tensor([[*rollout.request.prompt_ids, *rollout.ids]])
        logps = self.model(ids, logits_to_keep=len(rollout.ids) + 1).logits[0, :-1].log_softmax(-1)
        chosen = logps.gather(-1, torch.tensor(rollout.ids)[:, None]).squeeze(-1)  # (C,)
        return chosen[~torch.tensor(rollout.policy_authored)].tolist()


def lines(policy: Policy, options: argparse.Namespace) -> Iterator[tuple[str, ...]]:
    """The table's lines."""
    for name, counts in chains.WORLDS.items():
        world = World.load(hard_counts=counts)
        rows = world.evaluation_rows(0, options.problems)
        for (words, judge), (reviews, tokens) in product(judges(world, options.teacher).items(), INTENSITIES):
            if tokens > 1 and words == "placebo":  # it writes nothing
                continue
            made = policy.outcome(rows, judge, reviews, tokens)
            bonus = options.beta2 * made.foreign * (KAPPA - made.foreign_logp) if made.foreign else 0.0
            yield (
                *(name, words, str(reviews), str(tokens)),
                *(f"{made.solved:.0%}", f"{made.share:.1%}", f"{made.foreign:.1f}"),
                f"{made.foreign_logp:.2f}" if made.foreign else "-",
                "-" if made.judge_logp is None else f"{made.judge_logp:.3f}",
                f"{bonus:+.2f}",
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--problems", type=int, default=64, help="hard problems per setting")
    parser.add_argument("--beta2", type=float, default=0.02, help="weight of the log-ratio, for the bonus")
    parser.add_argument("--teacher", help="folder of a stronger model, judged with `judge: local`")
    options = parser.parse_args()
    torch.set_num_threads(1)
    console = Console(soft_wrap=True, width=120)
    policy = Policy()
    headings = (
        "world",
        "judge",
        "reviews",
        "correction",
        "solved",
        "foreign",
        "tokens",
        "policy's",
        "judge's",
        "bonus",
    )
    table = Table(*headings)
    show = partial(console.print, highlight=False)
    with console.status("rollouts") as status:
        for line in lines(policy, options):
            status.update(f"{line[0]}, {line[1]}, {line[2]} reviews of {line[3]} tokens: {line[4]} solved")
            table.add_row(*line)
    show(table)
    policy.generator.close()


if __name__ == "__main__":
    main()
