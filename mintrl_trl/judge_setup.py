"""Makes the judge that the settings name, and tells a judge whose text it will read.

Owns which endpoint and which weights a judge by name has: in particular that a self-judge asks the initial weights and
nothing else, wherever they are. It asks no question itself. Invariant: a setting that the judge would not follow is
refused.
"""

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from .config import MInTRLConfig
from .config_judge import WIRE_SETTINGS
from .errors import ConfigError
from .judges.variants import PlaceboJudge, RandomCutJudge
from .rollouts.doors import Judge, PolicyGenerator, Vocabulary

_VARIANTS = {"placebo": PlaceboJudge, "random_cut": RandomCutJudge}

if TYPE_CHECKING:
    from .judges.llm import LLMJudge
    from .served_policy import ServedPolicy
    from .trainer import MInTRLTrainer


def build_judge(
    trainer: "MInTRLTrainer",
    judge: "Judge | Callable[[PolicyGenerator], Judge] | None",
    generator: PolicyGenerator,
    vocabulary: Vocabulary,
    served: "ServedPolicy | None",
    *,
    starts_as_base: bool,
) -> Judge | None:
    """The judge of `trainer`: what the user passed, or what its arguments name.

    Args:
        trainer ([`MInTRLTrainer`]): Whose rollouts are judged.
        judge ([`Judge`] or `Callable`, *optional*): As for the trainer.
        generator ([`PolicyGenerator`]): Who samples.
        vocabulary ([`Vocabulary`]): Of the policy's tokenizer.
        served ([`ServedPolicy`], *optional*): The policy's server.
        starts_as_base (`bool`): Whether the initial policy is the model without its adapter.

    Raises:
        ConfigError: The settings name no judge that can be.
    """
    args = trainer.args
    if not args.needs_judge:
        return None
    if judge is not None:
        for name in WIRE_SETTINGS:
            if getattr(args, name) is not None:
                allowed = "unset where a judge object is passed"
                fix = f"remove {name}, and pass it to the judge (LLMJudge({name.removeprefix('judge_')}=...))"
                raise ConfigError(name, getattr(args, name), allowed, fix)
        ready = hasattr(judge, "review") and not isinstance(judge, type)  # a class is a function that makes one
        judge = judge if ready else judge(generator)
    elif args.judge == "llm":
        judge = endpoint_judge(args, num_processes=trainer.accelerator.num_processes)
    elif args.judge == "self" and served is not None:
        judge = served_self_judge(
            args,
            served.base_model,
            keeps_base=served.keeps_base,
            starts_as_base=starts_as_base,
            num_processes=trainer.accelerator.num_processes,
        )
    elif args.judge == "self":
        from .judges.local import chat_self_judge

        threshold = args.judge_likelihood_threshold
        options = {"keep_bias": args.judge_keep_bias} if threshold is None else {}  # of the judge that gives replies
        judge = chat_self_judge(
            generator, trainer.processing_class, domain=args.judge_domain, threshold=threshold, **options
        )
    elif args.judge in ("exact", "local"):
        raise ConfigError(
            "judge",
            args.judge,
            f"a judge object: only the task knows its {args.judge} judge",
            "pass judge=ChainsJudge(world), or another judge",
        )
    if served is not None and hasattr(judge, "wait_for_server"):
        judge.wait_for_server = served.waiting_for(getattr(judge.chat, "base_urls", ()))
    if args.judge_variant != "none":
        judge = _VARIANTS[args.judge_variant](judge)
    if hasattr(judge, "prepare"):
        judge.prepare(vocabulary, longest_text_tokens(args), needs_logps=args.anchor == "judge")
    return judge


def longest_text_tokens(args: MInTRLConfig) -> int:
    """Tokens of a question and of the text that the last review or correction of a rollout sees, at most."""
    reviewed = args.max_reviews * (args.chunk_tokens + args.correction_tokens)
    return args.max_prompt_length + min(reviewed, args.max_completion_length)


def endpoint_judge(
    args: MInTRLConfig,
    model: str | None = None,
    base_url: str | Sequence[str] | None = None,
    *,
    num_processes: int = 1,
    **options: Any,
) -> "LLMJudge":
    """A judge behind an endpoint. Each process has one, so each has its share of the budget.

    Args:
        args ([`MInTRLConfig`]): The settings.
        model (`str`, *optional*), base_url (`str` or `Sequence[str]`, *optional*): Whom to ask, instead of those of the
            settings.
        num_processes (`int`, *optional*, defaults to 1): Processes of the run.
        **options: For [`LLMJudge`], instead of what the settings say.

    Raises:
        ConfigError: The variable that is to hold the key is empty.
    """
    from .judges.llm import LLMJudge

    budget_tokens, budget_cost = args.judge_budget_tokens, args.judge_budget_cost
    options = {"extra_body": args.judge_extra_body, "shares_tokenizer": args.judge_shares_tokenizer} | options
    if base_url is None:
        model, base_url = args.judge_model, args.judge_base_url
    return LLMJudge(
        model,
        base_url=base_url,
        domain=args.judge_domain,
        api_key=_judge_key(args.judge_api_key_env),
        temperature=args.judge_temperature,
        max_tokens=args.judge_max_tokens,
        timeout_seconds=args.judge_timeout_seconds,
        max_retries=args.judge_max_retries,
        constrain_reply=args.judge_constrain_reply,
        price_per_million_input=args.judge_price_per_million_input,
        price_per_million_output=args.judge_price_per_million_output,
        budget_tokens=None if budget_tokens is None else max(1, budget_tokens // num_processes),
        budget_cost=None if budget_cost is None else budget_cost / num_processes,
        **options,
    )


def served_self_judge(
    args: MInTRLConfig, base_model: str, *, keeps_base: bool, starts_as_base: bool, num_processes: int = 1
) -> "LLMJudge":
    """The initial policy with privileged context: on the policy's own servers beside its adapter, or on another.

    Args:
        args ([`MInTRLConfig`]): The settings.
        base_model (`str`): The model without its adapter, as the policy's servers name it.
        keeps_base (`bool`): Whether those servers go on serving it.
        starts_as_base (`bool`): Whether the initial policy is that model.
        num_processes (`int`, *optional*, defaults to 1): Processes of the run.

    Raises:
        ConfigError: The policy's server does not keep the initial weights, and no other is named.
    """
    url, model = args.judge_base_url, args.judge_model
    if url is None:
        if not (keeps_base and starts_as_base):
            reason = (
                "an adapter that is trained further is part of the initial policy, which the server does not keep apart"
                if keeps_base
                else "new weights take the place of the initial ones on the policy's server"
            )
            raise ConfigError(
                "judge_base_url",
                None,
                f"the address of a second server with the initial model: {reason}",
                "start one and set judge_base_url='http://localhost:8001/v1', or train a new adapter",
            )
        url, model = [f"{server.removesuffix('/v1')}/v1" for server in args.server_urls], base_model
    extra_body = {"chat_template_kwargs": dict(args.chat_template_kwargs)} | (args.judge_extra_body or {})
    return endpoint_judge(
        args,
        model,
        url,
        num_processes=num_processes,
        use_privileged_context=True,
        shares_tokenizer=True,
        extra_body=extra_body,
    )


def _judge_key(variable: str | None) -> str | None:
    """The key that the judge's endpoint asks for, from the environment variable that the config names."""
    if variable is None:
        return None
    key = os.environ.get(variable, "").strip()
    if not key:
        allowed = "the name of an environment variable that holds the judge's key, or unset"
        raise ConfigError("judge_api_key_env", variable, allowed, f"export {variable}=..., or remove judge_api_key_env")
    return key
