"""Counter-based noise: known values, the law it follows, and what a draw depends on."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mintrl_trl.generation.noise import draw, gumbel, random_bits

WORD = 2**64 - 1
INCREMENT, MULTIPLIER_1, MULTIPLIER_2 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def mix(bits):
    """SplitMix64's finaliser on Python's unbounded integers."""
    bits = (bits ^ bits >> 30) * MULTIPLIER_1 & WORD
    bits = (bits ^ bits >> 27) * MULTIPLIER_2 & WORD
    return bits ^ bits >> 31


def expected_bits(seed, position, token):
    key = mix(mix(seed + INCREMENT & WORD) + position * INCREMENT & WORD)
    bits = (key ^ mix((token + 1) * INCREMENT & WORD)) * MULTIPLIER_1 & WORD
    return (bits ^ bits >> 32) * MULTIPLIER_2 & WORD & (2**63 - 1)


@given(st.integers(-(2**63), 2**63 - 1), st.integers(0, 2**31))
def test_bits_are_those_of_exact_arithmetic(seed, position):
    bits = random_bits(torch.tensor([seed]), torch.tensor([position]), 5)
    assert bits[0].tolist() == [expected_bits(seed & WORD, position, token) for token in range(5)]


def test_mixing_is_splitmix64():
    # First outputs of the published generator from state 0.
    assert [mix(INCREMENT * step & WORD) for step in (1, 2)] == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_noise_follows_the_gumbel_law(dtype):
    noise = gumbel(random_bits(torch.arange(2000), torch.full((2000,), 7), 500), dtype).flatten()
    assert noise.dtype == dtype and noise.isfinite().all()
    assert noise.mean().item() == pytest.approx(0.5772157, abs=0.005)
    assert noise.var().item() == pytest.approx(math.pi**2 / 6, abs=0.01)
    for threshold in (-2.0, -1.0, 0.0, 2.0, 6.0):
        below = math.exp(-math.exp(-threshold))
        deviation = math.sqrt(below * (1 - below) / noise.numel())
        assert (noise < threshold).double().mean().item() == pytest.approx(below, abs=4 * deviation)


@pytest.mark.parametrize(
    ("seeds", "positions"),
    [(torch.arange(3000), torch.full((3000,), 7)), (torch.full((3000,), 7), torch.arange(3000))],
    ids=["neighbouring seeds", "neighbouring positions"],
)
def test_noise_is_uncorrelated(seeds, positions):
    noise = gumbel(random_bits(seeds, positions, 100))
    between_tokens = torch.corrcoef(noise.T).fill_diagonal_(0)
    assert between_tokens.abs().max() < 5 / math.sqrt(3000)
    shifted = torch.corrcoef(torch.stack([noise[:-1].flatten(), noise[1:].flatten()]))
    assert shifted[0, 1].abs() < 4 / math.sqrt(300_000)


def test_draws_follow_the_softmax():
    torch.manual_seed(1)
    logits, temperature, count = torch.randn(20) * 2, 0.7, 20_000
    ids, logps = draw(logits.expand(count, -1), torch.arange(count), torch.full((count,), 3), temperature)
    expected = (logits / temperature).softmax(-1)
    counts = torch.bincount(ids, minlength=20)
    chi_square = ((counts - count * expected) ** 2 / (count * expected)).sum().item()
    assert chi_square < 43.8  # 0.1 % point with 19 degrees of freedom
    torch.testing.assert_close(logps, expected.log()[ids])
    assert logps.dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_extreme_bits_give_extreme_numbers(dtype):
    largest, usual, smallest = gumbel(torch.tensor([0, 2**62, 2**63 - 1]), dtype).tolist()
    assert largest == pytest.approx(64 * math.log(2))  # -log(2**-64)
    assert usual == pytest.approx(-math.log(math.log(2)))
    assert smallest == pytest.approx(-math.log((24 if dtype == torch.float32 else 53) * math.log(2)))


def test_a_row_does_not_depend_on_its_batch():
    logits = torch.randn(64, 50)
    seeds, positions = torch.randint(0, 2**62, (64,)), torch.randint(0, 9999, (64,))
    ids, logps = draw(logits, seeds, positions, 1.0)
    order = torch.randperm(64)
    again, again_logps = draw(logits[order], seeds[order], positions[order], 1.0)
    assert torch.equal(again, ids[order]) and torch.equal(again_logps, logps[order])
    assert ids.unique().numel() > 10


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_logits_that_are_not_finite_show_in_the_log_probability(bad):
    logits = torch.zeros(2, 4)
    logits[1, 2] = bad
    logits[0, 1] = -math.inf  # a token that can never be drawn is no fault
    _, logps = draw(logits, torch.arange(2), torch.arange(2), 1.0)
    assert logps.isfinite().tolist() == [True, False]


def test_bfloat16_logits_are_computed_in_float32():
    logits = torch.randn(3, 10).bfloat16()
    _, logps = draw(logits, torch.arange(3), torch.arange(3), 0.5)
    assert logps.dtype == torch.float32


def test_global_generators_are_left_alone():
    before = torch.get_rng_state()
    draw(torch.randn(1, 3, generator=torch.Generator()), torch.tensor([1]), torch.tensor([1]), 1.0)
    assert torch.equal(torch.get_rng_state(), before)
