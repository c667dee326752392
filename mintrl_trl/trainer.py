"""`MInTRLTrainer`: TRL's `GRPOTrainer` with MInTRL's rollouts and objective. Glue only.

TRL owns the training loop, prompts, padding, the model's forward, rewards, logging and checkpoints. This class hands it
rollouts of the `InterventionSampler` and, in the intervention phase, takes the loss from `objective`; in the on-policy
phase TRL's own GRPO loss acts unchanged. It contains no formula, no prompt text and no HTTP.

Invariant: the phase is decided once per generated batch and travels with it as a key of the batch dict; who wrote a
token travels as a tensor of the same dict, so that TRL's shuffle and split cannot part a row from its authors.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from datasets import Dataset
from torch import Tensor
from transformers import PrinterCallback, ProgressCallback
from trl import GRPOTrainer

from . import trl_seams
from .batch_report import DoorCounters, GeneratedBatch, report_batch
from .completions_table import CompletionsText, mark_authors, show_texts
from .config import MInTRLConfig
from .dry_run import DryRunCallback
from .early_rewards import EarlyRewards
from .failures import abandoned_reviews, nothing_lost
from .lean_updates import LeanUpdates
from .objective.advantage import Advantages, compute_advantages
from .objective.loss import RegressionLoss, regression_loss
from .objective.metrics import loss_totals
from .policy import build_policy
from .processes import all_or_none
from .reporting.callback import RunFolderCallback
from .reporting.console import ConsoleCallback
from .reporting.run_folder import RunFolder
from .resume import ContinueCallback, completing_checkpoint, running, started_with
from .rollouts.doors import Judge, PolicyGenerator
from .rollouts.rollout import Role, Rollout, RolloutRequest
from .rollouts.sampler import InterventionSampler
from .rollouts.schedule import Phase
from .sharing.card import CITATION, PAPER_TITLE
from .sharing.pusher import refuse_public_table
from .sharing.trainer_hub import HubCallback, PushesToHub
from .signs_of_life import live_progress, watchdog
from .step_metrics import StepMeter
from .training_rows import (
    check_enough_rows,
    check_rows,
    drop_long_eval_rows,
    drop_long_rows,
    load_tokenizer,
    problem_of,
    refuse_active_dropout,
    refuse_unsupported,
)
from .update_window import UpdateWindow


class MInTRLTrainer(PushesToHub, GRPOTrainer):
    """Train a language model with MInTRL.

    Args:
        model (`str` or `PreTrainedModel` or `PeftModel`): The policy, as for `GRPOTrainer`.
        reward_funcs (`Callable` or `list`): Rule-based outcome rewards in TRL's signature. `None` for a row means that
            there is no reward: the row leaves the loss and the baseline. A function with an attribute `begin`, called
            with the text of a completion and its row, may start its work while other rollouts are being made.
        args ([`MInTRLConfig`]): Settings.
        train_dataset (`Dataset`): Rows with `prompt` (text or messages) and whatever the rewards need; optional
            columns `question`, `privileged_context` and `answer` are for the judge alone.
        eval_dataset (`Dataset` or `dict`, *optional*): Evaluated without interventions, always.
        processing_class (`PreTrainedTokenizerBase`, *optional*): The tokenizer; loaded from `model` if not given.
        judge ([`Judge`] or `Callable`, *optional*): The judge, or a function that makes one from the policy generator.
            `None` builds it from `args`.
        generator ([`PolicyGenerator`], *optional*): Who continues token ids. `None` builds it from `args`.
        peft_config (`PeftConfig`, *optional*): Train an adapter; its dropout must be 0.
        callbacks, optimizers, reward_processing_classes, quantization_config: As for `GRPOTrainer`.

    Raises:
        ConfigError: Something unsupported (images, tools, environments, `rollout_func`, adapter dropout, streaming
            data), before any model loads.
        DataError: A row that cannot be used, before any model loads.
    """

    _tag_names = ["trl", "mintrl"]
    _name = "MInTRL"
    _paper = {"title": PAPER_TITLE, "citation": CITATION}

    def __init__(
        self,
        model: Any,
        reward_funcs: Any = None,
        args: MInTRLConfig | None = None,
        train_dataset: Dataset | None = None,
        eval_dataset: Any = None,
        processing_class: Any = None,
        reward_processing_classes: Any = None,
        callbacks: list | None = None,
        optimizers: tuple = (None, None),
        quantization_config: Any = None,
        peft_config: Any = None,
        tools: Any = None,
        rollout_func: Any = None,
        environment_factory: Any = None,
        *,
        judge: "Judge | Callable[[PolicyGenerator], Judge] | None" = None,
        generator: PolicyGenerator | None = None,
    ):
        args = args if args is not None else MInTRLConfig("runs/mintrl")
        refuse_unsupported(
            model=model,
            args=args,
            reward_funcs=reward_funcs,
            reward_processing_classes=reward_processing_classes,
            peft_config=peft_config,
            datasets={"train_dataset": train_dataset, "eval_dataset": eval_dataset},
            processing_class=processing_class,
            tools=tools,
            rollout_func=rollout_func,
            environment_factory=environment_factory,
            judge=judge,
            generator=generator,
        )
        check_rows(train_dataset, "train_dataset")
        if eval_dataset is not None:
            check_rows(eval_dataset, "eval_dataset")
        tokenizer = processing_class if processing_class is not None else load_tokenizer(model, args)
        train_dataset, self.dropped_rows = drop_long_rows(train_dataset, tokenizer, args)
        eval_dataset = drop_long_eval_rows(eval_dataset, tokenizer, args)
        check_enough_rows(train_dataset, len(self.dropped_rows), args)
        refuse_public_table(args)
        self._batch: GeneratedBatch | None = None
        self._new_batch = False  # whether the micro-batches of a generated batch are still as TRL laid them out
        self.window = UpdateWindow(self)
        self.step_meter = StepMeter(self)
        self.token_count = self.step_meter.tokens
        super().__init__(
            model=model,
            reward_funcs=reward_funcs,
            args=args,
            train_dataset=train_dataset,
            eval_dataset=eval_dataset,
            processing_class=tokenizer,
            reward_processing_classes=reward_processing_classes,
            callbacks=callbacks,
            optimizers=optimizers,
            quantization_config=quantization_config,
            peft_config=peft_config,
        )
        refuse_active_dropout(self.model)
        self.schedule = args.schedule()
        self.regression = args.regression_settings()
        self.lean = LeanUpdates(self)
        self.policy = build_policy(self, judge=judge, generator=generator, new_adapter=peft_config)
        self.judge = self.policy.judge
        self.early_rewards = EarlyRewards.of(self)
        self.sampler, self._eval_sampler = (
            InterventionSampler(
                self.policy.generator,
                judge,
                self.policy.vocabulary,
                args.sampler_settings(evaluation),
                self.early_rewards.on_finished,
            )
            for judge, evaluation in ((self.judge, False), (None, True))
        )
        self._eval_rows_started, self._eval_prefix = 0, "eval"
        doors = (self.judge, self.sampler if args.needs_judge else None, self.policy.generator)
        self.door_counters = DoorCounters(*doors, self.hub if args.push_to_hub else None)
        self.abandoned_no_verdicts: Counter[str] = Counter()  # by reason, of the batch that the run stopped in
        self.run_description: dict[str, Any] | None = None  # of the main process, made when training begins
        self.resumed_from: str | None = None
        self.carried: dict[str, float] = {}  # what a subclass takes from update to update; part of a checkpoint
        start = started_with(model, self.accelerator.device, peft_config or quantization_config)
        self.run_folder = RunFolder(args.output_dir, start=start) if self.accelerator.is_main_process else None
        if self.run_folder is not None:
            self.add_callback(RunFolderCallback(self.run_folder, args))
        self.add_callback(ContinueCallback(self))
        self.add_callback(HubCallback(self))
        for verbose in (PrinterCallback, ProgressCallback):  # fifty numbers an update; the run folder keeps them
            self.remove_callback(verbose)
        self.add_callback(self.step_meter)
        if args.dry_run_worst_case:  # before other callbacks make rollouts when training begins
            self.callback_handler.callbacks.insert(0, DryRunCallback(self))
        if CompletionsText.wanted(args):
            self.add_callback(CompletionsText(self))
        self.add_callback(ConsoleCallback(args.intervention_updates if args.needs_judge else 0))

    def train(self, resume_from_checkpoint: str | bool | None = None, **kwargs: Any) -> Any:
        """TRL's training loop, once the judge has answered a trivial review and the run folder is ready.

        Args:
            resume_from_checkpoint (`str` or `bool`, *optional*): A checkpoint to go on from, or `True` for the last one
                that a run can go on from. By default `args.resume_from_checkpoint`; without either, a new run.

        Raises:
            CheckpointError: There is no such checkpoint, or it is of a run that differs from this one.
            ConfigError: `output_dir` holds another run, and `set_aside_older_run` is not set.
        """
        with running(self, resume_from_checkpoint) as checkpoint, nothing_lost(self), watchdog(self):
            trl_seams.forget_generated_batch(self)  # an interrupted run may have left half of one
            self.window.clear()
            return super().train(checkpoint, **kwargs)

    def _save_checkpoint(self, model: torch.nn.Module, trial: Any) -> None:
        """TRL's checkpoint, with what going on needs beside it, and marked when it is whole."""
        with completing_checkpoint(self):
            super()._save_checkpoint(model, trial)

    def _get_train_sampler(self, dataset: Dataset | None = None) -> Any:
        """TRL's order of rows, kept for a run that goes on in a later pass."""
        self.row_sampler = super()._get_train_sampler(dataset)
        return self.row_sampler

    # Rollouts: steps 1 to 8 of the data walk in ARCHITECTURE.md

    def _prepare_inputs(self, generation_batch: Any) -> dict[str, Any]:
        """TRL's next micro-batch, of a batch that was laid out anew when it was generated."""
        with self.step_meter.clock.stage("idle"):
            inputs = super()._prepare_inputs(generation_batch)
            if self._new_batch:
                self._new_batch = False
                inputs = trl_seams.replace_micro_batches(self, self.lean.arrange)
            return inputs

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        """TRL's generate-and-score around our rollouts; replaces its advantages in the intervention phase."""
        training = self.model.training
        update = self.state.global_step
        phase = self.schedule.phase(update) if training else Phase.ON_POLICY
        corrected = training and phase is Phase.ON_POLICY and self.args.phase2_importance_correction
        batch = self._batch = GeneratedBatch(inputs, phase, update, training, corrected)
        if training and update == self.schedule.intervention_updates > 0 and self.args.reset_optimizer_at_switch:
            trl_seams.clear_optimizer_state(self.optimizer)
        try:
            on_policy = trl_seams.importance_correction(self, batch.corrected)
            in_phase = trl_seams.without_reference(self) if phase is Phase.INTERVENTION else on_policy
            with in_phase, abandoned_reviews(self):
                output = super()._generate_and_score_completions(inputs)
        finally:
            self._batch = None
        if not training:
            return output

        is_control = self._is_control(phase, len(batch.rewards))  # (N,)
        output |= self._credit(batch, is_control, output)
        output |= self.lean.row_keys(len(inputs))
        output |= trl_seams.sampled_logps(batch.rollouts, output["completion_ids"])
        self._new_batch = True
        report_batch(self, batch, is_control, output["advantages"], output.get(trl_seams.SCORED))
        return output

    def _credit(self, batch: GeneratedBatch, is_control: Tensor, output: dict[str, Any]) -> dict[str, Tensor]:
        """What TRL's batch dict gains: advantages and authors in the intervention phase; else TRL's are right."""
        if batch.phase is Phase.ON_POLICY:
            return {}
        own, width = batch.own_rows(self.accelerator.process_index), output["completion_ids"].size(1)
        advantages = self._intervention_advantages(batch.rewards, is_control)
        trl_seams.replace_logged_advantages(self, advantages.values)
        masked = ~output["completion_mask"].bool().any(dim=1)  # (B,) mask_truncated_completions
        return trl_seams.authorship_tensors(batch.rollouts, width, self.accelerator.device) | {
            "advantages": advantages.values[own],  # (B,)
            trl_seams.SCORED: advantages.scored[own] & ~masked,  # (B,)
            trl_seams.IS_CONTROL: is_control[own],  # (B,)
        }

    def _generate_single_turn(
        self, prompt_ids: list[list[int]], images: Any, multimodal_fields: dict, num_generations: int, **kwargs: Any
    ) -> tuple[list[list[int]], list[list[float]] | None]:
        """TRL's generation hook: one rollout per entry, in order, through the sampler."""
        batch = self._batch
        if len(prompt_ids) != len(batch.rows):
            raise RuntimeError(f"TRL asked for {len(prompt_ids)} completions of {len(batch.rows)} rows")
        with self.step_meter.clock.stage("sync"):
            self.policy.sync(self)
        first = self.accelerator.process_index * len(prompt_ids)
        if not batch.training:
            first += self._eval_rows_started
            self._eval_rows_started += len(prompt_ids) * self.accelerator.num_processes
        requests = [
            RolloutRequest(
                row=first + index,
                prompt_ids=tuple(ids),
                problem=problem_of(row),
                role=self.schedule.role(first + index, batch.phase) if batch.training else Role.CONTROL,
                update=batch.update,
            )
            for index, (ids, row) in enumerate(zip(prompt_ids, batch.rows, strict=True))
        ]
        self.early_rewards.expect(dict(zip([request.row for request in requests], batch.rows, strict=True)))
        with all_or_none(), self.step_meter.clock.stage("rollout"):
            batch.rollouts = self._sample(requests, training=batch.training)
        mark_authors(self, batch)
        return trl_seams.completion_lists(batch.rollouts, corrected=batch.corrected)

    def _sample(self, requests: Sequence[RolloutRequest], *, training: bool) -> list[Rollout]:
        sampler = self.sampler if training else self._eval_sampler
        label = f"update {self.state.global_step + 1}" if training else "evaluation"
        with self.policy.generating(), live_progress(self, sampler.progress, label), sampler:
            sampler.start(requests)
            rollouts = sampler.collect()
        return [rollouts[request.row] for request in requests]

    def _calculate_rewards(self, inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any) -> Tensor:
        """TRL's rewards of all processes (N, F), kept for our baseline."""
        others = all_or_none(instead=lambda: trl_seams.gather_no_rewards(self, len(prompts)))
        with others, self.step_meter.clock.stage("reward"):
            self.early_rewards.finish()
            rewards_per_func = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        batch = self._batch
        batch.rewards = trl_seams.total_rewards(rewards_per_func, self.reward_weights)
        batch.reward_reasons = trl_seams.pending_reward_reasons(self, len(prompts))
        if batch.training:
            batch.check_scored(self.args.unscored_limit)
        return rewards_per_func

    def _intervention_advantages(self, rewards: Tensor, is_control: Tensor) -> Advantages:
        """Of a batch of phase 1 (Eq. 9, 10): all rows of all processes, (N,)."""
        baseline, beta1 = self.args.baseline, self.args.beta1
        return compute_advantages(rewards, is_control, self.num_generations, baseline=baseline, beta1=beta1)

    def _is_control(self, phase: Phase, rows: int) -> Tensor:
        """(N,) bool: which rows are pure on-policy. Decided by global position, so no communication is needed."""
        roles = [self.schedule.role(row, phase) is Role.CONTROL for row in range(rows)]
        return torch.tensor(roles, device=self.accelerator.device)

    # Objective: steps 9 to 11 of the data walk

    def compute_loss(
        self, model: torch.nn.Module, inputs: dict, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Tensor:
        """The squared regression (Eq. 7) on batches of the intervention phase; TRL's GRPO loss on all others."""
        if trl_seams.is_regression_batch(inputs):
            loss = self._regression_loss(model, inputs)
        else:
            with trl_seams.importance_correction(self, trl_seams.is_corrected_batch(inputs)):
                loss = super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
            if self.model.training and self.lean.cuts_rows(regression=False):
                trl_seams.drop_metric(self, "entropy")  # over rows cut short, too; ours are labelled
        if self.model.training:
            self.window.add_micro_batch(loss, inputs)
        return loss

    def _regression_loss(self, model: torch.nn.Module, inputs: dict) -> Tensor:
        """Eq. 7 on one micro-batch, scaled for gradient accumulation."""
        output = trl_seams.forward(self, model, inputs)
        terms = trl_seams.loss_terms(inputs, output.logps)
        regression = self._regress(inputs, terms)
        totals = loss_totals(regression, **terms)
        if output.aux_loss is not None:
            totals.add("aux_loss", output.aux_loss.item(), 1)
        self.window.add(totals)
        loss = regression.loss
        if output.aux_loss is not None:
            loss = loss + self.router_aux_loss_coef * output.aux_loss
        return loss / self.current_gradient_accumulation_steps

    def _regress(self, inputs: dict[str, Any], terms: dict[str, Any]) -> RegressionLoss:
        """Eq. 7 on the terms of one micro-batch."""
        scored, advantages = inputs[trl_seams.SCORED], inputs["advantages"]
        return regression_loss(**terms, advantages=advantages, scored=scored, settings=self.regression)

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor | None, Any]:
        """TRL's forward, trimmed and counted; part of the update even where it runs while a batch is generated."""
        with self.step_meter.clock.stage("update"):
            return self.lean.forward(super()._get_per_token_logps_and_entropies, *args, **kwargs)

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: Any = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """TRL's evaluation; rollouts are the policy's own, and two evaluations at one update draw the same noise."""
        self._eval_rows_started, self._eval_prefix = 0, metric_key_prefix
        with self.door_counters.apart():
            return super().evaluate(eval_dataset, ignore_keys, metric_key_prefix)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """TRL's log lines; of several evaluation sets each has its name in all its metrics."""
        if not self.model.training:
            trl_seams.name_eval_metrics(self, self._eval_prefix)
        show_texts(self)
        super().log(logs, start_time)

    def close(self) -> None:
        """Stop the sampler, the generator and their threads. Training after `close` is an error."""
        self.sampler.close()
        self._eval_sampler.close()
        self.early_rewards.close()
        self.policy.close()
