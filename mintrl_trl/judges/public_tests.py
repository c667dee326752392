r"""A judge that runs the public examples of a programming task on the program so far.

Owns the verdicts that follow from running, and the wording of what was found. It knows the tests that stand in the
question (`judges.examples`) and no other, and never blocks the event loop: programs run in a `Sandbox` with its limits.
What it has to know of a row is given at construction, by question; nothing of it is in a `Problem`, so nothing reaches
the policy but what a correction says of a public example. A row's reference solution serves to confirm examples that
only the question states, and for nothing else.

| program so far (`judges.written_program`) | verdict |
|---|---|
| no example in the question | `NoVerdict("no_public_example")`; with an inner judge, the inner judge's |
| none, or it was whole before the newest chunk | keep; with an inner judge, the inner judge's |
| every example passes | the same |
| an example fails | revise the step to blame |
| the block is open | a wrong value alone fails an example: whatever else goes wrong may still be mended |
| the sandbox failed, or was too busy | `NoVerdict("sandbox_failed")`, `NoVerdict("sandbox_busy")` |

Invariant: a Revise of its own names an example that the very text up to here fails, or code that does not compile.
"""

import asyncio
import json
import logging
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ..errors import ConfigError, DataError, JudgeError, MInTRLError, NoVerdict
from ..rewards.jobs import Job, Observation, Sandbox, SandboxError, TestKind
from ..rewards.runner import Runner
from ..rewards.testcases import TestCase, check_rule, read_tests
from ..rewards.verdicts import CodeCheck, Trial, Why
from ..rollouts.doors import KEEP, Correction, Judge, Revise, Verdict, Vocabulary
from ..rollouts.rollout import Problem
from .examples import as_call, public_tests, stated_tests
from .failing_line import failing_line, tracing_job
from .reply import MAX_REASON_CHARS
from .written_program import WrittenProgram, code_blocks, step_at, written_program

logger = logging.getLogger(__name__)

WAIT_SECONDS = 60.0
STDIN = "stdin"  # entry point of rows whose tests run a whole program
_SHOWN_CHARS = 40
_BUT = ", but this way "
_FINDINGS = {
    Why.TIMEOUT: "it does not come to an end",
    Why.EXITED: "the program ends too early",
    Why.OUTPUT_LIMIT: "it prints without end",
    Why.MEMORY_LIMIT: "it needs too much memory",
}
_SYNTAX_PLACE = re.compile(r"^SyntaxError: | \([\w.]+, line \d+\)$")
_TOKEN_LIKE = re.compile(r" ?([A-Z]?[a-z]+|[A-Z]+)|.", re.DOTALL)


@dataclass(frozen=True)
class PublicExamples:
    """The public tests of one question, and what it takes to run them.

    Args:
        tests (`tuple[TestCase, ...]`): The row's own.
        stated (`tuple[TestCase, ...]`): Further ones that the question states and nothing has confirmed yet.
        reference (`str`): The program that confirms them.
        entry_point (`str`, *optional*): Function or `Class.method`; `None` for whole programs.
        rule (`str`): How values are compared; see `rewards.comparison`.
        rule_atol (`float`): Tolerance of the rule.
        setup (`str`): Code that assertions need first.
    """

    tests: tuple[TestCase, ...]
    stated: tuple[TestCase, ...]
    reference: str
    entry_point: str | None
    rule: str
    rule_atol: float
    setup: str


class PublicTestsJudge:
    """Runs the public examples on what is written, alone or on behalf of another judge.

    Alone it keeps what passes and writes a short correction that names the failing example. With an inner judge, what
    it finds becomes the verdict and its reason, and the inner judge writes the correction; where it finds nothing, the
    inner judge reviews.

    Args:
        rows (`Iterable[Mapping]`): Data rows with `question`, `tests` and `entry_point`, and optionally `compare`,
            `compare_atol`, `test_setup` and, as reference solution, `privileged_context`. Of rows with the same
            question the first counts.
        inner (`Judge`, *optional*): Another judge, such as `LLMJudge(..., domain="code")`.
        sandbox (`Sandbox`, *optional*): Where programs run; by default a `Runner` of its own on this machine.
        count_tokens (`Callable`, *optional*): From a text to its number of policy tokens, so that a correction fits its
            limit; by default a cautious estimate.
        wait_seconds (`float`, defaults to 60.0): Limit of a review's run, waiting for the sandbox included.

    Raises:
        ConfigError: There is no inner judge and no row has a public example.
        DataError: A row without question, or with tests that cannot be read.

    Example:

    ```python
    >>> tests = [{"type": "call", "args": "[2]", "expected": "19"}]
    >>> row = {"question": "Count the cells: cells(2) == 19.", "tests": tests, "entry_point": "cells"}
    >>> judge = PublicTestsJudge([row])
    >>> judge.has_example("Count the cells: cells(2) == 19.")
    True

    ```
    """

    def __init__(
        self,
        rows: Iterable[Mapping[str, object]],
        inner: Judge | None = None,
        *,
        sandbox: Sandbox | None = None,
        count_tokens: Callable[[str], int] | None = None,
        wait_seconds: float = WAIT_SECONDS,
    ):
        if not wait_seconds > 0:
            raise ConfigError("wait_seconds", wait_seconds, "a number above 0", f"use {WAIT_SECONDS:g}")
        self._examples: dict[str, PublicExamples | None] = {}
        for number, row in enumerate(rows):
            question, tests = row.get("question"), row.get("tests")
            if not isinstance(question, str):
                fix = "give the text that the policy is asked, as in its prompt"
                raise DataError(f"row {number}", "question", question, "text", fix)
            if not isinstance(tests, str | Sequence):
                raise DataError(f"row {number}", "tests", tests, "a list of tests, or its JSON text", "add the tests")
            if question not in self._examples:
                self._examples[question] = _examples(row)
        found = sum(examples is not None for examples in self._examples.values())
        if not found and inner is None:
            allowed = "rows of which some show a test's input and output in their question"
            raise ConfigError(
                "rows", f"{len(self._examples)} questions without", allowed, "pass an inner judge as well"
            )
        logger.info("%d of %d questions hold a public example", found, len(self._examples))
        self.inner, self.wait_seconds = inner, wait_seconds
        self._owns_sandbox = sandbox is None
        self._sandbox = Runner() if sandbox is None else sandbox
        self._count_tokens = count_tokens if count_tokens is not None else cautious_token_count
        self._passed = self._failed = 0

    @property
    def weight_version(self) -> str:
        """Name of what writes the corrections; empty where that is no model."""
        return getattr(self.inner, "weight_version", "")

    def settings(self) -> dict[str, object]:
        """What its verdicts depend on, besides the rows: those of the inner judge."""
        inner = None if self.inner is None else type(self.inner).__qualname__
        return {"inner": inner, **(self.inner.settings() if hasattr(self.inner, "settings") else {})}

    def has_example(self, question: str) -> bool:
        """Whether a row with this question was given and shows an example, confirmed or not."""
        return self._examples.get(question) is not None

    async def review(self, problem: Problem, steps: Sequence[str], first_new: int, *, seed: int) -> Verdict:
        """Run the public examples on the program so far, if the newest chunk made it whole.

        Raises:
            NoVerdict: See the module's table; and whatever the inner judge raises.
            JudgeError: Programs cannot be run on this machine.
        """
        examples = await self._confirmed(problem.question)
        finding = None
        if examples is not None:
            text = "".join(steps)
            program = written_program(text, examples.entry_point)
            if program is not None and program.known_at > len("".join(steps[:first_new])):
                finding = await self._finding(examples, program, steps, first_new)
        elif self.inner is None:
            raise NoVerdict("no_public_example", "the question shows no test's input and output")
        if finding is None and self.inner is not None:
            return await self.inner.review(problem, steps, first_new, seed=seed)
        return KEEP if finding is None else finding

    async def intervene(
        self, problem: Problem, accepted: str, verdict: Revise, max_tokens: int, *, seed: int
    ) -> Correction:
        """The inner judge's correction, or a short text that names the failing example.

        The text is a comment inside a code block and prose outside of one. It is shortened until it has at most
        `max_tokens` tokens, and empty (which means keep) where nothing fits.
        """
        if self.inner is not None:
            return await self.inner.intervene(problem, accepted, verdict, max_tokens, seed=seed)
        for thought in _thoughts(verdict.reason):
            text = _spoken(accepted, thought)
            if self._count_tokens(text) <= max_tokens:
                return Correction(text=text)
        return Correction(text="")

    @property
    def exhausted(self) -> bool:
        """Whether the inner judge takes no more reviews."""
        return getattr(self.inner, "exhausted", False)

    def prepare(self, vocabulary: Vocabulary, longest_text_tokens: int, *, needs_logps: bool = False) -> None:
        """Tell the inner judge whose text is judged; see [`LLMJudge`]."""
        if hasattr(self.inner, "prepare"):
            self.inner.prepare(vocabulary, longest_text_tokens, needs_logps=needs_logps)

    async def probe(self) -> None:
        """Start the sandbox and probe the inner judge, to find a wrong set-up before training starts.

        Raises:
            JudgeError: Programs cannot be run here, or the inner judge is set up wrongly.
        """
        try:
            await asyncio.to_thread(self._sandbox.start)
        except MInTRLError as error:
            raise JudgeError(f"public examples cannot be run here: {error}") from error
        if hasattr(self.inner, "probe"):
            await self.inner.probe()

    def counters(self) -> dict[str, float]:
        """Programs whose examples passed and failed so far, and what the inner judge counts. The numbers only grow."""
        counted = {"judge/examples_passed": float(self._passed), "judge/examples_failed": float(self._failed)}
        return counted | (self.inner.counters() if hasattr(self.inner, "counters") else {})

    async def aclose(self) -> None:
        """End whatever runs in a sandbox of its own, and close the inner judge."""
        if self._owns_sandbox:
            await asyncio.to_thread(self._sandbox.close)
        if hasattr(self.inner, "aclose"):
            await self.inner.aclose()

    async def _confirmed(self, question: str) -> PublicExamples | None:
        """The examples of a question, `None` without; those merely stated count if the reference passes them."""
        examples = self._examples.get(question)
        if examples is not None and examples.stated:
            _, check = await self._run(replace(examples, tests=examples.stated), examples.reference, run_all=True)
            passed = [test for test, result in zip(examples.stated, check.tests, strict=True) if result.passed]
            examples = replace(examples, tests=(*examples.tests, *passed), stated=())
            self._examples[question] = examples = examples if examples.tests else None
        return examples

    async def _finding(
        self, examples: PublicExamples, program: WrittenProgram, steps: Sequence[str], first_new: int
    ) -> Revise | None:
        """Run the examples and say what is wrong, `None` where nothing is."""
        job, check = await self._run(examples, program.source)
        self._passed += check.passed
        if check.passed or not (program.finished or check.why is Why.WRONG):
            return None
        self._failed += 1
        failed = next(number for number, result in enumerate(check.tests) if not result.passed)
        line = None
        if check.why in (Why.ERROR, Why.SYNTAX):
            line = await self._failing_line(tracing_job(job, failed), check.detail, program)
        place = program.place(line or program.result_line(examples.entry_point))
        return Revise(step_at(steps, place, first_new), _reason(examples, failed, check))

    async def _run(self, examples: PublicExamples, program: str, *, run_all: bool = False) -> tuple[Job, CodeCheck]:
        job = Job(program, tuple(test.stimulus for test in examples.tests), examples.entry_point, examples.setup)
        trial = Trial(program, examples.tests, examples.rule, examples.rule_atol, run_all)
        try:
            trial.done = self._sandbox.submit(job, trial.judge, time.monotonic() + self.wait_seconds)
            await asyncio.gather(asyncio.wrap_future(trial.done), return_exceptions=True)
            check = trial.check()
        except SandboxError as error:
            raise NoVerdict("sandbox_failed", str(error)) from error
        except MInTRLError as error:
            raise JudgeError(f"public examples cannot be run here: {error}") from error
        if check.why is Why.SANDBOX_FAILED:
            raise NoVerdict("sandbox_failed", check.detail)
        if check.why is Why.BATCH_LIMIT:
            raise NoVerdict("sandbox_busy", f"the examples were not run within {self.wait_seconds:g} s")
        return job, check

    async def _failing_line(self, job: Job, error: str, program: WrittenProgram) -> int | None:
        """The line that raises; not knowing it is no failure."""
        seen: list[Observation] = []
        deadline = time.monotonic() + self.wait_seconds
        done = self._sandbox.submit(job, lambda _, observation: bool(seen.append(observation)), deadline)
        await asyncio.gather(asyncio.wrap_future(done), return_exceptions=True)
        return failing_line(seen[-1], error, len(program.source.splitlines())) if seen else None


def cautious_token_count(text: str) -> int:
    """More tokens than common vocabularies need for English and code: one for each three letters, digit or mark."""
    return sum(-(-len(match[1]) // 3) if match[1] else len(match[0].encode()) for match in _TOKEN_LIKE.finditer(text))


def _examples(row: Mapping[str, object]) -> PublicExamples | None:
    """The public examples of a row, or `None`."""
    tests, entry_point = row.get("tests"), row.get("entry_point") or None
    cases = read_tests(tests)  # raises what is wrong with them
    tests = json.loads(tests) if isinstance(tests, str) else tests
    whole = cases[0].stimulus.kind is TestKind.STDIN
    if not whole and entry_point in (None, STDIN):
        fix = "name what the tests call"
        raise DataError("a row with tests of functions", "entry_point", entry_point, "a function or Class.method", fix)
    reference = row.get("privileged_context") or ""
    public = public_tests(row["question"], tests, entry_point)
    stated = stated_tests(row["question"], tests, entry_point) if reference else []
    if not public and not stated:
        return None
    if not row.get("test_setup"):
        public = [as_call(test, entry_point) for test in public]
    rule = check_rule(row.get("compare"))
    if rule in ("default", "assert"):
        rule = "json" if "." in (entry_point or "") else "default"
    return PublicExamples(
        read_tests(public) if public else (),
        read_tests(stated) if stated else (),
        reference,
        None if whole else entry_point,
        rule,
        row.get("compare_atol") or 0.0,
        row.get("test_setup") or "",
    )


def _reason(examples: PublicExamples, number: int, check: CodeCheck) -> str:
    """What was found, in words that a judge and the policy can both use."""
    test = examples.tests[number]
    detail = _short(_SYNTAX_PLACE.sub("", " ".join(check.detail.split())))
    match check.why:
        case Why.SYNTAX:
            return f"the code does not compile ({detail})"
        case Why.NO_ENTRY_POINT:
            return f"the code does not define {examples.entry_point}"
        case Why.WRONG if test.stimulus.kind is TestKind.ASSERT:
            finding = f"it fails ({detail})" if detail else "it fails"
        case Why.WRONG:
            got = check.detail.removesuffix(f" is not {test.wanted()}")
            prints = test.stimulus.kind is TestKind.STDIN
            finding = f"it prints {_short(_one_line(got))}" if prints else f"it gives {_short(got)}"
        case Why.ERROR:
            finding = f"it ends with {detail}"
        case _:
            finding = _FINDINGS[check.why]
    return f"{_wanted(test, examples.entry_point)}{_BUT}{finding}"[:MAX_REASON_CHARS]


def _wanted(test: TestCase, entry_point: str | None) -> str:
    """A public example in words."""
    match test.stimulus.kind:
        case TestKind.STDIN:
            given, printed = (_short(_one_line(repr(text))) for text in (test.stimulus.text, test.expected))
            return f"the input {given} should print {printed}"
        case TestKind.ASSERT:
            return f"{_short(' '.join(test.stimulus.text.split()), 2 * _SHOWN_CHARS)} should hold"
        case TestKind.CALL:
            given = test.args.items() if test.stimulus.by_keyword else [("", value) for value in test.args]
            listed = ", ".join(f"{name}={value!r}" if name else repr(value) for name, value in given)
            name = entry_point.rpartition(".")[2]
            return f"{name}({_short(listed)}) should give {_short(repr(test.expected))}"


def _short(text: str, chars: int = _SHOWN_CHARS) -> str:
    return text if len(text) <= chars else text[: chars - 3] + "..."


def _one_line(literal: str) -> str:
    """The literal of a text with blanks for its line breaks."""
    return re.sub(r" +(?=['\"]$)", "", " ".join(literal.replace(r"\n", " ").split()))


def _thoughts(finding: str) -> tuple[str, ...]:
    """The finding as a thought, ever shorter."""
    wanted, but, _ = finding.partition(_BUT)
    reminder = "Wait, check the examples first."
    if not but:
        return f"Wait, {finding}.", reminder
    return *(f"Wait, check the example first: {said}." for said in (finding, wanted)), reminder


def _spoken(accepted: str, thought: str) -> str:
    """A thought as the next words of the one who wrote `accepted`."""
    block = next((block for block in code_blocks(accepted) if not block.closed), None)
    if block is None:
        lead = " " if accepted and not accepted[-1].isspace() else ""
        return f"{lead}{thought}\n\n"
    if not accepted.endswith("\n"):  # a line that cannot be taken back: leave the block
        return f"\n```\n\n{thought}\n\n"
    last = next((line for line in reversed(block.code.splitlines()) if line.strip()), "")
    indent = last[: len(last) - len(last.lstrip())] + ("    " if last.rstrip().endswith(":") else "")
    return f"{indent}# {thought}\n"
