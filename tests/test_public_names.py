"""The public names: written by hand, in order, all there, and light to import."""

import configparser
import re
import subprocess
import sys
from pathlib import Path

import pytest

import mintrl_trl

HEAVY = ("torch", "transformers", "trl", "datasets", "openai", "peft", "jinja2", "math_verify")


@pytest.mark.parametrize("name", mintrl_trl.__all__)
def test_public_name_is_there(name):
    assert getattr(mintrl_trl, name) is getattr(mintrl_trl, name)
    assert name in dir(mintrl_trl)


def test_public_names_are_sorted_and_complete():
    def order(name):  # constants, then classes, then the rest
        return (0 if name.isupper() else 1 if name[0].isupper() else 2), name

    names = mintrl_trl.__all__
    assert names == sorted(set(names), key=order)
    assert set(mintrl_trl._ON_FIRST_USE) <= set(names)
    defined_here = {name for name, value in vars(mintrl_trl).items() if isinstance(value, type)}
    assert defined_here <= set(names)


def test_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'mintrl_trl' has no attribute 'MInTRLTrianer'"):
        _ = mintrl_trl.MInTRLTrianer


def test_the_version_is_written_once():
    metadata = configparser.ConfigParser()
    metadata.read(Path(__file__).parents[1] / "setup.cfg")
    assert metadata["metadata"]["version"] == "attr: mintrl_trl.__version__"
    assert re.fullmatch(r"\d+\.\d+\.\d+(\.dev\d+)?", mintrl_trl.__version__)


def test_importing_the_package_loads_nothing_heavy():
    code = f"import mintrl_trl, sys; print([name for name in {HEAVY} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_the_names_of_a_judge_need_nothing_heavy_either():
    code = (
        "from mintrl_trl import KEEP, Correction, Problem, Revise\nimport sys\n"
        f"print([name for name in {HEAVY} if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
