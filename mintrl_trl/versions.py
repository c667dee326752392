"""Which versions of TRL and transformers this package works with, checked before anything leans on them.

It reads installed package metadata only and imports none of the packages. Every module that subclasses TRL or names
its private parts calls `check_versions` first, so a wrong version gives one plain message instead of a distant error.
"""

from functools import cache
from importlib.metadata import PackageNotFoundError, version

from .errors import VersionError

# Package -> (first supported release, first release that is not supported any more), as release numbers.
SUPPORTED = {"trl": ((1, 16), (1, 17)), "transformers": ((5, 17), (6,))}


@cache
def check_versions() -> None:
    """Check the installed packages against the supported ranges.

    Raises:
        VersionError: A package is missing or outside its range. The message names the range and the command to run.
    """
    for package, (first, end) in SUPPORTED.items():
        try:
            installed = version(package)
        except PackageNotFoundError:
            raise VersionError(_message(package, "is not installed")) from None
        if not first <= _release(installed) < end:
            raise VersionError(_message(package, f"{installed} is installed"))


def _release(text: str) -> tuple[int, ...]:
    """`"1.16.0rc1"` -> `(1, 16, 0)`; a local or development suffix does not count."""
    numbers: list[int] = []
    for part in text.split("+")[0].split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        numbers.append(int(digits))
        if digits != part:
            break
    return tuple(numbers)


def _message(package: str, found: str) -> str:
    first, end = (".".join(map(str, bound)) for bound in SUPPORTED[package])
    return (
        f"{package} {found}; mintrl-trl needs {package}>={first},<{end}, because it builds on parts of {package} that "
        f'change between releases. Run: pip install "{package}>={first},<{end}"'
    )
