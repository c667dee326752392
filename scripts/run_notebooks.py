"""Runs the notebooks from top to bottom; with `--render` it also makes their copies in `docs/notebooks/`.

Usage: python scripts/run_notebooks.py [--render] [NOTEBOOK ...]

A notebook in the repository has no outputs; its rendered copy is a page with them, for who reads without running. Each
runs in a folder that is made for it and deleted afterwards, where everything else of the repository is linked: what was
trained earlier is neither met nor moved. Where a cell raises, its traceback is shown and the program fails in the end.
"""

import argparse
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from nbconvert import MarkdownExporter

ROOT = Path(__file__).parents[1]
RENDERED = ROOT / "docs" / "notebooks"
CELL_SECONDS = 600  # a cell that hangs ends the program
TERMINAL = re.compile(r"\x1b\[[0-9;]*m")


def execute(path: Path) -> nbformat.NotebookNode:
    """A copy of a notebook with the outputs of a fresh run, in a folder without runs."""
    notebook = nbformat.read(path, as_version=4)
    with fresh_folder() as folder:
        client = NotebookClient(
            notebook,
            timeout=CELL_SECONDS,
            extra_arguments=["--IPKernelApp.log_level=40"],  # errors alone
            resources={"metadata": {"path": str(folder)}},
        )
        client.execute()
    return notebook


@contextmanager
def fresh_folder() -> Iterator[Path]:
    """An empty `notebooks/` in a repository of links."""
    with tempfile.TemporaryDirectory() as place:
        for entry in ROOT.iterdir():
            if entry.name not in ("notebooks", "runs"):
                (Path(place) / entry.name).symlink_to(entry)
        folder = Path(place) / "notebooks"
        folder.mkdir()
        yield folder


def render(notebook: nbformat.NotebookNode, name: str) -> None:
    """Write the page and the pictures of an executed notebook."""
    exporter = MarkdownExporter()
    text, resources = exporter.from_notebook_node(notebook, {"output_files_dir": name, "unique_key": name})
    text = re.sub(r"\]\((?:\.\./docs/)([^)#]+)(#[^)]*)?\)", _page_link, TERMINAL.sub("", text))
    text = re.sub(r"\]\((\d\d_\w+)\.ipynb\)", r"](\1.md)", text)
    note = f"*The notebook `notebooks/{name}.ipynb` with its outputs.*\n\n"
    (RENDERED / name).mkdir(parents=True, exist_ok=True)
    for file, content in resources["outputs"].items():
        (RENDERED / file).write_bytes(content)
    head, _, rest = text.lstrip().partition("\n")
    lines = "\n".join(line.rstrip() for line in rest.splitlines())
    (RENDERED / f"{name}.md").write_text(f"{head}\n\n{note}{lines.strip()}\n", encoding="utf-8")


def _page_link(match: re.Match[str]) -> str:
    return f"](../{match[1].removesuffix('.md')}.md{match[2] or ''})"


def main() -> int:
    """Run the notebooks that are named, or all of them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("notebooks", nargs="*", type=Path, metavar="NOTEBOOK")
    parser.add_argument("--render", action="store_true", help="write docs/notebooks/, too")
    arguments = parser.parse_args()
    paths = arguments.notebooks or sorted((ROOT / "notebooks").glob("*.ipynb"))
    failed = 0
    for path in paths:
        started = time.perf_counter()
        try:
            notebook = execute(path)
        except CellExecutionError as error:
            print(TERMINAL.sub("", str(error)), file=sys.stderr)
            failed += 1
            continue
        if arguments.render:
            render(notebook, path.stem)
        print(f"{path.name}: {time.perf_counter() - started:.0f} s", flush=True)
    print(f"{len(paths) - failed} passed, {failed} failed")
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
