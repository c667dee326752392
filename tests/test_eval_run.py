"""Filling an evaluation's folder: what a sample is depends on its problem and number alone, whenever it is made."""

import asyncio
import math
from collections.abc import AsyncIterator

import pytest

from mintrl_trl.errors import ConfigError, DataError, GenerationError, RewardError
from mintrl_trl.evaluation import EvalProblem
from mintrl_trl.evaluation.run import (
    count,
    fill,
    problems_fingerprint,
    prompt_fingerprints,
    prompts_fingerprint,
    sample_row,
    score,
)
from mintrl_trl.evaluation.samples import SampleFolder
from mintrl_trl.rollouts.doors import SampledToken

from .samples import END, ByteVocabulary, ids

VOCABULARY = ByteVocabulary()
ROWS = {name: {"id": name, "prompt": f"{name}?", "answer": "0"} for name in "abcde"}
PROBLEMS = [EvalProblem(row["prompt"], ids(row["prompt"]), id=name) for name, row in ROWS.items()]


class BySeed:
    """Writes one of two letters, by the seed, and ends; fails with the request of a given number."""

    weight_version = "1"

    def __init__(self, fails_at: int | None = None):
        self.fails_at, self.seeds = fails_at, []

    async def stream(self, prefix_ids, max_tokens: int, seed: int) -> AsyncIterator[SampledToken]:
        self.seeds.append(seed)
        if len(self.seeds) == self.fails_at:
            raise GenerationError("no")
        await asyncio.sleep(0)
        for token in (ids("01"[seed % 2])[0], END)[:max_tokens]:
            yield SampledToken(token, -0.25)


def fill_with(folder, generator, num_samples=4, problems=PROBLEMS, seed=0, at_once=2, **options) -> int:
    folder.begin({"samples": num_samples})
    return fill(
        folder,
        generator,
        VOCABULARY,
        problems,
        num_samples=num_samples,
        max_completion_tokens=8,
        seed=seed,
        max_concurrent_rollouts=at_once,
        **options,
    )


def lines(folder) -> list[bytes]:
    return sorted((folder.path / "samples.jsonl").read_bytes().splitlines())


def exact_match(prompts, completions, answer, log_extra, **kwargs) -> list[float]:
    log_extra(
        "why", ["correct" if text == right else "no_box" for text, right in zip(completions, answer, strict=True)]
    )
    return [float(text == right) for text, right in zip(completions, answer, strict=True)]


def test_every_sample_once_and_saved_as_it_was(tmp_path):
    folder, generator = SampleFolder(tmp_path), BySeed()
    assert fill_with(folder, generator) == 20
    samples = list(folder.samples())
    assert {sample.key for sample in samples} == {(name, number) for name in ROWS for number in range(4)}
    assert len(samples) == 20 == len(set(generator.seeds))
    assert all(sample.ids == (*ids(sample.text), END) and sample.logp == -0.5 for sample in samples)
    assert {sample.stop for sample in samples} == {"end"}
    assert {sample.text for sample in samples} == {"0", "1"}
    assert fill_with(folder, generator) == 0


@pytest.mark.parametrize("fails_at", [1, 7, 20])
def test_an_interrupted_evaluation_that_is_continued_equals_a_whole_one(tmp_path, fails_at):
    whole, other = SampleFolder(tmp_path / "whole"), SampleFolder(tmp_path / "other")
    fill_with(whole, BySeed())
    with pytest.raises(GenerationError):
        fill_with(other, BySeed(fails_at))
    saved = lines(other) if (other.path / "samples.jsonl").exists() else []
    assert len(saved) < 20
    assert fill_with(other, BySeed(), at_once=7) == 20 - len(saved)
    assert set(saved) <= set(lines(other))
    assert lines(other) == lines(whole)


def test_more_samples_and_other_orders_change_no_sample(tmp_path):
    some, all_of_them, turned = (SampleFolder(tmp_path / name) for name in ("some", "all", "turned"))
    fill_with(some, BySeed(), num_samples=2)
    fill_with(some, BySeed(), num_samples=4)
    fill_with(all_of_them, BySeed(), num_samples=4)
    fill_with(turned, BySeed(), num_samples=4, problems=PROBLEMS[::-1])
    assert lines(some) == lines(all_of_them) == lines(turned)


def test_another_seed_gives_other_samples(tmp_path):
    first, second = BySeed(), BySeed()
    fill_with(SampleFolder(tmp_path / "first"), first)
    fill_with(SampleFolder(tmp_path / "second"), second, seed=1)
    assert not set(first.seeds) & set(second.seeds)


def test_rows_are_of_id_and_number_alone():
    rows = {sample_row(name, number) for name in ("a", "b", "a1", "a,1") for number in range(50)}
    assert len(rows) == 200
    assert sample_row("a", 0) == 1628041657705033838
    assert all(0 <= row < 2**63 for row in rows)


@pytest.mark.parametrize(
    ("problems", "num_samples"),
    [([], 1), (PROBLEMS, 0), ([*PROBLEMS, PROBLEMS[0]], 1), ([EvalProblem("x", ids("x"))], 1)],
)
def test_what_cannot_be_filled_is_refused(tmp_path, problems, num_samples):
    with pytest.raises(ConfigError):
        fill_with(SampleFolder(tmp_path), BySeed(), num_samples=num_samples, problems=problems)


def test_progress_counts_what_is_to_do(tmp_path):
    seen = []

    class Watch:
        def __init__(self, progress, there):
            self.progress, self.there = progress, there

        def __enter__(self):
            return self

        def __exit__(self, *exc):
            seen.append((self.progress().total, self.progress().finished, self.there))

    folder = SampleFolder(tmp_path)
    fill_with(folder, BySeed(), num_samples=1, watch=Watch)
    fill_with(folder, BySeed(), num_samples=4, at_once=1, watch=Watch)
    assert seen == [(5, 5, 0), (15, 15, 5)]


def test_counts_are_those_of_the_samples(tmp_path):
    folder = SampleFolder(tmp_path)
    fill_with(folder, BySeed())
    assert score(folder, ROWS, exact_match) == 20
    texts = {name: [one.text for one in folder.samples() if one.problem == name] for name in ROWS}
    result = count(folder, list(ROWS), 4, {"a": "first"})
    for problem in result.problems:
        right = texts[problem.id].count("0")
        assert (problem.samples, problem.solved, problem.no_answer) == (4, right, 4 - right)
        assert (problem.unscored, problem.truncated, problem.tokens) == (0, 0, 8)
    assert [problem.subset for problem in result.problems] == ["first", None, None, None, None]
    firsts = {one.problem: one.text for one in folder.samples() if one.sample == 0}
    assert [p.solved for p in count(folder, list(ROWS), 1).problems] == [int(firsts[name] == "0") for name in ROWS]


def test_scores_are_made_once_and_again_where_a_row_changed(tmp_path):
    folder, calls = SampleFolder(tmp_path), []

    def reward(prompts, completions, **kwargs):
        calls.append(len(completions))
        return exact_match(prompts, completions, **kwargs)

    fill_with(folder, BySeed())
    before = lines(folder)
    assert [score(folder, ROWS, reward), score(folder, ROWS, reward)] == [20, 0]
    changed = ROWS | {"b": ROWS["b"] | {"answer": "1"}}
    old = count(folder, list(ROWS), 4)
    assert score(folder, changed, reward) == 4
    new = count(folder, list(ROWS), 4)
    assert [a == b for a, b in zip(old.problems, new.problems, strict=True)] == [True, False, True, True, True]
    assert new.problems[1].solved == 4 - old.problems[1].solved
    assert score(folder, ROWS, reward, anew=True) == 20
    assert count(folder, list(ROWS), 4) == old
    assert calls == [20, 4, 20]
    assert lines(folder) == before, "scoring leaves samples alone"


def test_what_got_no_reward_is_counted_and_tried_again(tmp_path):
    folder = SampleFolder(tmp_path)
    fill_with(folder, BySeed(), num_samples=1)
    assert score(folder, ROWS, lambda prompts, **kwargs: [None] * len(prompts)) == 5
    result = count(folder, list(ROWS), 1)
    assert (result.pass_at(1), result.per_sample("unscored")) == (0.0, 1.0)
    assert score(folder, ROWS, lambda prompts, **kwargs: [1] * len(prompts)) == 5
    assert count(folder, list(ROWS), 1).pass_at(1) == 1.0
    with pytest.raises(RewardError, match="1 rewards for 5 responses"):
        score(folder, ROWS, lambda prompts, **kwargs: [1.0], anew=True)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_no_reward(tmp_path, value):
    folder = SampleFolder(tmp_path)
    fill_with(folder, BySeed(), num_samples=1)
    score(folder, ROWS, lambda prompts, **columns: [value] * len(prompts))
    assert count(folder, list(ROWS), 1).per_sample("unscored") == 1
    assert count(folder, list(ROWS), 1).pass_at(1) == 0


def test_an_unfinished_folder_gives_no_numbers(tmp_path):
    folder = SampleFolder(tmp_path)
    fill_with(folder, BySeed(), num_samples=2)
    score(folder, ROWS, exact_match)
    with pytest.raises(DataError, match=r"10 samples.*20 scored samples, 4 of each of 5"):
        count(folder, list(ROWS), 4)
    folder.forget_scores()
    with pytest.raises(DataError, match=r"0 samples.*`--rescore`"):
        count(folder, list(ROWS), 2)


def test_some_of_the_problems_of_a_folder(tmp_path):
    folder = SampleFolder(tmp_path)
    fill_with(folder, BySeed(), num_samples=2)
    fill_with(folder, BySeed(), num_samples=4, problems=PROBLEMS[:3])
    assert score(folder, {name: ROWS[name] for name in "abc"}, exact_match) == 12
    assert [problem.samples for problem in count(folder, "abc", 4).problems] == [4, 4, 4]
    assert score(folder, ROWS, exact_match) == 4
    assert [problem.samples for problem in count(folder, "abcde", 2).problems] == [2] * 5


def test_fingerprints_see_ids_and_prompts():
    other = EvalProblem("a?", ids("a!"), id="a")
    assert len({problems_fingerprint(p) for p in (PROBLEMS, PROBLEMS[:-1], [other, *PROBLEMS[1:]])}) == 3
    found, changed = prompt_fingerprints(PROBLEMS), prompt_fingerprints([other, *PROBLEMS[1:]])
    assert {name for name in found if found[name] != changed[name]} == {"a"}
    rows = list(ROWS.values())
    assert prompts_fingerprint(rows) == prompts_fingerprint([row | {"answer": "9"} for row in rows])
    assert prompts_fingerprint(rows) != prompts_fingerprint(rows[1:])
