"""What a judge's reply says: a verdict, a correction, a leak.

Owns the wire format: steps count from 1 there and from 0 everywhere else, and this is the one place that converts. It
is tolerant of what stands around a verdict (prose, code fences, thinking, unescaped LaTeX) and never guesses what
stands in it: anything but one consistent decision is a `NoVerdict` with its reason. Invariant: the time is linear in
the length of the reply, whatever it holds, and no reply raises anything but `NoVerdict`.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

from ..errors import NoVerdict
from ..rollouts.doors import KEEP, Revise, Verdict

MAX_REASON_CHARS = 200
LEAST_ANSWER_CHARS = 3  # shorter answers stand in too many innocent sentences
_MOST_ANSWER_WORDS = 20  # longer answers are looked for as formulas and numbers only
_MOST_STEP_DIGITS = 9  # no rollout has more steps
_WORK_PER_CHAR = 64  # the search for an object looks at so many characters per character of text, then gives up
_SHORTEST_ECHO_CHARS, _LONGEST_ECHO_CHARS = 16, 1000

_THINK_START, _THINK_END = "<think>", "</think>"
_CHAT_MARK = re.compile(r"<[|｜]|</s>|</?(?:start_of_turn|end_of_turn|solution)>|\[/?INST\]")
# A backslash, with group 1 where it makes an escape of JSON and not the beginning of a LaTeX command.
_BACKSLASH = re.compile(
    r"\\(?:(?![bf][a-z]|n(?:eq|abla|ot\b)|r(?:ight|ho\b)|t(?:imes|heta|ext|an\b|au\b|frac|o\b))"
    r'(["\\/bfnrt]|u[0-9a-fA-F]{4})|)'
)
_OBJECT_START = re.compile(r'\{\s*+["}]')
_WHOLE_NUMBER = re.compile(r"\s*-?[0-9]+\s*")


def parse_verdict(text: str, num_steps: int, first_new: int) -> Verdict:
    r"""Read a reply of the form `{"reason": ..., "decision": "keep" | "revise", "step": ...}`.

    The whole reply is tried first, then the last JSON object in it that holds a decision. A thinking block counts for
    nothing.

    Args:
        text (`str`): The reply.
        num_steps (`int`): Steps that were shown.
        first_new (`int`): 0-based index of the first step that may be rejected.

    Returns:
        `Keep`, or `Revise` with a 0-based step.

    Raises:
        NoVerdict: With reason `empty`, `unparsable` (no object with a decision, an unknown decision, a step that is no
            whole number), `inconsistent` (revise without a step, keep with one, a key that stands twice) or
            `out_of_range`.

    Example:

    ```python
    >>> parse_verdict('Sure: {"reason": "2 + 2 is 4", "decision": "revise", "step": 2}', num_steps=3, first_new=1)
    Revise(step=1, reason='2 + 2 is 4', resample=False)

    ```
    """
    if not text.strip():
        raise NoVerdict("empty", "the reply holds no text")
    # Models forget to double the backslashes of LaTeX; \sqrt is no JSON, and \frac would be a form feed and "rac".
    text = _BACKSLASH.sub(lambda match: match[0] if match[1] else r"\\", text)
    reply = _whole(text)
    if reply is None:
        answer = _after_thinking(text)
        if answer is None:
            raise NoVerdict("unparsable", f"thinking that does not end: {_shown(text)}")
        for candidate in _objects(answer):
            reply = candidate if "decision" in candidate else reply
    if reply is None:
        raise NoVerdict("unparsable", f"no JSON object with a decision: {_shown(text)}")
    return _verdict(reply, num_steps, first_new)


def spell_verdict(step: int | None) -> str:
    """The shortest reply that says keep (`None`), or revise from the 0-based `step` on.

    ```python
    >>> spell_verdict(1)
    '{"decision": "revise", "step": 2}'

    ```
    """
    return json.dumps({"decision": "keep"} if step is None else {"decision": "revise", "step": step + 1})


def verdict_schema(num_steps: int, first_new: int) -> dict[str, Any]:
    """The reply to a review as a JSON schema: the reason first, and a step among the new ones."""

    def variant(decision: str, **more: Any) -> dict[str, Any]:
        properties = {"reason": {"type": "string", "maxLength": MAX_REASON_CHARS}, "decision": {"const": decision}}
        properties |= more
        return {
            "type": "object",
            "properties": properties,
            "required": list(properties),
            "additionalProperties": False,
        }

    steps = {"enum": list(range(first_new + 1, num_steps + 1))}
    return {"anyOf": [variant("keep"), variant("revise", step=steps)]}


def verdict_pattern(num_steps: int, first_new: int) -> str:
    r"""The same as a regular expression, which leaves no room for white space without end.

    The reason holds no quotation mark and no backslash, so that nothing in it has to be escaped.

    ```python
    >>> bool(re.fullmatch(verdict_pattern(3, 1), '{"reason": "2 + 2 is 4", "decision": "revise", "step": 3}'))
    True

    ```
    """
    steps = "|".join(map(str, range(first_new + 1, num_steps + 1)))
    reason = rf'[^"\\\n\r\t]{{1,{MAX_REASON_CHARS}}}'
    return rf'\{{"reason": "{reason}", "decision": ("keep"|"revise", "step": ({steps}))\}}'


def clean_correction(text: str, accepted: str = "") -> str:
    """What of a text correction may be spliced in: without thinking, chat marks and a repetition of what it continues.

    Args:
        text (`str`): The reply.
        accepted (`str`, *optional*): The text that it continues, where that was shown in a prompt. A model then answers
            in a new message, so a repeated end is dropped and a missing space put in. Not given where the server
            continued the text itself: every character then counts.

    Returns:
        `str`: The continuation; empty if nothing is left.
    """
    answer = _after_thinking(text)
    if answer is None:
        return ""
    if answer is not text or accepted:
        answer = _without_echo(answer.lstrip("\r\n").removeprefix("<solution>"), accepted)
    mark = _CHAT_MARK.search(answer)
    answer = answer[: mark.start()] if mark else answer
    if not answer.strip():
        return ""
    if accepted.endswith("\n"):
        return answer.lstrip("\r\n")
    new_sentence = accepted and answer[0].isupper() and not accepted[-1].isspace()
    return f" {answer}" if new_sentence else answer


def leaks_answer(correction: str, answer: str | None) -> bool:
    r"""Whether a correction gives the final answer away.

    A number, a formula or a run of words of the correction must equal the answer after normalisation; a part of a
    longer number or word does not count. Answers shorter than three characters are not looked for.

    Args:
        correction (`str`): The correction.
        answer (`str`, *optional*): The final answer.

    Returns:
        `bool`.

    Example:

    ```python
    >>> leaks_answer(r"so we get $x = 1{,}180$.", "1180"), leaks_answer("so we get 11805.", "1180")
    (True, False)

    ```
    """
    wanted = _normal(answer or "")
    if len(wanted) < LEAST_ANSWER_CHARS:
        return False
    return any(_normal(candidate) == wanted for candidate in _candidates(correction, len(answer.split())))


# Verdicts


def _whole(text: str) -> dict | None:
    try:
        reply = _DECODER.decode(text)
    except (ValueError, RecursionError):
        return None
    return reply if isinstance(reply, dict) and "decision" in reply else None


def _objects(text: str) -> Iterator[dict]:
    """JSON objects in `text` from left to right, none inside another.

    A failed attempt costs no more than the place where it failed. The sum is bounded, so hostile text (braces over
    braces that never close) is given up on.
    """
    place, work = 0, _WORK_PER_CHAR * len(text) + 4096
    while start := _OBJECT_START.search(text, place):
        try:
            found, place = _DECODER.raw_decode(text, start.start())
            yield found
        except json.JSONDecodeError as error:
            place = start.start() + 1
            work -= error.pos
        except RecursionError:
            raise NoVerdict("unparsable", "JSON nested too deeply") from None
        if work < 0:
            raise NoVerdict("unparsable", f"too many braces that open no object: {_shown(text)}")


def _object(pairs: list[tuple[str, object]]) -> dict:
    """A JSON object; where a key stands twice, its decision cannot be relied on."""
    found = dict(pairs)
    return found if len(found) == len(pairs) else found | {"decision": _AMBIGUOUS}


_AMBIGUOUS = object()
# Numbers stay text: reading a long one takes long, and only a short whole one can be a step.
_DECODER = json.JSONDecoder(
    strict=False, object_pairs_hook=_object, parse_int=str, parse_float=str, parse_constant=str
)  # strict=False: line ends inside a reason are fine


def _verdict(reply: dict, num_steps: int, first_new: int) -> Verdict:
    decision, step = reply["decision"], reply.get("step")
    if decision is _AMBIGUOUS:
        raise NoVerdict("inconsistent", "a key of the reply stands twice")
    kind = decision.strip().lower() if isinstance(decision, str) else None
    if kind not in ("keep", "revise"):
        raise NoVerdict("unparsable", f"decision {decision!r:.40}")
    if (kind == "keep") != (step is None):
        raise NoVerdict("inconsistent", f"{kind} with step {step!r:.40}")
    if step is None:
        return KEEP
    if not isinstance(step, str) or not _WHOLE_NUMBER.fullmatch(step):
        raise NoVerdict("unparsable", f"step {step!r:.40} is no whole number")
    digits = step.strip()
    if len(digits) > _MOST_STEP_DIGITS or not first_new < int(digits) <= num_steps:
        raise NoVerdict("out_of_range", f"step {digits:.40}, not one of {first_new + 1} to {num_steps}")
    reason = reply.get("reason")
    reason = " ".join(reason.split())[:MAX_REASON_CHARS] if isinstance(reason, str) else ""
    return Revise(step=int(digits) - 1, reason=reason)


def _shown(text: str) -> str:
    """The end of a reply, where a verdict should be, for a message."""
    text = " ".join(text[-1000:].split())
    return repr(text if len(text) <= 160 else "..." + text[-157:])


# Corrections


def _after_thinking(text: str) -> str | None:
    """What follows the last thinking block (`text` itself without one); `None` where one is open to the end."""
    _, end, rest = text.rpartition(_THINK_END)
    rest = rest if end else text
    return None if _THINK_START in rest else rest


def _without_echo(text: str, accepted: str) -> str:
    """`text` without a beginning that repeats the end of `accepted`."""
    tail = accepted.rstrip()[-_LONGEST_ECHO_CHARS:]
    start = text.lstrip()[:_LONGEST_ECHO_CHARS]
    for length in range(min(len(tail), len(start)), _SHORTEST_ECHO_CHARS - 1, -1):
        if start.startswith(tail[-length:]):
            return text.lstrip()[length:]
    return text


# Leaks

_FORMULA = re.compile(
    r"\$\$?([^$]+)\$|\\\(((?:[^\\]|\\[^()])*+)\\\)|\\\[((?:[^\\]|\\[^\[\]])*+)\\\]|([(\[][^()\[\]]*+[)\]])"
)
_NUMBER = re.compile(r"(?<![\w.,])(?:(?<![)}\]])[-−])?[0-9]++(?:(?:,|\{,\})[0-9]{3})*+(?:\.[0-9]++)?+(?!\w)")
_EQUALITY = re.compile(r"=|\\approx|≈|\\equiv")
_LATEX_NOISE = re.compile(
    r"\\(?:left|right|displaystyle|text|textbf|mathrm|mathbf|boxed)(?![a-zA-Z])"
    r"|\\[,;:! ()\[\]]|[\s$~]|\^\{?\\circ\}?"
)
_SIMPLE_FRACTION = re.compile(r"\\[dt]?frac(?:\{([^{}]*)\}\{([^{}]*)\}|([0-9])([0-9]))")
_THOUSANDS = re.compile(r"(?<=[0-9])(?:,|\{,\})(?=[0-9]{3}(?![0-9]))")
_DECIMAL = re.compile(r"([+-]?)0*([0-9]+?)(?:\.([0-9]*?)0*)?")
_LONGEST_DECIMAL_CHARS = 40  # longer ones are compared digit by digit
_AROUND = "\"'`*.,;:!?(){}[]“”‘’"


def _candidates(correction: str, num_words: int) -> Iterator[str]:
    """Everything in a correction that could be an answer of `num_words` words."""
    for match in _FORMULA.finditer(correction):
        yield from _EQUALITY.split(match[match.lastindex])
        yield match[match.lastindex]
    yield from (match[0] for match in _NUMBER.finditer(correction))
    words = correction.split()
    for size in {1, min(num_words, _MOST_ANSWER_WORDS)}:
        for start in range(len(words) - size + 1):
            run = " ".join(words[start : start + size])
            yield run
            if "=" in run:
                yield _EQUALITY.split(run)[-1]


def _normal(text: str) -> str:
    """One form for the many ways to write an answer."""
    text = _SIMPLE_FRACTION.sub(lambda match: "/".join(filter(None, match.groups())), text.replace("−", "-"))
    text = _THOUSANDS.sub("", _LATEX_NOISE.sub("", text))
    text = text.strip(_AROUND).replace("{", "").replace("}", "").lower()
    number = _DECIMAL.fullmatch(text) if len(text) <= _LONGEST_DECIMAL_CHARS else None
    if number is None:
        return text
    sign, whole, fraction = number.groups()
    return ("-" if sign == "-" else "") + whole + (f".{fraction}" if fraction else "")
