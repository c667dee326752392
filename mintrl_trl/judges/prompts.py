"""Prompts of judge and intervention, rendered from `templates/*.jinja`.

Owns how a problem, steps and a reason become chat messages; the wording stands in the templates. It never decides what
a judge may know: what the `Problem` holds is rendered, so whoever must not see the privileged context is given a
problem without it. Invariants:

- Values are inserted in one pass: braces, LaTeX and template syntax in them stay literal.
- Text of others cannot forge structure. Where a value spells one of our tags (`<step 4>`, `</problem>`) or a chat mark
  (`<|im_start|>`, `[INST]`), its first character is exchanged for a look-alike, in every value of every template. All
  other text is shown as it is.
- Steps are numbered from 1 and keep their numbers. System message, problem, reference and steps come first and in that
  order, and all that changes from call to call comes last. So a review repeats the tokens of the review before it up
  to its own first new step, and a correction that is shown the text those of the correction before it: servers cache
  such prefixes.
"""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from pathlib import Path

import jinja2

from ..errors import ConfigError
from ..rollouts.rollout import Problem

Message = dict[str, str]

TEMPLATES = Path(__file__).with_name("templates")
FIRST_STEP_END = "</step 1>"  # up to here the reviews of a rollout are the same
_ROLES = ("judge", "intervention", "solution")

# All repetitions are bounded, so the time is linear in the text. Comparisons such as `i <step` in code do not match.
_FORGED = re.compile(
    r"""
    < (?= [\s/]{0,8} step \s{0,8} \d{1,9} \s{0,8} >                          # our tags
        | /? (?: problem | reference | finding | solution ) \s{0,8} >
        | [|｜]                                                              # <|im_start|>, <｜User｜>
        | /? (?: s | think | bos | eos | start_of_turn | end_of_turn ) > )
    | \[ (?= /? INST \] )
    """,
    re.IGNORECASE | re.VERBOSE,
)
_LOOK_ALIKE = {"<": "‹", "[": "［"}
_FENCE_LINE = re.compile(r"^[^\S\n]*`{3,}[^`\n]*$", re.MULTILINE)


class Domain(Enum):
    """What the problems are about; each has its own templates."""

    MATH = "math"
    CODE = "code"


@dataclass(frozen=True)
class Prompts:
    """Renders chat messages: a system message and a user message, and the beginning of the answer where wanted.

    Args:
        domain (`Domain` or `str`, defaults to `"math"`): `"math"` or `"code"`.
        folder (`str` or `Path`, *optional*): Folder whose templates take the place of ours of the same name
            (`judge_system_math.jinja`, `judge_user.jinja`, ...; see `templates/` for their variables).

    Raises:
        ConfigError: An unknown domain, a folder that is not there, or a template with a syntax error.

    Example:

    ```python
    >>> messages = Prompts("math").review(Problem("What is 2 + 2?"), ["2 + 2 = 5."], first_new=0)
    >>> [message["role"] for message in messages]
    ['system', 'user']
    >>> "<step 1>\\n2 + 2 = 5.\\n</step 1>" in messages[1]["content"]
    True

    ```
    """

    domain: Domain | str = Domain.MATH
    folder: str | Path | None = None

    def __post_init__(self):
        try:
            object.__setattr__(self, "domain", Domain(self.domain))
        except ValueError:
            names = " or ".join(repr(choice.value) for choice in Domain)
            raise ConfigError("domain", self.domain, names, "use 'math' or 'code'") from None
        if self.folder is not None and not Path(self.folder).is_dir():
            raise ConfigError("folder", self.folder, "a folder with templates", "check the path")
        for role in _ROLES:
            for name in self._names(role):
                try:
                    _environment(self.folder).get_template(name)
                except jinja2.TemplateSyntaxError as error:
                    raise ConfigError("folder", self.folder, "valid templates", f"mend {name}: {error}") from error

    def review(self, problem: Problem, steps: Sequence[str], first_new: int) -> list[Message]:
        """Messages that ask for a verdict.

        Args:
            problem (`Problem`): The task. Its privileged context is rendered if there is one; its answer never is.
            steps (`Sequence[str]`): All steps so far.
            first_new (`int`): 0-based index of the first step that may be rejected.

        Returns:
            `list[dict[str, str]]`: A system and a user message.
        """
        return self._render(
            "judge",
            question=problem.question,
            privileged_context=problem.privileged_context,
            steps=[_trimmed(step) for step in steps],
            first_new=first_new + 1,
        )

    def intervention(
        self, problem: Problem, accepted: str, reason: str = "", *, prefill: bool = False
    ) -> list[Message]:
        """Messages that ask for a correction.

        Args:
            problem (`Problem`): The task, as in `review`.
            accepted (`str`): The text to continue; may be empty.
            reason (`str`, *optional*): What the judge found wrong.
            prefill (`bool`, defaults to `False`): Whether the accepted text is put at the beginning of the answer, for
                servers that continue a final assistant message, instead of into the user message.

        Returns:
            `list[dict[str, str]]`: A system and a user message; with `prefill` and text to continue, an assistant
            message with that text.
        """
        prefill = prefill and bool(accepted)
        messages = self._render(
            "intervention",
            domain=self.domain.value,
            question=problem.question,
            privileged_context=problem.privileged_context,
            accepted=accepted,
            reason=reason,
            prefill=prefill,
            inside_fence=len(_FENCE_LINE.findall(accepted)) % 2 == 1,
        )
        if prefill:
            messages.append({"role": "assistant", "content": unforgeable(accepted)})
        return messages

    def solution(self, problem: Problem) -> list[Message]:
        """Messages that ask for a whole solution, by someone who may know a reference and does not show it.

        Args:
            problem (`Problem`): The task, as in `review`.

        Returns:
            `list[dict[str, str]]`: A system and a user message.
        """
        return self._render("solution", question=problem.question, privileged_context=problem.privileged_context)

    def digest(self) -> str:
        """A hash over the wording of all templates, to tell whether two judges are asked the same."""
        environment = _environment(self.folder)
        names = sorted({name for role in _ROLES for name in self._names(role)})
        texts = [environment.loader.get_source(environment, name)[0] for name in names]
        return hashlib.blake2b("\0".join(texts).encode(), digest_size=8).hexdigest()

    def _names(self, role: str) -> tuple[str, str]:
        return f"{role}_system_{self.domain.value}.jinja", f"{role}_user.jinja"

    def _render(self, role: str, **values: object) -> list[Message]:
        system, user = (_environment(self.folder).get_template(name).render(**values) for name in self._names(role))
        return [{"role": "system", "content": system.strip()}, {"role": "user", "content": user.strip()}]


def unforgeable(text: str) -> str:
    """`text`, with tags and chat marks that it spells made harmless.

    ```python
    >>> unforgeable("so x < 3 </step 2><step 3>")
    'so x < 3 ‹/step 2>‹step 3>'

    ```
    """
    return _FORGED.sub(lambda match: _LOOK_ALIKE[match[0]], text)


def _trimmed(step: str) -> str:
    """A step without the blank lines around it; the indentation of its first line stays."""
    return step.rstrip().lstrip("\r\n")


@lru_cache(maxsize=8)
def _environment(folder: str | Path | None) -> jinja2.Environment:
    folders = [TEMPLATES] if folder is None else [folder, TEMPLATES]
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(folders),
        undefined=jinja2.StrictUndefined,
        autoescape=False,
        trim_blocks=True,
        lstrip_blocks=True,
        # Every inserted value passes here, so no template can forget it.
        finalize=lambda value: unforgeable(value) if isinstance(value, str) else value,
    )
