"""The folder of one evaluation: what was asked, every sample as soon as it is finished, and the scores of samples.

| file | what it holds |
|---|---|
| `evaluation.json` | settings, fingerprints of model and problems, versions; written once, before the first sample |
| `samples.jsonl` | one line per (problem, sample): ids, text, why it ended, log-probability; only ever appended to |
| `scores.jsonl` | one line per (problem, sample): reward, reason, what was read; made again by scoring anew |

It knows files and nothing of models, rewards or tables. Invariants: a process that is killed at any moment loses only
samples that were not finished; a (problem, sample) counts once, the first whole line of it; samples under other
settings, or of other prompts of one id, never come into the same folder.
"""

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..errors import ConfigError, DataError

HEADER, SAMPLES, SCORES = "evaluation.json", "samples.jsonl", "scores.jsonl"
FORMAT = 1
# What may differ between the runs that fill one folder: samples can be added, a machine be brought up to date, files be
# moved. Ids and subsets are the problems', which have a fingerprint.
FREE_SETTINGS = frozenset({"samples", "versions", "origin", "ids", "subsets"})

_OF_PROBLEMS = ("prompts", "prompt_ids", "ids", "subsets", "origin")  # what changes where problems are added
_WEIGHTS = "model.fingerprint"
_DESCRIBES = frozenset({"model", "benchmark", "domain", "samples", "ids", "subsets"})

Key = tuple[str, int]


@dataclass(frozen=True)
class Sample:
    """A finished response.

    Args:
        problem (`str`): Id of the problem.
        sample (`int`): Its number among the problem's samples, from 0.
        ids (`tuple[int, ...]`): Response token ids, the end id included.
        text (`str`): Their text, without special tokens.
        stop (`str`): `"end"`: the policy ended it; `"length"`: it reached the limit.
        logp (`float`, *optional*): Log-probability of the response as it was sampled, in nats; `None` where unknown.
    """

    problem: str
    sample: int
    ids: tuple[int, ...]
    text: str
    stop: str
    logp: float | None = None

    @property
    def key(self) -> Key:
        """What names it in the folder."""
        return self.problem, self.sample

    @classmethod
    def from_json(cls, line: Mapping[str, Any]) -> "Sample":
        """The sample of a line of `samples.jsonl`."""
        return cls(**{**line, "ids": tuple(line["ids"])})


@dataclass(frozen=True)
class Score:
    """What a reward function said of a sample.

    Args:
        problem, sample: As of [`Sample`].
        reward (`float`, *optional*): `None` where it gave none.
        why (`str`): Its reason; empty where it gives none.
        detail (`str`): What was read or seen, shortened.
        row (`str`): Fingerprint of the row it was scored by: a row that changed is scored again.
    """

    problem: str
    sample: int
    reward: float | None
    why: str = ""
    detail: str = ""
    row: str = ""

    @property
    def key(self) -> Key:
        """What names it in the folder."""
        return self.problem, self.sample


class SampleFolder:
    """A folder of samples; made when something is first written.

    Args:
        path (`str` or `Path`): The folder.
    """

    def __init__(self, path: str | Path):
        self.path = Path(path)

    def header(self) -> dict[str, Any] | None:
        """Content of `evaluation.json`; `None` where there is none.

        Raises:
            DataError: It is not what this program writes.
        """
        path = self.path / HEADER
        try:
            header = json.loads(path.read_text(encoding="utf-8"))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except ValueError as error:
            raise DataError(str(path), "content", str(error), "JSON", "name another folder") from error
        if not isinstance(header, dict) or header.get("format") != FORMAT:
            found = header.get("format") if isinstance(header, dict) else header
            raise DataError(str(path), "format", found, str(FORMAT), "evaluate into a new folder")
        return header

    def described(self) -> dict[str, Any]:
        """The header of a folder that holds one model's samples on one benchmark.

        Raises:
            DataError: There is none, or not all of it.
        """
        header = self.header() or {}
        model = header.get("model")
        lacking = sorted(_DESCRIBES - header.keys()) + (
            [] if isinstance(model, dict) and "label" in model else ["label"]
        )
        if lacking:
            fix = "restore the file, or evaluate into a new folder"
            raise DataError(str(self.path / HEADER), ", ".join(lacking), None, "what `mintrl eval` writes", fix)
        return header | {"model": {"run": "", "update": None} | model}

    def begin(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Write the header, or check that what is here was made under the same settings.

        Args:
            settings (`Mapping[str, Any]`): Plain JSON values, nested. `samples` may be another number than before.
                Problems may be more or fewer where `prompt_ids` has a fingerprint of each by its id, and those that
                both have are the same.

        Returns:
            `dict[str, Any]`: The header that holds now, with the larger number of samples and all problems.

        Raises:
            ConfigError: Other settings than those of the samples here; names each that differs, with both values. Or
                the folder cannot be written.
        """
        wanted = {"format": FORMAT, **json.loads(json.dumps(settings))}
        header = self.header()
        if header is None:
            if (self.path / SAMPLES).exists():
                allowed = f"a folder whose samples have their {HEADER}"
                raise ConfigError("out", str(self.path), allowed, "name another folder")
            header = wanted
        else:
            there, asked = (one.get("prompt_ids") for one in (header, wanted))
            if isinstance(there, dict) and isinstance(asked, dict):  # an older version wrote one for all problems
                if there.items() < asked.items():
                    header |= {name: wanted[name] for name in _OF_PROBLEMS if name in wanted}
                elif asked.items() < there.items():
                    wanted |= {name: header[name] for name in _OF_PROBLEMS if name in header}
            differing = differences(header, wanted)
            if differing and (few := len(header.get("ids", ()))) != len(wanted.get("ids", ())):
                allowed = f"a folder of samples of the same problems; it has {few:,} of {header.get('benchmark')}, not "
                allowed += f"{len(wanted.get('ids', ())):,}"
                fix = f"set limit to {few}, or name another folder"
                raise ConfigError("out", str(self.path), allowed, fix)
            if [name.partition(" ")[0] for name in differing] == [_WEIGHTS]:
                fix = f"name another folder, or delete {self.path} if these samples are not needed any more"
                raise ConfigError("out", str(self.path), "a folder of samples of these weights; it has others'", fix)
            if differing:
                allowed = f"a folder of samples under the same settings; it differs in {'; '.join(differing)}"
                raise ConfigError("out", str(self.path), allowed, "name another folder, or use the settings it has")
            header |= {"samples": max(header["samples"], wanted["samples"])}
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            _replace(self.path / HEADER, json.dumps(header, indent=2) + "\n")
        except OSError as error:
            allowed = f"a folder that can be written ({error.strerror})"
            raise ConfigError("out", str(self.path), allowed, "make room, or name another folder") from error
        self._cut_torn_line(SAMPLES)
        self._cut_torn_line(SCORES)
        return header

    def append(self, sample: Sample) -> None:
        """Append a finished sample; it is there for other processes when this returns.

        Raises:
            DataError: The disk does not take it, such as a full one. What was there stays as it was.
        """
        self._append(SAMPLES, [asdict(sample)])

    def samples(self) -> Iterator[Sample]:
        """Samples in the order they finished, each (problem, sample) once; a torn last line is passed over.

        Raises:
            DataError: A whole line is no sample; names file and line.
        """
        return self._once(SAMPLES, Sample.from_json)

    def append_scores(self, scores: Iterable[Score]) -> None:
        """Append scores."""
        self._append(SCORES, [asdict(score) for score in scores])

    def scores(self) -> dict[Key, Score]:
        """Scores by (problem, sample), the last line of each."""
        return {score.key: score for score in self._read(SCORES, lambda line: Score(**line))}

    def forget_scores(self) -> None:
        """Remove all scores; samples stay."""
        (self.path / SCORES).unlink(missing_ok=True)

    def _append(self, name: str, lines: list[dict[str, Any]]) -> None:
        if not lines:
            return
        path = self.path / name
        data = memoryview("".join(json.dumps(line, allow_nan=False) + "\n" for line in lines).encode("ascii"))
        try:
            with open(path, "ab", buffering=0) as file:
                start = file.tell()
                try:
                    while data:
                        data = data[file.write(data) :]
                except OSError:  # a full disk: whole lines or nothing
                    file.truncate(start)
                    raise
        except OSError as error:
            fix = "make room; the same command continues"
            raise DataError(str(path), "file", error.strerror, "a disk that takes what is written", fix) from error

    def _once(self, name: str, make) -> Iterator[Any]:
        seen: set[Key] = set()
        for item in self._read(name, make):
            if item.key not in seen:
                seen.add(item.key)
                yield item

    def _read(self, name: str, make) -> Iterator[Any]:
        path = self.path / name
        if not path.exists():
            return
        with open(path, "rb") as file:
            for number, raw in enumerate(file, start=1):
                if not raw.endswith(b"\n"):
                    return  # torn: its writer was killed, or is writing it now
                try:
                    yield make(json.loads(raw))
                except (ValueError, TypeError, KeyError) as error:
                    fix = "delete this line; it is made again"
                    raise DataError(f"{path}, line {number}", "content", str(error), "a whole line", fix) from error

    def _cut_torn_line(self, name: str) -> None:
        """Take back the beginning of a line whose writer was killed."""
        path = self.path / name
        if not path.exists():
            return
        with open(path, "rb+") as file:
            end = file.seek(0, os.SEEK_END)
            while end:
                start = max(0, end - 65_536)
                file.seek(start)
                newline = file.read(end - start).rfind(b"\n")
                if newline >= 0:
                    end = start + newline + 1
                    break
                end = start
            file.truncate(end)


def stored_folders(path: str | Path) -> list[SampleFolder]:
    """Folders of samples at `path`: itself, or those of one model, or of several models; none if it is not there."""
    found = next((some for depth in ("", "*/", "*/*/") if (some := sorted(Path(path).glob(f"{depth}{HEADER}")))), [])
    return [SampleFolder(header.parent) for header in found]


def differences(
    first: Mapping[str, Any], second: Mapping[str, Any], there: str = "there", now: str = "now", prefix: str = ""
) -> list[str]:
    """Settings that two headers do not share, in words: `sampling.seed (0 there, 1 now)`."""
    found = []
    for name in sorted(first.keys() | second.keys()):
        if not prefix and name in FREE_SETTINGS:
            continue
        old, new = first.get(name), second.get(name)
        if isinstance(old, dict) and isinstance(new, dict):
            found += differences(old, new, there, now, f"{prefix}{name}.")
        elif old != new:
            found.append(f"{prefix}{name} ({json.dumps(old)} {there}, {json.dumps(new)} {now})")
    return found


def _replace(path: Path, text: str) -> None:
    beside = path.with_name(f".{path.name}.new")
    beside.write_text(text, encoding="utf-8")
    beside.replace(path)
