"""One rollout for a person to read: who wrote what, what was thrown away and why, and what it earned.

The policy's text is plain, the judge's is green and bold, a discarded suffix is red and struck through, and the reason
stands after it in brackets. Where no colours show, marks stand in for them: `{+judge+}` and `[-discarded-]`.

Everything a model wrote is hostile text: it is never read as markup, and control characters are shown, not sent.
"""

import unicodedata

from rich.console import Console
from rich.text import Text

from ..rollouts.rollout import Author, Decision
from .records import RecordedReview, RolloutRecord

INTERVENTION, DISCARDED, REASON, QUIET = "bold green", "dim red strike", "yellow", "dim"
_MARKS = {INTERVENTION: ("{+", "+}"), DISCARDED: ("[-", "-]")}
_JOINERS = "\u200c\u200d"  # formatting characters that words and emoji are made of
_HIDDEN_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


def print_rollout(record: RolloutRecord, console: Console | None = None) -> None:
    """Print one rollout.

    Args:
        record ([`RolloutRecord`]): The rollout.
        console (`Console`, *optional*): Where to. Defaults to standard output; marks are used where it has no colours.
    """
    console = console if console is not None else Console()
    console.print(rollout_text(record, marks=console.color_system is None), soft_wrap=True)


def rollout_text(record: RolloutRecord, *, marks: bool = False) -> Text:
    """One rollout as styled text: a line of facts, the prompt, the response.

    Args:
        record ([`RolloutRecord`]): The rollout.
        marks (`bool`, *optional*, defaults to `False`): Whether to mark authors by signs besides colours.

    Returns:
        `Text`: For a rich console; its `plain` holds no control character but newlines and tabs.
    """
    text = Text()
    text.append(_facts(record) + "\n", style="bold")
    if record.reward_why:
        text.append(f"why: {visible(record.reward_why)}\n", style=QUIET)
    text.append(visible(record.prompt) + "\n", style=QUIET)
    _append_response(text, record, marks)
    text.append("\n")
    return text


def marked_response(record: RolloutRecord) -> str:
    """A rollout's response as plain text: `{+what the judge wrote+}`, `[-what was cut-]`, and the judge's reason."""
    text = Text()
    _append_response(text, record, marks=True)
    return text.plain


def visible(text: str) -> str:
    r"""`text` with every character that a terminal would obey or hide written as an escape such as `\x1b`.

    Newlines, tabs and the joiners of words and emoji stay.
    """
    return "".join(_escape(char) if unicodedata.category(char) in _HIDDEN_CATEGORIES else char for char in text)


def _escape(char: str) -> str:
    return char if char in "\n\t" or char in _JOINERS else char.encode("unicode_escape").decode("ascii")


def _facts(record: RolloutRecord) -> str:
    interventions = sum(review.review.intervened for review in record.reviews)
    no_verdicts = sum(review.review.decision is Decision.NO_VERDICT for review in record.reviews)
    facts = [f"update {record.update}", f"row {record.row}", f"group {record.group}", record.role.value]
    facts.append("no reward" if record.reward is None else f"reward {record.reward:g}")
    if record.advantage is not None:
        facts.append(f"advantage {record.advantage:+.3g}")
    if record.reviews:
        facts.append(f"{interventions} of {len(record.reviews)} reviews intervened")
    if no_verdicts:
        facts.append(f"{no_verdicts} without verdict")
    if record.off_policy_share:
        facts.append(f"{record.off_policy_share:.1%} of the tokens by the judge")
    facts.append(f"{len(record.ids)} tokens, stopped by {record.stop.value}")
    return " · ".join(facts)


def _append_response(text: Text, record: RolloutRecord, marks: bool) -> None:
    cuts = [review for review in record.reviews if review.review.cuts]
    for span in record.spans:
        for review in cuts:
            if review.cut == span.start:
                _append_cut(text, review, marks)
        _append(text, span.text, INTERVENTION if span.author is Author.INTERVENTION else "", marks)


def _append_cut(text: Text, recorded: RecordedReview, marks: bool) -> None:
    review = recorded.review
    _append(text, recorded.discarded_text, DISCARDED, marks)
    step = "" if review.step is None else f"step {review.step + 1}"  # as the judge counts
    note = ": ".join(part for part in (step, visible(review.reason)) if part)
    text.append(f" [{note}] " if note else " ", style=REASON)


def _append(text: Text, content: str, style: str, marks: bool) -> None:
    before, after = _MARKS.get(style, ("", "")) if marks else ("", "")
    text.append(f"{before}{visible(content)}{after}", style=style)
