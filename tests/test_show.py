"""`mintrl show`: what is found, how it looks with and without colours, and what other programs get."""

import io
import json
import os
import re
import subprocess
import sys
from dataclasses import replace

import pytest
from rich.console import Console

from mintrl_trl.cli import main
from mintrl_trl.reporting.colours import rollout_text
from mintrl_trl.reporting.rollout_index import RolloutFilter, RolloutIndex
from mintrl_trl.reporting.rollout_view import show_rollouts
from mintrl_trl.reporting.run_folder import RunFolder
from mintrl_trl.rollouts.rollout import Decision, Role

from .samples import corrected_record


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Two updates with a control and an intervened rollout each: the first is rescued, the second derailed."""
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    sample = corrected_record(group=0, reward_why="\x1b]0;owned\x07equal")
    control = replace(sample, role=Role.CONTROL, reviews=(), row=0)
    run = RunFolder(tmp_path / "run")
    for update, rewards in ((1, (0.0, 1.0)), (2, (1.0, 0.0))):
        records = (replace(record, update=update) for record in (control, sample))
        run.append_rollouts(replace(record, reward=reward) for record, reward in zip(records, rewards, strict=True))
    return run.path


def shown(folder, console, **how):
    with RolloutIndex(folder) as index:
        show_rollouts(index, RolloutFilter(), console, **how)
    return console.file.getvalue()


def facts(output):
    return [" · ".join(line.split(" · ")[:5]) for line in output.splitlines() if line.startswith("update ")]


@pytest.mark.parametrize(
    ("flags", "found", "lines"),
    [
        (["--rescued"], 1, ["update 1 · row 9 · group 0 · intervened · rescued"]),
        (["--derailed"], 1, ["update 2 · row 9 · group 0 · intervened · derailed"]),
        (["--no-verdict"], 0, []),
        (["--step", "2", "--role", "control"], 1, ["update 2 · row 0 · group 0 · control · reward 1"]),
        (
            ["--revised", "--prompt", "7+5", "--newest-first", "--limit", "1"],
            2,
            ["update 2 · row 9 · group 0 · intervened · derailed"],
        ),
        (["--group", "1"], 0, []),
    ],
    ids=["rescued", "derailed", "no-verdict", "step", "newest", "group"],
)
def test_flags_choose_rollouts(folder, capsys, flags, found, lines):
    assert main(["show", str(folder), *flags]) == 0
    output = capsys.readouterr().out
    assert facts(output) == lines
    assert output.startswith(f"{found} of 4 rollouts")


def test_a_group_shows_its_prompt_once_and_what_is_left_out_is_said(folder):
    output = shown(folder, Console(file=io.StringIO(), width=100), limit=3)
    assert output.splitlines()[0] == "4 of 4 rollouts, 3 of them below"
    assert output.splitlines()[1] == "policy {+judge+} [-discarded-] [step that the judge rejected: its reason]"
    assert output.count("7+5?") == 2
    assert output.count("(the same prompt)") == 1
    assert "\nprompt: (the same prompt)\nresponse: 7+5=[-13;-] [step 2: 7+5 is 12] {+12;+}ok" in output
    assert r"why: \x1b]0;owned\x07equal" in output


def test_colours_in_a_terminal_and_marks_without(folder, monkeypatch):
    coloured = shown(folder, Console(file=Terminal(), color_system="standard", width=100, _environ={}))
    assert "\x1b[1;32m12;\x1b[0m" in coloured
    assert "\x1b[2;9;31m13;\x1b[0m" in coloured
    assert "{+" not in coloured
    plain = shown(folder, Console(file=Terminal(), color_system="standard", width=100, _environ={"NO_COLOR": "1"}))
    assert "{+12;+}" in plain
    assert not re.search(r"\x1b\[[0-9;]*3[0-9]m", plain)


def test_a_narrow_terminal_breaks_between_words_and_a_pipe_not_at_all(folder):
    narrow = shown(folder, Console(file=Terminal(), color_system=None, width=30, _environ={}))
    assert max(map(len, narrow.splitlines())) <= 30
    assert "interve\n" not in narrow
    piped = shown(folder, Console(file=io.StringIO(), width=30))
    assert "stopped by end" in next(line for line in piped.splitlines() if line.startswith("update 1"))


def test_a_review_without_verdict_and_a_cut_at_the_very_end_are_shown():
    record = corrected_record()
    failed = replace(record.reviews[1].review, decision=Decision.NO_VERDICT, reason="time\x1bout")
    text = rollout_text(replace(record, reviews=(replace(record.reviews[1], review=failed),))).plain
    assert "no verdict on tokens 7 to 10: time\\x1bout\n" in text
    cut = replace(record.reviews[0].review, chunk_start=7, kept_tokens=3, correction_tokens=0)
    text = rollout_text(replace(record, reviews=(replace(record.reviews[0], review=cut),)), marks=True).plain
    assert text.endswith("ok[-13;-] [step 2: 7+5 is 12] \n")


def test_json_lines_are_records_with_what_became_of_them(folder, capsys):
    assert main(["show", str(folder), "--json", "--limit", "0"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(line["update"], line["rescued"], line["derailed"]) for line in lines] == [
        (1, False, False),
        (1, True, False),
        (2, False, False),
        (2, False, True),
    ]
    assert lines[0]["ids"] == list(corrected_record().ids)


def test_wrong_command_lines_say_what_to_do(tmp_path, folder, capsys):
    assert main(["show", str(tmp_path)]) == 2
    assert "the folder of a run that made rollouts" in capsys.readouterr().err
    (folder / "checkpoint-1").mkdir()
    assert main(["show", str(folder / "checkpoint-1")]) == 2
    assert f"name the run's folder, {folder}" in capsys.readouterr().err
    assert main(["show", str(tmp_path / "nothere")]) == 2
    assert "this one does not exist" in capsys.readouterr().err
    assert main(["show", str(folder), "--limit", "-1"]) == 2
    assert "--limit" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("flags", [[], ["--json"]], ids=["text", "json"])
def test_a_pipe_that_closes_is_no_error(folder, flags):
    RunFolder(folder).append_rollouts(corrected_record(update=3, row=row) for row in range(2000))
    command = [sys.executable, "-m", "mintrl_trl.cli", "show", str(folder), "--limit", "0", "--color", "always", *flags]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ)
    process.stdout.read(100)
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(60) == 0
