"""Every error the package raises on purpose.

    MInTRLError
    ├── ConfigError        (ValueError)    a setting that cannot work: names field, value, allowed values, fix
    ├── DataError          (ValueError)    a data row that cannot be used: names file or row, field, fix
    ├── VersionError       (ImportError)   an installed package outside the supported range
    ├── GenerationError    (RuntimeError)  the policy could not continue a prefix
    │   └── ServerLostError                a policy server did not come back in time
    ├── JudgeError         (RuntimeError)  the judge is set up wrongly; retrying cannot help, so the run stops
    ├── NoVerdict          (RuntimeError)  one review or correction gave nothing usable; tolerated and counted
    ├── FailureLimitError  (RuntimeError)  tolerated failures passed the limit that the config sets
    │   └── JudgeLostError                 most of them because the judge did not answer
    ├── RewardError        (RuntimeError)  the reward function broke its contract
    ├── MemoryLimitError   (RuntimeError)  an update at full length does not fit
    ├── PeerError          (RuntimeError)  another process of the run stopped
    ├── HubError           (RuntimeError)  a model could not be pushed; training goes on
    ├── CheckpointError    (RuntimeError)  a checkpoint that a run cannot go on from; names the last good one
    └── NumericsError      (ArithmeticError) a loss that is not a finite number

A second base class lets callers catch the builtin they would expect.
"""

LOST = 75  # exit code of a run that may go on later: "temporary failure" in sysexits.h


class MInTRLError(Exception):
    """Base of every error that this package raises on purpose.

    Attributes:
        exit_code (`int`): What a program ends with that is stopped by it.
    """

    exit_code = 1


class ConfigError(MInTRLError, ValueError):
    """A setting that cannot work.

    Args:
        field (`str`): Name of the setting as the user writes it.
        value (`object`): The value that was given (shortened in the message).
        allowed (`str`): The values that are allowed, in words.
        fix (`str`): What to write instead.
    """

    def __init__(self, field: str, value: object, allowed: str, fix: str):
        self.field, self.value, self.allowed, self.fix = field, value, allowed, fix
        super().__init__(f"`{field}` is {_shown(value)}. Allowed: {allowed}. Fix: {fix}.")

    def __reduce__(self):  # an exception is rebuilt from its message otherwise, in another process
        return type(self), (self.field, self.value, self.allowed, self.fix)


class DataError(MInTRLError, ValueError):
    """A data row that cannot be used.

    Args:
        where (`str`): File and line, or row number.
        field (`str`): Column of the row.
        value (`object`): The value that was found (shortened in the message).
        allowed (`str`): What the column must hold.
        fix (`str`): What to do about it.
    """

    def __init__(self, where: str, field: str, value: object, allowed: str, fix: str):
        self.where, self.field, self.value, self.allowed, self.fix = where, field, value, allowed, fix
        super().__init__(f"{where}: `{field}` is {_shown(value)}. Allowed: {allowed}. Fix: {fix}.")

    def __reduce__(self):
        return type(self), (self.where, self.field, self.value, self.allowed, self.fix)


class VersionError(MInTRLError, ImportError):
    """An installed package is outside the range that this version supports."""


class GenerationError(MInTRLError, RuntimeError):
    """The policy could not continue a prefix."""


class ServerLostError(GenerationError):
    """A policy server did not come back within the limit; nothing is wrong with the run itself."""

    exit_code = LOST


class JudgeError(MInTRLError, RuntimeError):
    """The judge is set up wrongly (no such model, refused request); retrying cannot help, so the run stops."""


class NoVerdict(MInTRLError, RuntimeError):  # noqa: N818 - an outcome of a review, named as the metrics name it
    """A review or a correction gave nothing usable. The chunk is kept and the reason is counted.

    Args:
        reason (`str`): Short snake_case reason, used as the metric's suffix (`unparsable`, `out_of_range`,
            `empty`, `length`, `timeout`, ...).
        detail (`str`, *optional*): What was seen, for the log.
    """

    def __init__(self, reason: str, detail: str = ""):
        self.reason, self.detail = reason, detail
        super().__init__(f"{reason}: {detail}" if detail else reason)


class FailureLimitError(MInTRLError, RuntimeError):
    """More tolerated failures than the config allows. The message says which and what to do."""


class JudgeLostError(FailureLimitError):
    """The judge did not answer often enough; nothing is wrong with the run itself."""

    exit_code = LOST


class RewardError(MInTRLError, RuntimeError):
    """A reward function broke its contract (wrong number of rewards, every row unscorable)."""


class MemoryLimitError(MInTRLError, RuntimeError):
    """An update at full length does not fit into memory. The message says what to change."""


class PeerError(MInTRLError, RuntimeError):
    """Another process of the run stopped, with an error that is not one of these; the message has its words."""


class CheckpointError(MInTRLError, RuntimeError):
    """A checkpoint that cannot be used: missing, half, thinned, or of a run that differs from this one."""


class HubError(MInTRLError, RuntimeError):
    """A model could not be pushed to the hub. Pushes that belong to a run are counted and told instead."""


class NumericsError(MInTRLError, ArithmeticError):
    """A loss that is not a finite number; the optimizer has not seen it."""


def _shown(value: object) -> str:
    """A value in a message: on one line, and short enough that the rest of the message is read."""
    text = " ".join(line.strip() for line in repr(value).splitlines())
    return text if len(text) <= 120 else text[:117] + "..."
