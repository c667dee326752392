"""The program in a text that is still being written, and where its lines stand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mintrl_trl.judges.written_program import code_blocks, step_at, written_program

FUNCTION = "def f(n):\n    if n:\n        return 1\n    return 0\n"


def block(code: str, info: str = "python", closed: bool = True) -> str:
    return f"```{info}\n{code}" + "```\n" * closed


PROGRAMS = {
    "closed": (f"I think.\n\n{block(FUNCTION)}Done.", "f", FUNCTION, True),
    "last-that-defines": (block(FUNCTION) + block("f = len\n") + block("print(f(1))\n"), "f", "f = len\n", True),
    "no-language": (block(FUNCTION, ""), "f", FUNCTION, True),
    "indented": (
        "- So:\n  ```python\n" + "".join(f"  {line}\n" for line in FUNCTION.splitlines()) + "  ```\n",
        "f",
        FUNCTION,
        True,
    ),
    "method": (block("class S:\n    def f(self): pass\n"), "S.f", "class S:\n    def f(self): pass\n", True),
    "after-thinking": (f"<think>\n{block('f = 1')}</think>\n{block(FUNCTION)}", "f", FUNCTION, True),
    "open": (block(f"{FUNCTION}\nprint(f(", closed=False), "f", f"{FUNCTION}\n", False),
    "open-compound": (block(f"{FUNCTION}if f:\n    x = 1\nelse:\n    x", closed=False), "f", FUNCTION, False),
    "reads": (block("n = int(input())\nprint(n)\n"), None, "n = int(input())\nprint(n)\n", True),
}
NOTHING = {
    "prose": ("I would sort the list.", "f"),
    "no-fence": (FUNCTION, "f"),
    "other-language": (block(FUNCTION, "text"), "f"),
    "console": (block(f">>> {FUNCTION}"), "f"),
    "other-name": (block(FUNCTION), "g"),
    "thinking": (f"<think>\n{block(FUNCTION)}", "f"),
    "unfinished-function": (block(FUNCTION, closed=False), "f"),
    "unfinished-first-line": (block("def f(n", closed=False), "f"),
    "open-whole-program": (block("print(input())\n", closed=False), None),
    "example-of-output": (block("3 4\n", ""), None),
}


@pytest.mark.parametrize(("text", "name", "source", "finished"), list(PROGRAMS.values()), ids=list(PROGRAMS))
def test_program_so_far(text, name, source, finished):
    program = written_program(text, name)
    assert (program.source, program.finished) == (source, finished)
    for number, line in enumerate(source.splitlines(), start=1):
        assert text[program.place(number) :].lstrip(" ").startswith(line.lstrip(" "))


@pytest.mark.parametrize(("text", "name"), list(NOTHING.values()), ids=list(NOTHING))
def test_no_program_yet(text, name):
    assert written_program(text, name) is None


def test_a_program_is_known_where_its_fence_or_its_next_statement_begins():
    text = block(FUNCTION)
    assert written_program(text, "f").known_at == len(text) - 1  # the line break is not needed
    text = block(f"{FUNCTION}x = 2", closed=False)
    assert written_program(text, "f").known_at == text.index("x = 2") + 1


@pytest.mark.parametrize(
    ("source", "name", "line"),
    [
        (FUNCTION, "f", 4),
        ("def f(n):\n    print(n)\n\nprint(f(1))\n", "f", 2),
        ("def f(\n    n,\n):\n    return n\n\ndef g():\n    return 2\n", "f", 4),
        ("class S:\n    def f(self):\n        return 1\n    def g(self):\n        return 2\n", "S.f", 3),
        ("if True:\n    def f(): return 1\nx = 2\n", "f", 2),
        ("f = lambda n: n\n\n", "f", 1),
        ("n = int(input())\nprint(n)\nn = 0\n", None, 2),
        ("n = int(input())\nn = 0\n\n", None, 2),
    ],
    ids=["last-return", "no-return", "long-head", "method", "one-line", "assignment", "prints", "prints-nothing"],
)
def test_line_of_the_result(source, name, line):
    assert written_program(block(source), name).result_line(name) == line


def test_step_of_a_place():
    steps = ["ab", "c", "def"]
    assert [step_at(steps, place, 0) for place in range(7)] == [0, 0, 1, 2, 2, 2, 2]
    assert [step_at(steps, place, 1) for place in range(3)] == [1, 1, 1]


@given(st.text("`f\n #<thinkdef():=", max_size=60))
def test_blocks_are_parts_of_the_text(text):
    for found in code_blocks(text):
        assert text[found.start : found.start + len(found.code)] == found.code
        assert found.closed or found.end == len(text)
    program = written_program(text, "f")
    if program is not None:
        assert 0 < program.known_at <= len(text)
        assert found.start <= program.place(program.result_line("f")) <= len(text)
