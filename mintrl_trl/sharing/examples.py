"""Rollouts for a model card, as in the paper's Figures 7 to 9: interventions that helped, and one that misled.

It chooses by the run's index, so a run of gigabytes is not read. Everything a model wrote is hostile text: it goes into
the card as text of an HTML element, escaped, with control characters spelled out, so that no card can hold markup,
a link or a picture that a model made.
"""

import heapq
import html
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..errors import DataError
from ..reporting.colours import visible
from ..reporting.records import RecordedReview, RecordedSpan, RolloutRecord
from ..reporting.rollout_index import RolloutEntry, RolloutFilter, RolloutIndex
from ..rollouts.rollout import Author

_CANDIDATES = 16  # the shortest ones, to find different prompts among
_PROMPT_CHARS, _PLAIN_CHARS, _CUT_CHARS, _REASON_CHARS = 1500, 900, 600, 400
_GAP = "\n[…]\n"


@dataclass(frozen=True)
class Example:
    """A rollout and what it shows.

    Args:
        title (`str`): In words.
        record ([`RolloutRecord`]): The rollout.
    """

    title: str
    record: RolloutRecord


def find_examples(folder: str | Path, number: int = 3, until: int | None = None) -> list[Example]:
    """Short rollouts that show what interventions do.

    Args:
        folder (`str` or `Path`): The run folder.
        number (`int`, *optional*, defaults to 3): At most so many, of different prompts where there are such. The last
            of several is one that was misled, where there is one.
        until (`int`, *optional*): Of the updates up to this one. By default of all.

    Returns:
        `list[Example]`: Empty where the run has no interventions.
    """
    if number < 1:
        return []
    try:
        with RolloutIndex(folder) as index:
            helped = _shortest(index, RolloutFilter(rescued=True), until)
            misled = _shortest(index, RolloutFilter(derailed=True), until)
            title = "An intervention that helped: every control rollout of this problem was wrong"
            if not helped:
                title = "An intervention"
                helped = _shortest(index, RolloutFilter(revised=True), until)
            failed = [
                Example("An intervention that misled: every control rollout of this problem was right", record)
                for record in misled[: number > 1]
            ]
            return [Example(title, record) for record in helped[: number - len(failed)]] + failed
    except DataError:  # no rollouts, or lines of an older form: a card without examples is a card
        return []


def _shortest(index: RolloutIndex, wanted: RolloutFilter, until: int | None) -> list[RolloutRecord]:
    """The shortest rollouts that a judge wrote in: first of different prompts, then the others."""
    found: Iterator[RolloutEntry] = (
        entry for entry in index.find(wanted) if entry.judge_tokens and (until is None or entry.update <= until)
    )
    records = [index.read(entry) for entry in heapq.nsmallest(_CANDIDATES, found, key=lambda entry: entry.size)]
    first = {record.prompt: record for record in reversed(records)}
    return [record for record in records if first[record.prompt] is record]


def example_markdown(example: Example) -> str:
    """An example as a folded block of the card."""
    record = example.record
    facts = [f"update {record.update}", "no reward" if record.reward is None else f"reward {record.reward:g}"]
    if record.advantage is not None:
        facts.append(f"advantage {record.advantage:+.3g}")
    facts.append(f"{record.off_policy_share:.1%} of its {len(record.ids)} tokens by the judge")
    summary = f"<details>\n<summary>{example.title} ({', '.join(facts)})</summary>"
    # The blank lines make `<pre>` a block of its own, which Markdown ends at `</pre>` alone.
    return f"{summary}\n\n<pre>\n{_body(record)}\n</pre>\n\n</details>"


def _body(record: RolloutRecord) -> str:
    prompt = _text(_shortened(record.prompt.strip(), _PROMPT_CHARS))
    parts = [f"<b>Problem</b>\n{prompt}\n\n<b>Response</b>\n"]
    plain = ""
    for piece in record.pieces():
        if isinstance(piece, RecordedSpan) and piece.author is Author.POLICY:
            plain += piece.text
            continue
        parts.append(_text(_shortened(plain, _PLAIN_CHARS)))
        plain = ""
        parts.append(_cut(piece) if isinstance(piece, RecordedReview) else f"<ins><b>{_text(piece.text)}</b></ins>")
    parts.append(_text(_shortened(plain, _PLAIN_CHARS)))
    if record.reward_why:
        parts.append(f"\n\n<b>Reward</b> {_text(record.reward_why[:_REASON_CHARS])}")
    return "".join(parts)


def _cut(recorded: RecordedReview) -> str:
    discarded = _text(_shortened(recorded.discarded_text, _CUT_CHARS))
    struck = f"<del>{discarded}</del>" if discarded else ""
    reason = _text(recorded.review.reason[:_REASON_CHARS])
    return f"{struck}<i> [the judge{': ' if reason else ''}{reason}] </i>"


def _shortened(text: str, limit: int) -> str:
    """Its beginning and its end where it is long."""
    return text if len(text) <= limit else f"{text[: limit // 2]}{_GAP}{text[-(limit // 2) :]}"


def _text(text: str) -> str:
    """As text of an HTML element, on any number of lines."""
    return html.escape(visible(text))
