"""The report: what the page is made of, which findings it has, and that no text of a run can become more than text."""

import base64
import hashlib
import json
import math
import re
from dataclasses import replace

import pytest

from mintrl_trl.analysis.runs import read_groups, read_run
from mintrl_trl.cli import main
from mintrl_trl.errors import ConfigError, DataError
from mintrl_trl.report.advice import findings_of
from mintrl_trl.report.charts import charts_for
from mintrl_trl.report.costs import cost_of, total_of
from mintrl_trl.report.numbers import MOST_POINTS, numbers_of
from mintrl_trl.report.page import page_data, render, write_report
from mintrl_trl.report.rollouts import Survey, shown_rollouts, survey_of
from mintrl_trl.report.settings import settings_table
from mintrl_trl.reporting.rollout_index import RolloutIndex
from mintrl_trl.reporting.run_folder import RunFolder
from mintrl_trl.rollouts.rollout import StopReason

from .analyzed_runs import GRPO_SETTINGS, SETTINGS, write_run
from .reported_runs import line, rollouts, write_reported_run
from .samples import corrected_record


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_reported_run(tmp_path_factory.mktemp("report") / "run")


def data_of(page):
    block = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)
    return json.loads(block[1])


def test_the_command_writes_the_page_into_the_first_run(folder, capsys):
    assert main(["report", str(folder), "--rollouts", "12"]) == 0
    assert capsys.readouterr().out == f"{folder / 'report.html'}\n"
    data = data_of((folder / "report.html").read_text(encoding="utf-8"))
    (run,) = data["runs"]
    assert data["title"] == "MInTRL-Const"
    assert run["updates"] == list(range(1, 21))
    assert run["clock"] == [2.0 * update for update in range(1, 21)]
    assert len(run["rollouts"]["shown"]) == 12
    assert run["rollouts"]["total"] == 120
    assert not list(folder.glob(".report*"))


def test_no_text_of_a_run_becomes_markup_or_script(folder):
    page = render(page_data(read_groups([f"<b>&</script><img src>={folder}"]), 120, lambda *read: None))
    assert page.count("</script>") == 2  # the data's and the page's own
    assert "<img" not in page and "&lt;b&gt;&amp;" in page and "<b>&" not in page
    data = data_of(page)
    rollout = next(one for one in data["runs"][0]["rollouts"]["shown"] if one["row"] == 2)
    assert "".join(text for _, text in rollout["parts"]).startswith("x</script><script>hacked = 1</script><img")
    assert r"\x1b[31m\u202eabc" in rollout["why"]  # shown, not obeyed
    assert "\x1b" not in page and "\u202e" not in page


def test_the_policy_of_the_page_allows_its_own_script_and_style_alone(folder):
    page = write_report([str(folder)], rollouts=0).read_text(encoding="utf-8")
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)[1]
    assert policy.startswith("default-src 'none'; ")
    for tag, directive in (("script", "script-src"), ("style", "style-src")):
        content = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.S)
        assert len(content) == 1
        digest = base64.b64encode(hashlib.sha256(content[0].encode()).digest()).decode()
        assert f"{directive} 'sha256-{digest}'" in policy
    assert "http://" not in page.replace("http://www.w3.org/2000/svg", "") and "https://" not in page


def test_rollouts_are_counted_and_the_chosen_ones_bounded(folder):
    with RolloutIndex(folder) as index:
        survey, chosen = survey_of(index, 30)
        stops = [record.stop for record in RunFolder(folder).rollouts()]
        cut = stops.count(StopReason.LENGTH)
        assert cut > 0
        assert survey.counts == {"rescued": 20, "derailed": 20, "revised": 40, "no_verdict": 20, "truncated": cut}
        assert survey.dead == {"groups": 60, "right": 20, "wrong": 0}
        assert survey.advantage_scale == pytest.approx((0.75 * 5 + 1.25) / 6)
        shown = shown_rollouts(index, chosen, 10**6, 30)
        assert len(shown) == 30
        assert {flag for one in shown for flag in one["flags"]} == {
            *("rescued", "derailed", "revised", "no_verdict", "truncated")
        }
        assert len({one["update"] for one in shown}) > 5  # from all over the run
        assert [(one["update"], one["row"]) for one in shown] == sorted((one["update"], one["row"]) for one in shown)
        assert survey_of(index, 30)[1] == chosen
        assert survey_of(index, 0)[1] == [] and survey_of(index, 0)[0] == survey
        assert len(shown_rollouts(index, chosen, 1, 30)) == 2  # one and its control: then the text is enough


def test_a_rescued_rollout_comes_with_a_control_and_its_group(folder):
    with RolloutIndex(folder) as index:
        entry = next(one for one in index.find() if one.rescued)
        control, rescued = shown_rollouts(index, [entry], 10**6, 30)
    assert (control["role"], rescued["role"]) == ("control", "intervened")
    assert rescued["mates"] == [["control", 0.0, 0], ["intervened", 1.0, 1]]
    kinds = [kind for kind, _ in rescued["parts"]]
    assert kinds == ["p", "d", "n", "j", "p"]
    assert rescued["strip"][1][0] == "d" and rescued["share"] > 0


def test_long_texts_lose_their_middle(tmp_path):
    record = corrected_record(update=1)
    long = replace(record, spans=(replace(record.spans[0], text="a" * 4000 + "b" * 4000), *record.spans[1:]))
    RunFolder(tmp_path).append_rollouts([long])
    with RolloutIndex(tmp_path) as index:
        (rollout,) = shown_rollouts(index, list(index.find()), 10**6, 1)
    assert rollout["parts"][:3] == [
        ("p", "a" * 3000),
        ("g", " … 2,000 characters are left out here … "),
        ("p", "b" * 3000),
    ]


@pytest.mark.parametrize(
    ("changes", "title", "level", "evidence"),
    [
        ({"off_policy_share": 0.08}, "Off-policy share above 6% in 20 of 20 updates", "act", "Mean 8.0%."),
        ({"judge__no_verdict": 0.07, "judge__no_verdict__length": 2.0}, "No verdict in more", "act", "length (40)"),
        ({"groups__dead": 0.75}, "Most groups are dead", "act", "All right: 33% of the groups, all wrong: 0%."),
        ({"imitation_bonus": 2.0}, "The anchor's bonus is larger", "act", "Mean bonus 2, mean advantage"),
        ({"reward_gap": -0.1}, "Interventions do not raise", "act", "20 rollouts rescued, 20 derailed."),
        ({"loss": float("nan")}, "Loss or gradient norm", "act", "In 20 updates, the first of them 1."),
        ({"mismatch__kl": 0.5}, "Trainer and sampler disagree", "act", "in 20 of 20 updates"),
        ({"rewards__unscored": 0.5}, "Rollouts without a reward", "act", "50.0%"),
        ({"lengths__truncated": 0.5}, "Many rollouts are cut", "note", "50%"),
        ({"share__review": 0.5}, "Rollouts wait for the judge", "note", "50%"),
        ({"judge__revise_rate": 0.001}, "The judge hardly ever", "note", "0.10%"),
        ({"judge__paused": 1.0}, "The judge was left out", "note", "from update 1 on"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_findings(folder, tmp_path, changes, title, level, evidence):
    run = read_run(write_reported_run(tmp_path / "run", with_rollouts=False, **changes))
    with RolloutIndex(folder) as index:
        survey, _ = survey_of(index, 0)
    (found,) = findings_of(run, survey)
    assert found.title.startswith(title) and found.level == level
    assert evidence in found.evidence


def test_a_healthy_run_has_no_finding(folder):
    assert findings_of(read_run(folder), Survey()) == []


@pytest.mark.parametrize(("reward", "level"), [(0.5, "act"), (1.0, "note")], ids=["unsolved", "solved"])
def test_collapsed_entropy_is_worth_less_where_the_problems_are_solved(tmp_path, reward, level):
    lines = {u: line(u, entropy__sample=1.0 / u, rewards__control=reward) for u in range(1, 21)}
    run = read_run(write_run(tmp_path / "run", SETTINGS | {"max_steps": 20}, lines))
    (found,) = findings_of(run, None)
    assert (found.title, found.level) == ("Entropy has collapsed", level)


def test_an_unfinished_run_says_so(tmp_path):
    run = read_run(write_run(tmp_path / "run", SETTINGS | {"max_steps": 50}))
    assert [(found.title, found.evidence) for found in findings_of(run, None)] == [
        ("The run has not reached its end", "4 of 50 updates.")
    ]


def test_costs_add_up_over_lines_that_stand_for_several_updates(tmp_path):
    lines = {update: line(update) for update in (5, 10)}
    every = read_run(write_run(tmp_path / "every", SETTINGS, lines))
    fifth = read_run(write_run(tmp_path / "fifth", SETTINGS | {"logging_steps": 5}, lines))
    halved = SETTINGS | {"logging_steps": 5, "updates_per_generation": 5}
    once = read_run(write_run(tmp_path / "once", halved, lines))
    assert [total_of(run, "tokens/policy") for run in (every, fifth, once)] == [200, 1000, 200]
    assert total_of(every, "tokens/unheard_of") is None
    cost = cost_of(every, reviews=3)
    roles = {role["name"]: role for role in cost["roles"]}
    assert roles["policy"]["tokens written"] == 230 and roles["policy"]["of these not used"] == 30
    assert roles["judge, in rollouts"]["tokens written"] == 4
    assert roles["judge, reviews"]["calls"] == 16 and "seconds" not in roles["judge, reviews"]
    assert roles["trainer"]["seconds"] == pytest.approx(0.4 * 4)
    assert [(one["name"], one["share"]) for one in cost["time"]] == [("rollouts", 0.5), ("update", 0.4), ("idle", 0.1)]


def test_costs_of_runs_that_keep_no_account(tmp_path):
    lines = {1: {"tokens/policy": 100.0, "tokens/intervention": 3.0}}
    run = read_run(write_run(tmp_path / "run", SETTINGS, lines))
    assert cost_of(run, reviews=7)["roles"][1:] == [
        {"name": "judge, reviews", "note": "counted in the rollouts; this judge keeps no account", "calls": 7.0},
        {"name": "judge, in rollouts", "note": "its tokens that responses hold", "tokens written": 3.0},
    ]
    assert [role["name"] for role in cost_of(run, reviews=0)["roles"]] == ["policy", "expert, in rollouts"]
    assert "of these not used" not in cost_of(run, reviews=0)["roles"][0]


def test_a_long_run_is_averaged_over_neighbours(tmp_path):
    updates = 2 * MOST_POINTS + 1
    run = read_run(write_run(tmp_path / "run", SETTINGS, {u: {"loss": float(u % 2)} for u in range(1, updates + 1)}))
    numbers = numbers_of(run)
    assert len(numbers.updates) <= MOST_POINTS and numbers.updates[-1] == updates
    assert numbers.columns["loss"][0] == pytest.approx(2 / 3, rel=1e-5)


def test_charts_follow_what_was_logged():
    assert [
        chart.id for chart in charts_for({"loss", "reward", "eval/pass@1", "eval/hard/pass@1", "eval/pass@16"})
    ] == [*("reward", "pass-1", "pass-16", "loss")]
    assert [series.label for series in charts_for({"eval/pass@1", "eval/hard/pass@1", "reward"})[1].series] == [
        *("all", "hard")
    ]


def test_runs_side_by_side(folder, tmp_path):
    other = write_reported_run(tmp_path / "other", settings=SETTINGS | {"seed": 1})
    grpo = write_run(tmp_path / "grpo", GRPO_SETTINGS)
    RunFolder(grpo).write_versions()
    data = page_data(read_groups([str(folder), str(other), str(grpo)]), 60, lambda *read: None)
    assert data["title"] == "GRPO · MInTRL-Const"
    assert [run["name"] for run in data["runs"]] == ["GRPO", "MInTRL-Const, seed 0", "MInTRL-Const, seed 1"]
    assert [len(run["rollouts"]["shown"]) for run in data["runs"]] == [0, 30, 30]
    first = data["settings"][0]
    assert first["differs"] and first["decides"] and first["name"] == "intervention_updates"
    rows = {row["name"]: row for row in data["settings"]}
    assert rows["seed"]["values"] == ["0", "0", "1"] and rows["seed"]["differs"] and not rows["seed"]["decides"]
    assert rows["version: torch"]["values"][1:] == [None, None]
    assert settings_table([]) == []


def test_what_runs_are_called(tmp_path):
    """Few settings that differ are named, many are not; no two groups share a name."""
    changes = {"kappa": -0.5, "chunk_tokens": 32, "beta2": 0.01, "loss_scale": 9.615}
    plain = dict.fromkeys(changes, 1.0)
    one = write_run(tmp_path / "one", SETTINGS | plain)
    fine = write_run(tmp_path / "fine", SETTINGS | plain | {"kappa": -0.5})
    far = write_run(tmp_path / "far", SETTINGS | changes)

    def names(*runs):
        return [run["name"] for run in page_data(read_groups(list(map(str, runs))), 0, lambda *read: None)["runs"]]

    assert names(one, fine) == ["MInTRL-Const, kappa 1.0", "MInTRL-Const, kappa -0.5"]
    assert names(one, far) == ["MInTRL-Const, one", "MInTRL-Const, far"]
    with pytest.raises(DataError, match="write NAME=FOLDER"):
        names(f"MInTRL-Const={one}", far)
    deep = write_run(tmp_path / "other" / "far", SETTINGS | dict.fromkeys(changes, 2.0))
    assert names(far, deep) == ["MInTRL-Const, far", f"MInTRL-Const, far ({deep})"]
    again = write_run(tmp_path / "again", SETTINGS | plain)
    assert names(one, again) == ["MInTRL-Const, one", "MInTRL-Const, again"]  # of one seed


def test_mistakes_are_named(folder, tmp_path):
    with pytest.raises(ConfigError, match="rollouts"):
        write_report([str(folder)], rollouts=-1)
    with pytest.raises(ConfigError, match="output"):
        write_report([str(folder)], folder)
    with pytest.raises(DataError, match="settings"):
        write_report([str(tmp_path)])
    RunFolder(write_run(tmp_path / "run") / "checkpoint-1").write_config({})
    with pytest.raises(DataError, match=rf"name the run's folder, {tmp_path / 'run'}"):
        write_report([str(tmp_path / "run" / "checkpoint-1")])


def test_numbers_that_json_has_no_form_for_are_unknown(tmp_path):
    folder = write_reported_run(tmp_path / "run", 2, with_rollouts=False)
    lines = [replace(one, reward=number) for one, number in zip(rollouts(1), (math.nan, math.inf) * 3, strict=True)]
    with open(folder / "rollouts.jsonl", "w") as file:
        file.writelines(json.dumps(one.to_json()) + "\n" for one in lines)
    with open(folder / "metrics.jsonl", "a") as file:
        file.write('{"update": 3, "loss": NaN, "rewards/control": Infinity}\n{"update": 4, "lo')
    data = data_of(write_report([str(folder)]).read_text())
    assert [one["reward"] for one in data["runs"][0]["rollouts"]["shown"]] == [None] * 6
    assert data["runs"][0]["metrics"]["loss"] == [1.0, 0.5, None]
