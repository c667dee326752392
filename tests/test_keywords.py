"""Keywords: what counts as narrative, how the window is cut, and shifts against a baseline."""

import json
import time

import pytest

from mintrl_trl.analysis.keyword_shifts import keyword_shifts, last_responses, responses_of
from mintrl_trl.analysis.keywords import KEYWORDS, keyword_use, narrative_words
from mintrl_trl.analysis.runs import read_groups, read_run
from mintrl_trl.errors import DataError
from tests.analyzed_runs import GRPO_SETTINGS, SETTINGS, write_run


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Wait. Actually, WE can't", ["wait", "actually", "we", "can't"]),
        ("so\n```python\nuse = 1\n```\nthen", ["so", "then"]),
        ("so\n```python\nuse = 1", ["so"]),
        ("a `use(x)` b", ["a", "b"]),
        (r"if $x_{use}$ or \(use\) or \[ use \] or $$use$$ end", ["if", "or", "or", "or", "end"]),
        ("costs 5$ to use", ["costs", "to", "use"]),
        ("step_1 x2", ["step", "x"]),
        ("l\u2019id\u00e9e", ["l'id\u00e9e"]),
        ("12 + 3 = 15", []),
    ],
    ids=["words", "block", "open-block", "inline", "mathematics", "one-dollar", "digits", "apostrophe", "numbers"],
)
def test_narrative_words_are_neither_code_nor_mathematics(text, words):
    assert narrative_words(text) == words


def test_keywords_count_once_a_response_and_in_the_window_alone():
    texts = ["we can wait, wait", "we really can", "use use use wait"]
    use = {one.keyword: one for one in keyword_use(texts, ("wait", "we can", "use"), limit=3)}
    assert {name: (one.using, one.occurrences) for name, one in use.items()} == {
        "wait": (1, 1),  # the second is the fourth word of its response
        "we can": (1, 1),
        "use": (1, 3),
    }
    assert use["wait"].share == pytest.approx(1 / 3)


def test_whole_words_alone_are_keywords():
    assert not any(one.using for one in keyword_use(["useful awaits computed we cannot may be"]))


def test_texts_without_words_have_no_keywords():
    assert keyword_use(["1 + 1", ""]) == ()


def write_rollouts(folder, texts, role="control", update=10):
    """Rollouts of one update as the run folder holds them."""
    record = {
        "update": update,
        "row": 0,
        "group": 0,
        "role": role,
        "prompt": "",
        "ids": [1],
        "stop": "end",
        "seconds": 0.1,
        "reviews": [],
    }
    with open(folder / "rollouts.jsonl", "a", encoding="utf-8") as file:
        for text in texts:
            span = {"start": 0, "end": 1, "author": "policy", "weight_version": "", "text": text}
            file.write(json.dumps(record | {"spans": [span]}) + "\n")


@pytest.mark.parametrize("text", ["\\(", "\\[", "$", "`", "\\( $ ` \\["])
def test_hostile_text_is_read_in_linear_time(text):
    start = time.perf_counter()
    narrative_words(text * 30_000)
    assert time.perf_counter() - start < 2, "a minute's work if every one looked for its end"


TEN = {update: {"loss": 0.1} for update in range(1, 11)}


def test_shifts_compare_control_rollouts_of_the_last_updates(tmp_path):
    grpo, ours = write_run(tmp_path / "grpo", GRPO_SETTINGS, TEN), write_run(tmp_path / "ours", SETTINGS, TEN)
    write_rollouts(grpo, ["use it", "use it", "wait a bit", "no"])
    write_rollouts(ours, ["wait wait", "wait"])
    write_rollouts(ours, ["compute"], role="intervened")
    write_rollouts(ours, ["compute"], update=9)
    assert list(last_responses(read_run(ours))) == ["wait wait", "wait"]
    baseline, shifts = keyword_shifts(responses_of(read_groups([str(ours), str(grpo)])))
    assert baseline == "GRPO"
    assert [shift.keyword for shift in shifts] == list(KEYWORDS)
    by_keyword = {shift.keyword: shift for shift in shifts}
    assert (by_keyword["wait"].shift, by_keyword["wait"].occurrences, by_keyword["wait"].responses) == (0.75, 1.5, 2)
    assert by_keyword["use"].shift == -0.5
    assert by_keyword["compute"].shift == 0.0


def test_shifts_need_a_baseline_and_a_keyword(tmp_path):
    grpo, ours = write_run(tmp_path / "grpo", GRPO_SETTINGS, TEN), write_run(tmp_path / "ours", SETTINGS, TEN)
    assert keyword_shifts(responses_of(read_groups([str(ours)]))) == ("", [])
    assert keyword_shifts(responses_of(read_groups([str(ours), str(grpo)]))) == ("GRPO", [])
    write_rollouts(grpo, ["nothing of it"])
    assert keyword_shifts(responses_of(read_groups([str(ours), str(grpo)]))) == ("GRPO", [])
    with pytest.raises(DataError, match="MInTRL-Const"):
        keyword_shifts(responses_of(read_groups([str(ours), str(grpo)])), "Base")


def test_the_small_world_has_no_words(tmp_path):
    write_run(tmp_path, recipe={"task": "chains"})
    write_rollouts(tmp_path, ["use"], update=4)
    assert list(last_responses(read_run(tmp_path))) == []
