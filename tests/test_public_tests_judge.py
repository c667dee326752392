"""The judge that runs public examples: what it runs, whom it blames, and what it says about it."""

import asyncio
import time
from concurrent.futures import Future

import pytest

from mintrl_trl.errors import ConfigError, DataError, JudgeError, NoVerdict, RewardError
from mintrl_trl.judges.public_tests import PublicTestsJudge, cautious_token_count
from mintrl_trl.rewards.jobs import Ending, Observation, SandboxError, TestKind
from mintrl_trl.rewards.runner import Runner
from mintrl_trl.rollouts.doors import KEEP, Correction, Revise
from mintrl_trl.rollouts.loop import BackgroundLoop
from mintrl_trl.rollouts.rollout import Author, Problem, Role, RolloutRequest

from .doors import ByteVocabulary, CorrectionCall, ScriptedGenerator, ScriptedJudge, sample

QUESTION = "How many cells has the board? cells(2) == 19"  # figure 8 of the paper
HIDDEN = {"type": "call", "args": "[3]", "expected": "37"}
ROW = {
    "question": QUESTION,
    "tests": [HIDDEN, {"type": "call", "args": "[2]", "expected": "19"}],
    "entry_point": "cells",
}
STEPS = [
    "Count triangles.\n\n",
    "```python\n# shells\n\n",
    "def cells(n):\n    first = 1\n\n",
    "    return first + n * (n + 1) // 2\n```\n",
    "Done.",
]
WRONG = "cells(2) should give 19, but this way it gives 4"


class ScriptedSandbox:
    """Answers every stimulus of each job with the next observation, and records the jobs."""

    def __init__(self, *script):
        self.script, self.jobs, self.closed, self.started = list(script), [], False, False

    def start(self):
        self.started = True

    def submit(self, job, judge, deadline):
        self.jobs.append(job)
        answer, done = self.script.pop(0), Future()
        if isinstance(answer, RewardError) and not isinstance(answer, SandboxError):
            raise answer
        if isinstance(answer, BaseException):
            done.set_exception(answer)
        elif isinstance(answer, bool):
            done.set_result(answer)
        else:
            for index, observation in enumerate(answer if isinstance(answer, list) else [answer]):
                if not judge(index, observation):
                    break
            done.set_result(True)
        return done

    def close(self):
        self.closed = True


def value(of: object) -> Observation:
    return Observation(Ending.VALUE, of)


def judge_of(*script: object, row: dict = ROW, inner: object = None, **options: object) -> PublicTestsJudge:
    return PublicTestsJudge([row], inner, sandbox=ScriptedSandbox(*script), **options)


def review(judge: PublicTestsJudge, steps: list[str] = STEPS, first_new: int = 0, question: str = QUESTION):
    return asyncio.run(judge.review(Problem(question), steps, first_new, seed=5))


def intervene(judge: PublicTestsJudge, accepted: str, reason: str = WRONG, max_tokens: int = 64) -> str:
    return asyncio.run(judge.intervene(Problem(QUESTION), accepted, Revise(0, reason), max_tokens, seed=5)).text


def test_only_public_tests_are_run():
    judge = judge_of(value(4))
    assert review(judge) == Revise(3, WRONG)
    (job,) = judge._sandbox.jobs
    assert [(stimulus.kind, stimulus.text) for stimulus in job.stimuli] == [(TestKind.CALL, "[2]")]
    assert job.program == "# shells\n\ndef cells(n):\n    first = 1\n\n    return first + n * (n + 1) // 2\n"
    assert judge.counters() == {"judge/examples_passed": 0, "judge/examples_failed": 1}


def test_what_passes_is_kept():
    judge = judge_of(value(19))
    assert review(judge) is KEEP
    assert judge.counters() == {"judge/examples_passed": 1, "judge/examples_failed": 0}


@pytest.mark.parametrize(
    ("steps", "first_new"),
    [(STEPS[:1], 0), (STEPS[:3], 0), (STEPS, 4), (["<think>\n", *STEPS], 0)],
    ids=["no-code", "unfinished-code", "known-before", "thinking"],
)
def test_nothing_to_run(steps, first_new):
    judge = judge_of()
    assert review(judge, steps, first_new) is KEEP
    assert judge._sandbox.jobs == []


def test_no_step_before_the_new_ones_is_blamed():
    steps = [*STEPS[:3], "    return 4\n", "```", "\n"]
    assert review(judge_of(value(4)), steps, 3) == Revise(3, WRONG)
    assert review(judge_of(value(4)), steps, 4) == Revise(4, WRONG)


def test_an_open_block_fails_by_wrong_values_alone():
    steps = ["```python\n", "def cells(n):\n    return helper(n)\n\n", "def helper(n):\n    ret"]
    assert review(judge_of(value(4)), steps) == Revise(1, WRONG)
    for ending in (Ending.ERROR, Ending.SYNTAX, Ending.TIMEOUT, Ending.NO_ENTRY_POINT):
        assert review(judge_of(Observation(ending, detail="NameError: helper")), steps) is KEEP


@pytest.mark.parametrize(
    ("printed", "step"),
    [
        ('\n["IndexError", 4]\n', 2),
        ('shown by the program\n["IndexError", 1]\n', 1),
        ('["KeyError", 1]', 3),
        ('["IndexError"]', 3),
        ('["IndexError", 99]', 3),
        ("[[[", 3),
        (Observation(Ending.TIMEOUT), 3),
        (SandboxError("gone"), 3),
    ],
    ids=["named", "printing", "other-error", "no-line", "no-such-line", "no-json", "timeout", "sandbox-failed"],
)
def test_the_line_that_raises_is_blamed(printed, step):
    error = Observation(Ending.ERROR, detail="IndexError: list index out of range")
    judge = judge_of(error, value(printed) if isinstance(printed, str) else printed)
    reason = "cells(2) should give 19, but this way it ends with IndexError: list index out of range"
    assert review(judge) == Revise(step, reason)


@pytest.mark.parametrize(
    ("seen", "reason"),
    [
        (Observation(Ending.TIMEOUT), "cells(2) should give 19, but this way it does not come to an end"),
        (
            Observation(Ending.EXITED, detail="exit code 0"),
            "cells(2) should give 19, but this way the program ends too early",
        ),
        (Observation(Ending.OUTPUT_LIMIT), "cells(2) should give 19, but this way it prints without end"),
        (Observation(Ending.MEMORY_LIMIT), "cells(2) should give 19, but this way it needs too much memory"),
        (Observation(Ending.NO_ENTRY_POINT, detail="NoEntryPoint: cells"), "the code does not define cells"),
        (value("x" * 500), f"cells(2) should give 19, but this way it gives '{'x' * 36}..."),
    ],
    ids=["timeout", "exited", "output", "memory", "no-entry-point", "long"],
)
def test_reasons(seen, reason):
    assert review(judge_of(seen)) == Revise(3, reason)


def test_reasons_of_whole_programs_and_assertions():
    question = "Double it. Input: 2\nOutput: 4"
    row = {"question": question, "tests": [{"type": "stdin", "stdin": "2\n", "stdout": "4\n"}], "entry_point": "stdin"}
    steps = ["```python\nn = int(input())\n\n", "print(n)\n\n", "```\n"]
    reason = "the input '2' should print '4', but this way it prints '2 3'"
    assert review(judge_of(value("2\n3\n"), row=row), steps, question=question) == Revise(1, reason)
    question = "assert sorted(cells(2))  == [19]"
    row = {"question": question, "tests": [{"type": "assert", "code": question}], "entry_point": "cells"}
    failed = Observation(Ending.ASSERTION)
    reason = "assert sorted(cells(2)) == [19] should hold, but this way it fails"
    assert review(judge_of(failed, row=row), question=question) == Revise(3, reason)
    question = "assert cells(2)  == 19"
    row = {"question": question, "tests": [{"type": "assert", "code": question}], "entry_point": "cells"}
    assert review(judge_of(value(4), row=row | {"compare": "assert"}), question=question) == Revise(3, WRONG)
    assert judge_of(value(4), row=row | {"test_setup": "import math"})._examples[question].tests[0].args is None


@pytest.mark.parametrize(
    ("answer", "error", "reason"),
    [
        (SandboxError("gone"), NoVerdict, "sandbox_failed"),
        (False, NoVerdict, "sandbox_busy"),
        ([], NoVerdict, "sandbox_failed"),
        (RewardError("not on this machine"), JudgeError, "cannot be run here"),
    ],
    ids=["failed", "busy", "nothing-seen", "impossible"],
)
def test_without_a_sandbox_there_is_no_verdict(answer, error, reason):
    with pytest.raises(error, match=reason):
        review(judge_of(answer))


def test_questions_without_example():
    with pytest.raises(NoVerdict, match="no_public_example"):
        review(judge_of(), question="Another one.")
    assert not judge_of().has_example("Another one.")
    with pytest.raises(ConfigError, match="rows"):
        PublicTestsJudge([ROW | {"question": "Count them."}])
    for row, field in (
        ({"tests": []}, "question"),
        ({"question": "f"}, "tests"),
        (ROW | {"entry_point": None}, "entry"),
    ):
        with pytest.raises(DataError, match=field):
            PublicTestsJudge([row])
    with pytest.raises(ConfigError, match="wait_seconds"):
        judge_of(wait_seconds=0)


SESSION_ROW = {
    "question": "def cells(n):\n    >>> cells(1)\n    7\n    >>> cells(2)\n    18\n",
    "tests": [HIDDEN],
    "entry_point": "cells",
    "privileged_context": "def cells(n): return 1 + 3 * n * (n + 1)",
}


def test_examples_that_only_the_question_states_are_confirmed_once():
    judge = judge_of([value(7), value(19)], value(4), value(7), row=SESSION_ROW)
    reason = "cells(1) should give 7, but this way it gives 4"
    assert review(judge, question=SESSION_ROW["question"]) == Revise(3, reason)
    assert review(judge, question=SESSION_ROW["question"]) is KEEP
    confirmed, *runs = judge._sandbox.jobs
    assert confirmed.program == SESSION_ROW["privileged_context"]
    assert [[stimulus.text for stimulus in job.stimuli] for job in runs] == [["[1]"], ["[1]"]]
    misprints = judge_of([value(1), value(1)], row=SESSION_ROW)
    with pytest.raises(NoVerdict, match="no_public_example"):
        review(misprints, question=SESSION_ROW["question"])
    assert not misprints.has_example(SESSION_ROW["question"])


def test_without_reference_nothing_is_confirmed():
    with pytest.raises(ConfigError, match="rows"):
        PublicTestsJudge([SESSION_ROW | {"privileged_context": None}])


def test_an_inner_judge_reviews_what_passes_and_writes_the_corrections():
    inner = ScriptedJudge(verdict=lambda call: Revise(1, "its own"), correction=lambda call: Correction(text="So:"))
    assert review(judge_of(value(4), inner=inner)) == Revise(3, WRONG)
    assert inner.reviews == []
    assert review(judge_of(value(19), inner=inner), first_new=1) == Revise(1, "its own")
    assert review(judge_of(inner=inner), question="Another one.") == Revise(1, "its own")
    assert [(call.first_new, call.seed) for call in inner.reviews] == [(1, 5), (0, 5)]
    judge = judge_of(inner=inner)
    assert (intervene(judge, "Count."), judge.weight_version) == ("So:", "j1")
    assert inner.corrections == [CorrectionCall(Problem(QUESTION), "Count.", Revise(0, WRONG), 64, 5)]


@pytest.mark.parametrize(
    ("accepted", "text"),
    [
        ("", "Wait, check the example first: {}.\n\n"),
        ("Count.\n\n", "Wait, check the example first: {}.\n\n"),
        ("Count", " Wait, check the example first: {}.\n\n"),
        ("```python\n", "# Wait, check the example first: {}.\n"),
        ("```python\ndef cells(n):\n\n", "    # Wait, check the example first: {}.\n"),
        ("```python\ndef cells(n):\n  x = 1\n", "  # Wait, check the example first: {}.\n"),
        ("```python\ndef cells(n):\n    ret", "\n```\n\nWait, check the example first: {}.\n\n"),
    ],
    ids=["beginning", "prose", "sentence", "block", "head", "body", "line"],
)
def test_a_correction_names_the_example_in_the_policys_voice(accepted, text):
    assert intervene(judge_of(), accepted) == text.format(WRONG)


def test_a_correction_fits_its_limit():
    judge = judge_of(count_tokens=len)
    full = f"Wait, check the example first: {WRONG}.\n\n"
    wanted = "Wait, check the example first: cells(2) should give 19.\n\n"
    reminder = "Wait, check the examples first.\n\n"
    assert (len(full), len(wanted), len(reminder)) == (82, 57, 33)
    texts = [intervene(judge, "", max_tokens=limit) for limit in (82, 81, 57, 56, 33, 32)]
    assert texts == [full, wanted, wanted, reminder, reminder, ""]
    assert intervene(judge_of(), "", "the code does not compile (invalid syntax)") == (
        "Wait, the code does not compile (invalid syntax).\n\n"
    )
    assert cautious_token_count("Wait, n = 19.") == 2 + 1 + 1 + 2 + 1 + 2 + 1


def test_closing_and_probing():
    class Inner(ScriptedJudge):
        async def probe(self):
            self.probed = True

        async def aclose(self):
            self.closed = True

        def counters(self):
            return {"judge/leak": 1.0}

    judge = judge_of(inner=Inner())
    asyncio.run(judge.probe())
    asyncio.run(judge.aclose())
    assert judge._sandbox.started and judge.inner.probed and judge.inner.closed
    assert not judge._sandbox.closed  # it is somebody else's
    assert judge.counters()["judge/leak"] == 1.0


# Real runs


@pytest.fixture(scope="module")
def runner():
    with Runner(slots=2, test_seconds=1, row_seconds=3, memory_mb=512) as runner:
        yield runner


def test_real_programs(runner):
    judge = PublicTestsJudge([ROW], sandbox=runner)
    assert review(judge) == Revise(3, WRONG)
    right = [*STEPS[:3], "    return first + 3 * n * (n + 1)\n```\n"]
    assert review(judge, right) is KEEP
    raising = [*STEPS[:2], "def cells(n):\n    first = [1]\n\n", "    return first[n]\n\n", "```\n"]
    assert review(judge, raising) == Revise(
        3, "cells(2) should give 19, but this way it ends with IndexError: list index out of range"
    )
    early = [*STEPS[:2], "def cells(n):\n    first = 1 / 0\n\n", "    return first\n\n", "```\n"]
    assert review(judge, early).step == 2
    broken = [*STEPS[:2], "def cells(n)\n\n", "    return 1\n```\n"]
    assert review(judge, broken) == Revise(2, "the code does not compile (expected ':')")


def test_a_hanging_program_fails_and_blocks_nobody(runner):
    judge = PublicTestsJudge([ROW], sandbox=runner)
    hanging = ["```python\ndef cells(n):\n    while n: pass\n```\n"]

    async def both():
        review = asyncio.create_task(judge.review(Problem(QUESTION), hanging, 0, seed=0))
        started, longest, last = time.monotonic(), 0.0, time.monotonic()
        while not review.done():
            await asyncio.sleep(0.01)
            longest, last = max(longest, time.monotonic() - last), time.monotonic()
        return review.result(), longest, time.monotonic() - started

    verdict, longest, seconds = asyncio.run(both())
    assert verdict == Revise(0, "cells(2) should give 19, but this way it does not come to an end")
    assert longest < 0.5 and seconds < 5


def test_in_a_rollout_the_policy_goes_on_behind_the_correction(runner):
    vocabulary = ByteVocabulary()
    written = [
        "Count.\n\n```python\ndef cells(n):\n    return n\n```\n",
        "```python\ndef cells(n):\n    return 19\n```\n",
    ]
    texts: dict[int, tuple[int, tuple[int, ...]]] = {}  # by seed: where the stream began, and what it spells

    def script(seed, position):
        if seed not in texts:
            texts[seed] = position, (*vocabulary.encode(written[len(texts)]), 256)
        began, ids = texts[seed]
        return ids[position - began]

    judge = PublicTestsJudge([ROW], sandbox=runner, count_tokens=lambda text: len(vocabulary.encode(text)))
    generator = ScriptedGenerator(script, end_ids=vocabulary.end_ids)
    request = RolloutRequest(0, (1, 2, 3), Problem(QUESTION), Role.INTERVENED, 0)
    loop = BackgroundLoop()
    rollouts = sample(loop, generator, judge, vocabulary, [request], k=99, h=99, limit=300, overlap=False)
    loop.close()
    spans = [(span.author, bytes(id for id in span.ids if id < 256).decode()) for span in rollouts[0].spans]
    assert spans == [
        (Author.POLICY, "Count.\n\n"),
        (Author.INTERVENTION, "Wait, check the example first: cells(2) should give 19, but this way it gives 2.\n\n"),
        (Author.POLICY, written[1]),
    ]
