"""The settings of the judge: who it is, how it is asked, what it may cost.

A part of [`MInTRLConfig`], kept by itself for its length. It owns fields and help texts, and what the judge's own
settings say about each other; it loads nothing and holds no secret: of a key it knows only the variable that holds it.
"""

from dataclasses import dataclass, field
from typing import Any

from .errors import ConfigError
from .judges.chat import check_extra_body

# What is said to an endpoint, or counted of it, and set in no other judge.
WIRE_SETTINGS = (
    "judge_shares_tokenizer",
    "judge_constrain_reply",
    "judge_extra_body",
    "judge_price_per_million_input",
    "judge_price_per_million_output",
    "judge_budget_tokens",
    "judge_budget_cost",
)


def setting(default: Any, help: str, *words: str) -> Any:
    """A dataclass field with the help text that the command line shows, and the words that it allows, if it does."""
    metavar = {"metavar": "{" + ",".join(words) + "}"} if words else {}
    return field(default=default, metadata={"help": help, **metavar})


@dataclass
class JudgeConfig:
    """Settings of the judge; [`MInTRLConfig`] has them all."""

    judge: str | None = setting(
        None,
        "'llm' (an OpenAI-compatible endpoint), 'self' (the frozen initial policy with privileged context), 'exact' "
        "(a program: the rules of the small world, or the public examples of a programming task) or 'local' (for the "
        "small world: another model in the training process, from the folder judge_model). Unset: the object passed to "
        "the trainer, or 'llm' with a URL.",
        "llm",
        "self",
        "exact",
        "local",
    )
    judge_variant: str = setting(
        "none",
        "An experiment on what of an intervention helps: 'placebo' (the chunk is cut where the judge says, and the "
        "policy writes on from there, without a correction) or 'random_cut' (as often as the judge says, but at a "
        "random new step, with its correction). 'none': the judge as it is.",
    )
    judge_model: str | None = setting(
        None, "Name of the judge model on its server, or its folder with judge='local'. Unset: the one it serves."
    )
    judge_base_url: str | None = setting(
        None, "OpenAI-compatible endpoint of the judge, http or https, such as http://localhost:8001/v1."
    )
    judge_api_key_env: str | None = setting(
        None,
        "Name of the environment variable that holds the judge's key, never the key itself. Unset: no key is sent.",
    )
    judge_domain: str = setting("math", "Prompt templates of the judge: 'math' or 'code'.")
    judge_temperature: float = setting(1.0, "Sampling temperature of the judge. At least 0.")
    judge_max_tokens: int = setting(1024, "Reply to a review at most, in tokens. At least 1.")
    judge_timeout_seconds: float = setting(120.0, "Time limit of one request to the judge, in seconds. Above 0.")
    judge_max_retries: int = setting(3, "Retries of a request to the judge after transport faults. At least 0.")
    judge_shares_tokenizer: bool | None = setting(
        None,
        "With judge='llm': whether the judge has the policy's tokenizer. Its corrections then continue the very tokens "
        "that stand, with its log-probabilities (vLLM). Unset: found out when training begins.",
    )
    judge_constrain_reply: bool | None = setting(
        None,
        "Whether the endpoint is asked to hold verdicts to their form (vLLM's structured outputs, else a JSON schema). "
        "Unset: found out when training begins; where it does not work, verdicts are read from free text.",
    )
    judge_extra_body: dict | str | None = field(
        default=None,
        metadata={
            "help": "Fields for every request to the judge: {chat_template_kwargs: {enable_thinking: false}} on vLLM, "
            "{thinking: {type: disabled}} at DeepSeek."
        },
    )
    judge_price_per_million_input: float | None = setting(
        None, "Price of a million tokens that the judge reads, in any currency. At least 0. With both, `judge/cost`."
    )
    judge_price_per_million_output: float | None = setting(
        None, "Price of a million tokens that the judge writes. At least 0."
    )
    judge_budget_tokens: int | None = setting(
        None,
        "Tokens that the judge may read and write in the whole run, over all processes; then no more reviews, and "
        "rollouts are the policy's own. At least 1; unset means no limit.",
    )
    judge_budget_cost: float | None = setting(None, "The same in money; needs both prices. Above 0.")
    judge_likelihood_threshold: float | None = setting(
        None,
        "With judge='self' or 'local': reject the first new step whose log-probability under the judge's prompt is "
        "below this, in nats. Below 0; unset means that a self-judge answers keep or revise.",
    )
    judge_keep_bias: float = setting(
        0.0,
        "With judge='self' and no threshold: nats added to the reply 'keep' before the likeliest reply is taken. Small "
        "models like one reply better whatever they read; this sets how often they intervene.",
    )
    review_timeout_seconds: float = setting(
        600.0, "One review or correction at most, retries included; then there is no verdict. In seconds, above 0."
    )
    judge_failure: str = setting(
        "stop",
        "What follows where reviews without a usable verdict pass no_verdict_limit: 'stop' the run, or "
        "'continue_on_policy', rollouts without reviews, until the judge, asked again after a minute or more, answers.",
        "stop",
        "continue_on_policy",
    )
    max_concurrent_reviews: int = setting(
        64, "Judge calls at once, per process; best what its server runs. At least 1."
    )

    def _check_extra_body(self) -> None:
        """Once upstream has read what was written as JSON."""
        body = self.judge_extra_body
        if body is not None and not isinstance(body, dict):
            allowed, fix = "a mapping from fields to values", 'write it as {"name": value}'
            raise ConfigError("judge_extra_body", type(body).__name__, allowed, fix)
        check_extra_body("judge_extra_body", body)
