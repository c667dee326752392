"""Which of several blocks is the program, what comes with it, and blocks in unusual dress."""

import time

import pytest

from mintrl_trl.rewards.extraction import NoProgram, find_program

SOLUTION = "def f(x):\n    return x + 1\n"


def program(completion: str, *names: str) -> str:
    no_program, found = find_program(completion, names)
    assert no_program is None
    return found


def block(code: str, language: str = "python") -> str:
    return f"```{language}\n{code.strip()}\n```\n"


# Blocks


@pytest.mark.parametrize("word", ["", "python", "text"])
@pytest.mark.parametrize(
    "docstring",
    [
        '    """Add one.\n\n    ```{}\n    f(2)\n    ```\n    """',
        "    '''\n```{}\nf(2)\n```\n    '''",
        '    """Like ```f(2)```\n    or ```\n    ```{}"""',
    ],
    ids=["indented", "at-the-margin", "glued"],
)
def test_fences_in_a_docstring_are_part_of_it(docstring, word):
    solution = f"def f(x):\n{docstring.format(word)}\n    return x + 1\n"
    assert program(f"{block(solution)}Use it so:\n{block('print(f(3))')}", "f") == solution


def test_fences_in_a_string_at_the_margin():
    solution = 'TEXT = """\n```python\nf(2)\n```\n"""\ndef f(x):\n    return TEXT\n'
    assert program(block(solution), "f") == solution


def test_quotes_that_open_no_string_leave_fences_alone():
    solution = 'def f(x):\n    # no """ here, and don\'t\n    return x + 1\n'
    other = 'def g():\n    """Other."""\n'
    assert program(f"{block(solution)}and\n{block(other)}", "f") == solution


@pytest.mark.parametrize(
    "completion",
    [
        "> ```python\n> def f(x):\n>     return x + 1\n> ```",
        ">> ```python\n>> def f(x):\n>>     return x + 1\n>> ```\n>> Done.",
        ">```python\n>def f(x):\n>    return x + 1\n>```",
        "> ```python\n> def f(x):\n>     return x + 1\n\nThat is all.",
        "> ```python\ndef f(x):\n    return x + 1\n```",
    ],
    ids=["quoted", "twice", "without-blanks", "not-closed", "fence-alone"],
)
def test_quoted_blocks(completion):
    assert program(completion, "f") == SOLUTION


@pytest.mark.parametrize(
    ("opening", "closing"),
    [
        ("[PYTHON]", "[/PYTHON]"),
        ("<code>", "</code>"),
        ('<pre><code class="language-python">', "</code></pre>"),
        ("<answer>", "</answer>"),
    ],
)
def test_tags_stand_for_fences(opening, closing):
    assert program(f"{opening}\n{SOLUTION}{closing}", "f") == SOLUTION
    assert program(f"It is:\n{opening}\n{SOLUTION}{closing}\nIt prints\n```\n3\n```", "f") == SOLUTION
    assert program(f"{opening}\n{SOLUTION}", "f") == SOLUTION
    assert program(f"{opening}\nIt is\n{block(SOLUTION)}{closing}", "f") == SOLUTION
    assert program(f"{opening}\n{opening}\n{SOLUTION}{closing}\n{closing}", "f") == SOLUTION


def test_tags_in_prose_are_prose():
    assert program(f"<code>x</code> grows by one.\n{block(SOLUTION)}", "f") == SOLUTION
    assert find_program("<code>x</code> grows by <code>1</code>.") == (NoProgram.NO_CODE, "")
    assert program("<code>\nprint(1 &lt; 2)\n</code>") == "print(1 < 2)\n"


@pytest.mark.parametrize("start", ["\ufeff", "\u200b", "\ufeff\u200b"])
def test_characters_without_width_before_code(start):
    assert program(f"{start}```python\n{start}{SOLUTION}```", "f") == SOLUTION


@pytest.mark.parametrize(
    "line",
    [
        "x = '</think>'",
        'a, b = s.split("</think>", 1)',
        'r = re.compile(r"<think>.*?</think>")',
        "s = s.replace('<think>', '')",
        "s = f'<think>{x}</think>'",
        '"""Remove <think>...</think> parts."""',
        "# up to `</think>`",
    ],
)
def test_thinking_tags_in_quotes_are_text(line):
    solution = f"def f(x):\n    {line}\n    return x + 1\n"
    assert program(block(solution), "f") == solution
    assert program(f"I don't know, it's hard.</think>{block(solution)}", "f") == solution


# What the solution needs

HELPER = "def helper(x):\n    return x + 1\n"
CALLS_HELPER = "def f(x):\n    return helper(x)\n"


@pytest.mark.parametrize(
    ("others", "solution", "kept"),
    [
        ([HELPER], CALLS_HELPER, HELPER),
        ([HELPER + "\nprint(helper(2))\nassert helper(1) == 2\n"], CALLS_HELPER, HELPER),
        (["def one():\n    return 1", "def helper(x):\n    return x + one()"], CALLS_HELPER, "def one"),
        (["from math import gcd"], "def f(x):\n    return f'{gcd(x, 2)}'\n", "from math import gcd"),
        (["LIMIT = 10**9 + 7"], "def f(x):\n    return x % LIMIT\n", "LIMIT = 10**9 + 7"),
        (["class Node:\n    pass"], "def f(x: Node) -> int:\n    return 1\n", "class Node"),
        (["import functools\n@functools.cache\ndef helper(x):\n    return 1"], CALLS_HELPER, "@functools"),
    ],
    ids=["function", "and-a-demonstration", "chain", "import", "constant", "annotation", "decorator"],
)
def test_what_the_solution_needs_comes_with_it(others, solution, kept):
    whole = program("\nand\n".join(map(block, [*others, solution])), "f")
    assert kept in whole and whole.endswith(solution)
    assert "print" not in whole and "assert" not in whole
    compile(whole, "solution", "exec")


def test_what_the_solution_needs_may_follow_it():
    solution = "from __future__ import annotations\ndef f(x: int):\n    return helper(x)\n"
    whole = program(f"{block(solution)}with\n{block(HELPER)}", "f")
    assert whole == f"from __future__ import annotations\n{HELPER}def f(x: int):\n    return helper(x)\n"


def test_an_earlier_draft_stays_behind():
    draft = "def f(x):\n    y = x\n    return y\n"
    assert program(f"{block(draft)}Better:\n{block(SOLUTION)}", "f") == SOLUTION


# Which block


@pytest.mark.parametrize(
    "stub",
    [
        "def f(x):\n    ...",
        "def f(x): ...",
        'def f(x):\n    """Add one."""\n    # your code\n    pass',
        "def f(x: int) -> int:",
        "def f(\n    x: dict[str, int],\n) -> int:\n    raise NotImplementedError('later')",
        "from solution import f\nclass Test(TestCase):\n    def f(self):\n        pass",
    ],
    ids=["ellipsis", "line", "docstring", "head", "raises", "imported"],
)
def test_a_signature_is_no_solution(stub):
    assert program(f"{block(SOLUTION)}Signature:\n{block(stub)}", "f") == SOLUTION
    assert program(block(stub), "f") == f"{stub}\n"


def test_a_block_without_language_gives_way_to_python():
    cost = block("Time: O(1)\ndef f(x): constant", "")
    assert program(f"{block(SOLUTION)}Cost:\n{cost}", "f") == SOLUTION
    cost = block("Reading input (n) takes O(n), to print (it) O(1).", "")
    assert program(block("print(input())", "") + cost) == "print(input())\n"


WHOLE = "def solve():\n    a, b = map(int, input().split())\n    print(a + b)\n\nsolve()\n"


@pytest.mark.parametrize(
    "other",
    [
        "import sys\ninput = sys.stdin.readline",
        "def add():\n    a, b = map(int, input().split())\n    print(a + b)",
        "import io, sys\nsys.stdin = io.StringIO('1 2')\nsolve()\nprint('done')",
        "if __name__ == '__main__':\n    n = int(input())\n    solve()",
        "print(a + b)",
        "a, b = map(int, input().split())",
        "def test():\n    assert 1 + 2 == 3\ntest()\nprint('ok')",
    ],
    ids=["faster-input", "as-a-function", "demonstration", "another-call", "line", "line-that-reads", "test"],
)
def test_a_whole_program_is_the_block_that_reads_and_prints_by_itself(other):
    assert program(f"{block(WHOLE)}Or:\n{block(other)}") == WHOLE


def test_a_whole_program_in_two_blocks():
    main = "a, b = map(int, input().split())\nprint(add(a, b))\n"
    helper = "def add(a, b):\n    return a + b\n"
    assert program(f"{block(helper + 'print(add(1, 2))')}Now\n{block(main)}") == f"{helper}{main}"


# Time


@pytest.mark.parametrize(
    "part",
    [
        *("for ", "lambda ", "def f(", "x = [", '"\\"', 'f"{', "import a as b, ", "x" + " " * 20),
        *("[PYTHON]\n", "<code>\n```\n", "'</think>", "</think>'"),
        *("'''\n```\n", "> ```python\n> x\n", "```python\ndef g(): f(x)\n```\n"),
    ],
)
@pytest.mark.parametrize("before", ["", "```python\ny = 1\n```\n```python\n"], ids=["alone", "in-a-block"])
def test_time_is_linear_in_the_length(part, before):
    text = before + part * (60_000 // len(part))
    started = time.process_time()
    find_program(text, ["f"])
    find_program(text)
    assert time.process_time() - started < 2
