import asyncio
import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mintrl_trl.errors import DataError, RewardError
from mintrl_trl.rewards import math as math_rewards
from mintrl_trl.rewards.equivalence import grade, read
from mintrl_trl.rewards.math import MathCheck, MathChecker, Why, find_answer, math_reward, require_golds

PAIRS = [
    json.loads(line)
    for line in (Path(__file__).parent / "fixtures" / "math_pairs.jsonl").read_text(encoding="utf-8").splitlines()
]
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
    ("gold", "completion", "why"),
    [
        # The gold answer is read as LaTeX as a whole, not as the first number in it.
        (r"8\sqrt{10}", boxed(r"8\sqrt{10}"), "correct"),
        (r"8\sqrt{10}", boxed("8"), "wrong"),
        (r"1-\frac{2}{\pi}", boxed(r"1-\frac{2}{\pi}"), "correct"),
        (r"1-\frac{2}{\pi}", boxed("1"), "wrong"),
        (r"2^{25} \cdot 26!", boxed(r"2^{25} \cdot 26!"), "correct"),
        (r"2^{25} \cdot 26!", boxed("26"), "wrong"),
        (r"9\sqrt{15}", boxed("9"), "wrong"),
        (r"\sqrt{6}", boxed(r"\sqrt{6}"), "correct"),
        (r"\frac{9 \sqrt{23}}{23}", boxed(r"\frac{9 \sqrt{23}}{23}"), "correct"),
        (r"\dfrac{9}{7}", boxed(r"\dfrac{9}{7}"), "correct"),
        ("B", boxed("B"), "correct"),
        # Cut off: the last box is the answer, and it is not there.
        ("12", r"So we get \boxed{12} then \boxed{1", "unclosed"),
        ("12", r"So we get \boxed{12}, which", "correct"),
        # Thinking.
        ("7", r"<think> maybe \boxed{7}? let me check", "unfinished_thinking"),
        ("7", r"<think> maybe \boxed{8}? </think> It is \boxed{7}.", "correct"),
        ("7", r"<think> It is \boxed{7}. </think> So that is it.", "no_box"),
        ("7", r"maybe \boxed{7} </think> \boxed{8}", "wrong"),
        # Sets, pairs, intervals.
        ("$(1,2)$", boxed(r"\{1,2\}"), "wrong"),
        ("$(1,2)$", boxed("1,2"), "correct"),
        ("$(1,2)$", boxed("(2,1)"), "wrong"),
        ("$(1,2)$", boxed("[1,2]"), "wrong"),
        (r"\{1,2\}", boxed("(1,2)"), "wrong"),
        (r"\{1,2\}", boxed(r"\left\{2, 1\right\}"), "correct"),
        ("[0,9)", boxed(r"\left[0, 9\right)"), "correct"),
        ("[0,9)", boxed("[0,9]"), "wrong"),
        ("(1,2),(3,4)", boxed("(3,4),(1,2)"), "correct"),
        # Lists.
        ("1, 2", boxed("1, 2"), "correct"),
        ("1, 2", boxed("2"), "wrong"),
        (r"a, b", r"\boxed{a} and \boxed{b}", "correct"),
        (r"1, 2", r"$y_1 = \boxed{1}$, $y_2 = \boxed{2}$", "correct"),
        # Legal LaTeX without braces.
        (r"$2\sqrt{3}$", boxed(r"2\sqrt3"), "correct"),
        (r"\frac{1}{2}", boxed(r"\frac12"), "correct"),
        # Trimmings around a number.
        ("118", boxed("118."), "correct"),
        ("118", r"\boxed {118}", "correct"),
        ("118", boxed(r"\approx 118"), "correct"),
        ("118", boxed(r"\text{The answer is } 118"), "correct"),
        ("118", boxed(r"118\ldots"), "correct"),
        ("118", boxed("N = 118"), "correct"),
        ("118", boxed(r"\mathbf{118}"), "correct"),
        ("118", boxed(r"\text{about } 119"), "wrong"),
        # Candidate lists earn nothing, later answers replace earlier ones.
        ("840", r"\boxed{840}., ... **Final Answer** \boxed{840}", "correct"),
        ("5", r"\boxed{3}. Checking again it is \boxed{5}.", "correct"),
        ("5", r"\boxed{5}. Checking again it is \boxed{3}.", "wrong"),
        ("5", r"\boxed{3} or \boxed{5}", "wrong"),
        ("5", r"\boxed{3 \text{ or } 5}", "wrong"),
        ("5", r"\boxed{1} " * 4000 + r"\boxed{5}", "wrong"),
        ("5", r"$\boxed{5}$ $\boxed{5}$", "correct"),
        # No box, no reward.
        ("73", "Final Answer: **73**", "no_box"),
        ("73", "", "no_box"),
        ("73", r"Put it within \boxed{}.", "empty_box"),
        ("73", boxed(r"\text{cannot be determined}"), "wrong"),
        ("73", boxed("73" + " + 0" * 700), "too_long"),
        ("73", boxed(r"\frac{73"), "unclosed"),
        ("73", boxed(r"\sqrt{}"), "answer_unparsed"),
        ("63", r"\fbox{63}", "correct"),
        # How people write the answers of word problems.
        ("18", boxed(r"\$18"), "correct"),
        ("18", boxed("$18$"), "correct"),
        ("18", boxed("18.00"), "correct"),
        ("18", boxed("18 dollars"), "correct"),
        ("18", boxed(r"18~\text{cm}"), "correct"),
        ("18", boxed(r"\text{18 apples}"), "correct"),
        ("18", boxed(r"18^\circ"), "correct"),
        ("12", boxed(r"12 \text{ dozen}"), "wrong"),
        ("70000", boxed("70,000"), "correct"),
        ("70000", boxed(r"\$70{,}000.00"), "correct"),
        ("70000", boxed("70 000"), "correct"),
        ("32349", boxed("32, 349"), "wrong"),
        ("(100,200)", boxed("(100,200)"), "correct"),
        (r"28\%", boxed("28"), "correct"),
        (r"28\%", boxed("0.28"), "correct"),
        ("28", boxed("0.28"), "wrong"),
        (r"\frac{1}{3}", boxed("0.333333"), "correct"),
        (r"\frac{1}{3}", boxed("0.33"), "wrong"),
        ("204_5", boxed("204_7"), "wrong"),
        ("204_5", boxed("204"), "correct"),
        ("east", boxed(r"\text{East}"), "correct"),
        ("east", boxed("seat"), "wrong"),
        ("C", boxed(r"\text{(C)}"), "correct"),
        (r"1-\frac{1}{\mathrm{e}}", boxed(r"1-e^{-1}"), "correct"),
        # Golds as data sets have them.
        (r"So it is \[ \boxed{11111111100} \]", boxed(r"11,\! 111,\! 111,\! 100"), "correct"),
        (r"$21,16$ or $11$", boxed("11, 16, 21"), "correct"),
        (r"\sqrt{}", boxed("3"), "gold_unparsed"),
    ],
    ids=lambda value: value if len(value) < 30 else value[:30] + "...",
)
def test_rule(checker, gold, completion, why):
    assert checker.check(completion, gold).why == why


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


def test_labelled_pairs(checker):
    checks = checker.check_all([pair["prediction"] for pair in PAIRS], [pair["gold"] for pair in PAIRS])
    wanted = [pair["equal"] and "boxed" in pair["prediction"] for pair in PAIRS]
    assert [pair["id"] for pair, check, want in zip(PAIRS, checks, wanted, strict=True) if check.correct != want] == []
    assert len(PAIRS) == 65


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


def test_equal_comparisons_run_once(checker, monkeypatch):
    submitted = []
    submit = checker._pool.submit
    monkeypatch.setattr(checker._pool, "submit", lambda *a, **k: submitted.append(a) or submit(*a, **k))
    checks = checker.check_all([boxed("5"), boxed("5"), boxed("6"), boxed("5")], ["5", "5", "5", "6"])
    assert [check.correct for check in checks] == [True, True, False, False]
    assert len(submitted) == 3


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
    ],
)
def test_last_box(completion, found):
    why, answer = find_answer(completion)
    assert (answer if why is None else None) == found


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
