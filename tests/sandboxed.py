"""What the tests of the sandbox share: running one program and seeing what became of it."""

from mintrl_trl.rewards.jobs import Ending, Job, Observation, Stimulus, TestKind
from mintrl_trl.rewards.runner import Runner

FOREVER = float("inf")


def script(program: str, stdin: str = "", *, times: int = 1, output_bytes: int = 2**20) -> Job:
    return Job(program, (Stimulus(TestKind.STDIN, stdin, output_bytes=output_bytes),) * times)


def observe(runner: Runner, job: Job) -> list[Observation]:
    seen: dict[int, Observation] = {}

    def judge(index: int, observation: Observation) -> bool:
        seen[index] = observation
        return True

    assert runner.submit(job, judge, FOREVER).result(60)
    assert list(seen) == list(range(len(job.stimuli)))
    return list(seen.values())


def run_script(runner: Runner, program: str, stdin: str = "", **options: int) -> Observation:
    return observe(runner, script(program, stdin, **options))[0]


def call(runner: Runner, program: str, *args: str) -> list[Observation]:
    return observe(runner, Job(program, tuple(Stimulus(TestKind.CALL, text) for text in args), "f"))


def run_asserts(
    runner: Runner, program: str, *codes: str, entry_point: str | None = "f", setup: str = ""
) -> list[Ending]:
    stimuli = tuple(Stimulus(TestKind.ASSERT, code) for code in codes)
    return [seen.ending for seen in observe(runner, Job(program, stimuli, entry_point, setup))]
