"""Which rollouts a run has, and where each one stands in `rollouts.jsonl`: found at once, read one by one.

A run of 500 updates x 512 rollouts is a file of gigabytes. It is read once, line by line, into a small table (SQLite)
beside it, `.rollouts.index`; later calls read what was appended since. Where the run's folder may not be written to,
the table lies in the user's cache, and where that is impossible in memory.

Invariants: `rollouts.jsonl` is only read. The table is never believed against the file: what it covers is compared with
the file's beginning and end, and it is made anew where they differ, as after a rewind.
"""

import hashlib
import json
import logging
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ..errors import DataError
from ..rollouts.rollout import Role
from .index_lines import IndexedLine, indexed_line
from .records import RolloutRecord

NAME = ".rollouts.index"
_FORM = 2  # of the table; a table of another form is made anew
_BATCH = 2000  # lines between two commits: what was read stays when the reader is interrupted
_HEAD, _TAIL = 4096, 65536  # bytes that are compared
_PATIENCE_SECONDS = 60.0  # for another process that is making the same table

_TABLES = (
    "CREATE TABLE covered (bytes INTEGER, lines INTEGER, mark BLOB)",
    "CREATE TABLE prompts (id INTEGER PRIMARY KEY, key BLOB UNIQUE, text TEXT)",
    "CREATE TABLE rollouts (id INTEGER PRIMARY KEY, start INTEGER, size INTEGER, prompt INTEGER, step INTEGER,"
    " row INTEGER, grp INTEGER, intervened INTEGER, reward REAL, advantage REAL, tokens INTEGER, judge_tokens INTEGER,"
    " reviews INTEGER, revisions INTEGER, interventions INTEGER, no_verdicts INTEGER, truncated INTEGER,"
    " seconds REAL,"
    " rescued INTEGER DEFAULT 0, derailed INTEGER DEFAULT 0)",
    "CREATE INDEX by_step ON rollouts (step, grp)",
    "INSERT INTO covered VALUES (0, 0, x'')",
)
# As the metric `groups/rescued` has it: right is a reward above 0, and a group without a control's reward has neither.
_OUTCOMES = """
UPDATE rollouts SET
    rescued = intervened AND reward > 0 AND best <= 0, derailed = intervened AND reward <= 0 AND worst > 0
FROM (
    SELECT step AS s, grp AS g, max(reward) AS best, min(reward) AS worst
    FROM rollouts WHERE step >= ? AND NOT intervened AND reward IS NOT NULL GROUP BY step, grp
) WHERE step = s AND grp = g AND reward IS NOT NULL
"""
_LINE = (
    "step, row, grp, intervened, reward, advantage, tokens, judge_tokens, reviews, revisions, interventions,"
    " no_verdicts, truncated, seconds"
)

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RolloutEntry:
    """What the index knows of one rollout.

    Args:
        number (`int`): Its place in the file, counted from 1.
        start, size (`int`): Where its line begins, in bytes, and how long it is.
        update, row, group, role, reward, advantage, seconds: As in [`RolloutRecord`].
        tokens, judge_tokens (`int`): Response tokens; those that the judge wrote.
        reviews, revisions, interventions, no_verdicts (`int`): Calls of the judge; those that rejected a step, after
            which it wrote, that gave no verdict.
        truncated (`bool`): It was cut at the length limit.
        rescued (`bool`): It is right, with interventions allowed, and every control of its group is wrong.
        derailed (`bool`): It is wrong, with interventions allowed, and every control of its group is right.
    """

    number: int
    start: int
    size: int
    update: int
    row: int
    group: int
    role: Role
    reward: float | None
    advantage: float | None
    tokens: int
    judge_tokens: int
    reviews: int
    revisions: int
    interventions: int
    no_verdicts: int
    truncated: bool
    seconds: float
    rescued: bool
    derailed: bool


@dataclass(frozen=True)
class RolloutFilter:
    """Which rollouts are wanted: those that meet everything that is set.

    Args:
        update (`int`, *optional*): Of this update.
        group (`int`, *optional*): Of the group of this number in its update.
        role (`Role`, *optional*): Of this role.
        rescued, derailed (`bool`): See [`RolloutEntry`].
        revised (`bool`): The judge rejected a step.
        no_verdict (`bool`): A review gave no verdict.
        prompt (`str`, *optional*): The prompt holds this text; capitals do not matter.
    """

    update: int | None = None
    group: int | None = None
    role: Role | None = None
    rescued: bool = False
    derailed: bool = False
    revised: bool = False
    no_verdict: bool = False
    prompt: str | None = None

    def _where(self) -> tuple[str, list[Any]]:
        """The filter in SQL, and the values of its question marks."""
        terms, values = ["1"], []
        if self.update is not None:
            terms, values = [*terms, "step = ?"], [*values, self.update]
        if self.group is not None:
            terms, values = [*terms, "grp = ?"], [*values, self.group]
        if self.role is not None:
            terms, values = [*terms, "intervened = ?"], [*values, self.role is Role.INTERVENED]
        flags = {"rescued": self.rescued, "derailed": self.derailed}
        flags |= {"revisions > 0": self.revised, "no_verdicts > 0": self.no_verdict}
        terms += [term for term, wanted in flags.items() if wanted]
        if self.prompt is not None:
            terms.append("prompt IN (SELECT id FROM prompts WHERE holds(text, ?))")
            values.append(self.prompt.encode("utf-8", "backslashreplace").decode().casefold())
        return " AND ".join(terms), values


class RolloutIndex:
    """The rollouts of a run folder. Opening it brings the table up to date.

    Args:
        folder (`str` or `Path`): The run folder.
        on_progress (`Callable`, *optional*): Called with the bytes read so far and those to read, while there are any.

    Raises:
        DataError: There are no rollouts, or a line is JSON, but not a rollout.
    """

    def __init__(self, folder: str | Path, on_progress: Callable[[int, int], None] | None = None):
        self.path = Path(folder) / "rollouts.jsonl"
        if not Path(folder).exists():
            raise DataError(str(folder), "folder", None, "the folder of a run; this one does not exist", "correct it")
        if not self.path.is_file():
            run = self.path.parent.resolve().parent
            fix = f"name the run's folder, {run}" if (run / self.path.name).is_file() else "correct it"
            raise DataError(str(folder), "rollouts.jsonl", None, "the folder of a run that made rollouts", fix)
        self._file = open(self.path, "rb")  # noqa: SIM115 - closed by `close`
        self._table: sqlite3.Connection | None = None
        try:
            self._table = self._opened(on_progress or (lambda done, total: None))
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None):
        self.close()

    def close(self) -> None:
        """Close the files."""
        self._file.close()
        if self._table is not None:
            self._table.close()

    def __len__(self) -> int:
        return self.count(RolloutFilter())

    def count(self, wanted: RolloutFilter) -> int:
        """How many rollouts meet a filter."""
        where, values = wanted._where()
        return self._table.execute(f"SELECT count(*) FROM rollouts WHERE {where}", values).fetchone()[0]

    def find(
        self, wanted: RolloutFilter = RolloutFilter(), limit: int | None = None, *, newest_first: bool = False
    ) -> Iterator[RolloutEntry]:
        """Rollouts that meet a filter, in the file's order; read as they are asked for.

        Args:
            wanted ([`RolloutFilter`], *optional*): By default all.
            limit (`int`, *optional*): At most so many.
            newest_first (`bool`, *optional*, defaults to `False`): Whether later updates come first.
        """
        where, values = wanted._where()
        order = "step DESC, id" if newest_first else "id"
        query = (
            f"SELECT id, start, size, {_LINE}, rescued, derailed FROM rollouts WHERE {where} ORDER BY {order} LIMIT ?"
        )
        with closing(self._table.execute(query, [*values, -1 if limit is None else limit])) as rows:
            for number, start, size, update, row, group, intervened, *rest in rows:
                *rest, truncated, seconds, rescued, derailed = rest
                role = Role.INTERVENED if intervened else Role.CONTROL
                flags = {"truncated": bool(truncated), "rescued": bool(rescued), "derailed": bool(derailed)}
                yield RolloutEntry(number, start, size, update, row, group, role, *rest, seconds=seconds, **flags)

    def updates(self) -> list[int]:
        """Updates that have rollouts, in order."""
        return [step for (step,) in self._table.execute("SELECT DISTINCT step FROM rollouts ORDER BY step")]

    def read(self, entry: RolloutEntry) -> RolloutRecord:
        """The whole rollout.

        Raises:
            DataError: Its line is not a rollout (the file was changed since).
        """
        self._file.seek(entry.start)
        raw, where = self._file.read(entry.size), f"{self.path}, byte {entry.start}"
        try:
            return RolloutRecord.from_json(json.loads(raw), where)
        except json.JSONDecodeError as error:
            raise DataError(where, "record", raw, "the line that was indexed", "try again") from error

    def _opened(self, on_progress: Callable[[int, int], None]) -> sqlite3.Connection:
        """The table where it can be kept, up to date."""
        for place in self._places():
            try:
                return self._updated(place, on_progress)
            except sqlite3.DatabaseError as error:  # it may not be written there, or what is there is no table
                logger.info("No index of the rollouts at %s: %s", place, error)
        return self._updated(":memory:", on_progress)

    def _updated(self, place: Path | str, on_progress: Callable[[int, int], None]) -> sqlite3.Connection:
        table = sqlite3.connect(place, timeout=_PATIENCE_SECONDS, isolation_level=None)
        try:
            table.create_function("holds", 2, lambda text, part: part in text.casefold(), deterministic=True)
            self._update(table, on_progress)
        except BaseException:
            table.close()
            raise
        return table

    def _places(self) -> Iterator[Path]:
        yield self.path.with_name(NAME)
        with suppress(OSError, RuntimeError):  # no place, or nobody's home
            cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mintrl"
            cache.mkdir(parents=True, exist_ok=True)
            yield cache / f"{_digest(os.fsencode(self.path.resolve())).hex()}.index"

    def _update(self, table: sqlite3.Connection, on_progress: Callable[[int, int], None]) -> None:
        """Read what the file has beyond the table."""
        total = os.fstat(self._file.fileno()).st_size
        if _form(table) == _FORM:
            covered, *_, mark = table.execute("SELECT * FROM covered").fetchone()
            if covered == total and mark == self._mark(covered):
                return  # the table may be one that can only be read
        more = True
        while more:
            table.execute("BEGIN IMMEDIATE")  # another process may be about to do the same
            try:
                covered = self._read_batch(table, total)
                table.execute("COMMIT")
            except BaseException:
                if table.in_transaction:
                    table.execute("ROLLBACK")
                raise
            more = covered is not None
            if more:
                on_progress(covered, total)

    def _read_batch(self, table: sqlite3.Connection, total: int) -> int | None:
        """Enter the next lines; the bytes covered then, or `None` where nothing is left."""
        known = _form(table) == _FORM
        start, number, mark = table.execute("SELECT * FROM covered").fetchone() if known else (0, 0, b"")
        if not known or start > total or mark != self._mark(start):
            _make(table)
            start = number = 0
        self._file.seek(start)
        lines, prompts, end, torn = [], {}, start, 0
        while len(lines) < _BATCH and end < total:
            raw = self._file.readline()
            if not raw.endswith(b"\n"):  # being written, or torn by a crash; then the next one begins a new line
                break
            number += 1
            try:
                line = indexed_line(raw, where=f"{self.path}, line {number}")
            except ValueError as error:
                if isinstance(error, DataError):
                    raise
                torn += 1
            else:
                key = _digest(line.prompt.encode())
                prompts[key] = line.prompt
                lines.append((end, len(raw), key, line))
            end += len(raw)
        if torn:
            logger.warning("%s: %d lines up to line %d are not whole and were skipped.", self.path, torn, number)
        if end == start:
            return None
        _enter(table, lines, prompts)
        table.execute("UPDATE covered SET bytes = ?, lines = ?, mark = ?", [end, number, self._mark(end)])
        return end

    def _mark(self, covered: int) -> bytes:
        """What tells this file's first `covered` bytes from another history's."""
        self._file.seek(0)
        head = self._file.read(min(_HEAD, covered))
        self._file.seek(max(0, covered - _TAIL))
        return _digest(head + self._file.read(min(_TAIL, covered)))


def _form(table: sqlite3.Connection) -> int:
    return table.execute("PRAGMA user_version").fetchone()[0]


def _make(table: sqlite3.Connection) -> None:
    """An empty table in place of whatever there is."""
    for name in ("covered", "prompts", "rollouts"):
        table.execute(f"DROP TABLE IF EXISTS {name}")
    for statement in _TABLES:
        table.execute(statement)
    table.execute(f"PRAGMA user_version = {_FORM}")


def _enter(
    table: sqlite3.Connection, lines: list[tuple[int, int, bytes, IndexedLine]], prompts: dict[bytes, str]
) -> None:
    """Enter lines and prompts, and decide which of these groups' rollouts are rescued or derailed."""
    table.executemany("INSERT OR IGNORE INTO prompts (key, text) VALUES (?, ?)", prompts.items())
    ids = {key: table.execute("SELECT id FROM prompts WHERE key = ?", [key]).fetchone()[0] for key in prompts}
    rows = ((start, size, ids[key], *line.values) for start, size, key, line in lines)
    marks = ", ".join("?" * (3 + len(_LINE.split(","))))
    table.executemany(f"INSERT INTO rollouts (start, size, prompt, {_LINE}) VALUES ({marks})", rows)
    if lines:
        table.execute(_OUTCOMES, [min(line.values[0] for *_, line in lines)])


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()
