"""`mintrl calibrate` on the small world: its numbers are those of a count by hand, and it continues."""

import json
import logging
from collections import defaultdict
from pathlib import Path
from statistics import fmean
from types import SimpleNamespace

import pytest
import torch
from transformers import AutoModelForCausalLM

from mintrl_trl import calibrate
from mintrl_trl.calibrate import CalibrationSettings
from mintrl_trl.cli import main
from mintrl_trl.data.chains import BOS_ID, EOS_ID, World, base_model_path, encode
from mintrl_trl.recipe import parse_recipe, read_yaml

RECIPES = Path(__file__).parents[1] / "recipes"
SELF, EXACT = str(RECIPES / "chains_self_judge.yaml"), str(RECIPES / "quickstart.yaml")
FEW = ["--prompts", "8", "--rollouts", "2", "--rescue-cases", "4", "--continuations", "2", "--shadow-share", "0.5"]
TEMPERATURE = 1.5  # at which the judge, too, is less sure of what it writes


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    logger = logging.getLogger("mintrl_trl")
    level = logger.level
    yield
    logger.setLevel(level)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--prompts", "0"], "`--prompts` is 0"),
        (["--shadow-share", "2"], "`--shadow-share` is 2.0. Allowed: from 0 to 1"),
        (["--max-off-policy-share", "0"], "above 0, at most 1"),
        (["--chunk-tokens", "100"], "at most 52, the recipe's max_completion_length"),
        (["--labelled", "none.jsonl"], "`--labelled` is 'none.jsonl'"),
        (["--prompts", "5000"], "`--prompts` is 5000. Allowed: at most 1200"),
        (["--max_reviews", "0"], "a recipe whose rollouts are reviewed"),
        (["--kapa", "-0.1"], "kapa"),
    ],
)
def test_refused_before_the_model_is_read(flags, message, capsys, monkeypatch):
    monkeypatch.setattr("mintrl_trl.calibrate.local_generator", None)
    assert main(["calibrate", "--config", EXACT, *flags]) == 2
    assert message in capsys.readouterr().err
    assert not Path("calibration/quickstart/controls").exists()


def test_the_base_model_on_the_policys_server_is_its_own_judge(monkeypatch):
    async def found(judge):
        asked.append(judge)

    asked = []
    monkeypatch.setattr("mintrl_trl.judges.llm.LLMJudge.probe", found)
    recipe = parse_recipe(["--config", str(RECIPES / "gsm8k_smollm2_server.yaml")], default=Path(SELF))
    model = SimpleNamespace(name="base", tokenizer=None, vocabulary=None)
    monkeypatch.setattr("mintrl_trl.judges.llm.LLMJudge.prepare", lambda *args, **options: None)
    judge = calibrate._judge(SimpleNamespace(judge=None), recipe.config, model, None)
    assert asked == [judge]
    assert judge.wait_for_server is None


@pytest.mark.parametrize(
    ("flags", "grid", "expected"),
    [
        ((), {}, [(8, 2, 1), (8, 4, 1), (16, 2, 1), (16, 4, 1), (32, 2, 1), (32, 4, 1)]),
        (("--chunk_tokens", "40", "--max_reviews", "1"), {}, [(20, 1, 1), (40, 1, 1)]),  # twice 40 is too long
        ((), {"chunk_tokens": (4,), "max_reviews": (3,), "correction_tokens": (2, 99)}, [(4, 3, 2)]),
    ],
)
def test_the_grid_is_around_the_recipe(flags, grid, expected):
    args = parse_recipe(["--config", EXACT, *flags], default=Path(EXACT)).config
    found = CalibrationSettings(Path("out"), **grid).budgets(args)
    assert [(one.chunk_tokens, one.max_reviews, one.correction_tokens) for one in found] == expected
    assert {one.max_completion_tokens for one in found} == {52}


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def right(prompt: str, ids: list[int], world: World) -> bool:
    """Whether a response ends in all results, by the table alone."""
    digits = [int(sign) for sign in prompt if sign.isdigit()]
    value, answer = digits[0], "#"
    for letter, operand in zip("BCDEFGHI", digits[1:], strict=True):
        value = int(world.table[value][operand])
        answer += f"{letter}{value}"
    wanted = [*encode(answer), EOS_ID]
    return ids[-len(wanted) :] == wanted


def by_hand(folder: Path, rows: dict[str, dict], world: World) -> dict[str, float]:
    """Reward, off-policy share and kappa of a folder, from its lines and plain forward passes."""
    model = AutoModelForCausalLM.from_pretrained(base_model_path(), dtype=torch.float32).eval()
    spans = {(one["problem"], one["sample"]): one["spans"] for one in lines(folder / "reviews.jsonl")}
    scores, logps, foreign, tokens = defaultdict(list), [], 0, 0
    for sample in lines(folder / "samples.jsonl"):
        row, ids, start = rows[sample["problem"]], sample["ids"], 0
        scores[sample["problem"]].append(right(row["prompt"], ids, world))
        context = [BOS_ID, *encode(f"{row['privileged_context']}|{row['prompt']}"), *ids]
        with torch.no_grad():
            logits = model(torch.tensor([context])).logits[0].float() / TEMPERATURE
        table = logits.log_softmax(-1)
        for span in spans[sample["problem"], sample["sample"]]:
            if span["author"] == "intervention":
                places = range(len(context) - len(ids) + start, len(context) - len(ids) + start + span["tokens"])
                logps += [float(table[place - 1, context[place]]) for place in places]
                foreign += span["tokens"]
            start += span["tokens"]
        tokens += len(ids)
    reward = fmean(fmean(own) for own in scores.values())
    return {"reward": reward, "share": foreign / tokens, "kappa": fmean(logps), "kappa_tokens": len(logps)}


@pytest.mark.slow
def test_kappa_gain_and_share_are_those_of_a_count_by_hand(capsys):
    words = ["calibrate", "--config", SELF, *FEW, "--out", "out", "--temperature", str(TEMPERATURE)]
    words += ["--chunk-tokens", "16", "--max-reviews", "4", "--correction-tokens", "1", "4"]
    words += ["--max-off-policy-share", "0.5"]
    assert main(words) == 0
    out, _ = capsys.readouterr()
    found, world = json.loads(Path("out/calibration.json").read_text()), World.load()
    training = list(zip(range(1200), world.training_rows(0), strict=False))
    rows = {f"row/{number}": row for number, row in training}
    controls = defaultdict(list)
    for sample in lines(Path("out/controls/samples.jsonl")):
        controls[sample["problem"]].append(right(rows[sample["problem"]]["prompt"], sample["ids"], world))
    assert len(controls) == 8 and {len(own) for own in controls.values()} == {2}
    alone = fmean(fmean(own) for own in controls.values())
    assert found["controls"]["value"] == pytest.approx(alone)
    for pilot, length in zip(found["pilots"], (1, 4), strict=True):
        counted = by_hand(Path(f"out/budgets/chunk-16_reviews-4_correction-{length}"), rows, world)
        assert pilot["kappa_tokens"] == counted["kappa_tokens"] > 0
        assert pilot["kappa"] == pytest.approx(counted["kappa"], abs=2e-5)
        assert pilot["kappa"] < -1e-3
        assert pilot["metrics"]["off_policy_share"] == pytest.approx(counted["share"])
        assert pilot["reward"]["value"] == pytest.approx(counted["reward"])
        assert pilot["gain"]["difference"]["value"] == pytest.approx(counted["reward"] - alone)
    chosen = read_yaml(Path("out/recipe.yaml"))
    kappas = {pilot["budget"]["correction_tokens"]: pilot["kappa"] for pilot in found["pilots"]}
    assert chosen["kappa"] == pytest.approx(kappas[chosen["correction_tokens"]], abs=1e-4)
    assert "Next: put the lines of out/recipe.yaml" in out


@pytest.mark.slow
def test_it_goes_on_where_it_was_stopped(capsys):
    words = ["calibrate", "--config", EXACT, *FEW, "--chunk-tokens", "16", "--max-reviews", "2", "4"]
    assert main([*words, "--out", "whole"]) == 0
    told = capsys.readouterr().out
    assert "(16, 4, 1)" in told and "precision 100.0%" in told
    assert main([*words[:-1], "--out", "stopped"]) == 0  # without the second budget
    for path in Path("stopped").rglob("*.jsonl"):  # and as a kill leaves files: the last lines are missing, one is torn
        all_lines = path.read_bytes().splitlines(keepends=True)
        path.write_bytes(b"".join(all_lines[: len(all_lines) // 2]) + all_lines[-1][:9])
    assert main([*words, "--out", "stopped"]) == 0

    def numbers(folder: str) -> dict:
        text = Path(folder, "calibration.json").read_text()
        return json.loads(text, object_hook=lambda one: {k: v for k, v in one.items() if "seconds" not in k})

    def content(folder: str) -> dict:
        made = {name: lines(Path(folder, name)) for name in shared}
        return {
            name: {(one["problem"], one["sample"]): (one["ids"], one["stop"]) for one in rows}
            for name, rows in made.items()
        }

    shared = {str(path.relative_to("whole")) for path in Path("whole").rglob("samples.jsonl")}
    assert content("whole") == content("stopped")
    whole, stopped = numbers("whole"), numbers("stopped")
    for pilot in (*whole["pilots"], *stopped["pilots"]):  # what was read ahead depends on timing
        pilot["metrics"].pop("tokens/lookahead")
        pilot.pop("thrown_away")
    assert whole == stopped
    found = whole["first_errors"]["chains"]
    assert (found["precision"]["value"], found["recall"]["value"], found["correct_kept"]["value"]) == (1.0, 1.0, 1.0)
    assert whole["alarms"]["false_alarms"]["value"] == 0.0
    assert main([*words, "--out", "whole", "--temperature", "0.9"]) == 2
    assert "sampling.temperature (1.0 there, 0.9 now)" in capsys.readouterr().err
