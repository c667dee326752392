r"""Where rows come from: JSON Lines files and the paper's two sets on the hub.

Owns: reading a source line by line and saying, for a row that cannot be used, where it stands, what is wrong and what
to do. Never fetches anything unless a hub source is named, never guesses a missing value, never drops a row in
silence. Invariant: ids are unique within a source, and rows keep its order.

A file may hold, one JSON object a line (`.jsonl`, or `.jsonl.gz`):

| task | columns |
|---|---|
| `math` | `problem`, `answer`, optionally `id`, `solution` |
| `code` | `prompt`, `tests`, `entry_point`, `compare`, optionally `id` and the other arguments of `rows.code_row` |
| `code` | `prompt` (messages, kept), `tests`, `entry_point`, `compare`, optionally the other columns of `rows.py` |
| `math`, `chains` | `prompt` (text or messages, kept), `answer`, optionally `id`, `question`, `privileged_context` |

A whole number as `answer` becomes text. Other columns are left out. `rows.py` lists the columns that come out.
"""

import contextlib
import gzip
import itertools
import json
import logging
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError, DataError
from .hub import ACEREASON, DEEPCODER, DEEPCODER_SUBSETS, map_acereason, map_deepcoder
from .rows import CODE_INSTRUCTION, MATH_INSTRUCTION, code_row, math_row, ready_code_row, ready_row

if TYPE_CHECKING:
    from datasets import Dataset

__all__ = ["ReadRows", "first_rows", "load_rows", "map_acereason", "map_deepcoder", "read_rows", "to_dataset"]

logger = logging.getLogger(__name__)

TASKS = ("math", "code", "chains")
HUB_TASKS = {ACEREASON: "math", DEEPCODER: "code"}
CHAINS_SOURCE = "chains"
FILE_SUFFIXES = (".jsonl", ".jsonl.gz", ".json")
_CODE_REQUIRED = ("prompt", "entry_point", "tests", "compare")
_CODE_OPTIONAL = ("compare_atol", "reference_solution", "starter_code", "test_setup")


def load_rows(
    source: str | Path,
    *,
    task: str,
    split: str = "train",
    limit: int | None = None,
    instruction: str | None = None,
    skip_bad_rows: bool = False,
) -> list[dict[str, Any]]:
    """Load the rows of a source.

    Args:
        source (`str` or `Path`): A JSON Lines file; `"nvidia/AceReason-Math"` or
            `"agentica-org/DeepCoder-Preview-Dataset"` on the hub; or `"chains"`, the shipped small world.
        task (`str`): `"math"`, `"code"` or `"chains"`.
        split (`str`, defaults to `"train"`): Split of a hub source or of the small world; a file has none.
        limit (`int`, *optional*): Rows at most, from the beginning. The small world has no end, so it needs one.
        instruction (`str`, *optional*): Text after each question, in place of `MATH_INSTRUCTION` or
            `CODE_INSTRUCTION`; rows that bring their own prompt keep it.
        skip_bad_rows (`bool`, defaults to `False`): Drop rows that cannot be used, with a warning that counts and
            names them, instead of stopping at the first.

    Returns:
        `list[dict]`: Rows with the columns of `rows.py`; `to_dataset` turns them into a `datasets.Dataset`.

    Raises:
        ConfigError: Source, task, split or limit cannot work.
        DataError: Names the file and line (or row), the field, its value, what is allowed, and the fix.
    """
    read = _read(source, task, split, limit, instruction, stop_at_bad_row=not skip_bad_rows)
    if read.errors:
        count, first = len(read.errors), read.errors[0]
        logger.warning("Left out %d rows of %s that cannot be used. The first: %s", count, source, first)
    if not read.rows:
        what = str(read.errors[0]) if read.errors else "the source is empty"
        raise ConfigError("source", str(source), "at least one usable row", what)
    return read.rows


@dataclass(frozen=True)
class ReadRows:
    """All that a source holds.

    Args:
        rows (`list[dict]`): The rows that can be used.
        places (`list[str]`): File and line, or number, of each of them.
        errors (`list[DataError]`): What is wrong with each of the others.
    """

    rows: list[dict[str, Any]]
    places: list[str]
    errors: list[DataError]


def read_rows(
    source: str | Path,
    *,
    task: str,
    split: str = "train",
    limit: int | None = None,
    instruction: str | None = None,
) -> ReadRows:
    """Read a source to its end and say what is wrong with every row that cannot be used.

    The arguments are those of `load_rows`. An error of the field `id` whose value is text tells of an id that an
    earlier row has.

    Raises:
        ConfigError: Source, task, split or limit cannot work.
    """
    return _read(source, task, split, limit, instruction, stop_at_bad_row=False)


def first_rows(path: str | Path, count: int = 100) -> list[dict[str, Any]]:
    """The raw objects on the first lines of a file, to see what it holds; lines that are none are passed over.

    Raises:
        ConfigError: There is no such file.
    """
    _check_file(path)
    objects = []
    for number, line in itertools.islice(_lines(Path(path)), count):
        with contextlib.suppress(DataError):
            objects.append(_object(f"{path}:{number}", line))
    return objects


def to_dataset(rows: Sequence[dict[str, Any]]) -> "Dataset":
    """Rows as a `datasets.Dataset` for the trainer."""
    from datasets import Dataset

    return Dataset.from_list(list(rows))


def _read(
    source: str | Path, task: str, split: str, limit: int | None, instruction: str | None, *, stop_at_bad_row: bool
) -> ReadRows:
    if task not in TASKS:
        raise ConfigError("task", task, " | ".join(TASKS), "name the kind of rows that the source holds")
    if limit is not None and limit < 1:
        raise ConfigError("limit", limit, "1 or more, or None", "leave it out to load every row")
    if instruction is None:
        instruction = {"math": MATH_INSTRUCTION, "code": CODE_INSTRUCTION, "chains": ""}[task]
    if str(source) == CHAINS_SOURCE:
        rows = _chains_rows(task, split, limit)
        return ReadRows(rows, [f"chains, row {number}" for number in range(len(rows))], [])
    if str(source) in HUB_TASKS:
        makers = _hub_rows(str(source), task, split, limit, instruction)
    else:
        _check_file(source)
        makers = _file_rows(Path(source), task, instruction)
    return _collect(makers, limit, stop_at_bad_row)


def _check_file(source: str | Path) -> None:
    if not os.path.isfile(source):  # unlike Path.is_file, it says no to names that no file can have
        raise ConfigError(
            "source",
            str(source),
            f"a file ({', '.join(FILE_SUFFIXES)}), {', '.join(HUB_TASKS)} or {CHAINS_SOURCE}",
            "correct the path, or write the rows of another source to a JSON Lines file",
        )


# A maker builds one row or raises DataError, so that a bad row can be told from a bad source.
_Maker = Callable[[], dict[str, Any]]


def _collect(makers: Iterable[tuple[str, _Maker]], limit: int | None, stop_at_bad_row: bool) -> ReadRows:
    read = ReadRows([], [], [])
    seen: dict[str, str] = {}
    for where, make in makers:
        try:
            row = make()
            if row["id"] in seen:
                raise DataError(where, "id", row["id"], f"an id of its own; {seen[row['id']]} has it", "rename one")
        except DataError as error:
            if stop_at_bad_row:
                raise
            read.errors.append(error)
            continue
        seen[row["id"]] = where
        read.rows.append(row)
        read.places.append(where)
        if len(read.rows) == limit:
            break
    return read


def _file_rows(path: Path, task: str, instruction: str) -> Iterator[tuple[str, _Maker]]:
    for number, line in _lines(path):
        where = f"{path}:{number}"
        fallback_id = f"{path.name.partition('.')[0]}/{number}"
        yield where, partial(_file_row, where, line, fallback_id, task, instruction)


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Lines that are not blank, with their numbers from 1."""
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rb") as file:
            encoding = _other_encoding(file.read(4))
            if encoding:
                fix = f"write it anew in UTF-8 (iconv -f {encoding} -t UTF-8)"
                raise ConfigError("source", str(path), f"text in UTF-8, not {encoding}", fix)
            file.seek(0)
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield number, line
    except (OSError, EOFError, zlib.error) as error:
        allowed = f"a file that can be read to its end ({error})"
        raise ConfigError("source", str(path), allowed, "check its permissions, or make it anew") from error


def _other_encoding(start: bytes) -> str:
    """The encoding that a file's first four bytes tell of, if it is not UTF-8. No JSON in UTF-8 holds a zero byte."""
    marks = {b"\xff\xfe\0\0": "UTF-32", b"\0\0\xfe\xff": "UTF-32", b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16"}
    marked = next((name for mark, name in marks.items() if start.startswith(mark)), "")
    if marked or b"\0" not in start:
        return marked
    return f"UTF-{16 if start.count(0) < 3 else 32}{'BE' if start[0] == 0 else 'LE'}"


def _file_row(where: str, line: bytes, fallback_id: str, task: str, instruction: str) -> dict[str, Any]:
    raw = _object(where, line)
    name = raw.get("id", fallback_id)
    if not isinstance(name, str) or not name:
        raise DataError(where, "id", name, "text that is not empty", f'write it as text, such as "{fallback_id}"')
    if task == "code" and isinstance(raw.get("prompt"), list):
        return ready_code_row(where, id=name, row=raw)
    if task == "code":
        given = {column: raw.get(column) for column in _CODE_REQUIRED}
        given |= {column: raw[column] for column in _CODE_OPTIONAL if column in raw}
        return code_row(where, id=name, instruction=instruction, **given)
    if "prompt" in raw:
        return ready_row(where, id=name, row=raw)
    if task == "chains":
        raise DataError(where, "prompt", None, "text", "add `prompt`, or use task='math' for rows with `problem`")
    given = {column: raw.get(column) for column in ("problem", "answer", "solution")}
    return math_row(where, id=name, instruction=instruction, **given)


def _object(where: str, line: bytes) -> dict[str, Any]:
    try:
        value = json.loads(line.decode("utf-8-sig"), object_pairs_hook=_distinct)
        if b"\\ud" in line.lower():  # half a surrogate pair is no character, and nothing could write it again
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:  # no JSON, no UTF-8, a key twice, numbers too long, endless lists
        shown = line[:120].decode(errors="replace").strip()
        raise DataError(where, "line", shown, "one JSON object in UTF-8", f"correct the line: {error}") from error
    if not isinstance(value, dict):
        raise DataError(where, "line", value, "one JSON object", "write each row as {...} on a line of its own")
    return value


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object of a line; `json` would keep the last of two values for one key, without a word."""
    seen: set[str] = set()
    for key, _ in pairs:
        if key in seen:
            raise ValueError(f"the key {key!r} stands in an object twice")
        seen.add(key)
    return dict(pairs)


def _hub_rows(source: str, task: str, split: str, limit: int | None, instruction: str) -> Iterator[tuple[str, _Maker]]:
    if task != HUB_TASKS[source]:
        raise ConfigError("task", task, f"{HUB_TASKS[source]} for {source}", f'pass task="{HUB_TASKS[source]}"')
    subsets = DEEPCODER_SUBSETS if source == DEEPCODER else {"train": (None,)}
    if split not in subsets:
        raise ConfigError("split", split, f"{' | '.join(subsets)} for {source}", f'pass split="{next(iter(subsets))}"')
    from datasets import load_dataset

    for subset in subsets[split]:
        try:
            raw_rows = load_dataset(source, subset, split=split, streaming=limit is not None)
        except OSError as error:  # not there, no connection, or offline by choice
            fix = "check the connection, or write the rows to a JSON Lines file"
            raise ConfigError("source", source, f"a source that can be fetched ({error})", fix) from error
        for index, raw in enumerate(raw_rows):
            if source == ACEREASON:
                yield f"{source}, row {index}", partial(map_acereason, raw, index, instruction)
            else:
                yield f"{source} ({subset}), row {index}", partial(map_deepcoder, raw, index, subset, instruction)


def _chains_rows(task: str, split: str, limit: int | None) -> list[dict[str, Any]]:
    from .chains import World

    if task != "chains":
        raise ConfigError("task", task, "chains for the source chains", 'pass task="chains"')
    if split == "train":
        if limit is None:
            raise ConfigError("limit", limit, "a number: the small world has no end", "pass limit=...")
        drawn = itertools.islice(World.load().training_rows(), limit)
    elif split == "test":
        drawn = World.load().evaluation_rows()[:limit]
    else:
        raise ConfigError("split", split, "train | test", 'pass split="train"')
    return [
        ready_row(f"chains, row {number}", id=f"chains/{split}/{number}", row=row) for number, row in enumerate(drawn)
    ]
