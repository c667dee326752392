"""Functions of untrusted programs, called from outside and tested by code that they cannot touch."""

import pytest

from mintrl_trl.rewards.jobs import Ending, Job, Stimulus, TestKind
from mintrl_trl.rewards.runner import Runner

from .sandboxed import call, observe, run_asserts


@pytest.fixture(scope="module")
def runner():
    with Runner(slots=1, test_seconds=20, row_seconds=40, memory_mb=512) as runner:
        yield runner


def named(cases: dict[str, object]) -> dict[str, object]:
    return {"argvalues": list(cases.values()), "ids": list(cases)}


def test_calls_give_plain_values(runner):
    program = "import sys\nprint('noise')\ndef f(x, y=2):\n  x.append(y)\n  return (x, {1: y})"
    job = Job(program, (Stimulus(TestKind.CALL, "[[1]]"), Stimulus(TestKind.CALL, "{'x': [], 'y': 5}", True)), "f")
    assert [seen.value for seen in observe(runner, job)] == [([1, 2], {1: 2}), ([5], {1: 5})]


NO_VALUE = {
    "raises": ("def f(x): raise ValueError('failed call')", Ending.ERROR),
    "asserts": ("def f(x): raise AssertionError", Ending.ERROR),
    "exits": ("import sys\nsys.exit(0)\ndef f(x): return x", Ending.EXITED),
    "exits-hard": ("import os\nos._exit(0)", Ending.EXITED),
    "exits-later": ("import sys\ndef f(x): sys.exit(0)", Ending.EXITED),
    "exits-hard-later": ("import os\ndef f(x): os._exit(0)", Ending.EXITED),
    "no-function": ("def g(x): return x", Ending.NO_ENTRY_POINT),
    "syntax": ("def f(x) return x", Ending.SYNTAX),
    "half-a-line": ("import os\nos.write(4, b'{\"value\": [')\ndef f(x): os._exit(0)", Ending.EXITED),
    "noise": ("import os\nos.write(4, b'[[[\\n' * 9)\ndef f(x): os._exit(0)", Ending.ERROR),
    "memory": ("def f(x): return [0] * 10**9", Ending.MEMORY_LIMIT),
    "nothing-to-raise": ("class E(Exception):\n  def __str__(s): return 1\ndef f(x): raise E", Ending.ERROR),
    "cannot-be-written": ("def f(x):\n  x.append(x)\n  return x", Ending.ERROR),
}


@pytest.mark.parametrize(("program", "ending"), **named(NO_VALUE))
def test_functions_that_give_no_value(runner, program, ending):
    assert [seen.ending for seen in call(runner, program, "[[1]]", "[[2]]")] == [ending] * 2


def test_the_usual_names_are_within_reach_and_pow_is_python_s_own(runner):
    program = (
        "class Solution:\n"
        "    def __init__(self): self.calls = 0\n"
        "    def f(self, x: List[int]) -> Tuple[int, ...]:\n"
        "        self.calls += 1\n"
        "        heappush(x, 1)\n"
        "        return Counter(x)[1], self.calls, pow(3, 4, 5), int(gcd(4, 6))\n"
    )
    job = Job(program, (Stimulus(TestKind.CALL, "[[1]]"), Stimulus(TestKind.CALL, "[[]]")), "Solution.f")
    assert [seen.value for seen in observe(runner, job)] == [(2, 1, 1, 2), (1, 1, 1, 2)]
    function = (
        "def f(x: List[int], more: Optional[Dict[str, Any]] = None) -> Tuple[int, ...]:\n"
        "    count = 5\n"
        "    return Counter(x)[1], math.gcd(4, 6), pow(3, 4, 5), count, sum(accumulate(x))\n"
    )
    assert call(runner, function, "[[1, 2]]")[0].value == (1, 2, 1, 5, 4)
    assert run_asserts(runner, function, "assert f([1, 2])[0] == 1") == [Ending.VALUE]


def test_a_usual_name_is_no_name_of_the_program(runner):
    calls = (Stimulus(TestKind.CALL, "[4, 6]"),)
    for name in ("gcd", "sqrt", "pow", "len", "Counter", "math.gcd", "Counter.keys"):
        assert observe(runner, Job("x = 1", calls, name))[0].ending is Ending.NO_ENTRY_POINT
    assert run_asserts(runner, "x = 1", "assert gcd(4, 6) == 2", entry_point="gcd") == [Ending.NO_ENTRY_POINT]


def test_whole_programs_import_their_own(runner):
    assert observe(runner, Job("print(gcd(4, 6))", (Stimulus(TestKind.STDIN, ""),)))[0].ending is Ending.ERROR


def test_assertions_hold_or_not(runner):
    program = "import math\ndef f(x):\n  if x < 0: raise ValueError('negative')\n  return math.sqrt(x)"
    codes = {
        "assert f(4) == 2": Ending.VALUE,
        "assert f(4) == 3": Ending.ASSERTION,
        "assert abs(f(2) - 1.41421) < 1e-3": Ending.VALUE,
        "assert math.isclose(f(9), 3)": Ending.VALUE,
        "for x in range(5):\n  assert f(x * x) == x": Ending.VALUE,
        "try:\n  f(-1)\n  assert False\nexcept ValueError as error:\n  assert str(error) == 'negative'": Ending.VALUE,
        "def check(candidate):\n  assert candidate(16) == 4\ncheck(f)": Ending.VALUE,
        "assert unknown(1)": Ending.ERROR,
        "f(-1)": Ending.ERROR,
        "assert (": Ending.SYNTAX,
    }
    assert run_asserts(runner, program, *codes) == list(codes.values())


@pytest.mark.parametrize(
    "fake",
    [
        "class math:\n  isclose = staticmethod(lambda *a: True)",
        "import unittest.mock as math\nmath.isclose = lambda *a: True",
        "import types\nmath = types.ModuleType('math')\nmath.isclose = lambda *a: True",
        "import operator as math\nmath.isclose = math.ne",
    ],
    ids=["class", "other module", "forged module", "operators"],
)
def test_a_module_that_tests_use_is_the_module(runner, fake):
    program = f"{fake}\ndef f(x): return 100"
    assert run_asserts(runner, program, "assert math.isclose(f(2), 4)") != [Ending.VALUE]
    assert run_asserts(runner, "import math\ndef f(x): return 4", "assert math.isclose(f(2), 4)") == [Ending.VALUE]


@pytest.mark.parametrize("fake", ["import operator as np", "class np:\n  ne = staticmethod(lambda *a: True)"])
def test_np_in_tests_is_numpy(runner, fake):
    assert run_asserts(runner, f"{fake}\ndef f(x): return 100", "assert np.ne(f(2), 4)") == [Ending.ERROR]
    program = "import numpy as np\ndef f(x): return np.array([x, 2 * x])"
    assert run_asserts(runner, program, "assert list(f(2)) == [2, 4] and np.isclose(1, 1)") == [Ending.VALUE]


def test_entry_point_may_be_named_like_a_builtin(runner):
    program = "def sum(a, b): return a - b\ndef len(x): return 7"
    codes = ["assert sum(3, 2) == 1", "assert len([0]) == 1"]  # the second is Python's own
    assert run_asserts(runner, program, *codes, entry_point="sum") == [Ending.VALUE] * 2


def test_assertions_without_the_function_say_so(runner):
    assert run_asserts(runner, "def g(x): return x", "assert f(1) == 1") == [Ending.NO_ENTRY_POINT]


def test_assertions_reach_classes_generators_and_dates_of_the_program(runner):
    program = (
        "import datetime, collections\n"
        "class Node:\n"
        "  def __init__(self, value): self.value, self.left = value, None\n"
        "  def __len__(self): return 1 + (len(self.left) if self.left else 0)\n"
        "  def __getitem__(self, i): return self.value[i]\n"
        "def f(n):\n  yield from range(n)\n"
        "def day(d): return d + datetime.timedelta(days=1)\n"
        "def queue(x): return collections.deque([x])\n"
        "class Odd(Exception): pass\n"
        "def odd(): raise Odd('x')\n"
    )
    setup = "import datetime, collections\nroot = Node('abc')\nroot.left = Node(1)"
    codes = [
        "assert len(root) == 2 and root.left.value == 1 and root[1] == 'b'",
        "assert root.left is not None and root.left == root.left and root != Node('abc')",
        "assert list(f(3)) == [0, 1, 2] and 2 in f(3)",
        "assert day(datetime.date(2020, 12, 31)) == datetime.date(2021, 1, 1)",
        "assert queue(1) == collections.deque([1])",
        "try:\n  odd()\nexcept Exception as error:\n  assert 'Odd' in str(error)",
    ]
    assert run_asserts(runner, program, *codes, entry_point=None, setup=setup) == [Ending.VALUE] * len(codes)


FORGERIES = {
    "equals-everything": "class A:\n  def __eq__(s, o): return True\n  __ne__ = __lt__ = __contains__ = __eq__\n"
    "def f(x): return A()",
    "number-that-equals": "class A(int):\n  def __eq__(s, o): return True\ndef f(x): return A(5)",
    "list-that-equals": "class A(list):\n  def __eq__(s, o): return True\n  def __getattr__(s, n): return s\n"
    "def f(x): return A()",
    "patches-builtins": "import builtins\nbuiltins.AssertionError = Exception\nbuiltins.isinstance = bool\n"
    "def f(x): return 5",
    "raises": "def f(x): raise AssertionError('passed')",
    "exits": "import sys\ndef f(x): sys.exit(0)",
    "exits-hard": "import os\nos._exit(0)",
    "forges-a-reply": "import os\nos.write(5, b'{\"value\": 5}\\n' * 9)\nf = 1",
    "forges-results": "import os\nfor fd in range(3, 30):\n  try: os.write(fd, b'{\"passed\": true}\\n' * 9)\n"
    "  except OSError: pass\ndef f(x): return 5",
    "searches-memory": "import gc\nfound = [text for box in gc.get_objects() if isinstance(box, (dict, list, tuple))\n"
    "  for text in (box.values() if isinstance(box, dict) else box)\n"
    "  if isinstance(text, str) and 'assert f' + chr(40) in text]\ndef f(x): return 4 if found else 5",
    "shadows": "def set(x): return 4\nabs = len = sorted = set\ndef f(x): return 5",
}


@pytest.mark.parametrize("program", **named(FORGERIES))
def test_forged_success_is_no_success(runner, program):
    codes = [
        "assert f(2) == 4",
        "assert 4 == f(2)",
        "assert f(2) in [4]",
        "assert not f(2) != 4",
        "assert {f(2)} == {4}",
    ]
    codes += ["assert set([f(2)]) == {4}", "assert abs(f(2) - 4) < 0.5", "assert 4 in [f(2)]"]
    assert Ending.VALUE not in run_asserts(runner, program, *codes)
    assert all(seen.value != 4 for seen in call(runner, program, "[2]"))
