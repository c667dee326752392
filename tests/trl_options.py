"""Which options of TRL the tests show at work, or refused; `test_trl_options.py` holds it against the document."""

from collections.abc import Callable

SHOWN: dict[str, list[str]] = {}  # option -> tests


def shows(*options: str) -> Callable[[Callable], Callable]:
    """Mark a test as the one that shows what these options do."""

    def note(test: Callable) -> Callable:
        for option in options:
            SHOWN.setdefault(option, []).append(test.__name__)
        return test

    return note
