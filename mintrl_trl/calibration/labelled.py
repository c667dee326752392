"""Solutions whose first wrong step is known: of the small world by its rules, or from a file in ProcessBench's form.

Owns reading and labelling. It asks no judge. Invariant: the ids of a solution spell its steps one after the other, so a
place in them is a place in a step.

A file holds, one JSON object a line: `id`, `problem`, `steps` (a list of texts), `label` (the 0-based index of the
first wrong step, -1 where all are right), and optionally `answer` and `privileged_context`, which some judges know.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from ..data.chains import Chain, World
from ..errors import ConfigError, DataError
from ..rollouts.doors import Vocabulary
from ..rollouts.rollout import Problem
from ..rollouts.segmentation import segment

_BETWEEN = "\n\n"


@dataclass(frozen=True)
class LabelledSolution:
    """A whole solution.

    Args:
        id (`str`): Its name.
        problem (`Problem`): What the judge may know.
        ids (`tuple[int, ...]`): The solution, with an end id.
        borders (`tuple[int, ...]`): Where each step begins, in bytes.
        first_error (`int`, *optional*): The first wrong step, 0-based; `None` where all are right.
    """

    id: str
    problem: Problem
    ids: tuple[int, ...]
    borders: tuple[int, ...]
    first_error: int | None


def chains_solutions(
    world: World, responses: Iterable[tuple[str, Problem, Sequence[int]]], vocabulary: Vocabulary
) -> list[LabelledSolution]:
    """Label responses of the small world by its rules.

    A step is wrong that is not how the right text would go on after what is written before it; so a mistake is wrong
    once, in its own line. A response that ends too early is wrong in its last step.

    Args:
        world (`World`): The rules.
        responses (`Iterable[tuple]`): Name, problem and ids of each; those that the policy did not end are left out.
        vocabulary (`Vocabulary`): Spells the ids.
    """
    found = []
    for name, problem, ids in responses:
        if ids[-1] not in vocabulary.end_ids:
            continue
        steps = [str(step) for step in segment(ids, vocabulary).steps]
        chain, written, wrong = Chain.parse(problem.question), "", None
        for number, step in enumerate(steps):
            right = world.continuation(chain, written)
            whole = number < len(steps) - 1 or len(step) == len(right)
            if not (right.startswith(step) and whole):
                wrong = number
                break
            written += step
        found.append(LabelledSolution(name, problem, tuple(ids), _borders(steps), wrong))
    return found


def read_labelled(path: str | Path, vocabulary: Vocabulary) -> list[LabelledSolution]:
    """Read a file in ProcessBench's form; see the module.

    Raises:
        ConfigError: There is no such file, or nothing in it.
        DataError: A line that cannot be used.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError("labelled", str(path), f"a JSON Lines file in UTF-8 ({error})", "correct the path") from error
    found = [
        _labelled(f"{path}:{number}", line, vocabulary) for number, line in enumerate(lines, start=1) if line.strip()
    ]
    if len({solution.id for solution in found}) < len(found) or not found:
        raise ConfigError("labelled", str(path), "one solution or more, each with an id of its own", "correct the file")
    return found


def _labelled(where: str, line: str, vocabulary: Vocabulary) -> LabelledSolution:
    try:
        row: Any = json.loads(line)
    except ValueError as error:
        raise DataError(where, "line", line[:120], "one JSON object", f"correct the line: {error}") from error
    row = row if isinstance(row, dict) else {}
    texts = {name: row.get(name) for name in ("id", "problem", "answer", "privileged_context")}
    for name, value in texts.items():
        missing = value is None and name in ("answer", "privileged_context")
        if not missing and not (isinstance(value, str) and value.strip()):
            raise DataError(where, name, value, "text", "write it as text, or drop the line")
    steps, label = row.get("steps"), row.get("label")
    if not (isinstance(steps, list) and steps and all(isinstance(step, str) and step.strip() for step in steps)):
        raise DataError(where, "steps", steps, "a list of texts that are not empty", "split the solution into steps")
    if type(label) is not int or not -1 <= label < len(steps):
        allowed = f"from -1 (all are right) to {len(steps) - 1}, the last step"
        raise DataError(where, "label", label, allowed, "write the 0-based index of the first wrong step")
    written = [step + _BETWEEN for step in steps[:-1]] + steps[-1:]
    ids = [vocabulary.encode(step) for step in written]  # each alone, so that a token belongs to one step
    sizes = [sum(len(vocabulary.token_bytes(token)) for token in step) for step in ids]
    problem = Problem(texts["problem"], texts["privileged_context"], texts["answer"])
    joined = (*(token for step in ids for token in step), min(vocabulary.end_ids))
    return LabelledSolution(texts["id"], problem, joined, _starts(sizes), None if label < 0 else label)


def _borders(steps: Sequence[str]) -> tuple[int, ...]:
    return _starts([len(step.encode()) for step in steps])


def _starts(sizes: Sequence[int]) -> tuple[int, ...]:
    return (0, *accumulate(sizes[:-1]))
