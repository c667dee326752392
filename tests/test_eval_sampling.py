"""Evaluation: the policy alone is asked, n times per problem, and every response counts once, under its own problem."""

import contextlib
import math
from collections.abc import AsyncIterator

import pytest

from mintrl_trl.errors import ConfigError, DataError, GenerationError, RewardError
from mintrl_trl.evaluation import (
    EvalProblem,
    EvalResult,
    ProblemResult,
    evaluate_policy,
    sample_responses,
    score_responses,
)
from mintrl_trl.rollouts.doors import SampledToken
from mintrl_trl.rollouts.rollout import Role, StopReason
from mintrl_trl.rollouts.schedule import request_seed

from .samples import END, ByteVocabulary, ids

VOCABULARY = ByteVocabulary()


class RightEveryOther:
    """Answers `1` or `0` by the parity of its request's place in the calls for one prompt; records every call."""

    weight_version = "3"

    def __init__(self):
        self.calls: list[tuple[tuple[int, ...], int, int]] = []

    async def stream(self, prefix_ids, max_tokens: int, seed: int) -> AsyncIterator[SampledToken]:
        asked = sum(call[0] == tuple(prefix_ids) for call in self.calls)
        self.calls.append((tuple(prefix_ids), max_tokens, seed))
        for token in (ids("01"[asked % 2])[0], END)[:max_tokens]:
            yield SampledToken(token, None)


def problem(text: str, answer: str = "1", subset: str | None = None) -> EvalProblem:
    return EvalProblem(text, ids(text), {"answer": answer}, subset)


def exact_match(prompts, completions, completion_ids, answer, **kwargs) -> list[float]:
    return [float(text == right) for text, right in zip(completions, answer, strict=True)]


def test_counts_of_each_problem_and_subset():
    problems = [problem("a", "1", "easy"), problem("b", "2", "hard"), problem("c", "1", "hard"), problem("d", "0")]
    result = evaluate_policy(
        RightEveryOther(), VOCABULARY, problems, exact_match, num_samples=5, max_completion_tokens=8
    )
    assert [(p.samples, p.solved, p.unscored, p.truncated, p.tokens, p.subset) for p in result.problems] == [
        (5, 2, 0, 0, 10, "easy"),
        (5, 0, 0, 0, 10, "hard"),
        (5, 2, 0, 0, 10, "hard"),
        (5, 3, 0, 0, 10, None),
    ]
    assert result.subsets == ("easy", "hard")
    assert result.pass_at(1) == pytest.approx((0.4 + 0.0 + 0.4 + 0.6) / 4)
    assert result.pass_at(1, "hard") == pytest.approx(0.2)
    assert result.pass_at(2, "easy") == pytest.approx(0.7)  # 1 - C(3,2)/C(5,2)
    assert result.pass_at(5, "hard") == 0.5


def test_scores_do_not_fall_with_more_samples():
    for samples in (2, 4, 8, 16):
        result = evaluate_policy(
            RightEveryOther(), VOCABULARY, [problem("a")], exact_match, num_samples=samples, max_completion_tokens=8
        )
        assert result.pass_at(1) == 0.5


def test_requests_are_whole_controls_with_seeds_of_their_own():
    generator = RightEveryOther()
    responses = sample_responses(
        generator,
        VOCABULARY,
        [problem("a"), problem("b")],
        num_samples=3,
        max_completion_tokens=8,
        run_seed=5,
        update=7,
    )
    assert [[rollout.request.row for rollout in own] for own in responses] == [[0, 1, 2], [3, 4, 5]]
    assert all(rollout.request.role is Role.CONTROL and not rollout.reviews for own in responses for rollout in own)
    assert all(rollout.request.update == 7 for own in responses for rollout in own)
    assert {prefix for prefix, _, _ in generator.calls} == {ids("a"), ids("b")}
    assert {limit for _, limit, _ in generator.calls} == {8}
    seeds = {seed for _, _, seed in generator.calls}
    assert len(seeds) == 6
    assert not seeds & {request_seed(5, 7, row, 0) for row in range(6)}, "training draws from other streams"


@pytest.mark.parametrize("changes", [{"run_seed": 1}, {"update": 1}])
def test_seeds_follow_run_and_update(changes):
    def seeds(**settings):
        generator = RightEveryOther()
        sample_responses(generator, VOCABULARY, [problem("a")], num_samples=4, max_completion_tokens=8, **settings)
        return {seed for _, _, seed in generator.calls}

    assert seeds() == seeds()
    assert not seeds() & seeds(**changes)


def test_responses_can_be_scored_again_without_sampling():
    problems = [problem("a"), problem("b", "0")]
    generator = RightEveryOther()
    responses = sample_responses(generator, VOCABULARY, problems, num_samples=3, max_completion_tokens=8)
    first = score_responses(problems, responses, exact_match, VOCABULARY)
    always = score_responses(problems, responses, lambda prompts, **kwargs: [1] * len(prompts), VOCABULARY)
    assert [p.solved for p in first.problems] == [1, 2]
    assert [p.solved for p in always.problems] == [3, 3]
    assert len(generator.calls) == 6


def test_an_async_reward_is_awaited():
    async def reward(prompts, **kwargs):
        return [1.0] * len(prompts)

    problems = [problem("a")]
    responses = sample_responses(RightEveryOther(), VOCABULARY, problems, num_samples=2, max_completion_tokens=8)
    assert score_responses(problems, responses, reward, VOCABULARY).problems[0].solved == 2


def test_reward_gets_what_trl_passes():
    seen = {}

    def reward(**kwargs):
        seen.update(kwargs)
        kwargs["log_extra"]("why", ["equal"] * 2)
        kwargs["log_metric"]("share", 0.5)
        return [1.0, None]

    rows = [{"prompt": [{"role": "user", "content": "1?"}], "answer": "1", "tests": ["x"]}]
    tokenizer = ChatTokenizer()
    problems = [EvalProblem.from_row(row, tokenizer, chat_template_kwargs={"enable_thinking": False}) for row in rows]
    evaluate_policy(RightEveryOther(), VOCABULARY, problems, reward, num_samples=2, max_completion_tokens=8)
    assert seen["prompts"] == [rows[0]["prompt"]] * 2
    assert seen["completions"] == [[{"role": "assistant", "content": "0"}], [{"role": "assistant", "content": "1"}]]
    assert seen["completion_ids"] == [[*ids("0"), END], [*ids("1"), END]]
    assert (seen["answer"], seen["tests"]) == (["1", "1"], [["x"], ["x"]])
    assert type(seen["completions"][0][0]["content"]) is str


class ChatTokenizer:
    def __call__(self, text: str) -> dict:
        return {"input_ids": [0, *text.encode()]}

    def apply_chat_template(self, messages, **kwargs) -> dict:
        assert kwargs == {
            "add_generation_prompt": True,
            "tokenize": True,
            "return_dict": True,
            "enable_thinking": False,
        }
        return {"input_ids": [1, *messages[0]["content"].encode()]}


def test_rows_are_rendered_as_training_renders_them():
    text = EvalProblem.from_row({"prompt": "1?", "answer": "1"}, ChatTokenizer(), subset="easy")
    assert text == EvalProblem("1?", (0, *ids("1?")), {"answer": "1"}, "easy")


def test_truncated_responses_are_counted():
    result = evaluate_policy(
        RightEveryOther(), VOCABULARY, [problem("a")], exact_match, num_samples=2, max_completion_tokens=1
    )
    (counts,) = result.problems
    assert (counts.truncated, counts.tokens) == (2, 2)


@pytest.mark.parametrize("missing", [None, math.nan], ids=["none", "nan"])
def test_a_response_without_reward_is_not_solved_and_counted_apart(missing):
    rewards = iter([1.0, missing, 0.0, 1.0])
    result = evaluate_policy(
        RightEveryOther(),
        VOCABULARY,
        [problem("a"), problem("b")],
        lambda prompts, **kwargs: [next(rewards) for _ in prompts],
        num_samples=2,
        max_completion_tokens=8,
    )
    assert [(p.samples, p.solved, p.unscored) for p in result.problems] == [(2, 1, 1), (2, 1, 0)]


@pytest.mark.parametrize(
    ("rewards", "message"), [([1.0], "1 rewards for 2 responses"), ([None, math.nan], "no reward to any")]
)
def test_a_reward_function_that_breaks_its_contract(rewards, message):
    with pytest.raises(RewardError, match=message):
        evaluate_policy(
            RightEveryOther(),
            VOCABULARY,
            [problem("a")],
            lambda **kwargs: rewards,
            num_samples=2,
            max_completion_tokens=8,
        )


def test_wrong_requests_are_errors_before_anything_is_sampled():
    generator = RightEveryOther()
    with pytest.raises(ConfigError, match="problems"):
        sample_responses(generator, VOCABULARY, [], num_samples=1, max_completion_tokens=8)
    with pytest.raises(ConfigError, match="num_samples"):
        sample_responses(generator, VOCABULARY, [problem("a")], num_samples=0, max_completion_tokens=8)
    assert not generator.calls


def test_problems_of_unlike_columns_are_an_error_that_names_the_problem():
    problems = [problem("a"), EvalProblem("b", ids("b"), {"solution": "1"})]
    with pytest.raises(DataError, match="problem 1"):
        score_responses(problems, [[], []], exact_match, VOCABULARY)


def test_k_beyond_the_samples_and_unknown_subsets_are_errors():
    result = EvalResult((ProblemResult(4, 1, 0, 0, 40, "hard"),))
    with pytest.raises(ConfigError, match="1 to n = 4"):
        result.pass_at(5)
    with pytest.raises(ConfigError, match="hard"):
        result.pass_at(1, "easy")


def test_standard_error_is_over_problems():
    result = EvalResult(tuple(ProblemResult(4, solved, 0, 0, 40) for solved in (0, 4, 0, 4)))
    assert result.standard_error(1) == pytest.approx(math.sqrt(1 / 3) / 2)
    assert math.isnan(EvalResult(result.problems[:1]).standard_error(1))


def test_metrics_have_names_that_plots_read():
    result = EvalResult((ProblemResult(4, 1, 1, 2, 40, "hard"), ProblemResult(4, 4, 0, 0, 20, "easy")))
    assert result.metrics(ks=(1, 2)) == {
        "eval/pass@1": 0.625,
        "eval/pass@2": 0.75,
        "eval/hard/pass@1": 0.25,
        "eval/hard/pass@2": 0.5,
        "eval/easy/pass@1": 1.0,
        "eval/easy/pass@2": 1.0,
        "eval/unscored": 0.125,
        "eval/truncated": 0.25,
        "eval/no_answer": 0.0,
        "eval/length": 7.5,
    }


def test_sampling_can_be_watched():
    seen = []

    @contextlib.contextmanager
    def watch(sampler):
        seen.append(sampler.progress().total)
        yield
        seen.append(sampler.progress().finished)

    sample_responses(RightEveryOther(), VOCABULARY, [problem("a")], num_samples=3, max_completion_tokens=8, watch=watch)
    assert seen == [0, 3]


def test_a_policy_that_cannot_go_on_stops_the_evaluation():
    class Broken(RightEveryOther):
        async def stream(self, prefix_ids, max_tokens, seed):
            raise GenerationError("the server is gone")
            yield

    with pytest.raises(GenerationError, match="gone"):
        sample_responses(Broken(), VOCABULARY, [problem("a")], num_samples=2, max_completion_tokens=8)


def test_ended_responses_end_by_the_policy():
    (own,) = sample_responses(RightEveryOther(), VOCABULARY, [problem("a")], num_samples=1, max_completion_tokens=8)
    assert own[0].stop is StopReason.END
    assert own[0].spans[0].weight_version == "3"
