"""MENTOR: rollouts that a frozen expert writes along, token by token, where the policy is unsure.

In the first updates a group has `num_control` on-policy and `num_intervened` mixed rollouts (`mentor_decoding.py`),
with advantages of their own kind (`mentor_mixing.py`) in one clipped loss over the tokens of both: TRL's, with the
policy's own log-probabilities as the old ones, whoever wrote a token. From update number `intervention_updates` on,
counted from 1, alpha is 0 and all rollouts are on-policy: GRPO. Where MENTOR's released code differs from its paper
(drafts by the initial weights, gamma of at least 1.5 nats) this follows the paper; `gamma_floor` sets the latter.

| metric | meaning |
| --- | --- |
| `mentor/gamma` | entropy from which on the expert has all the weight, in nats |
| `mentor/alpha` | weight of mixed rollouts' advantages |
| `mentor/expert_weight` | the expert's share of the mixture, mean over tokens of mixed rollouts |
| `mentor/taken` | share of the policy's drafts that stayed, of those that came to be judged |
| `mentor/drafted` | tokens that the policy drafted, those never judged included, a plain number |
| `passes/policy`, `passes/expert`, `positions/...` | work of both models on rollouts of both kinds |
| `seconds/mixed` | making mixed rollouts, mean over processes; part of `seconds/rollout` |

A token that replaces a draft counts as an intervention, so `off_policy_share` has its usual meaning. Invariant: gamma,
which the next update needs, is the same in all processes and part of a checkpoint.
"""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from itertools import groupby
from typing import TYPE_CHECKING, Any

import torch
from accelerate.utils import gather_object
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase
from trl import get_peft_config, get_quantization_config

from .. import trl_seams
from ..batch_report import DoorCounters, GeneratedBatch, reduce_totals
from ..checkpoint_state import describe_run
from ..config import MInTRLConfig
from ..config_combinations import sharded_by
from ..errors import ConfigError
from ..generation.lent_model import LentModel
from ..objective.metrics import Totals
from ..reporting.console import ConsoleCallback
from ..rollouts.progress import Tally
from ..rollouts.rollout import Author, Role, Rollout, RolloutRequest, Span, StopReason
from ..rollouts.schedule import Phase, Schedule, request_seed
from ..signs_of_life import live_progress
from ..trainer import MInTRLTrainer
from ..training_rows import load_tokenizer
from .mentor_decoding import MixedDecoder, MixedRow, MixingWork
from .mentor_mixing import FIRST_GAMMA, alpha, mentor_advantages, quantile
from .teacher import load_teacher_tokenizer, loading_of, render_prompts, spell_alike

if TYPE_CHECKING:
    from ..recipe import Recipe
    from ..tasks import Task


EPSILON_HIGH = 0.28  # upper clip of the ratio; the lower one is TRL's 0.2


@dataclass(frozen=True)
class MentorSettings:
    """What MENTOR needs beside the trainer's settings; the defaults are its paper's.

    Args:
        mentor_alpha (`float`, *optional*, defaults to 1.0): alpha of the first update; it falls to 0. At least 0.
        entropy_quantile (`float`, *optional*, defaults to 0.95): Which quantile of the policy's token entropies in the
            on-policy rollouts of an update is the next one's gamma. In [0, 1].
        gamma_floor (`float`, *optional*, defaults to 0.0): gamma at least, in nats; MENTOR's released code has 1.5.
        reward_range (`float`, *optional*, defaults to 1.0): Largest minus smallest reward of the task. Above 0.
        draft_tokens (`int`, *optional*, defaults to 4): Tokens that the policy drafts before the expert reads them; 1
            is plain mixing. Changes the number of passes, never a rollout. At least 1.

    Raises:
        ConfigError: A number is out of its range.
    """

    mentor_alpha: float = 1.0
    entropy_quantile: float = 0.95
    gamma_floor: float = 0.0
    reward_range: float = 1.0
    draft_tokens: int = 4

    def __post_init__(self):
        for name, good, allowed in (
            ("mentor_alpha", self.mentor_alpha >= 0, "at least 0"),
            ("entropy_quantile", 0 <= self.entropy_quantile <= 1, "from 0 to 1"),
            ("gamma_floor", self.gamma_floor >= 0, "at least 0, in nats"),
            ("reward_range", self.reward_range > 0, "above 0"),
            ("draft_tokens", self.draft_tokens >= 1, "at least 1"),
        ):
            if not good:
                fix = f"set {name}={MentorSettings.__dataclass_fields__[name].default}"
                raise ConfigError(name, getattr(self, name), allowed, fix)


class MentorTrainer(MInTRLTrainer):
    """Train with MENTOR.

    Args:
        model, reward_funcs, args, train_dataset, **options: As for [`MInTRLTrainer`]; without a judge, `args` with
            `max_reviews=0`. Unset, `epsilon_high` is MENTOR's 0.28, in all updates.
        expert (`str` or `PreTrainedModel`): A frozen causal language model with the policy's tokenizer, in process.
        expert_tokenizer (`PreTrainedTokenizerBase`, *optional*): For the expert's own rendering of a prompt. Loaded
            with an expert by name; otherwise the policy's.
        settings ([`MentorSettings`], *optional*): By default the paper's.

    Raises:
        ConfigError: Settings that MENTOR does not follow, or an expert that cannot write along: another vocabulary,
            other end tokens.
    """

    def __init__(
        self,
        model: Any,
        reward_funcs: Any = None,
        args: MInTRLConfig | None = None,
        train_dataset: Any = None,
        *,
        expert: str | PreTrainedModel,
        expert_tokenizer: PreTrainedTokenizerBase | None = None,
        settings: MentorSettings | None = None,
        **options: Any,
    ):
        args = args if args is not None else MInTRLConfig("runs/mentor", max_reviews=0)
        _check(args)
        tokenizer = options.get("processing_class") or load_tokenizer(model, args)
        if expert_tokenizer is None and isinstance(expert, str):
            expert_tokenizer = load_teacher_tokenizer(expert)
        self.expert_tokenizer = expert_tokenizer if expert_tokenizer is not None else tokenizer
        if not spell_alike(tokenizer, self.expert_tokenizer):
            allowed = "a model with the policy's vocabulary: both write one text, token by token"
            name = self.expert_tokenizer.name_or_path
            raise ConfigError("teacher_model", name, allowed, "take an expert of the policy's own family")
        # The entropy is measured on all on-policy rollouts, so none of them is cut short where it has no gradient.
        args.entropy_sample = max(args.entropy_sample, args.prompts_per_update * args.num_control)
        super().__init__(model, reward_funcs, args, train_dataset, **options | {"processing_class": tokenizer})
        if args.epsilon_high is None:
            self.epsilon_high = EPSILON_HIGH
        self.settings = settings if settings is not None else MentorSettings()
        self.schedule = Schedule(args.num_control, args.num_intervened, max(args.intervention_updates - 1, 0))
        expert = _load(expert, args) if isinstance(expert, str) else expert
        self.expert = expert.eval().requires_grad_(False).to(self.accelerator.device)
        _check_reach(args, self.expert)
        _check_same_ends(self.eos_token_ids, self.expert)
        student = self.accelerator.unwrap_model(self.model)
        models = LentModel(student, base_model=self.expert, autocast=self.accelerator.autocast)
        self.decoder = MixedDecoder(
            models,
            end_ids=self.eos_token_ids,
            pad_id=tokenizer.pad_token_id,
            shared_ids=min(
                len(tokenizer), len(self.expert_tokenizer), self.expert.get_input_embeddings().num_embeddings
            ),
            temperature=args.temperature,
            draft_tokens=self.settings.draft_tokens,
            max_batch=args.local_max_batch,
        )
        self.door_counters = DoorCounters(self.policy.generator, self.decoder)
        self.remove_callback(ConsoleCallback)
        self.add_callback(ConsoleCallback(self.schedule.intervention_updates, first_phase="mixed"))
        self._mixing, self._mixed_seconds = Totals(), 0.0
        self._entropies: list[Tensor] = []  # of the micro-batches of an update
        if self.accelerator.is_main_process:
            decisive = {name: value for name, value in asdict(self.settings).items() if name != "draft_tokens"}
            self.run_description = describe_run(self) | {"mentor": decisive}

    @property
    def gamma(self) -> float:
        """Entropy in nats from which on the expert has all the weight, for the next mixed rollouts."""
        return self.carried.get("gamma", FIRST_GAMMA)

    # Rollouts

    def _sample(self, requests: Sequence[RolloutRequest], *, training: bool) -> list[Rollout]:
        """On-policy rollouts as ever; mixed ones by both models."""
        prompts = dict(zip([request.row for request in requests], self._batch.rows, strict=True))
        by_role = {role: [request for request in requests if request.role is role] for role in Role}
        rollouts = super()._sample(by_role[Role.CONTROL], training=training) if by_role[Role.CONTROL] else []
        mixed = self._mix([(request, prompts[request.row]) for request in by_role[Role.INTERVENED]])
        by_row = {rollout.request.row: rollout for rollout in [*rollouts, *mixed]}
        return [by_row[request.row] for request in requests]

    def _mix(self, requests: Sequence[tuple[RolloutRequest, dict[str, Any]]]) -> list[Rollout]:
        """Mixed rollouts, in order."""
        if not requests:
            return []
        args, tally, started = self.args, Tally(), time.perf_counter()
        rows = [
            MixedRow(
                student_prefix=request.prompt_ids,
                expert_prefix=self._expert_prompt(row),
                seeds=tuple(
                    request_seed(args.seed, request.update, request.row, 0, purpose)
                    for purpose in ("policy", "review", "correction")
                ),
                max_tokens=args.max_completion_length,
            )
            for request, row in requests
        ]
        tally.total = len(rows)

        def count(tokens: int, ended: int) -> None:
            tally.tokens += tokens
            tally.finished += ended

        label = f"update {self.state.global_step + 1}, mixed"
        with live_progress(self, tally.snapshot, label):
            work = self.decoder.decode(rows, self.gamma, count)
        self._mixed_seconds = time.perf_counter() - started
        self._mixing = _totals(work)
        rollouts = [self._rollout(request, row) for (request, _), row in zip(requests, rows, strict=True)]
        for rollout in rollouts:
            self.early_rewards.on_finished(rollout)
        return rollouts

    def _expert_prompt(self, row: dict[str, Any]) -> tuple[int, ...]:
        """A row's prompt as the expert's own template renders it."""
        (ids,) = render_prompts([row["prompt"]], self.expert_tokenizer, self.args.chat_template_kwargs)
        return tuple(ids)

    def _rollout(self, request: RolloutRequest, row: MixedRow) -> Rollout:
        spans, start = [], 0
        for by_expert, part in groupby(row.by_expert):
            stop = start + len(list(part))
            author, version = Author.POLICY, self.policy.generator.weight_version
            if by_expert:
                author, version = Author.INTERVENTION, "expert"
            spans.append(Span(tuple(row.ids[start:stop]), author, version, tuple(row.logps[start:stop])))
            start = stop
        ended = row.ids[-1] in self.eos_token_ids
        return Rollout(
            request, tuple(spans), StopReason.END if ended else StopReason.LENGTH, seconds=self._mixed_seconds
        )

    # Objective

    def _credit(self, batch: GeneratedBatch, is_control: Tensor, output: dict[str, Any]) -> dict[str, Tensor]:
        """MENTOR's advantages while there are mixed rollouts; authors play no part in its loss."""
        if batch.phase is Phase.ON_POLICY:
            return {}
        settings = self.settings
        weight = alpha(batch.update + 1, settings.mentor_alpha, self.args.intervention_updates)
        advantages = mentor_advantages(
            batch.rewards, is_control, self.num_generations, alpha=weight, reward_range=settings.reward_range
        )
        trl_seams.replace_logged_advantages(self, advantages)
        self._mixing.add("seconds/mixed", self._mixed_seconds)
        metrics = reduce_totals(self._mixing) | {"mentor/gamma": self.gamma, "mentor/alpha": weight}
        self._mixing, self._mixed_seconds = Totals(), 0.0
        trl_seams.add_metrics(self, metrics)
        return {"advantages": advantages[batch.own_rows(self.accelerator.process_index)]}

    def compute_loss(
        self, model: torch.nn.Module, inputs: dict, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Tensor:
        """TRL's clipped loss; the entropies of on-policy tokens are kept for gamma."""
        loss = super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        if self.model.training and self.schedule.phase(self.state.global_step + 1) is Phase.INTERVENTION:
            on_policy = inputs["completion_mask"].bool() & inputs[trl_seams.ENTROPY_SAMPLE].unsqueeze(1)  # (B, C)
            self._entropies.append(self.lean.entropies[on_policy].float())
            if self.accelerator.sync_gradients:
                self._renew_gamma()
        return loss

    def _renew_gamma(self) -> None:
        """gamma from the update that is being made. Every process takes part."""
        own, self._entropies = torch.cat(self._entropies).cpu(), []
        entropies = torch.cat(gather_object([own]))
        if len(entropies):
            found = quantile(entropies, self.settings.entropy_quantile)
            self.carried["gamma"] = max(found, self.settings.gamma_floor)


def build(recipe: "Recipe", task: "Task") -> MentorTrainer:
    """The trainer of a recipe with `method: mentor`."""
    arguments = recipe.arguments
    settings = MentorSettings(**{field.name: getattr(arguments, field.name) for field in fields(MentorSettings)})
    return MentorTrainer(
        task.model,
        reward_funcs=task.reward,
        args=recipe.config,
        train_dataset=task.rows,
        expert=arguments.teacher_model,
        settings=settings,
        peft_config=get_peft_config(recipe.policy),
        quantization_config=get_quantization_config(recipe.policy),
    )


def _totals(work: MixingWork) -> Totals:
    """What decoding took, by metric name."""
    totals = Totals()
    totals.add("mentor/expert_weight", work.weight, work.judged)
    totals.add("mentor/taken", work.taken, work.judged)
    return totals


def _check(args: MInTRLConfig) -> None:
    """Refuse settings that have another meaning in MInTRL, or none here."""
    if args.max_reviews:
        allowed = "0 with MENTOR: the expert writes along, and nobody reviews"
        raise ConfigError("max_reviews", args.max_reviews, allowed, "set max_reviews=0")
    if not args.num_intervened:
        raise ConfigError("num_intervened", 0, "at least 1 with MENTOR, its mixed rollouts", "set num_intervened=8")
    if args.intervention_updates < 2:
        allowed = "at least 2 with MENTOR: the number of the update in which alpha reaches 0"
        raise ConfigError("intervention_updates", args.intervention_updates, allowed, "set intervention_updates=200")
    if args.dry_run_worst_case:
        allowed = "false with MENTOR: what its expert needs would not be part of it"
        raise ConfigError("dry_run_worst_case", True, allowed, "remove dry_run_worst_case")
    if (launch := sharded_by(args)) is not None:
        allowed = f"not with MENTOR under {launch}, because no process holds the whole model, which mixed rollouts need"
        raise ConfigError("method", "mentor", allowed, "launch with recipes/accelerate/ddp.yaml")


def _load(expert: str, args: MInTRLConfig) -> PreTrainedModel:
    loading = loading_of(args, (args.model_init_kwargs or {}).get("attn_implementation"))
    try:
        return AutoModelForCausalLM.from_pretrained(expert, trust_remote_code=args.trust_remote_code, **loading)
    except (OSError, ValueError) as error:
        why = str(error).strip().partition("\n")[0]
        allowed = f"a folder or hub id of a causal language model ({why})"
        raise ConfigError("teacher_model", expert, allowed, "correct the path or id") from error


def _check_reach(args: MInTRLConfig, expert: PreTrainedModel) -> None:
    """The expert has room for prompt and response."""
    positions = getattr(expert.config.get_text_config(), "max_position_embeddings", None)
    needed = args.max_prompt_length + args.max_completion_length
    if positions is not None and needed > positions:
        allowed = f"a model with max_prompt_length + max_completion_length = {needed} positions, not {positions}"
        raise ConfigError("teacher_model", expert.config.name_or_path, allowed, "lower max_completion_length")


def _check_same_ends(end_ids: Sequence[int], expert: PreTrainedModel) -> None:
    """What ends the expert's answers has to end the policy's."""
    ends = expert.generation_config.eos_token_id if expert.generation_config is not None else None
    ends = {ends} if isinstance(ends, int) else set(ends or ())
    if foreign := ends - set(end_ids):
        allowed = f"a model that ends its answers as the policy does, with {sorted(end_ids)}; it has {sorted(foreign)}"
        raise ConfigError("teacher_model", expert.config.name_or_path, allowed, "set the policy's eos_token_id to both")
