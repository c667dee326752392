import asyncio
import subprocess
import sys
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mintrl_trl.errors import DataError, RewardError
from mintrl_trl.rewards import math as math_rewards
from mintrl_trl.rewards.equivalence import grade
from mintrl_trl.rewards.math import MathCheck, MathChecker, Why, find_answer, math_reward, require_golds
from mintrl_trl.rewards.reading import read

DEEP_FRACTION = r"\frac{1}{1+" * 24 + "1" + "}" * 24  # 289 characters; as text it would never end


@pytest.fixture(scope="module")
def checker():
    checker = MathChecker(processes=2)
    yield checker
    checker.close()


@pytest.fixture(scope="module")
def impatient():
    checker = MathChecker(processes=2, row_seconds=1.0)
    yield checker
    checker.close()


def reward(checker, completions, answer, prompts=None, **kwargs):
    prompts = ["?"] * len(completions) if prompts is None else prompts
    return asyncio.run(checker.reward(prompts=prompts, completions=completions, answer=answer, **kwargs))


def boxed(text):
    return rf"\boxed{{{text}}}"


@pytest.mark.parametrize(
    "answer",
    [r"10^{10^{10}}", r"\sum_{k=1}^{10^{9}} \frac{1}{k}", DEEP_FRACTION],
    ids=["tower", "long sum", "continued fraction"],
)
def test_answers_that_never_end_get_zero_and_harm_no_other_row(impatient, answer):
    checks = impatient.check_all([boxed("5"), boxed(answer), boxed("6"), boxed("5")], ["5"] * 4)
    assert [check.why for check in checks] == ["correct", "timeout", "wrong", "correct"]
    assert checks[1] == MathCheck(Why.TIMEOUT, answer)  # the log shows what was written


def test_batch_limit_cuts_what_is_left():
    checker = MathChecker(processes=1, row_seconds=30.0, batch_seconds=1.0)
    try:
        never_ending = [boxed(f"10^{{10^{{{n}}}}}") for n in (10, 11, 12)]
        assert [check.why for check in checker.check_all(never_ending, ["5"] * 3)] == [Why.TIMEOUT] * 3
    finally:
        checker.close()


def test_check_from_worker_threads(checker):
    results = []

    def ask():
        results.append(checker.check(boxed("5"), "5"))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [MathCheck(Why.CORRECT, "5")] * 8


def test_check_inside_a_running_event_loop(checker):
    async def ask():
        return checker.check(boxed("5"), "5").correct

    assert asyncio.run(ask())


def test_reward_gives_one_result_per_row_by_index(checker):
    golds = ["1", "2", "3", "4", r"\sqrt{}"]
    completions = [boxed("1"), "I don't know.", boxed("3"), "I don't know.", boxed("5")]
    assert reward(checker, completions, golds) == [1.0, 0.0, 1.0, 0.0, None]
    assert reward(checker, completions[::-1], golds[::-1]) == [None, 0.0, 1.0, 0.0, 1.0]
    assert reward(checker, [], []) == []


def test_reward_reads_messages(checker):
    text = [{"role": "assistant", "content": boxed("5")}]
    parts = [{"role": "assistant", "content": [{"type": "text", "text": boxed("5")}]}]
    prompts = [[{"role": "user", "content": "?"}]] * 2
    assert reward(checker, [text, parts], ["5", "5"], prompts) == [1.0, 1.0]


def test_prompt_that_opens_thinking_counts(checker):
    completions = [r"so \boxed{5}", r"so it is 5 </think> \boxed{5}", r"\boxed{5}"]
    prompts = ["?<think>\n", "?<think>\n", "?"]
    assert reward(checker, completions, ["5"] * 3, prompts) == [0.0, 1.0, 1.0]


def test_template_that_opens_thinking_can_be_declared():
    checker = MathChecker(prompt_opens_thinking=True)
    assert reward(checker, [r"so \boxed{5}"], ["5"], [[{"role": "user", "content": "?"}]]) == [0.0]


def test_reward_logs_reasons_and_shares(checker):
    columns, metrics = {}, {}
    completions = [boxed("5"), boxed("6"), "5", r"\boxed{5"]
    rewards = reward(
        checker,
        completions,
        ["5"] * 4,
        log_extra=columns.__setitem__,
        log_metric=metrics.__setitem__,
        question=["?"] * 4,
    )
    assert rewards == [1.0, 0.0, 0.0, 0.0]
    assert columns == {"why": ["correct", "wrong", "no_box", "unclosed"], "boxed": ["5", "6", "", ""]}
    assert set(metrics) == {f"reward/{why}" for why in Why}  # the same names each time, on every process
    assert metrics["reward/no_box"] == 0.25
    assert metrics["reward/timeout"] == 0.0
    assert sum(metrics.values()) == 1.0


@pytest.mark.parametrize(
    ("prompts", "completions", "answer", "message"),
    [
        (["?"], ["x"], ["1", "2"], "1 prompts, 1 completions and 2 answers"),
        (["?"], ["x"], [5], "row 0: `answer` is 5"),
        (["?"], ["x"], [None], "row 0: `answer` is None"),
        (["?"], [5], ["1"], "not int"),
        (["?"], [[]], ["1"], "not list"),
    ],
    ids=["lengths", "number", "nothing", "completion", "no message"],
)
def test_reward_refuses_what_it_cannot_score(checker, prompts, completions, answer, message):
    with pytest.raises(RewardError, match=message):
        reward(checker, completions, answer, prompts)


def test_equal_comparisons_run_once_and_plain_ones_never(checker, monkeypatch):
    submitted = []
    submit = checker._pool.submit
    monkeypatch.setattr(checker._pool, "submit", lambda *a, **k: submitted.append(a) or submit(*a, **k))
    checks = checker.check_all([boxed("5x"), boxed("5x"), boxed("6x"), boxed("5x")], ["5x", "5x", "5x", "6x"])
    assert [check.correct for check in checks] == [True, True, False, False]
    assert len(submitted) == 3
    checks = checker.check_all([boxed("5"), boxed("-5"), boxed("+05"), boxed("9" * 400)], ["5", "5", "5", "9" * 399])
    assert [check.correct for check in checks] == [True, False, True, False]
    assert len(submitted) == 3  # whole numbers need no child


def test_check_golds_finds_golds_that_do_not_equal_themselves(checker):
    golds = ["72", r"8\sqrt{10}", r"\frac{1}{2", r"\sqrt{}", "no solution", None, "1}2", "", "x^2+1"]
    assert checker.check_golds([{"answer": gold} for gold in golds]) == [
        (2, Why.UNCLOSED),
        (3, Why.GOLD_UNPARSED),
        (5, Why.EMPTY_BOX),
        (6, Why.GOLD_UNPARSED),
        (7, Why.EMPTY_BOX),
    ]


def test_public_functions_share_one_checker():
    math_rewards._default_checker.cache_clear()
    rewards = asyncio.run(math_reward(prompts=["?"], completions=[boxed("5")], answer=["5"]))
    assert rewards == [1.0]
    assert math_rewards.check(boxed("5.0"), "5") == MathCheck(Why.CORRECT, "5.0")
    assert math_rewards.check_golds([{"answer": "5"}]) == []
    require_golds([{"answer": "5"}, {"answer": "1,2"}])
    with pytest.raises(DataError, match=r"1 of 2 rows \(number 1\): `answer` is .*sqrt.*gold_unparsed.*Fix: correct"):
        require_golds([{"answer": "5"}, {"answer": r"\sqrt{}"}])
    math_rewards._default_checker().close()


def test_reward_function_carries_the_name_that_trl_logs():
    assert math_reward.__name__ == "math_reward"
    assert asyncio.iscoroutinefunction(math_reward)
    assert asyncio.iscoroutinefunction(MathChecker().reward)


@pytest.mark.parametrize(
    ("completion", "found"),
    [
        (r"\boxed{\{1,2\}}", r"\{1,2\}"),
        (r"\boxed{\frac{1}{2}} }", r"\frac{1}{2}"),
        (r"\boxed{ a } \boxed{b", None),
        (r"\boxed{x \boxed{5}}", "5"),
        (r"\boxed{1}, \boxed{2}, and \boxed{3}", "1, 2, 3"),
        (r"\boxed{1} so \boxed{2} and \boxed{3}", "2, 3"),
        (r"\boxed5", "5"),
        (r"\boxed{3} then \boxed -118.5.", "-118.5"),
        (r"In \boxed form: \boxed{4} or \boxed5", "4, 5"),
        (r"\framebox{63}", "63"),
        (r"\framebox[3cm][c]{63}", "63"),
        (r"$$\boxed{4}$$ $$\boxed{5}$$", "5"),
        ("\\[\n\\boxed{4}.\n\\]\n\n\\[\n\\boxed{5}\n\\]", "5"),
        (r"\[\boxed{4}\], \[\boxed{5}\]", "4, 5"),
        (r"$$x = \boxed{4}$$ $$y = \boxed{5}$$", "4, 5"),
        (r"\boxed{}, \boxed{5}", "5"),
        (r"$-\boxed{5}$", "-5"),
        (r"so $x = - \boxed{\frac12}$", r"-\frac12"),
        (r"\[x=-\boxed5\]", "-5"),
        (r"\(−\boxed{a+b}\)", "-(a+b)"),
        (r"$-\boxed{-5}$", "-(-5)"),
        (r"$x=-\boxed{3}$, $y=\boxed{5}$", "-3, 5"),
        (r"$x=-\boxed{3}$, $y=-\boxed{5}$", "-3, -5"),
        (r"$-\boxed{}$", None),
        (r"$5-\boxed{3}$", "3"),
        (r"from $x = 5$ - \boxed{5}", "5"),
        ("The steps:\n- \\boxed{5}", "5"),
        (r"The answer - \boxed{5}", "5"),
    ],
)
def test_last_box(completion, found):
    why, answer = find_answer(completion)
    assert (answer if why is None else None) == found


@pytest.mark.parametrize(
    "completion",
    [r"\boxed{5}\boxed{}", r"\boxed{5}, \boxed{ }", r"\boxed{5} or \boxed{~\,}", r"\boxed{{}}", r"\boxed{$$}"],
)
def test_an_empty_last_box_is_no_answer(completion):
    assert find_answer(completion) == (Why.EMPTY_BOX, "")


@pytest.mark.timeout(10)
@pytest.mark.parametrize(
    "between", [" or and", " \n", r"\quad", r"\text{ and or and}", r"\text{ and", "$$ ", "a_1", "a_{1"]
)
def test_long_text_between_boxes_is_read_in_linear_time(between):
    assert find_answer(r"\boxed{3}" + between * 5000 + r"!\boxed{5}") == (None, "5")


BALANCED = st.recursive(
    st.text("ab 1,=^", max_size=4) | st.sampled_from([r"\{", r"\}", r"\frac", "\n"]),
    lambda inner: st.lists(inner, max_size=3).map(lambda parts: "{" + "".join(parts) + "}"),
    max_leaves=6,
)


@given(BALANCED, st.text("x .}", max_size=5))
def test_whatever_is_balanced_comes_out_of_its_box(content, after):
    why, answer = find_answer(boxed(f"x{content}x") + after)
    assert (why, answer) == (None, f"x{content}x")


@given(st.text(r"\boxed{}<think>/ 1", max_size=60))
def test_no_text_upsets_the_search_for_an_answer(text):
    why, answer = find_answer(text)
    assert answer if why is None else why in Why


@given(st.integers(-(10**12), 10**12))
def test_a_number_is_read_the_same_with_and_without_separators(number):
    forms = [f"{number:,}", f"{number:,}".replace(",", "{,}"), f"{number:,}".replace(",", r"\,"), f"${number}$."]
    assert {read(form) for form in forms} == {str(number)}
    assert grade({"gold": str(number), "answer": f"{number:,}"}) == "correct"
    assert grade({"gold": str(number), "answer": str(number + 1)}) == "wrong"


def test_reward_module_loads_no_maths_library():
    code = (
        "import sys, mintrl_trl.rewards.math\n"
        "sys.exit(' '.join({'math_verify', 'sympy', 'torch', 'datasets'} & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=50)
    assert done.returncode == 0, done.stderr
