"""The walls of the house, read off the import statements: who may import whom, and what the lowest layers may load."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "mintrl_trl"
MODULES = sorted(PACKAGE.rglob("*.py"))

L0 = frozenset({"errors", "wire", "rollouts"})
L1 = frozenset({"objective"})
L2A = frozenset({"rewards", "data"})
L2B = frozenset({"generation", "judges"})
L3A = frozenset({"evaluation"})
CALIBRATION = frozenset({"calibration"})  # pilot rollouts, which go evaluation's way
L3B = frozenset({"reporting"})  # shows what evaluation found
L3C = frozenset({"analysis"})  # figures and tables from what reporting wrote
L3D = frozenset({"report"})  # the page of runs
L4B = frozenset({"baselines"})  # makes trainers of every method
L5 = frozenset({"cli", "commands"})
# Modules that lie beside the rooms are the trainer and what surrounds it; `doctor` looks at all of it, `sharing` is in
# front of it.
L4 = (frozenset(path.stem for path in PACKAGE.glob("*.py")) | {"doctor", "sharing"}) - {"__init__"} - L0 - L5

# room -> rooms it may import, itself apart. A new folder is entered here on purpose.
MAY_IMPORT = (
    {"errors": frozenset(), "wire": frozenset(), "rollouts": frozenset({"errors"})}
    | dict.fromkeys(L1 | L2A, L0)
    | dict.fromkeys(L2B, L0 | L2A)
    | dict.fromkeys(L3A, L0 | L1 | L2A | L2B)
    | dict.fromkeys(CALIBRATION, L0 | L1 | L2A | L2B | L3A)
    | dict.fromkeys(L3B, L0 | L1 | L2A | L2B | L3A | CALIBRATION)
    | dict.fromkeys(L3C, L0 | L1 | L2A | L2B | L3A | L3B)
    | dict.fromkeys(L3D, L0 | L1 | L2A | L2B | L3A | L3B | L3C)
    | dict.fromkeys(L4, L0 | L1 | L2A | L2B | L3A | CALIBRATION | L3B | L3C | L3D | L4)
    | dict.fromkeys(L4B | L5, L0 | L1 | L2A | L2B | L3A | CALIBRATION | L3B | L3C | L3D | L4 | L4B)
    | {"cli": L0 | L4 | {"commands"}}
)
STDLIB = frozenset(sys.stdlib_module_names)
TRL_ROOMS = L4 | L4B | L5  # the only rooms that may know TRL


def room(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def name(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path) -> set[str]:
    """Absolute names of all modules that a file imports, wherever the statement stands."""
    found = set()
    package = name(path).split(".") if path.name == "__init__.py" else name(path).split(".")[:-1]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            base = [*base, *(node.module.split(".") if node.module else [])]
            # `from .. import judges` and `from mintrl_trl import judges` import a room by name.
            found.update(".".join([*base, alias.name]) for alias in node.names)
    return found


def in_rooms(*rooms: frozenset[str]) -> list[Path]:
    return [path for path in MODULES if room(path) in frozenset().union(*rooms)]


def test_the_map_of_the_house_has_every_room_on_one_page():
    text = (PACKAGE.parent / "ARCHITECTURE.md").read_text(encoding="utf-8")
    rooms = {
        f"{path.parent.name}/" if path.parent != PACKAGE else path.name
        for path in (*PACKAGE.glob("*.py"), *PACKAGE.glob("*/__init__.py"))
    } - {"__init__.py"}
    assert sorted(room for room in rooms if f"`{room}`" not in text) == []
    assert len(text.splitlines()) < 120


@pytest.mark.parametrize("path", MODULES, ids=name)
def test_module_has_docstring_and_fewer_than_400_lines(path):
    text = path.read_text(encoding="utf-8")
    assert ast.get_docstring(ast.parse(text)), "a module says what it owns"
    assert len(text.splitlines()) < 400


@pytest.mark.parametrize("path", [path for path in MODULES if path != PACKAGE / "__init__.py"], ids=name)
def test_imports_go_downwards(path):
    here = room(path)
    assert here in MAY_IMPORT, f"enter the room `{here}` and its layer in MAY_IMPORT"
    rooms = {
        parts[1] for parts in (full.split(".") for full in imports(path)) if parts[0] == "mintrl_trl" and parts[1:]
    }
    assert rooms - {here} <= MAY_IMPORT[here]


@pytest.mark.parametrize("path", in_rooms(L0, L1), ids=name)
def test_lowest_layers_import_nothing_but_what_they_may(path):
    allowed = STDLIB | {"mintrl_trl"} | ({"torch"} if room(path) in L1 else set())
    assert {full.split(".")[0] for full in imports(path)} <= allowed


@pytest.mark.parametrize("path", [path for path in MODULES if room(path) not in TRL_ROOMS], ids=name)
def test_trl_is_known_to_the_trainer_alone(path):
    assert "trl" not in {full.split(".")[0] for full in imports(path)}


@pytest.mark.parametrize(
    ("rooms", "heavy"),
    [
        (L0, "torch trl transformers peft accelerate datasets openai httpx httpx2 aiohttp requests rich matplotlib"),
        (L1, "trl transformers peft accelerate datasets openai httpx httpx2 aiohttp requests rich matplotlib"),
    ],
    ids=["L0", "L1"],
)
def test_lowest_layers_load_alone(rooms, heavy):
    modules = [name(path) for path in in_rooms(rooms)]
    code = f"import sys, {', '.join(modules)}\nsys.exit(' '.join(set({heavy.split()!r}) & set(sys.modules)) or 0)"
    done = subprocess.run([sys.executable, "-c", code], cwd=PACKAGE.parent, capture_output=True, text=True, timeout=50)
    assert done.returncode == 0, f"loading {modules} also loads: {done.stderr}"


def test_imports_are_read_from_every_form_of_statement(tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "PACKAGE", tmp_path / "mintrl_trl")
    path = tmp_path / "mintrl_trl" / "judges" / "probe.py"
    path.parent.mkdir(parents=True)
    path.write_text(
        "import os.path\nfrom ..data import chains\nfrom .. import errors\nfrom . import reply\n"
        "def f():\n    from mintrl_trl.trainer import MInTRLTrainer\n"
    )
    assert imports(path) == {
        "os.path",
        "mintrl_trl.data.chains",
        "mintrl_trl.errors",
        "mintrl_trl.judges.reply",
        "mintrl_trl.trainer.MInTRLTrainer",
    }
