"""Which files of a run go to the hub, gathered in one folder.

Weights, and a checkpoint that goes whole, are linked, not copied, where the file system can: they cost no space, and
what is replaced by rename meanwhile (a checkpoint that is thinned) stays here as it was. Small files of the model are
copies: whoever edits them before they are uploaded does not edit the run's. Invariants: nothing is uploaded that is not
named here; no pickle, since it would hold the token; of a checkpoint, nothing but the model, unless all of it is asked
for.
"""

import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from ..checkpoints import MARK, STATE, plain_weights

CARD, RECIPE = "README.md", "recipe.yaml"
_BESIDE_WEIGHTS = re.compile(
    r"(adapter_|generation_)?config\.json|(adapter_)?model\.safetensors\.index\.json|chat_template\.jinja"
    r"|(tokenizer|tokenizer_config|special_tokens_map|added_tokens|vocab|preprocessor_config|processor_config)\.json"
    r"|merges\.txt|vocab\.txt|(tokenizer|spiece|sentencepiece\.bpe)\.model"
)
_TEMPLATES = "additional_chat_templates"
_OF_THE_RUN = re.compile(r"(recipe|settings|versions)(-\d+)?\.json|(metrics|evaluations)\.jsonl|learning_curves\.png")
_NEVER = ("training_args.bin", CARD)


def own_weights(folder: Path) -> list[Path]:
    """The weights that lie in a folder itself."""
    return [file for file in plain_weights(folder) if file.parent == folder]


def model_files(folder: Path) -> Iterator[Path]:
    """Files of a model or adapter and of its tokenizer; not of checkpoints in the folder, or of further adapters."""
    yield from own_weights(folder)
    for file in sorted(folder.iterdir()):
        if file.is_file() and _BESIDE_WEIGHTS.fullmatch(file.name):
            yield file
    yield from sorted((folder / _TEMPLATES).glob("*.jinja"))


def run_files(folder: Path) -> Iterator[Path]:
    """Files of a run folder that say how the model was made."""
    for file in sorted(folder.iterdir()):
        if file.is_file() and _OF_THE_RUN.fullmatch(file.name):
            yield file


def gather(
    target: Path,
    *,
    model: Path,
    run: Path,
    texts: Mapping[str, str],
    checkpoint: tuple[str, Path] | None = None,
    until: int | None = None,
) -> Path:
    """Fill a folder with what is to be uploaded.

    Args:
        target (`Path`): A folder that does not exist, or is empty.
        model (`Path`): Folder of the weights: of a run, a checkpoint, or one made for this.
        run (`Path`): The run folder.
        texts (`Mapping[str, str]`): Further files by name, such as the card.
        checkpoint (`tuple[str, Path]`, *optional*): Also upload all of this checkpoint, under this name, so that a run
            can go on from it elsewhere.
        until (`int`, *optional*): The last update that made the model: numbers of later ones stay here. By default all
            go.

    Returns:
        `Path`: `target`.
    """
    target.mkdir(parents=True, exist_ok=True)
    weights = set(own_weights(model))
    for file in model_files(model):
        put = _link if file in weights else _copy
        put(file, target / file.relative_to(model))
    for file in run_files(run):  # appended to while it is uploaded, so what is uploaded is a copy
        if until is not None and file.suffix == ".jsonl":
            (target / file.name).write_bytes(b"".join(_lines_until(file, until)))
        else:
            shutil.copyfile(file, target / file.name)
    for name, text in texts.items():
        (target / name).write_text(text, encoding="utf-8")
    if checkpoint is not None:
        name, folder = checkpoint
        (target / name).mkdir()
        for file in sorted(file for file in folder.rglob("*") if file.is_file()):
            if file.name == MARK and file.parent == folder:
                (target / name / MARK).write_text(_mark_of_pushed(file), encoding="utf-8")
            elif file.name not in _NEVER:
                _link(file, target / name / file.relative_to(folder))
    return target


def _lines_until(file: Path, update: int) -> Iterator[bytes]:
    with open(file, "rb") as lines:
        for raw in lines:
            with suppress(ValueError, TypeError, AttributeError):  # torn, or no line of a run
                if json.loads(raw).get("update", 0) <= update:
                    yield raw


def _mark_of_pushed(mark: Path) -> str:
    """The completion mark of a checkpoint without the files that are not pushed, which no run needs to go on."""
    content = json.loads(mark.read_text(encoding="utf-8"))
    files = {name: size for name, size in content["files"].items() if Path(name).name not in _NEVER}
    return json.dumps(content | {"files": files}, indent=2) + "\n"


def is_checkpoint(folder: Path) -> bool:
    """Whether a folder is a checkpoint of a run, so that the run folder is the one it lies in."""
    return (folder / MARK).is_file() or (folder / STATE).is_file()


def _link(file: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(file, target)
    except OSError:  # another disk, or a file system without links
        shutil.copyfile(file, target)


def _copy(file: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(file, target)
