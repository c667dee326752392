"""What judge and interventions add to the time of a rollout batch.

    python benchmarks/rollout_overhead.py --simulate                    # virtual time: a few minutes
    python benchmarks/rollout_overhead.py --model DIR [--vllm PYTHON]   # also a real vLLM server on this CPU

A batch of 32 x 16 rollouts, half of them semi-on-policy, is made in four ways: (a) plain on-policy, (b) in lock-step
rounds, as one would with `generate`, (c) with a coroutine for each rollout that waits for the judge, (d) with reviews
that overlap sampling. Row by row, the policy's tokens in the finished rollouts are equally many in all four: a row ends
once it has its own number of them, and what is discarded or spliced in comes on top. (b), (c) and (d) give the same
rollouts, which is checked.

The simulation runs the package's own sampler on an event loop with a virtual clock, between simulated servers
(`simulation/`); every number is a field of `simulation.scenario.Scenario`. Printed are the comparison at the paper's
settings for some seeds, a sweep, the real CPU time of the client at 512 streams, the whole training step, and the best
split of 8 GPUs. Without `--simulate` the four also take turns on a vLLM server started here (`live_overhead.py`).

The last line is `RATIO overlap/on-policy X lockstep/overlap Y`: X, the time of (d) as a multiple of (a), at the paper's
settings, mean over seeds; Y, the time of (b) as a multiple of (d), at a mean length of 1,000 tokens.
"""

import argparse
import os
import statistics
import sys
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context

from live_overhead import LiveScenario, take_turns, vllm_server
from simulation.client import client_cpu
from simulation.modes import Mode, Outcome, simulate
from simulation.scenario import Scenario
from simulation.step import Split, Step, splits, whole_step

SHORT = {"mean_tokens": 1000.0}
SWEEP = (
    *({"mean_tokens": mean} for mean in (1000.0, 2000.0, 8000.0)),
    *({"verdict_tokens": tokens} for tokens in (20.0, 320.0)),
    *({"judge_servers": servers} for servers in (0, 2)),
    *({"revise_rate": rate} for rate in (0.1, 0.5)),
)
GPUS = 8
Comparison = dict[Mode, Outcome]


def compare_all(pool: ProcessPoolExecutor, scenarios: Sequence[Scenario]) -> list[Comparison]:
    """All modes of all scenarios, and the check that they made the same."""
    calls = [(mode, scenario) for scenario in scenarios for mode in Mode]
    outcomes = iter(pool.map(simulate, *zip(*calls, strict=True)))
    compared = [{mode: next(outcomes) for mode in Mode} for _ in scenarios]
    for comparison in compared:
        reviewed = [outcome for mode, outcome in comparison.items() if mode is not Mode.ON_POLICY]
        if len({outcome.digest for outcome in reviewed}) > 1:
            raise RuntimeError("the ways of making a batch gave different rollouts")
        if len({outcome.tokens.policy for outcome in comparison.values()}) > 1:
            raise RuntimeError("the ways of making a batch gave different numbers of policy tokens")
    return compared


def ratio(comparison: Comparison, slow: Mode, fast: Mode) -> float:
    return comparison[slow].seconds / comparison[fast].seconds


def print_modes(comparison: Comparison) -> None:
    """One line for each mode."""
    plain = comparison[Mode.ON_POLICY].seconds
    print("                seconds  times (a)   discarded  lookahead  judge in (cached)  judge out   review  held up")
    for letter, (mode, outcome) in zip("abcd", comparison.items(), strict=True):
        tokens, judge = outcome.tokens, outcome.judge
        cached = judge.cached_tokens / (judge.prompt_tokens or 1)
        times = f"{outcome.review_seconds:6.1f} s {outcome.held_up_seconds:6.1f} s" if outcome.review_seconds else ""
        print(
            f"  ({letter}) {mode.value:11} {outcome.seconds:6.1f}   {outcome.seconds / plain:8.3f} "
            f"  {tokens.discarded:9,}  {tokens.lookahead:9,}  {judge.prompt_tokens:9,} ({cached:4.0%})"
            f"   {judge.sampled_tokens:9,} {times}"
        )


def print_sweep(changes: Iterable[dict], comparisons: Iterable[Comparison]) -> None:
    print("\nSweep, one number changed at a time:")
    print("                        (a) seconds  (d)/(a)  (c)/(a)  (b)/(d)   review (d)   wasted (d)")
    for change, compared in zip(changes, comparisons, strict=True):
        overlap = compared[Mode.OVERLAP]
        name = ", ".join(f"{field} {value:g}" for field, value in change.items()) or "the paper's settings"
        print(
            f"  {name:22} {compared[Mode.ON_POLICY].seconds:8.1f}"
            f" {ratio(compared, Mode.OVERLAP, Mode.ON_POLICY):12.3f}"
            f" {ratio(compared, Mode.NO_OVERLAP, Mode.ON_POLICY):8.3f}"
            f" {ratio(compared, Mode.LOCK_STEP, Mode.OVERLAP):8.3f}"
            f" {overlap.review_seconds:10.1f} s {overlap.tokens.wasted / overlap.tokens.policy:10.1%}"
        )


def print_steps(pool: ProcessPoolExecutor, scenario: Scenario) -> None:
    """The whole training step on every split of the GPUs, the best ones first."""
    steps = sorted(pool.map(partial(whole_step, scenario), splits(GPUS)), key=lambda step: step.seconds)
    best = steps[0].split
    plain = whole_step(scenario, best, Mode.ON_POLICY)
    print(f"\nWhole step on {GPUS} GPUs, (d): seconds, and the share of all GPUs' time without work")
    print("  trainer + policy + judge    step   rollout  update   sync   idle")
    for step in steps[:5]:
        print(_step_line(step))
    for judge in sorted({split.judge for split in splits(GPUS)}):
        best_of = next(step for step in steps if step.split.judge == judge)
        if best_of not in steps[:5]:
            print(f"{_step_line(best_of)}   the best with {judge} for the judge alone")
    print(f"{_step_line(plain)}   plain on-policy on the first split")
    print(f"BEST SPLIT of {GPUS}: {_words(best)}")


def _step_line(step: Step) -> str:
    split = step.split
    return (
        f"  {split.trainers:7} + {split.policy:6} + {split.judge:5} {step.seconds:9.1f} {step.rollout_seconds:9.1f}"
        f" {step.update_seconds:7.1f} {step.sync_seconds:6.1f} {step.idle_share:6.0%}"
    )


def _words(split: Split) -> str:
    judge = f"{split.judge} for the judge" if split.judge else "the judge on the policy's servers"
    return f"{split.trainers} to train, {split.policy} for the policy, {judge}"


def run_simulation(scenario: Scenario, seeds: int, workers: int) -> tuple[float, float]:
    """Print everything that needs no server; return the two ratios."""
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        at_paper = [scenario.but(seed=seed) for seed in range(seeds)]
        at_short = [each.but(**SHORT) for each in at_paper]
        changed = [scenario.but(**change) for change in SWEEP[1:]]
        compared = compare_all(pool, [*at_paper, *at_short, *changed])
        paper, short, swept = compared[:seeds], compared[seeds : 2 * seeds], compared[2 * seeds :]
        for seed, comparison in enumerate(paper):
            tokens = comparison[Mode.OVERLAP].tokens
            share = tokens.corrections / (tokens.policy + tokens.corrections)
            print(f"Paper's settings, seed {seed}: {tokens.policy:,} policy tokens, {share:.1%} of all spliced in")
            print_modes(comparison)
        print_sweep(({}, *SWEEP), (paper[0], short[0], *swept))
        print_steps(pool, scenario)
    overlap = statistics.mean(ratio(each, Mode.OVERLAP, Mode.ON_POLICY) for each in paper)
    return overlap, statistics.mean(ratio(each, Mode.LOCK_STEP, Mode.OVERLAP) for each in short)


def run_live(python: str, model: str, rounds: int) -> None:
    """Print what the four ways take on a real server."""
    scenario = LiveScenario()
    print(f"\nvLLM on this CPU: {scenario.rows} rollouts, {sum(scenario.lengths):,} policy tokens, {rounds} rounds")
    with vllm_server(python, model) as url:
        outcomes = take_turns(url, scenario, rounds)
    plain = [outcome.seconds for outcome in outcomes[Mode.ON_POLICY]]
    print("                 median   times (a), by round        discarded  lookahead  held up")
    for letter, (mode, made) in zip("abcd", outcomes.items(), strict=True):
        times = [outcome.seconds / base for outcome, base in zip(made, plain, strict=True)]
        discarded = statistics.mean(outcome.tokens.discarded for outcome in made)
        lookahead = statistics.mean(outcome.tokens.lookahead for outcome in made)
        held_up = statistics.mean(outcome.held_up_seconds for outcome in made)
        print(
            f"  ({letter}) {mode.value:11} {statistics.median(o.seconds for o in made):6.1f} s"
            f"  {statistics.median(times):.2f} ({' '.join(f'{each:.2f}' for each in times)})"
            f"  {discarded:12,.0f} {lookahead:10,.0f} {held_up:7.1f} s"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--simulate", action="store_true", help="the simulation alone")
    what.add_argument("--model", metavar="DIR", help="SmolLM2-135M-Instruct, for the real server too")
    parser.add_argument("--vllm", metavar="PYTHON", default=sys.executable, help="a Python that has vLLM")
    parser.add_argument("--rounds", type=int, default=3, help="rounds on the real server")
    parser.add_argument("--seeds", type=int, default=3, help="seeds at the paper's settings")
    parser.add_argument("--workers", type=int, default=min(os.cpu_count() or 1, 8), help="simulations at once")
    arguments = parser.parse_args()
    started = time.perf_counter()
    overlap, lockstep = run_simulation(Scenario(), arguments.seeds, arguments.workers)
    milliseconds, speed = client_cpu(streams=512, tokens=1024)
    print(
        f"\nClient at 512 streams: {milliseconds:.1f} ms of CPU for 1,000 tokens, so that one core carries "
        f"{1e6 / milliseconds:,.0f} tokens/s ({speed:,.0f} tokens/s came here)"
    )
    if arguments.model:
        run_live(arguments.vllm, arguments.model, arguments.rounds)
    print(f"{time.perf_counter() - started:.0f} s in all")
    print(f"RATIO overlap/on-policy {overlap:.3f} lockstep/overlap {lockstep:.3f}")


if __name__ == "__main__":
    main()
