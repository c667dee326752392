"""The command `mintrl`: exit codes, what goes to which stream, and messages in the words of the command line."""

import configparser
import io
import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import mintrl_trl
from mintrl_trl.cli import main
from mintrl_trl.data.chains import base_model_path

ROOT = Path(__file__).parents[1]


@pytest.fixture
def rows(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"problem": "What is 1+1?", "answer": "2"}\n{"problem": "What is 2+2?", "answer": "4"}\n')
    return path


def test_the_installed_command_is_main():
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg", encoding="utf-8")
    name, _, target = parser["options.entry_points"]["console_scripts"].strip().partition(" = ")
    module, _, function = target.partition(":")
    assert name == "mintrl"
    assert getattr(import_module(module), function) is main


def test_help_is_answered_at_once():
    code = "import sys\nfrom mintrl_trl.cli import main\ntry: main(['check-data', '--help'])\nfinally: "
    code += "sys.exit(' '.join({'torch', 'transformers', 'rich'} & set(sys.modules)) or 0)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=50)
    assert done.returncode == 0, done.stderr
    assert "--against FILE" in done.stdout
    assert "exit code: 0 nothing found" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "code"),
    [(["--version"], 0), ([], 2), (["no-such-command"], 2), (["check-data"], 2), (["check-data", "x", "--tsk"], 2)],
)
def test_command_lines_that_end_in_the_parser(capsys, arguments, code):
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == code
    out, err = capsys.readouterr()
    assert (out == f"mintrl_trl {mintrl_trl.__version__}\n") if code == 0 else err.startswith("usage: mintrl")


def test_clean_data(rows, capsys):
    assert main(["check-data", str(rows)]) == 0
    out, err = capsys.readouterr()
    assert "Nothing found." in out
    assert err == ""


def test_findings(rows, tmp_path, capsys):
    with rows.open("a") as file:
        file.write('{"problem": "what is 1 + 1", "answer": "2"}\nbroken\n')
    report = tmp_path / "report.json"
    assert main(["check-data", str(rows), "--json", str(report), "--examples", "0"]) == 1
    out, _ = capsys.readouterr()
    assert "2 findings." in out
    assert "and 1 more" in out
    findings = json.loads(report.read_text())["findings"]
    assert findings["duplicates"][0]["where"] == f"{rows}:3"
    assert findings["unreadable"][0]["where"] == f"{rows}:4"


def test_checks_by_flag(rows, tmp_path, capsys):
    other = tmp_path / "other.jsonl"
    other.write_text('{"problem": "What is 2+2", "answer": "4"}\n')
    flags = ["--tokenizer", str(base_model_path()), "--max-prompt-tokens", "1000000", "--skip", "golds", "duplicates"]
    assert main(["check-data", str(rows), "--against", str(other), *flags]) == 1
    out, _ = capsys.readouterr()
    assert f"{rows}:2 rows/2: the text of other/1 ({other}:1)" in out
    assert "tokens" in out
    assert "golds" not in out


def test_a_terminal_that_lacks_the_signs_of_the_data(tmp_path, monkeypatch):
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"problem": "What?", "answer": "\u00e9{"}\n', encoding="utf-8")
    output = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", output)
    assert main(["check-data", str(rows)]) == 1
    assert b"the answer '\\xe9{' does not equal itself" in output.buffer.getvalue()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["nonsense"], "mintrl check-data: `DATA` is 'nonsense'. Allowed: a file (.jsonl"),
        (["ROWS", "--against", "nonsense"], "`--against` is 'nonsense'"),
        (["ROWS", "--least-share", "2"], "`--least-share` is 2.0. Allowed: more than 0, at most 1."),
        (["ROWS", "--max-prompt-tokens", "9"], "`--max-prompt-tokens` is 9"),
        (["ROWS", "--tokenizer", "/no/such/folder"], "`--tokenizer` is '/no/such/folder'"),
        (["ROWS", "--json", "/no/such/folder/report.json"], "`--json` is "),
        (["ROWS", "--json", "/"], "`--json` is '/'. Allowed: a file that can be written"),
        (["ROWS", "--examples", "-1"], "`--examples` is -1"),
        (["ROWS", "--limit", "0"], "`--limit` is 0"),
    ],
)
def test_mistakes_are_one_line_on_standard_error(rows, capsys, flags, message):
    assert main(["check-data", *(str(rows) if flag == "ROWS" else flag for flag in flags)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert err.count("\n") == 1
