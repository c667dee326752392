"""Where the program is in a completion: odd fences, several blocks, no fences, thinking."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mintrl_trl.rewards.extraction import NoProgram, find_program

SOLUTION = "def f(x):\n    return x + 1\n"


def program(completion: str, *names: str) -> str:
    no_program, found = find_program(completion, names)
    assert no_program is None
    return found


@pytest.mark.parametrize(
    "completion",
    [
        pytest.param("```py\nprint(1)\n```", id="py"),
        pytest.param("```Python\nprint(1)\n```", id="capital"),
        pytest.param("```python3\nprint(1)\n```", id="python3"),
        pytest.param("```\nprint(1)\n```", id="bare"),
        pytest.param("```python \nprint(1)\n```", id="blank-after-language"),
        pytest.param("```python\r\nprint(1)\r\n```\r\n", id="crlf"),
        pytest.param("~~~python\nprint(1)\n~~~", id="tildes"),
        pytest.param("```python\nprint(1)\n", id="no-closing-fence"),
        pytest.param("print(1)\n```", id="only-a-closing-fence"),
        pytest.param("````python\nprint(1)\n````", id="four-backticks"),
        pytest.param("``` python\nprint(1)\n```", id="blank-before-language"),
        pytest.param("```{.python}\nprint(1)\n```", id="pandoc"),
        pytest.param('```python title="a.py"\nprint(1)\n```', id="attributes"),
        pytest.param("```python:a.py\nprint(1)\n```", id="file-name"),
        pytest.param("1. Like this:\n   ```python\n   print(1)\n   ```", id="indented"),
        pytest.param("- ```python\n  print(1)\n  ```", id="behind-a-list-mark"),
        pytest.param("The code: ```python\nprint(1)\n```", id="behind-prose"),
        pytest.param("```python\nprint(1)```", id="glued-closing-fence"),
        pytest.param("```print(1)```", id="one-line"),
        pytest.param("```python print(1)```", id="one-line-with-language"),
        pytest.param("```python\nprint(1)\n``` This prints 1.", id="prose-behind-closing-fence"),
        pytest.param("print(1)", id="no-fence"),
        pytest.param("\ufeffprint(1)\n", id="byte-order-mark"),
        pytest.param("print(1)\n```\nThis prints 1.", id="prompt-had-the-opening-fence"),
        pytest.param("<think>```python\nprint(2)\n```</think>```python\nprint(1)\n```", id="behind-thinking"),
    ],
)
def test_one_program_in_many_forms(completion):
    assert program(completion) == "print(1)\n"


@pytest.mark.parametrize(
    "completion",
    [
        pytest.param("def f():\n    return 1\n```", id="only-a-closing-fence"),
        pytest.param("```def f():\n    return 1\n```", id="def-is-no-language"),
        pytest.param("```python\n    def f():\n        return 1\n```", id="indented-inside"),
        pytest.param("Here it is:\ndef f():\n    return 1\n```", id="prose-before-a-closing-fence"),
        pytest.param("Here it is:\n\ndef f():\n    return 1\n", id="prose-without-fences"),
        pytest.param("```python\nx = 0\n\n```python\ndef f():\n    return 1\n```", id="opened-again-without-closing"),
    ],
)
def test_function_in_many_forms(completion):
    assert program(completion, "f") == "def f():\n    return 1\n"


def test_examples_after_the_solution_are_not_the_solution():
    completion = f"```python\n{SOLUTION}```\nExample:\n```python\nprint(f(2))  # 3\n```\nOutput:\n```\n3\n```"
    assert program(completion, "f") == SOLUTION


def test_last_definition_counts():
    draft = "def f(x):\n    return x\n"
    assert program(f"```python\n{draft}```\nBetter:\n```python\n{SOLUTION}```", "f") == SOLUTION
    assert program(f"```python\n{SOLUTION}```\nNot like this:\n```text\n{draft}```", "f") == SOLUTION


def test_method_and_assignment_define_a_name():
    solution = "class Solution:\n    def g(self):\n        return 1\n"
    assert program(f"```python\n{solution}```\n```python\nSolution().g()\n```", "Solution") == solution
    assert program("```python\nf = lambda x: x\n```\n```python\nf(1) == 1\n```", "f") == "f = lambda x: x\n"


def test_whole_program_is_the_last_that_reads_input():
    solution = "n = int(input())\nprint(n)\n"
    completion = (
        f"```python\nprint('draft')\n```\n```python\n{solution}```\nFor the input\n```\n5\n```\nit prints\n```\n5\n```"
    )
    assert program(completion) == solution
    assert program("```\n3\n1 2 3\n```\n```python\nprint(6)\n```\n```\n6\n```") == "print(6)\n"


def test_other_languages_and_consoles_only_if_there_is_nothing_else():
    assert program(f"```python\n{SOLUTION}```\n```bash\npython f.py\n```") == SOLUTION
    assert program(f"```python\n{SOLUTION}```\n```python\n>>> f(1)\n2\n```", "f") == SOLUTION
    assert program("```text\nprint(1)\n```") == "print(1)\n"


def test_fence_inside_longer_fence_is_text():
    assert program('````python\ns = """\n```\n"""\n````') == 's = """\n```\n"""\n'


@pytest.mark.parametrize(
    ("completion", "why"),
    [
        ("", NoProgram.NO_CODE),
        ("I would sort the list, from the smallest on.", NoProgram.NO_CODE),
        ("# Approach\nWe iterate over the list.", NoProgram.NO_CODE),
        ("```python\n\n```", NoProgram.NO_CODE),
        ("<think>Let me see. ```python\nprint(1)\n```", NoProgram.UNFINISHED_THINKING),
    ],
    ids=["empty", "prose", "heading", "empty-block", "thinking"],
)
def test_no_program(completion, why):
    assert find_program(completion) == (why, "")


@given(st.lists(st.sampled_from(["```", "~~~", "python", "\n", " ", "def f():", "x = 1", "`", "-", "<think>", "a[]"])))
def test_any_text_has_an_answer(parts):
    no_program, found = find_program("".join(parts), ["f"])
    assert bool(found.strip()) == (no_program is None)


@pytest.mark.parametrize(
    "part", ["`", "~", "```python\n", "a[b]", "x, ", "import a.", "(", "print ", "class a", "# \n"]
)
def test_time_is_linear_in_the_length(part):
    started = time.perf_counter()
    find_program(part * 50_000)
    assert time.perf_counter() - started < 2
