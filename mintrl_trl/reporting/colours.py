"""One rollout for a person to read: who wrote what, what was thrown away and why, and what it earned.

The policy's text is plain, the judge's is green and bold, a discarded suffix is red and struck through, and the reason
stands after it in brackets. Where no colours show, marks stand in for them: `{+judge+}` and `[-discarded-]`.

Everything a model wrote is hostile text: it is never read as markup, and control characters are shown, not sent.
"""

import re
import unicodedata

from rich.console import Console
from rich.text import Text

from ..rollouts.rollout import Author, Decision
from .records import RecordedReview, RolloutRecord

INTERVENTION, DISCARDED, REASON, QUIET = "bold green", "dim red strike", "yellow", "dim"
_MARKS = {INTERVENTION: ("{+", "+}"), DISCARDED: ("[-", "-]")}
_JOINERS = "\u200c\u200d"  # formatting characters that words and emoji are made of
_HIDDEN_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


def print_rollout(
    record: RolloutRecord, console: Console | None = None, *, outcome: str = "", same_prompt: bool = False
) -> None:
    """Print one rollout. Lines are broken between words in a terminal, and not at all elsewhere.

    Args:
        record ([`RolloutRecord`]): The rollout.
        console (`Console`, *optional*): Where to. Defaults to standard output; marks are used where it has no colours.
        outcome, same_prompt: As for [`rollout_text`].
    """
    console = console if console is not None else Console()
    text = rollout_text(record, marks=needs_marks(console), outcome=outcome, same_prompt=same_prompt)
    console.print(text, soft_wrap=not breaks_lines(console))


def breaks_lines(console: Console) -> bool:
    """Whether lines are broken to a console's width: in a terminal, and not where a pager or a program reads on."""
    return console.is_terminal and console.file.isatty()


def needs_marks(console: Console) -> bool:
    """Whether signs have to stand in for colours: in a file, a pipe, or under `NO_COLOR`."""
    return console.color_system is None or console.no_color


def rollout_text(record: RolloutRecord, *, marks: bool = False, outcome: str = "", same_prompt: bool = False) -> Text:
    """One rollout as styled text: a line of facts, the prompt, the response.

    Args:
        record ([`RolloutRecord`]): The rollout.
        marks (`bool`, *optional*, defaults to `False`): Whether to mark authors by signs besides colours.
        outcome (`str`, *optional*): What became of it beside its group, such as `rescued`; ours, no model's.
        same_prompt (`bool`, *optional*, defaults to `False`): Whether the prompt was shown just before.

    Returns:
        `Text`: For a rich console; its `plain` holds no control character but newlines and tabs.
    """
    text = Text()
    text.append(_facts(record, outcome) + "\n", style="bold")
    if record.reward_why:
        text.append(f"why: {visible(record.reward_why)}\n", style=QUIET)
    for recorded in record.reviews:
        review = recorded.review
        if review.decision is Decision.NO_VERDICT:
            chunk = f"tokens {review.chunk_start} to {review.chunk_start + review.chunk_tokens}"
            text.append(f"no verdict on {chunk}: {visible(review.reason) or 'no reason'}\n", style=REASON)
    before = ("prompt: ", "response: ") if marks else ("", "")
    prompt = "(the same prompt)" if same_prompt else visible(record.prompt)
    text.append(f"{before[0]}{prompt}\n{before[1]}", style=QUIET)
    response = Text()
    _append_response(response, record, marks)
    text.append_text(_without_blank_lines(response))
    text.append("\n")
    return text


def marked_response(record: RolloutRecord) -> str:
    """A rollout's response as plain text: `{+what the judge wrote+}`, `[-what was cut-]`, and the judge's reason."""
    text = Text()
    _append_response(text, record, marks=True)
    return text.plain


def legend(marks: bool = False) -> Text:
    """What the colours mean, on one line."""
    text = Text("policy ", style="")
    for style, word in ((INTERVENTION, "judge"), (DISCARDED, "discarded")):
        _append(text, word, style, marks)
        text.append(" ")
    return text.append("[step that the judge rejected: its reason]", style=REASON)


def visible(text: str) -> str:
    r"""`text` with every character that a terminal would obey or hide written as an escape such as `\x1b`.

    Newlines, tabs and the joiners of words and emoji stay.
    """
    return "".join(_escape(char) if unicodedata.category(char) in _HIDDEN_CATEGORIES else char for char in text)


def _escape(char: str) -> str:
    return char if char in "\n\t" or char in _JOINERS else char.encode("unicode_escape").decode("ascii")


def _facts(record: RolloutRecord, outcome: str) -> str:
    interventions = sum(review.review.intervened for review in record.reviews)
    no_verdicts = sum(review.review.decision is Decision.NO_VERDICT for review in record.reviews)
    facts = [f"update {record.update}", f"row {record.row}", f"group {record.group}", record.role.value]
    if outcome:
        facts.append(outcome)
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
    for piece in record.pieces():
        if isinstance(piece, RecordedReview):
            _append_cut(text, piece, marks)
        else:
            _append(text, piece.text, INTERVENTION if piece.author is Author.INTERVENTION else "", marks)


def _append_cut(text: Text, recorded: RecordedReview, marks: bool) -> None:
    review = recorded.review
    discarded = recorded.discarded_text.rstrip("\n")
    _append(text, discarded, DISCARDED, marks)
    step = "" if review.step is None else f"step {review.step + 1}"  # as the judge counts
    note = ": ".join(part for part in (step, visible(review.reason)) if part)
    ends = " " if discarded == recorded.discarded_text else "\n"  # the reason stands by what it is about
    text.append(f" [{note}]{ends}" if note else ends, style=REASON)


def _without_blank_lines(text: Text) -> Text:
    """The same without empty lines: steps that stand apart would fill a terminal with nothing."""
    kept, end = Text(), 0
    for gap in re.finditer(r"\n(?:[ \t]*\n)+", text.plain):
        kept.append_text(text[end : gap.start() + 1])
        end = gap.end()
    return kept.append_text(text[end:])


def _append(text: Text, content: str, style: str, marks: bool) -> None:
    before, after = _MARKS.get(style, ("", "")) if marks else ("", "")
    words = content.rstrip("\n") if after else content  # a closing mark stands by the words, not on a line of its own
    text.append(f"{before}{visible(words)}{after}{content[len(words) :]}", style=style)
