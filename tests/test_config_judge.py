"""Settings of the judge against each other: what goes over HTTP, the self-judge's server, prices and budgets."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from mintrl_trl import ConfigError, MInTRLConfig
from mintrl_trl.config_checks import check_keys
from mintrl_trl.judge_setup import build_judge, endpoint_judge

JUDGE = {"judge_base_url": "http://localhost:8001/v1"}
SERVED_SELF = {"judge": "self", "use_vllm": True}
PRICES = {"judge_price_per_million_input": 0.28, "judge_price_per_million_output": 0.42}


@pytest.mark.parametrize(
    ("settings", "field", "text"),
    [
        ({**SERVED_SELF, "weight_sync": "checkpoint"}, "judge_base_url", "second server with the initial model"),
        ({**SERVED_SELF, "judge_likelihood_threshold": -2.0}, "judge_likelihood_threshold", "generation='vllm'"),
        ({**SERVED_SELF, "judge_keep_bias": 1.0}, "judge_keep_bias", "generation='local'"),
        ({**SERVED_SELF, "judge_shares_tokenizer": False}, "judge_shares_tokenizer", "the policy's own"),
        ({"judge": "exact", "judge_budget_tokens": 10}, "judge_budget_tokens", "asks no server"),
        ({"judge": "self", "judge_constrain_reply": True}, "judge_constrain_reply", "asks no server"),
        ({**JUDGE, "judge_budget_cost": 5.0}, "judge_budget_cost", "set both prices"),
        ({**JUDGE, **PRICES, "judge_budget_cost": 0.0}, "judge_budget_cost", "above 0"),
        ({**JUDGE, "judge_budget_tokens": 0}, "judge_budget_tokens", "at least 1"),
        ({**JUDGE, "judge_price_per_million_input": -1.0}, "judge_price_per_million_input", "at least 0"),
        ({**JUDGE, "anchor": "judge", "judge_temperature": 0.7}, "judge_temperature", "1.0 with anchor='judge'"),
        ({**JUDGE, "judge_extra_body": [1]}, "judge_extra_body", "a mapping"),
        ({**JUDGE, "judge_extra_body": {"temperature": 0.0}}, "judge_extra_body", "remove temperature"),
        ({**JUDGE, "judge_extra_body": '{"stream": true}'}, "judge_extra_body", "remove stream"),
        ({**JUDGE, "judge_timeout_seconds": 900.0}, "judge_timeout_seconds", "set review_timeout_seconds=2700"),
    ],
)
def test_refuses(settings, field, text):
    with pytest.raises(ConfigError, match=f"`{field}` is .*{text}"):
        MInTRLConfig("runs/wrong", **settings)


@pytest.mark.parametrize(
    "settings",
    [
        SERVED_SELF,
        {**SERVED_SELF, **JUDGE, "weight_sync": "checkpoint", "judge_budget_tokens": 10**9},
        {**JUDGE, "anchor": "judge"},  # whether it gives log-probabilities shows when it is asked
        {**JUDGE, **PRICES, "judge_budget_cost": 5.0, "judge_shares_tokenizer": False},
        {**JUDGE, "judge_extra_body": {"thinking": {"type": "disabled"}}},
    ],
)
def test_accepts(settings):
    MInTRLConfig("runs/demo", **settings)


def test_extra_fields_may_be_written_as_json():
    args = MInTRLConfig("runs/demo", judge_extra_body='{"thinking": {"type": "disabled"}}', **JUDGE)
    assert args.judge_extra_body == {"thinking": {"type": "disabled"}}


def documented() -> list[dict]:
    text = (Path(__file__).parents[1] / "docs" / "judges.md").read_text(encoding="utf-8")
    return [yaml.safe_load(block) for block in re.findall(r"^```yaml\n(.*?)^```", text, re.DOTALL | re.MULTILINE)]


@pytest.mark.parametrize("settings", documented(), ids=lambda settings: settings.get("judge_model", settings["judge"]))
def test_documented_set_ups_are_accepted(settings):
    check_keys(settings, MInTRLConfig)
    MInTRLConfig("runs/demo", **settings)


def test_each_process_has_its_share_of_the_budget(monkeypatch):
    monkeypatch.setenv("JUDGE_KEY", "sk-1")
    args = MInTRLConfig(
        "runs/demo", judge_api_key_env="JUDGE_KEY", judge_budget_tokens=100, judge_budget_cost=6.0, **JUDGE, **PRICES
    )
    trainer = SimpleNamespace(args=args, accelerator=SimpleNamespace(num_processes=3))
    judge = build_judge(trainer, None, None, None, None, starts_as_base=True)
    assert (judge.account.budget_tokens, judge.account.budget_cost) == (33, 2.0)
    assert judge.account.prices == (0.28, 0.42)
    assert judge.longest_text_tokens == 2048 + 4 * (512 + 64)


def test_a_blank_key_is_no_key(monkeypatch):
    monkeypatch.setenv("JUDGE_KEY", " \n")
    with pytest.raises(ConfigError, match=r"`judge_api_key_env` is 'JUDGE_KEY'.*export JUDGE_KEY"):
        endpoint_judge(MInTRLConfig("runs/demo", judge_api_key_env="JUDGE_KEY", **JUDGE))
