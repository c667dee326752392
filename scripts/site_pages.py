"""The documentation site's pages beyond `docs/`: a hook of MkDocs.

Owns how files of the repository become pages: README.md is the home page, ARCHITECTURE.md and its like are pages, and a
file that some page links to (a recipe, a module) is shown as a page of its own, so that the site needs no other place.
It writes no file and changes no text but the targets of links. Invariant: a link whose target is not there stays as it
is, and MkDocs, which is run with `--strict`, stops at it.
"""

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page
from site_commands import commands_page
from site_settings import settings_page

ROOT = Path(__file__).parents[1]
PAGES = {
    "README.md": "index.md",
    "ARCHITECTURE.md": "architecture.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
}
# Pages made from the code: in the repository links lead to the code itself.
MADE = {"mintrl_trl/config.py": "settings.md", "mintrl_trl/cli.py": "commands.md"}
LINK = re.compile(r"(?P<open>\]\()(?P<target>[^()\s#]+)(?P<anchor>#[^()\s]*)?(?=\))")
LANGUAGES = {".py": "python", ".yaml": "yaml", ".yml": "yaml", ".slurm": "bash", ".jsonl": "json", ".cfg": "ini"}
SHOWN_CHARS = 100_000  # of a file; rows of data are longer


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what `docs/` does not hold: `PAGES`, commands, settings, and a page for each file that some page links to."""
    for path, uri in PAGES.items():
        files.append(File.generated(config, uri, content=(ROOT / path).read_text(encoding="utf-8")))
    files.append(File.generated(config, "commands.md", content=commands_page()))
    files.append(File.generated(config, "settings.md", content=settings_page()))
    linked = {
        path
        for file in files.documentation_pages()
        for path in _linked(file.content_string, _place(file.src_uri))
        if path not in PAGES | MADE and not path.startswith("docs/")
    }
    for path in sorted(linked):
        shown = File.generated(config, _uri(path), content=_shown(path), inclusion=InclusionLevel.NOT_IN_NAV)
        files.append(shown)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links at the pages that files of the repository have become."""
    place, here = _place(page.file.src_uri), PurePosixPath(page.file.src_uri).parent

    def pointed(match: re.Match[str]) -> str:
        path = _path(match["target"], place)
        if path is None:
            return match[0]
        return f"{match['open']}{os.path.relpath(_uri(path), here)}{match['anchor'] or ''}"

    return LINK.sub(pointed, markdown)


def _place(uri: str) -> PurePosixPath:
    """Where a page's text stands in the repository; its links are relative to that folder."""
    root_page = next((path for path, page in PAGES.items() if page == uri), None)
    return PurePosixPath(root_page or f"docs/{uri}")


def _uri(path: str) -> str:
    """The page, or the picture, that a file of the repository is on the site."""
    if path in PAGES | MADE:
        return (PAGES | MADE)[path]
    return path.removeprefix("docs/") if path.startswith("docs/") else f"source/{path}.md"


def _path(target: str, place: PurePosixPath) -> str | None:
    """The file or folder of the repository that a link leads to; `None` for addresses and for what is not there."""
    if ":" in target:
        return None
    path = os.path.normpath(place.parent / target)
    return path if not path.startswith("..") and (ROOT / path).exists() else None


def _linked(markdown: str, place: PurePosixPath) -> Iterator[str]:
    for match in LINK.finditer(markdown):
        path = _path(match["target"], place)
        if path is not None:
            yield path


def _shown(path: str) -> str:
    """A file as a page: its text in a fence, or the names in a folder."""
    if (ROOT / path).is_dir():
        return f"# {path}\n\n{_listed(sorted(child.name for child in (ROOT / path).iterdir() if child.is_file()))}"
    text = (ROOT / path).read_text(encoding="utf-8")
    cut = "" if len(text) <= SHOWN_CHARS else f"The first {SHOWN_CHARS:,} characters:\n\n"
    fence = "`" * (2 + max((len(run) for run in re.findall(r"`+", text)), default=1))
    language = LANGUAGES.get(PurePosixPath(path).suffix, "text")
    return f"# {path}\n\n{cut}{fence}{language}\n{text[:SHOWN_CHARS].rstrip()}\n{fence}\n"


def _listed(names: Iterable[str]) -> str:
    return "\n".join(f"- `{name}`" for name in names) + "\n"
