"""The judge, asked one easy review the way a run would ask it.

Owns what can be wrong before a judge is asked at all; the rest is explained by the judge's own probe.
"""

from collections.abc import Iterator

from ..errors import MInTRLError
from ..generation.server import ServerControl, ServerError, server_root
from ..generation.vocabulary import TokenizerVocabulary
from ..judge_setup import endpoint_judge, longest_text_tokens, served_self_judge
from ..judges.accounting import Usage
from ..judges.llm import LLMJudge
from ..judges.probe import UnfitJudgeError
from ..recipe import Recipe
from ..rollouts.loop import shared_loop
from ..serving import judges_on_policy_server, policy_model
from ..wire import server_of
from .findings import Finding, note, ok, problem, refused
from .policy import Policy
from .servers import ANSWER_SECONDS

_TOPIC = "judge"
_RETRIES, _REPLY_SECONDS = 1, 60.0  # a person is waiting


def examine_judge(recipe: Recipe, policy: Policy | None, flags: str) -> Iterator[Finding]:
    """Ask the judge of a recipe. `flags` are those of `mintrl serve` that tell of it."""
    args = recipe.config
    if not args.needs_judge:
        yield ok(_TOPIC, "none: no rollout is reviewed")
        return
    if args.generation == "local" and args.judge == "self":
        yield ok(_TOPIC, "the policy's initial weights, in process")
        return
    if args.judge == "local":
        yield ok(_TOPIC, f"the model in {args.judge_model}, in process")
        return
    if args.judge not in ("llm", "self"):
        yield ok(_TOPIC, "a program, in process")
        return
    on_policy = set(map(server_of, args.server_urls))
    if args.judge_base_url and server_of(args.judge_base_url) in on_policy and not recipe.policy.use_peft:
        text = f"it is asked at {args.judge_base_url}, the policy's server, whose weights every sync replaces"
        fix = f"start one of its own (mintrl serve judge {flags}) and set `judge_base_url`, or `use_peft: true`"
        yield problem(_TOPIC, text, fix)
        return
    try:
        judge = _judge(recipe)
    except MInTRLError as error:
        yield refused(_TOPIC, error)
        return
    where = args.judge_base_url or f"{args.server_urls[0]}/v1"
    silence = None if where.startswith("https:") else _silence(where)
    if silence is None:
        yield from _ask(judge, recipe, policy, where)
    elif judges_on_policy_server(args):
        yield note(_TOPIC, "the base model on the policy's server: not asked until that is up")
    else:
        start = f"start it: mintrl serve judge {flags}"
        yield problem(_TOPIC, f"nobody serves at {server_root(where)} ({silence})", start)


def _judge(recipe: Recipe) -> LLMJudge:
    args = recipe.config
    if args.judge == "self":
        is_adapter = recipe.policy.use_peft
        judge = served_self_judge(args, policy_model(recipe), keeps_base=is_adapter, starts_as_base=is_adapter)
    else:
        judge = endpoint_judge(args)
    judge.max_retries, judge.timeout_seconds = _RETRIES, min(judge.timeout_seconds, _REPLY_SECONDS)
    return judge


def _silence(where: str) -> ServerError | None:
    """Why no answer comes from an address; `None` where any does."""
    try:
        ServerControl(where).call("GET", "/v1/models", seconds=ANSWER_SECONDS)
    except ServerError as fault:
        return fault if fault.status is None else None
    return None


def _ask(judge: LLMJudge, recipe: Recipe, policy: Policy | None, where: str) -> Iterator[Finding]:
    args = recipe.config
    if policy is not None and policy.tokenizer.eos_token_id is not None:
        tokenizer = policy.tokenizer
        vocabulary = TokenizerVocabulary(tokenizer, {tokenizer.eos_token_id}, len(tokenizer))
        judge.prepare(vocabulary, longest_text_tokens(args), needs_logps=args.anchor == "judge")
    try:
        shared_loop().run(judge.probe())
    except MInTRLError as error:
        has_path = where.startswith("https:") or where.rstrip("/").endswith("/v1")
        fix = "" if has_path else f"end the address with /v1: `judge_base_url: {server_root(where)}/v1`"
        if isinstance(error, UnfitJudgeError):
            yield problem(_TOPIC, error.found, fix or error.fix)
        else:
            yield problem(_TOPIC, str(error), fix)
        return
    finally:
        shared_loop().run(judge.aclose())
    usage = sum(judge.account.usage.values(), start=Usage())
    tokens = f"{usage.prompt_tokens} tokens read and {usage.completion_tokens} written by these questions"
    yield ok(_TOPIC, f"{judge.weight_version or 'a model'} at {where} gave a verdict; {tokens}")
    form = {"free": "read from free text", "schema": "held to a JSON schema", "pattern": "held to a pattern"}
    yield ok(_TOPIC, f"verdicts are {form[judge.reply_form.value]}")
    if judge.shares_tokenizer:
        yield ok(_TOPIC, "the policy's vocabulary: corrections continue its very tokens, with log-probabilities")
    else:
        yield note(_TOPIC, "another vocabulary, or none known: corrections are text, without log-probabilities")
