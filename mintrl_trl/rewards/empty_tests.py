r"""Tests that ask nothing: a program that does nothing passes them.

Owns: what can be told of tests without running anything, and the programs that do nothing. Never runs a program, and
never looks at a completion: whether tests ask anything is a matter of the row. Invariant: a row whose tests any honest
program would pass is called empty, a row of which one test can tell something is not.

| tests | empty if |
|---|---|
| `stdin` | each expects no output |
| `call` | each accepts `None` |
| `assert` | no assertion in them can fail: there is none, it stands in a function that nothing calls or behind `if False`, its condition is a tuple or `True`; or, where that does not decide, they pass on each of `nothing_programs` |
| of several kinds | each kind is |

`f(3) == 9` on a line of its own asserts nothing, whatever `f` returns. `assert f(3) != 9` is one assertion too few: it
passes if `f` returns nothing at all.
"""  # noqa: E501 - a row of a table is one line

import ast
import builtins
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache

from .code_task import CodeTask
from .jobs import TestKind

_NOTHING = """
def nothing(*args, **kwargs):
    return None
"""
_ANYTHING = """
class Anything:
    def __init__(self, *args, **kwargs):
        pass
    def __call__(self, *args, **kwargs):
        return Anything()
    def __getattr__(self, name):
        return Anything()
nothing = Anything()
"""
_PROGRAMS = (_NOTHING, _ANYTHING)  # what `nothing` is, under every name that tests may use
_BUILTINS = frozenset(dir(builtins))
_MAY_END_OR_RUN = frozenset({"exit", "quit", "exec", "eval", "__import__"})


def asks_something(task: CodeTask) -> bool | None:
    """Whether a row's tests ask anything of a program; `None` if it takes a run of `nothing_programs` to tell."""
    for case in task.cases:
        match case.stimulus.kind:
            case TestKind.STDIN:
                passes = case.accepts("", task.rule, task.rule_atol)
            case TestKind.CALL:
                passes = case.accepts(None, task.rule, task.rule_atol)
            case TestKind.ASSERT:
                continue
        if not passes:
            return True
    return _assert_something(task.setup, *task.codes) if task.codes else False


def nothing_programs(task: CodeTask) -> tuple[str, ...]:
    """Programs that do nothing, but have every name that the tests use."""
    names = {task.entry_point.partition(".")[0]} if task.entry_point else set()
    for tree in map(_parsed, (task.setup, *task.codes)):
        names.update(node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id not in _BUILTINS)
    return tuple(program + "".join(f"{name} = nothing\n" for name in sorted(names)) for program in _PROGRAMS)


@lru_cache(maxsize=256)
def _assert_something(setup: str, *codes: str) -> bool | None:
    trees = [_parsed(code) for code in (setup, *codes)]
    reading = _Reading([statement for tree in trees for statement in tree.body])
    if not any(map(reading.can_fail, reading.nodes)):
        return False
    certain = any(reading.compares_result(statement) for tree in trees for statement in tree.body)
    return True if certain else None


def _parsed(code: str) -> ast.Module:
    with warnings.catch_warnings(action="ignore"):
        return ast.parse(code)


@dataclass
class _Reading:
    """The part of a module that is executed when it is loaded.

    Args:
        body (`list[ast.stmt]`): The module's statements.
        nodes (`list[ast.AST]`): Nodes that are reached, those in functions that are used included.
        imported (`set[str]`): Names that it imports.
        assigned (`set[str]`): Names that it binds otherwise, functions and classes apart.
        functions (`dict[str, list[ast.AST]]`): By name, the functions and classes that it defines.
    """

    body: list[ast.stmt]
    nodes: list[ast.AST] = field(default_factory=list)
    imported: set[str] = field(default_factory=set)
    assigned: set[str] = field(default_factory=set)
    functions: dict[str, list[ast.AST]] = field(default_factory=dict)

    def __post_init__(self):
        used: set[str] = set()
        entered: set[str] = set()
        waiting: list[ast.AST] = list(self.body)
        while waiting:
            for node in _executed(waiting):
                self.nodes.append(node)
                match node:
                    case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                        self.functions.setdefault(name, []).append(node)
                        used |= {name} if node.decorator_list else set()
                    case ast.Name(id=name, ctx=ast.Load()) | ast.Attribute(attr=name):
                        used.add(name)
                    case ast.Name(id=name) | ast.arg(arg=name):
                        self.assigned.add(name)
                    case ast.alias(name=name, asname=other):
                        self.imported.add(other or name.partition(".")[0])
            reached = (used & self.functions.keys()) - entered
            entered |= reached
            waiting = []
            for node in [node for name in reached for node in self.functions[name]]:
                waiting += node.body
                if isinstance(node, ast.ClassDef):  # who uses a class may use all its methods
                    waiting += [part for item in node.body for part in getattr(item, "body", ())]

    def can_fail(self, node: ast.AST) -> bool:
        """Whether a node is there to fail, or does what cannot be seen from here."""
        match node:
            case ast.Raise():
                return True
            case ast.Assert(test=test):
                return not _holds_always(test)
            case ast.Call(func=ast.Name(id=name)):
                return name in _MAY_END_OR_RUN or name in self.imported
            case ast.Call(func=ast.Attribute(attr=attribute) as function):
                return attribute.startswith(("assert", "fail")) or _root(function) in self.imported
            case ast.Call():
                return True
        return False

    def compares_result(self, statement: ast.stmt) -> bool:
        """Whether it asserts that the program's function returns some value, such as `assert f(3) == 9`."""
        match statement:
            case ast.Assert(test=ast.Compare(left=left, ops=[ast.Eq()], comparators=[right])):
                return any(self._is_of_the_program(a) and _is_value(b) for a, b in ((left, right), (right, left)))
        return False

    def _is_of_the_program(self, node: ast.AST) -> bool:
        match node:
            case ast.Call(func=ast.Name(id=name)):
                return name not in _BUILTINS.union(self.imported, self.assigned, self.functions)
        return False


def _executed(statements: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """The nodes of statements, without bodies of functions and classes, and without branches never taken."""
    waiting = list(statements)
    while waiting:
        node = waiting.pop()
        yield node
        match node:
            case ast.If(test=test) | ast.While(test=test) if isinstance(test, ast.Constant):
                waiting += node.body if test.value else node.orelse
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                waiting += [*node.decorator_list, node.args]
            case ast.ClassDef():
                waiting += [*node.decorator_list, *node.bases, *node.body]
            case _:
                waiting += ast.iter_child_nodes(node)


def _holds_always(test: ast.expr) -> bool:
    match test:
        case ast.Constant(value=value):
            return bool(value)
        case ast.Tuple(elts=items) | ast.List(elts=items):
            return bool(items)
        case ast.UnaryOp(op=ast.Not(), operand=ast.Constant(value=value)):
            return not value
    return isinstance(test, ast.Lambda)


def _is_value(node: ast.expr) -> bool:
    try:
        return ast.literal_eval(node) is not None
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return False


def _root(node: ast.expr) -> str:
    """The name that a chain of attributes begins with."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""
