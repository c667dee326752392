"""The benchmark of the overhead as a program: its four ways against a scripted server, and its report."""

import sys
from pathlib import Path

import pytest

from mintrl_trl.generation.vllm import VLLMGenerator
from mintrl_trl.rollouts.loop import BackgroundLoop

from .fake_vllm import FakeVLLM, events

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def benchmark(monkeypatch):
    """The program's modules, imported as it imports them."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    before = set(sys.modules)
    import rollout_overhead

    yield rollout_overhead
    for name in set(sys.modules) - before:
        if name.split(".")[0] in {"rollout_overhead", "live_overhead", "simulation"}:
            del sys.modules[name]


def words(body):
    """As many tokens as asked for; some end steps."""
    start = len(body["prompt"])
    ids = [100 + position % 24 for position in range(start, start + body["max_tokens"])]
    return events(body["prompt"], ids, size=8, finish="length")


def test_all_ways_give_every_row_its_tokens_on_a_server(benchmark):
    live = sys.modules["live_overhead"]
    scenario = live.LiveScenario(
        rows=8, prompt_tokens=8, mean_tokens=60.0, cap_tokens=120, chunk_tokens=16, correction_tokens=4,
        review_seconds=0.01, correction_seconds=0.01,
    )  # fmt: skip
    loop = BackgroundLoop()
    with FakeVLLM() as server:
        server.script = words
        generator = VLLMGenerator(server.url, "policy", end_ids=[live.END], vocabulary_size=live.Vocabulary.size)
        made = {mode: live.make_batch(generator, scenario, mode, 0, loop) for mode in live.Mode}
        loop.run(generator.aclose())
    loop.close()
    plain, *reviewed = (outcome.tokens for outcome in made.values())
    assert plain.policy == sum(scenario.lengths)
    assert plain.corrections == plain.wasted == 0
    for tokens in reviewed:
        assert tokens.policy == sum(scenario.lengths)
        assert (tokens.corrections, tokens.discarded) == (reviewed[0].corrections, reviewed[0].discarded)
        assert tokens.corrections > 0 and tokens.discarded > 0


@pytest.mark.slow
def test_the_report_of_the_simulation(benchmark, capsys):
    scenario = benchmark.Scenario(prompts=2, mean_tokens=300.0, cap_tokens=600, chunk_tokens=64, correction_tokens=8)
    overlap, lockstep = benchmark.run_simulation(scenario, seeds=2, workers=1)
    report = capsys.readouterr().out
    assert overlap > 1 and lockstep > 1
    assert report.count("(a) on-policy") == report.count("(d) overlap") == 2
    assert "mean_tokens 1000" in report and "revise_rate 0.5" in report
    assert "BEST SPLIT of 8: " in report
