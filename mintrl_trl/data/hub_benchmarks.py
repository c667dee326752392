r"""Rows of public benchmarks, as the hub publishes them, turned into ours.

Owns: which data set, split and files a benchmark is on the hub, and what their columns mean. Downloads only in
`hub_benchmark_rows`; the mappers are pure functions of one raw row. Invariant: a mapped row passes the same checks as a
row from a file, and no test stands in a prompt that is not the benchmark's own example.

| set | columns read |
|---|---|
| `MathArena/*` | `problem_idx`, `problem`, `answer` (a number or LaTeX) |
| `openai/gsm8k` | `question`, `answer` (a solution whose last line is `#### ` and the number) |
| `evalplus/humanevalplus` | `task_id`, `prompt`, `canonical_solution`, `entry_point`, `test` (defines `check`) |
| `evalplus/mbppplus` | `task_id`, `prompt`, `code`, `test_list`, `test` (a program that calls the function) |
| `livecodebench/*` | `question_id`, `question_content`, `starter_code`, `metadata`, both sets of `*_test_cases` |

EvalPlus's own programs are run as they are, as one assertion each, so its rules of comparison hold.
"""

import ast
import base64
import binascii
import io
import itertools
import json
import pickle
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import ConfigError, DataError
from .hub import map_deepcoder
from .rows import CODE_INSTRUCTION, MATH_INSTRUCTION, code_row, math_row, required_text, user_prompt

Mapper = Callable[[Mapping[str, Any], int, str], dict[str, Any] | None]

MAX_TESTS_BYTES = 2**30  # of one LiveCodeBench problem, unpacked; the largest have some tens of MB
_CALCULATOR = re.compile(r"<<[^<>]*>>")
# Its program on the hub asserts a number where it means "close to zero": no right program passes.
_BROKEN_TESTS = frozenset({"HumanEval/32"})


@dataclass(frozen=True)
class HubBenchmark:
    """Where a benchmark is on the hub.

    Args:
        repository (`str`): Id of the data set.
        mapper (`Callable`): From raw row, its number and the instruction to our row; `None` for a row to leave out.
        split (`str`): Its split.
        config (`str`, *optional*): Its configuration.
        file (`str`, *optional*): The JSON Lines file to read, for a set that has no other form.
    """

    repository: str
    mapper: Mapper
    split: str = "test"
    config: str | None = None
    file: str | None = None

    @property
    def source(self) -> str:
        """How messages and tables name it."""
        return f"{self.repository}, {self.file or f'split {self.split}'}"


def hub_benchmark_rows(
    benchmark: HubBenchmark, *, limit: int | None = None, instruction: str | None = None
) -> list[dict[str, Any]]:
    """Download a benchmark's rows.

    Args:
        benchmark ([`HubBenchmark`]): Where it is.
        limit (`int`, *optional*): Rows at most, from the beginning.
        instruction (`str`, *optional*): Text after each question, in place of the usual one.

    Raises:
        ConfigError: It cannot be fetched.
        DataError: A row that is not as expected.
    """
    try:
        return list(itertools.islice(_mapped(benchmark, instruction, streaming=limit is not None), limit))
    except OSError as error:  # not there, no connection, or offline by choice
        fix = "check the connection, or name a folder with the benchmark's file (--data)"
        raise ConfigError("benchmark", benchmark.source, f"a source that can be fetched ({error})", fix) from error


def _mapped(benchmark: HubBenchmark, instruction: str | None, *, streaming: bool) -> Iterator[dict[str, Any]]:
    usual = MATH_INSTRUCTION if benchmark.mapper in (map_matharena, map_gsm8k) else CODE_INSTRUCTION
    for index, row in enumerate(_raw_rows(benchmark, streaming)):
        mapped = benchmark.mapper(row, index, usual if instruction is None else instruction)
        if mapped is not None:
            yield mapped


def _raw_rows(benchmark: HubBenchmark, streaming: bool) -> Iterator[Mapping[str, Any]]:
    if benchmark.file is None:
        from datasets import load_dataset

        yield from load_dataset(benchmark.repository, benchmark.config, split=benchmark.split, streaming=streaming)
    else:
        from huggingface_hub import hf_hub_download

        path = hf_hub_download(benchmark.repository, benchmark.file, repo_type="dataset")
        with open(path, encoding="utf-8") as file:
            yield from map(json.loads, file)


def map_matharena(row: Mapping[str, Any], index: int = 0, instruction: str = MATH_INSTRUCTION) -> dict[str, Any]:
    """A problem of AIME or HMMT.

    Raises:
        DataError: `problem` or `answer` is missing or empty.
    """
    where, answer = f"MathArena, row {index}", row.get("answer")
    answer = answer if answer is None else str(answer)
    name = f"matharena/{row.get('problem_idx', index + 1)}"
    return math_row(where, id=name, problem=row.get("problem"), answer=answer, instruction=instruction)


def map_gsm8k(row: Mapping[str, Any], index: int = 0, instruction: str = MATH_INSTRUCTION) -> dict[str, Any]:
    """A word problem of GSM8K; its solution loses the calculator's marks.

    Raises:
        DataError: The solution does not end with `#### ` and an answer.
    """
    where = f"openai/gsm8k, row {index}"
    solution, mark, answer = required_text(where, "answer", row.get("answer")).rpartition("####")
    if not mark or not answer.strip():
        raise DataError(
            where, "answer", row.get("answer"), "a solution that ends with `#### ` and the answer", "drop it"
        )
    return math_row(
        where,
        id=f"gsm8k_test/{index + 1:04d}",
        problem=row.get("question"),
        answer=answer.strip().replace(",", ""),
        solution=_CALCULATOR.sub("", solution).strip(),
        instruction=instruction,
    )


def map_humaneval_plus(
    row: Mapping[str, Any], index: int = 0, instruction: str = CODE_INSTRUCTION
) -> dict[str, Any] | None:
    """A function to complete; `None` for the task whose program on the hub no right solution passes.

    Raises:
        DataError: A column is missing, or a program does not compile.
    """
    where = f"evalplus/humanevalplus, row {index}"
    name = required_text(where, "task_id", row.get("task_id"))
    if name in _BROKEN_TESTS:
        return None
    head = required_text(where, "prompt", row.get("prompt"))
    entry_point = required_text(where, "entry_point", row.get("entry_point"))
    test = required_text(where, "test", row.get("test"))
    call = f"check({entry_point})"
    code = test if test.endswith(call) else f"{test}\n\n{call}"
    return code_row(
        where,
        id=name,
        prompt=head,
        entry_point=entry_point,
        tests=[{"type": "assert", "group": "plus", "code": code}],
        compare="assert",
        reference_solution=f"{head}\n{row.get('canonical_solution') or ''}",
        instruction=instruction,
    )


def map_mbpp_plus(row: Mapping[str, Any], index: int = 0, instruction: str = CODE_INSTRUCTION) -> dict[str, Any]:
    """A function that a sentence and one assertion describe. The prompt is EvalPlus's: both, as a docstring.

    Raises:
        DataError: A column is missing, a program does not compile, or the first assertion calls no function of the
            solution.
    """
    where = f"evalplus/mbppplus, row {index}"
    text, solution = (required_text(where, column, row.get(column)) for column in ("prompt", "code"))
    examples = row.get("test_list")
    first = required_text(where, "test_list", examples[0] if examples else None)
    task = f'"""\n{text}\n{first}\n"""'
    mapped = code_row(
        where,
        id=f"Mbpp/{row.get('task_id', index)}",
        prompt=task,
        entry_point=_called(where, first, solution),
        tests=[{"type": "assert", "group": "plus", "code": required_text(where, "test", row.get("test"))}],
        compare="assert",
        reference_solution=solution,
        instruction=instruction,
    )
    return mapped | {"question": task, "prompt": user_prompt(task, instruction)}  # its tests stay out of sight


def map_livecodebench(row: Mapping[str, Any], index: int = 0, instruction: str = CODE_INSTRUCTION) -> dict[str, Any]:
    """A contest problem, as a whole program or a method of `Solution`, with its public and private tests.

    Raises:
        DataError: Tests that cannot be read.
    """
    where = f"livecodebench, row {index}"
    public = _loaded(where, "public_test_cases", row.get("public_test_cases"))
    private = _loaded(where, "private_test_cases", _unpacked(where, row.get("private_test_cases")))
    given = {
        "problem": row.get("question_content"),
        "tests": [*public, *private],
        "starter_code": row.get("starter_code"),
        "metadata": row.get("metadata"),
    }
    return map_deepcoder(given, index, "livecodebench", instruction) | {"id": f"lcb/{row.get('question_id', index)}"}


def _called(where: str, assertion: str, solution: str) -> str:
    """The function of the solution that an assertion calls."""
    try:
        defined = {node.name for node in ast.parse(solution).body if isinstance(node, ast.FunctionDef)}
        calls = [node.func for node in ast.walk(ast.parse(assertion)) if isinstance(node, ast.Call)]
    except (SyntaxError, ValueError) as error:
        raise DataError(where, "test_list", assertion, f"Python code ({error})", "drop the row") from error
    for function in calls:
        if isinstance(function, ast.Name) and function.id in defined:
            return function.id
    raise DataError(where, "test_list", assertion, f"a call of one of {sorted(defined)}", "drop the row")


def _loaded(where: str, field: str, text: Any) -> list[Any]:
    try:
        tests = json.loads(text)
    except (TypeError, ValueError) as error:
        raise DataError(where, field, text, f"JSON ({error})", "drop the row") from error
    if not isinstance(tests, list):
        raise DataError(where, field, text, "a list of tests", "drop the row")
    return tests


def _unpacked(where: str, text: Any) -> str:
    """Tests as JSON: as they are, or packed as a pickled text in zlib in base64."""
    if isinstance(text, str) and text.lstrip().startswith("["):
        return text
    try:
        unpacking = zlib.decompressobj()
        content = unpacking.decompress(base64.b64decode(text, validate=True), MAX_TESTS_BYTES)
        value = _TextOnly(io.BytesIO(content)).load()
    except (TypeError, ValueError, binascii.Error, zlib.error, pickle.UnpicklingError, EOFError) as error:
        raise DataError(where, "private_test_cases", text, f"packed tests ({error})", "drop the row") from error
    return value.decode() if isinstance(value, bytes) else value


class _TextOnly(pickle.Unpickler):
    """Reads a pickle of plain values. One that names a class or a function is refused, so nothing in it can run."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it wants to load {module}.{name}")
