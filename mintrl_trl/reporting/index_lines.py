"""A line of `rollouts.jsonl` as the few numbers that an index keeps. Reads no file and keeps no table.

Long lists of token ids, which are most of a line, are cut out before it is parsed: in JSON no text can hold the
unescaped quotes that a key has, so where a key stands is certain.
"""

import json
from dataclasses import dataclass
from typing import Any

from ..errors import DataError
from ..rollouts.rollout import Author, Decision, Role, StopReason

_ID_LISTS = (b', "ids": [', b', "prompt_ids": [')


@dataclass(frozen=True, slots=True)
class IndexedLine:
    """What a table keeps of a line.

    Args:
        prompt (`str`): The prompt's text; a surrogate that stands alone is written as an escape.
        values (`tuple`): Update, row, group, whether it is intervened, reward, advantage, response tokens, those by the
            judge, reviews, rejections, interventions, reviews without verdict, whether the length limit
            cut it, seconds.
    """

    prompt: str
    values: tuple[Any, ...]


def indexed_line(raw: bytes, where: str) -> IndexedLine:
    """Read a line.

    Args:
        raw (`bytes`): The line.
        where (`str`): File and line, for the message.

    Raises:
        DataError: It is JSON, but not a rollout.
        ValueError: It is not JSON.
    """
    for key in _ID_LISTS:
        start = raw.find(key) + len(key)
        if start >= len(key):
            raw = raw[:start] + raw[raw.index(b"]", start) :]
    record = json.loads(raw)
    try:
        spans, decisions = record["spans"], [review["decision"] for review in record["reviews"]]
        by_judge = [span["end"] - span["start"] for span in spans if span["author"] == Author.INTERVENTION.value]
        values = (
            *(int(record[name]) for name in ("update", "row", "group")),
            Role(record["role"]) is Role.INTERVENED,
            record["reward"],
            record["advantage"],
            spans[-1]["end"],
            sum(by_judge),
            len(decisions),
            decisions.count(Decision.REVISE.value),
            sum(review["correction_tokens"] > 0 for review in record["reviews"]),
            decisions.count(Decision.NO_VERDICT.value),
            StopReason(record["stop"]) is StopReason.LENGTH,
            float(record["seconds"]),
        )
        prompt = str(record["prompt"]).encode("utf-8", "backslashreplace").decode()  # a table holds no half characters
        return IndexedLine(prompt, values)
    except (AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError) as error:
        allowed = "an object as RolloutRecord.to_json writes it"
        raise DataError(where, "record", record, allowed, f"remove the line ({error!r})") from error
