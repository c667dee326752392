r"""What can be told of Python source by looking at it as text.

Owns: patterns for lines that are plainly code, the split of a source into top-level statements, and the names that it
binds and uses. Never parses, compiles or executes: the source is a model's, and a parser can be made to crash. So all
of it is approximate, and right for code as people write it. Invariant: time linear in the length.
"""

import builtins
import keyword
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

DEFINITION = re.compile(  # plainly code, wherever it stands
    r"(?:async\s+)?def\s+\w+\s*\(|class\s+\w+\s*[(:]|@\w|from\s+[\w.]+\s+import\s"
    r"|import\s+\w+(?:\.\w+)*(?:\s+as\s+\w+)?\s*(?:[,;#]|$)"
)
STATEMENT = re.compile(  # code, if it is the first line with text
    DEFINITION.pattern + r"|\w+(?:\.\w+|\[[^\[\]]*\])*(?:\s*,\s*\w+)*\s*[-+*/%|&]?=(?!=)|\w+(?:\.\w+)*\("
    r"|for\s+\w+(?:\s*,\s*\w+)*\s+in\b.*:|while\s.*:\s*$|with\s.*\sas\s.*:\s*$|if\s+__name__|try\s*:\s*$"
)
_STRING_OR_COMMENT = re.compile(  # what is not closed ends with the line, or with the text
    r"(?P<prefix>\b[rbufRBUF]{1,2})?(?P<body>"
    r'"""(?:[^\\"]|\\.|"(?!""))*+(?:"""|\Z)|' + r"'''(?:[^\\']|\\.|'(?!''))*+(?:'''|\Z)|"
    r'"(?:[^"\\\n]|\\.)*+"?|' + r"'(?:[^'\\\n]|\\.)*+'?)|#[^\n]*",
    re.DOTALL,
)
_INSERTED = re.compile(r"\{([^{}]*)\}")  # into an f-string
_CONTINUES = re.compile(r"[)\]}]|(?:else|elif|except|finally)\b")
_HEAD = re.compile(r"[ \t]*(?:async[ \t]+)?(?:def|class)\b")
_DEFINES = re.compile(r"(?:async[ \t]+)?(?:def|class)[ \t]+(\w+)")
_IMPORTS = re.compile(r"(?:from[ \t]+[\w.]+[ \t]+)?import\b(.*)", re.DOTALL)
_ASSIGNS = re.compile(r"^[ \t]*(\w[\w \t,*\[\].]{0,200}?)[ \t]*(?::[^=\n]*|[-+*/%&|^@<>]{0,3})=(?!=)", re.MULTILINE)
_BINDS = re.compile(
    r"\b(?:def|class|as|global|nonlocal)[ \t]+(?P<name>\w+)|(?P<walrus>\b\w+)[ \t]*:="
    r"|\bfor\b(?P<targets>[^:\n]{1,200}?)\bin\b|\blambda\b(?P<parameters>[^:\n]{0,200}):"
    r"|^[ \t]*(?:from[ \t]+[\w.]+[ \t]+)?import\b(?P<imports>[^\n]*)",
    re.MULTILINE,
)
_PARAMETERS = re.compile(r"\bdef[ \t]+\w+[ \t]*\(([^)]{0,2000})")
_PARAMETER = re.compile(r"(?:^|[,*])\s*(\w+)\s*(?=[:=,]|$)")
_NAME = re.compile(r"(?<![\w.])[^\W\d]\w*")
_TARGET = re.compile(r"(?<![\w.])[^\W\d]\w*+(?![.\[])")
_KNOWN = frozenset(dir(builtins)) | frozenset(keyword.kwlist)
_BRACKETS = re.compile(r"\([^()]*\)|\[[^\[\]]*\]")
_NO_BODY = re.compile(r"\s*(?:\.\.\.|pass|\"\"|raise\s+NotImplementedError\b.*)?[\s;]*")
_READS = re.compile(r"\binput\s*\(|\bstdin\b|\bopen\s*\(\s*0\b|\bos\.read\s*\(|\bfileinput\b")
_PRINTS = re.compile(r"\bprint\s*\(|\bstdout\b|\bos\.write\s*\(")
_FEEDS_ITSELF = re.compile(r"\bstdin\s*=\s*(?:io\.)?StringIO\b")  # a demonstration with an input of its own


@dataclass(frozen=True)
class Statement:
    """A top-level statement of a source.

    Args:
        text (`str`): As it stands.
        plain (`str`): The same, in as many lines, without strings and comments.
    """

    text: str
    plain: str

    @cached_property
    def binds(self) -> frozenset[str]:
        """Names that it gives to the module, if it is a definition."""
        if imports := _IMPORTS.match(self.plain):
            return _imported(imports[1])
        if self._has_head:
            return frozenset(match[1] for line in self.plain.split("\n") if (match := _DEFINES.match(line)))
        assigned = _ASSIGNS.match(self.plain)
        return frozenset(_TARGET.findall(assigned[1])) if assigned else frozenset()

    @property
    def is_import(self) -> bool:
        """Whether it imports."""
        return bool(_IMPORTS.match(self.plain))

    @property
    def is_definition(self) -> bool:
        """Whether it does nothing but bind names: neither reads nor prints, unless in a function."""
        if self._has_head or self.is_import:
            return True
        return bool(_ASSIGNS.match(self.plain)) and not _READS.search(self.plain) and not _PRINTS.search(self.plain)

    @property
    def is_stub(self) -> bool:
        """Whether it is a function or class that is still to be written."""
        if not self._has_head:
            return False
        plain = self.plain
        for _ in range(3):  # brackets in brackets; the colons in them end no head
            plain = _BRACKETS.sub("", plain)
        lines = [line for line in plain.split("\n") if not line.startswith("@")]
        return all(_NO_BODY.fullmatch(line.partition(":")[2] if _HEAD.match(line) else line) for line in lines)

    @property
    def _has_head(self) -> bool:
        return self.plain.startswith("@") or bool(_HEAD.match(self.plain))


class Source:
    """A source, dedented, and what can be seen of it."""

    def __init__(self, text: str):
        self.text = text

    @cached_property
    def plain(self) -> str:
        """The text in as many lines, with `""` for strings and nothing for comments."""
        return _STRING_OR_COMMENT.sub(_without, self.text)

    @cached_property
    def statements(self) -> tuple[Statement, ...]:
        """Its top-level statements."""
        return tuple(_statements(self.text.split("\n"), self.plain.split("\n")))

    @cached_property
    def binds(self) -> frozenset[str]:
        """Names that its top level knows."""
        return frozenset().union(*(part.binds for part in self.statements))

    @cached_property
    def provides(self) -> frozenset[str]:
        """The same without functions and classes that are still to be written."""
        return frozenset().union(*(part.binds for part in self.statements if not part.is_stub))

    @cached_property
    def defines(self) -> frozenset[str]:
        """The same without what it imports."""
        parts = (part for part in self.statements if not part.is_stub and not part.is_import)
        return frozenset().union(*(part.binds for part in parts))

    @cached_property
    def needs(self) -> frozenset[str]:
        """Names that it uses and does not bind anywhere."""
        return frozenset(_NAME.findall(self.plain)) - _KNOWN - self._bound()

    @property
    def reads(self) -> bool:
        """Whether it reads standard input."""
        return bool(_READS.search(self.plain)) and not _FEEDS_ITSELF.search(self.plain)

    @property
    def prints(self) -> bool:
        """Whether it writes to standard output."""
        return bool(_PRINTS.search(self.plain))

    @property
    def acts(self) -> bool:
        """Whether it does more than define things when it is run."""
        return not all(part.is_definition for part in self.statements)

    def definitions(self) -> str:
        """Its text without the statements that do more than define things."""
        return "\n".join(part.text for part in self.statements if part.is_definition)

    def _bound(self) -> frozenset[str]:
        names: set[str] = set()
        for match in _BINDS.finditer(self.plain):
            names.update(name for name in (match["name"], match["walrus"]) if name)
            names.update(_TARGET.findall(match["targets"] or ""))
            names.update(_PARAMETER.findall((match["parameters"] or "").strip()))
            names.update(_imported(match["imports"] or ""))
        for match in _ASSIGNS.finditer(self.plain):
            names.update(_TARGET.findall(match[1]))
        for match in _PARAMETERS.finditer(self.plain):
            names.update(_PARAMETER.findall(match[1].strip()))
        return frozenset(names)


def open_string(line: str, opened: str = "") -> str:
    '''The delimiter of the string over several lines that is open behind a line, or an empty text.

    Args:
        line (`str`): A line of Python source.
        opened (`str`, *optional*): The delimiter that is open before it.

    Examples:
        >>> open_string('    """Add one.')
        '"""'
        >>> open_string('    And no more."""', opened='"""')
        ''
    '''
    while True:
        if opened:
            _, closing, line = line.partition(opened)
            if not closing:
                return opened
        for match in _STRING_OR_COMMENT.finditer(line):
            body = match["body"] or ""
            if body[:3] in ('"""', "'''") and not (len(body) >= 6 and body.endswith(body[:3])):
                return body[:3]
        return ""


def _without(match: re.Match) -> str:
    body = match["body"]
    if body is None:
        return ""
    inserted = _INSERTED.findall(body) if "f" in (match["prefix"] or "").lower() else ()
    kept = "(" + ", ".join(inserted).replace("\n", " ") + ")" if inserted else '""'
    return kept + "\n" * body.count("\n")


def _statements(lines: list[str], plain: list[str]) -> Iterator[Statement]:
    start, depth, decorated = 0, 0, False
    for number, line in enumerate([*plain, "end"]):
        begins = line[:1].strip() and depth == 0 and not _CONTINUES.match(line)
        if begins and not decorated:
            if any(part.strip() for part in plain[start:number]):
                yield Statement("\n".join(lines[start:number]), "\n".join(plain[start:number]).strip("\n"))
            start = number
        if line.strip():
            decorated = depth == 0 and line.startswith("@")
        depth = max(0, depth + sum(map(line.count, "([{")) - sum(map(line.count, ")]}")))


def _imported(names: str) -> frozenset[str]:
    """Names that `import names` or `from ... import names` binds."""
    parts = names.replace("(", " ").replace(")", " ").split(",")
    bound = [part.rpartition(" as ")[2].strip().partition(".")[0] for part in parts]
    return frozenset(name for name in bound if name.isidentifier())
