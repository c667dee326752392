"""Settings of the judge against each other: what goes over HTTP, the self-judge's server, prices and budgets."""

import pytest

from mintrl_trl import ConfigError, MInTRLConfig

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
        ({**JUDGE, "judge_extra_body": [1]}, "judge_extra_body", "a mapping"),
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
