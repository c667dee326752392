"""Errors: what each can be caught as, and messages that stay one readable line."""

import pickle

import pytest

from mintrl_trl import errors
from mintrl_trl.errors import ConfigError, DataError, MInTRLError, NoVerdict


@pytest.mark.parametrize(
    ("name", "builtin"),
    [
        ("ConfigError", ValueError),
        ("DataError", ValueError),
        ("VersionError", ImportError),
        ("GenerationError", RuntimeError),
        ("ServerLostError", RuntimeError),
        ("JudgeError", RuntimeError),
        ("JudgeLostError", RuntimeError),
        ("NoVerdict", RuntimeError),
        ("FailureLimitError", RuntimeError),
        ("RewardError", RuntimeError),
        ("CheckpointError", RuntimeError),
        ("MemoryLimitError", RuntimeError),
        ("PeerError", RuntimeError),
    ],
)
def test_every_error_is_ours_and_the_builtin_one_expects(name, builtin):
    assert issubclass(getattr(errors, name), MInTRLError)
    assert issubclass(getattr(errors, name), builtin)


def test_messages_name_everything():
    error = ConfigError("kappa", 0.2, "below 0", "set kappa=-0.2")
    assert str(error) == "`kappa` is 0.2. Allowed: below 0. Fix: set kappa=-0.2."
    assert (error.field, error.value, error.allowed, error.fix) == ("kappa", 0.2, "below 0", "set kappa=-0.2")
    error = DataError("rows.jsonl:3", "answer", None, "text", "fill it in")
    assert str(error) == "rows.jsonl:3: `answer` is None. Allowed: text. Fix: fill it in."
    assert error.where == "rows.jsonl:3"


class TwoLines:
    def __repr__(self):
        return "first\n    second"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("a\nb", r"'a\nb'"),
        (TwoLines(), "first second"),
        ("x" * 118, f"'{'x' * 118}'"),
        ("x" * 119, f"'{'x' * 116}..."),
        (list(range(1000)), "..."),
    ],
    ids=["escaped", "two lines", "just fits", "too long", "list"],
)
@pytest.mark.parametrize("make", [ConfigError, lambda *parts: DataError("row 0", *parts)], ids=["config", "data"])
def test_values_are_shown_on_one_line_and_shortened_but_kept(make, value, shown):
    error = make("field", value, "text", "none")
    head = str(error).partition(". Allowed: text. Fix: none.")[0]
    assert head.endswith(shown)
    assert "\n" not in head
    assert len(head) <= 120 + len("row 0: `field` is ")
    assert error.value is value


def test_a_missing_verdict_says_why():
    assert str(NoVerdict("timeout")) == "timeout"
    assert str(NoVerdict("unparsable", "maybe")) == "unparsable: maybe"
    assert NoVerdict("unparsable", "maybe").reason == "unparsable"


@pytest.mark.parametrize(
    "error",
    [
        ConfigError("kappa", 0.2, "below 0", "set it"),
        DataError("row 1", "answer", None, "text", "fill it in"),
        NoVerdict("timeout", "120 s"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_travel_between_processes(error):
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))
