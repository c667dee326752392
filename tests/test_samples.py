"""The folder of an evaluation: whatever ends its writer, whole lines stay, count once, and never mix two settings."""

import json
import resource

import pytest

from mintrl_trl.errors import ConfigError, DataError
from mintrl_trl.evaluation.samples import Sample as OneSample
from mintrl_trl.evaluation.samples import SampleFolder, Score, differences

SETTINGS = {"model": {"fingerprint": "ab"}, "sampling": {"seed": 0, "top_p": 1.0}, "samples": 2, "ids": ["a"]}


def sample(problem: str = "a", number: int = 0, text: str = "yes") -> OneSample:
    return OneSample(problem, number, (1, 2), text, "end", -0.5)


@pytest.fixture
def folder(tmp_path):
    folder = SampleFolder(tmp_path / "evaluation")
    folder.begin(SETTINGS)
    return folder


def test_samples_and_scores_come_back_as_they_were(folder):
    some = [sample(), sample("b\u2028\n\ud800", 3, 'line\n"quoted"'), OneSample("c", 0, (), "", "length")]
    for one in some:
        folder.append(one)
    assert list(folder.samples()) == some
    scores = [Score("a", 0, 1.0, "correct", "2", "f"), Score("b", 3, None)]
    folder.append_scores(scores)
    assert folder.scores() == {score.key: score for score in scores}
    folder.append_scores([Score("b", 3, 0.0, "wrong")])
    assert folder.scores()["b", 3].reward == 0.0
    folder.forget_scores()
    assert folder.scores() == {}
    assert list(folder.samples()) == some


@pytest.mark.parametrize("left", ["", '{"problem": "b", "sam', "x" * 70_000])
def test_a_torn_last_line_is_made_again(folder, left):
    folder.append(sample())
    before = (folder.path / "samples.jsonl").read_bytes()
    with open(folder.path / "samples.jsonl", "a") as file:
        file.write(left)
    assert list(folder.samples()) == [sample()]
    folder.begin(SETTINGS)
    folder.append(sample("b"))
    assert (folder.path / "samples.jsonl").read_bytes().startswith(before + b'{"problem": "b"')
    assert list(folder.samples()) == [sample(), sample("b")]


def test_only_a_torn_line(folder):
    (folder.path / "samples.jsonl").write_text("x")
    folder.begin(SETTINGS)
    assert (folder.path / "samples.jsonl").read_bytes() == b""


def test_a_sample_counts_once(folder):
    folder.append(sample(text="first"))
    folder.append(sample(text="second"))
    assert [one.text for one in folder.samples()] == ["first"]


def test_a_whole_line_that_is_no_sample_is_named(folder):
    folder.append(sample())
    with open(folder.path / "samples.jsonl", "a") as file:
        file.write('{"problem": "b"}\n')
    with pytest.raises(DataError, match=r"samples\.jsonl, line 2: "):
        list(folder.samples())


def test_other_settings_are_refused_by_name(folder):
    with pytest.raises(ConfigError) as caught:
        folder.begin(SETTINGS | {"model": {"fingerprint": "cd"}, "sampling": {"seed": 1, "top_p": 1.0}})
    assert 'model.fingerprint ("ab" there, "cd" now); sampling.seed (0 there, 1 now)' in str(caught.value)
    assert folder.header()["model"] == {"fingerprint": "ab"}


def test_samples_may_be_added_and_are_never_taken_away(folder):
    assert folder.begin(SETTINGS | {"samples": 5})["samples"] == 5
    assert folder.begin(SETTINGS | {"samples": 2, "versions": {"torch": "9"}})["samples"] == 5
    assert folder.header()["samples"] == 5


def test_problems_may_be_more_or_fewer_where_those_of_both_are_the_same(folder):
    def asked(**prompt_ids):
        return SETTINGS | {"prompt_ids": prompt_ids, "prompts": str(prompt_ids), "ids": list(prompt_ids)}

    four = SampleFolder(folder.path.parent / "four")
    four.begin(asked(a="1", b="2"))
    assert four.begin(asked(a="1"))["ids"] == ["a", "b"]
    more = four.begin(asked(c="3", a="1", b="2"))
    assert more == four.header()
    assert more["ids"] == ["c", "a", "b"]
    assert more["prompts"] == asked(c="3", a="1", b="2")["prompts"]
    for others in ({"a": "1", "b": "9"}, {"a": "1", "d": "4"}):
        with pytest.raises(ConfigError, match=r"it has 3 of None, not 2\. Fix: set limit to 3"):
            four.begin(asked(**others))
    with pytest.raises(ConfigError, match=r"differs in sampling\.seed"):
        four.begin(asked(a="1") | {"sampling": {"seed": 1, "top_p": 1.0}})
    assert four.header() == more


def test_a_folder_with_one_fingerprint_for_all_problems_is_refused(folder):
    older = SampleFolder(folder.path.parent / "older")
    older.begin(SETTINGS | {"prompt_ids": "0f"})
    with pytest.raises(ConfigError, match=r"differs in prompt_ids"):
        older.begin(SETTINGS | {"prompt_ids": {"a": "1"}})


def test_samples_of_other_weights_are_said_to_be_that(folder):
    retrained = SETTINGS | {"model": SETTINGS["model"] | {"fingerprint": "other"}}
    with pytest.raises(ConfigError, match=r"samples of these weights; it has others'.*delete .*if these samples"):
        folder.begin(retrained)
    with pytest.raises(ConfigError, match=r"differs in model\.fingerprint .*; sampling\.seed"):
        folder.begin(retrained | {"sampling": {"seed": 1, "top_p": 1.0}})


def test_a_setting_that_only_one_has_differs():
    assert differences({"a": 1}, {"a": 1, "b": None}) == []
    assert differences({"a": 1}, {"b": 2}) == ["a (1 there, null now)", "b (null there, 2 now)"]


def test_folders_that_are_not_ours(tmp_path):
    (tmp_path / "samples.jsonl").write_text("{}\n")
    with pytest.raises(ConfigError, match=r"a folder whose samples have their evaluation\.json"):
        SampleFolder(tmp_path).begin(SETTINGS)
    (tmp_path / "evaluation.json").write_text(json.dumps({"format": 9}))
    with pytest.raises(DataError, match="`format` is 9"):
        SampleFolder(tmp_path).begin(SETTINGS)
    (tmp_path / "evaluation.json").write_text("{")
    with pytest.raises(DataError, match="JSON"):
        SampleFolder(tmp_path).header()
    assert SampleFolder(tmp_path / "none").header() is None
    assert list(SampleFolder(tmp_path / "none").samples()) == []


def test_what_cannot_be_written_is_said(tmp_path):
    (tmp_path / "file").write_text("")
    below = SampleFolder(tmp_path / "file" / "evaluation")
    with pytest.raises(ConfigError, match="a folder that can be written"):
        below.begin(SETTINGS)
    with pytest.raises(DataError, match="the same command continues"):
        below.append(sample())


def test_a_full_disk_leaves_whole_lines(folder):
    folder.append(sample())
    before = (folder.path / "samples.jsonl").read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 20, limits[1]))
    try:
        with pytest.raises(DataError, match="make room; the same command continues"):
            folder.append(sample("b"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (folder.path / "samples.jsonl").read_bytes() == before
    folder.append(sample("b"))
    assert list(folder.samples()) == [sample(), sample("b")]
