"""How often the confidence intervals of scores hold the true score, on simulated benchmarks.

    python benchmarks/interval_coverage.py               # the table of docs/evaluation.md: a minute on one core
    python benchmarks/interval_coverage.py --sets 2000   # less noise; 500 sets have a standard error of 1 point

A benchmark is drawn: for each problem a chance of solving it, then the samples. The truth is the mean of the population
that chances are drawn from. The last column is a plain percentile bootstrap on 30 problems with 32 samples.
"""

import argparse
from collections.abc import Callable

import numpy as np

from mintrl_trl.evaluation.intervals import LEVEL, average_interval, compare_means, mean_interval

Draw = Callable[[np.random.Generator, int], np.ndarray]
# Chances of solving a problem, with their mean.
POPULATIONS: dict[str, tuple[Draw, float]] = {
    "Beta(0.3, 2), mean 13 %": (lambda rng, size: rng.beta(0.3, 2, size), 0.3 / 2.3),
    "Beta(1, 1), mean 50 %": (lambda rng, size: rng.beta(1, 1, size), 0.5),
    "Beta(2, 0.5), mean 80 %": (lambda rng, size: rng.beta(2, 0.5, size), 0.8),
    "70 % never, else Beta(1, 2), mean 10 %": (lambda rng, size: (rng.random(size) < 0.3) * rng.beta(1, 2, size), 0.1),
    "85 % never, else Beta(1, 2), mean 5 %": (lambda rng, size: (rng.random(size) < 0.15) * rng.beta(1, 2, size), 0.05),
}
SETTINGS = ((30, 4), (30, 32), (100, 32))  # problems, samples
RESAMPLES = 2000


def drawn(rng: np.random.Generator, draw: Draw, problems: int, samples: int) -> np.ndarray:
    """Pass rates of a benchmark; shape (problems,)."""
    return rng.binomial(samples, draw(rng, problems)) / samples


def percentile(scores: np.ndarray, rng: np.random.Generator) -> tuple[float, float]:
    """The plain bootstrap's interval."""
    means = rng.choice(scores, (RESAMPLES, len(scores))).mean(axis=1)
    low, high = np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return low, high


def coverage(draw: Draw, truth: float, problems: int, samples: int, sets: int, plain: bool = False) -> float:
    """Share of sets whose interval holds the truth."""
    rng, held = np.random.default_rng(1), 0
    for _ in range(sets):
        scores = drawn(rng, draw, problems, samples)
        if plain:
            low, high = percentile(scores, rng)
        else:
            interval = mean_interval(scores, resamples=RESAMPLES)
            low, high = interval.low, interval.high
        held += low <= truth <= high
    return held / sets


def average_coverage(sets: int) -> float:
    """The same for the average of the first three populations, 30 problems and 8 samples each."""
    chosen = list(POPULATIONS.values())[:3]
    truth, rng, held = float(np.mean([mean for _, mean in chosen])), np.random.default_rng(1), 0
    for _ in range(sets):
        interval = average_interval([drawn(rng, draw, 30, 8) for draw, _ in chosen], resamples=RESAMPLES)
        held += interval.low <= truth <= interval.high
    return held / sets


def equal_models(sets: int) -> tuple[float, float]:
    """Of two equal models on 30 problems: shares of intervals that hold 0, and of p-values of at most 0.05."""
    rng, held, small = np.random.default_rng(1), 0, 0
    for _ in range(sets):
        chances = rng.beta(0.3, 1, 30)
        comparison = compare_means(*(rng.binomial(8, chances) / 8 for _ in range(2)), resamples=RESAMPLES)
        held += comparison.difference.low <= 0 <= comparison.difference.high
        small += comparison.p_value <= 1 - LEVEL
    return held / sets, small / sets


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", type=int, default=500, help="simulated benchmarks for each number (default: 500)")
    sets = parser.parse_args().sets
    heads = [f"{problems} problems, {samples} samples" for problems, samples in SETTINGS]
    print("| chance of solving a problem |", " | ".join([*heads, "percentile"]), "|")
    seen = []
    for name, (draw, truth) in POPULATIONS.items():
        shares = [coverage(draw, truth, *setting, sets) for setting in SETTINGS]
        seen += shares
        plain = coverage(draw, truth, 30, 32, sets, plain=True)
        print(f"| {name} |", " | ".join(f"{share:.1%}" for share in [*shares, plain]), "|", flush=True)
    average = average_coverage(sets)
    seen.append(average)
    held, small = equal_models(sets)
    print(f"average of the first three, 30 problems and 8 samples each: {average:.1%}")
    print(f"two equal models: {held:.1%} of intervals hold 0, {small:.1%} of p-values are at most 0.05")
    print(f"COVERAGE at level {LEVEL:.0%}: from {min(seen):.1%} to {max(seen):.1%}")


if __name__ == "__main__":
    main()
