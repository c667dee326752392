r"""Values as they cross from a program to whoever judges it: data only, never objects with behaviour.

Owns: turning Python values into JSON values and back. Never carries a class of the program, so that a result with an
`__eq__` of its own cannot equal anything. Invariant: `decode(encode(value))` equals `value` for every value built from
the types below, and has exactly these types, subclasses reduced.

| type | JSON |
|---|---|
| `None`, `bool`, `float`, `str`, `int` | itself |
| large `int` | `{"int": hex}` |
| `list` | array |
| `tuple`, `set`, `frozenset` | `{"tuple": [...]}`, ... |
| `dict` | `{"dict": [[key, value], ...]}` |
| `complex`, `Fraction` | `{"complex": [real, imaginary]}`, `{"fraction": [numerator, denominator]}` |
| `bytes`, `Decimal` | `{"bytes": hex}`, `{"decimal": text}` |
| `range`, `deque` | `{"range": [start, stop, step]}`, `{"deque": [...]}` |
| `date`, `datetime`, `time`, `timedelta` | `{"date": ISO text}`, ..., `{"timedelta": [days, seconds, microseconds]}` |
| numpy scalar | as the Python value it holds |
| anything else | `{"object": type name}`, or what `opaque` makes of it |
"""

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from fractions import Fraction

_LARGE_BITS = 8192  # beyond this, decimal text is slow and Python may refuse to read it; fractions are slow too
_MAX_HASHED = 20_000  # elements of one set or dict
_MAX_COLLIDING = 16  # of them with the same hash: two are a coincidence, thousands take minutes to compare


@dataclass(frozen=True)
class Opaque:
    """Stands for a value that is no plain data. Equal to nothing but another one of the same type."""

    type_name: str


def encode(value: object, opaque: Callable[[object], object] | None = None) -> object:
    """Turn a value into a JSON value; `opaque` is asked for the form of what is no plain data."""

    def items(values: object) -> list:
        return [encode(item, opaque) for item in values]

    if value is None or value is True or value is False:
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        number = int.__index__(value)
        return number if number.bit_length() <= _LARGE_BITS else {"int": hex(number)}
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, list):
        return items(list.__iter__(value))
    if isinstance(value, tuple):
        return {"tuple": items(tuple.__iter__(value))}
    if isinstance(value, dict):
        return {"dict": [[encode(key, opaque), encode(item, opaque)] for key, item in dict.items(value)]}
    if isinstance(value, set | frozenset):
        return {"set" if isinstance(value, set) else "frozenset": items(value)}
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    if isinstance(value, bytes | bytearray):
        return {"bytes": value.hex()}
    if isinstance(value, Fraction):
        return {"fraction": [encode(value.numerator), encode(value.denominator)]}
    if isinstance(value, Decimal):
        return {"decimal": Decimal.__str__(value)}
    if isinstance(value, range):
        return {"range": [encode(part) for part in (value.start, value.stop, value.step)]}
    if isinstance(value, deque):
        return {"deque": items(value)}
    if isinstance(value, timedelta):
        return {"timedelta": [value.days, value.seconds, value.microseconds]}
    for kind in (datetime, date, time):  # a datetime is also a date
        if isinstance(value, kind):
            return {kind.__name__: kind.isoformat(value)}
    if type(value).__module__ == "numpy" and getattr(value, "ndim", None) == 0:
        return encode(value.item(), opaque)
    return opaque(value) if opaque else {"object": f"{type(value).__module__}.{type(value).__qualname__}"}


def decode(item: object, reference: Callable[[object], object] | None = None) -> object:
    """Turn a JSON value from `encode` back; `reference` reads what `encode`'s `opaque` wrote.

    Raises:
        ValueError: It does not come from `encode`, or takes long to build: a set or dict of more than 20,000 elements
            or with more than 16 of the same hash, a fraction of numbers with more than 8,192 bits.
    """
    try:
        return _decode(item, reference)
    except (KeyError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        raise ValueError(f"not a plain value: {error}") from error


def _decode(item: object, reference: Callable[[object], object] | None) -> object:
    if isinstance(item, list):
        return [_decode(part, reference) for part in item]
    if not isinstance(item, dict):
        return item
    if len(item) != 1:
        raise TypeError("an object with one key is wanted")
    ((tag, body),) = item.items()
    if tag in _CONTAINERS:
        if tag in _HASHED and len(body) > _MAX_HASHED:
            raise ValueError(f"a {tag} of {len(body)} elements")
        parts = [_decode(part, reference) for part in body]
        if tag in _HASHED:
            hashes = Counter(hash(part[0] if tag == "dict" else part) for part in parts)
            if max(hashes.values(), default=0) > _MAX_COLLIDING:
                raise ValueError(f"a {tag} of colliding elements")
        return _CONTAINERS[tag](parts)
    if tag in _SCALARS:
        return _SCALARS[tag](body)
    if reference is not None:
        return reference(item)
    return Opaque(str(item["object"]))


def _numbers(kind: Callable) -> Callable[[list], object]:
    return lambda body: kind(*(_decode(part, None) for part in body))


def _fraction(body: list) -> Fraction:
    numerator, denominator = (_decode(part, None) for part in body)
    # A text or decimal such as 1e999999999 would be expanded; and reducing large numbers takes seconds.
    if not all(type(part) is int and part.bit_length() <= _LARGE_BITS for part in (numerator, denominator)):
        raise ValueError("a fraction of other than two whole numbers of moderate size")
    return Fraction(numerator, denominator)


_CONTAINERS: dict[str, Callable] = {
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "dict": dict,
    "deque": deque,
}
_HASHED = ("set", "frozenset", "dict")
_SCALARS: dict[str, Callable] = {
    "int": lambda body: int(body, 16),
    "complex": _numbers(complex),
    "bytes": bytes.fromhex,
    "fraction": _fraction,
    "decimal": Decimal,
    "range": _numbers(range),
    "date": date.fromisoformat,
    "datetime": datetime.fromisoformat,
    "time": time.fromisoformat,
    "timedelta": _numbers(timedelta),
}
