"""Rollouts, run folder and checkpoints for TRL's distillation trainers, as MInTRL's own trainer has them.

[`OnPolicyRollouts`] stands in front of one of TRL's trainers. From TRL come the loop, the teacher and the divergence;
from here the policy's own rollouts (`num_generations` of each prompt, in process or from the vLLM servers), their
rewards for the record, the metrics, and runs that go on exactly. It holds no formula. Invariant: no reward reaches the
loss, and no rollout has a token that the policy did not sample.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

import torch
from accelerate.utils import gather_object
from datasets import Dataset
from torch import Tensor
from transformers import PrinterCallback, ProgressCallback
from trl.trainer.utils import RepeatSampler

from ..batch_report import DoorCounters, GeneratedBatch, report_batch
from ..checkpoint_state import describe_run, settings_part
from ..config import MInTRLConfig
from ..config_combinations import check_trackers
from ..errors import ConfigError
from ..failures import nothing_lost
from ..policy import build_policy
from ..processes import FiniteLosses, all_or_none
from ..reporting.callback import RunFolderCallback
from ..reporting.console import ConsoleCallback
from ..reporting.run_folder import RunFolder
from ..resume import ContinueCallback, completing_checkpoint, running
from ..rollouts.rollout import Role, Rollout, RolloutRequest
from ..rollouts.sampler import InterventionSampler
from ..rollouts.schedule import Phase
from ..sharing.trainer_hub import HubCallback, PushesToHub
from ..signs_of_life import live_progress, watchdog
from ..step_metrics import StepMeter
from ..training_rows import (
    check_enough_rows,
    check_rows,
    drop_long_rows,
    load_tokenizer,
    problem_of,
    refuse_active_dropout,
)
from .scoring import score_rollouts

# Settings that act in GRPO's or MInTRL's loss, or on their way to it, alone.
OF_GRPO = frozenset(
    {
        "updates_per_generation",
        "num_iterations",
        "beta",
        "sync_ref_model",
        "epsilon",
        "epsilon_high",
        "delta",
        "loss_type",
        "scale_rewards",
        "reward_weights",
        "importance_sampling_level",
        "top_entropy_quantile",
        "mask_truncated_completions",
        "phase2_importance_correction",
        "reset_optimizer_at_switch",
        "dry_run_worst_case",
        "eval_strategy",
    }
)


class OnPolicyRollouts(PushesToHub):
    """In front of a TRL trainer that asks for completions: gives it the policy's rollouts, and keeps a run folder.

    Args:
        model (`str`): The policy.
        settings ([`MInTRLConfig`]): The recipe's settings; written into the run folder.
        reward (`Callable`): Outcome reward in TRL's signature, for the record alone.
        method (`dict`): What else the run's results depend on, by name: compared when a run goes on.
        train_dataset (`Dataset`): Rows with `prompt` and what the reward needs.
        **kwargs: For the trainer behind.

    Raises:
        ConfigError: A setting that a distillation trainer cannot follow.
        DataError: A row that cannot be used.
    """

    def __init__(
        self,
        model: str,
        *,
        settings: MInTRLConfig,
        reward: Callable[..., Any],
        method: dict[str, Any],
        train_dataset: Dataset,
        **kwargs: Any,
    ):
        refuse_other_objectives(settings, method["name"])
        check_trackers(settings)
        check_rows(train_dataset, "train_dataset")
        tokenizer = load_tokenizer(model, settings)
        train_dataset, self.dropped_rows = drop_long_rows(train_dataset, tokenizer, settings)
        check_enough_rows(train_dataset, len(self.dropped_rows), settings)
        self.reward, self.reward_func_names = reward, [getattr(reward, "__name__", type(reward).__name__)]
        self.method, self.judge = method, None
        self.run_description: dict[str, Any] | None = None
        self.resumed_from: str | None = None
        self.carried: dict[str, float] = {}  # nothing goes from update to update but what TRL saves
        self._rows: list[dict[str, Any]] = []  # of the generated batch that is being made
        self._losses = FiniteLosses()
        self.step_meter = StepMeter(self)
        super().__init__(model=model, train_dataset=train_dataset, processing_class=tokenizer, **kwargs)
        refuse_active_dropout(self.model)
        self.num_generations = settings.num_generations
        self.schedule = settings.schedule()
        self.policy = build_policy(self, judge=None, generator=None, new_adapter=kwargs.get("peft_config"))
        self.sampler = InterventionSampler(
            self.policy.generator, None, self.policy.vocabulary, settings.sampler_settings()
        )
        self.door_counters = DoorCounters(self.policy.generator, self.hub if settings.push_to_hub else None)
        self.run_folder = RunFolder(settings.output_dir) if self.accelerator.is_main_process else None
        if self.run_folder is not None:
            self.add_callback(RunFolderCallback(self.run_folder, settings))
        self.add_callback(ContinueCallback(self))
        self.add_callback(HubCallback(self))
        for verbose in (PrinterCallback, ProgressCallback):
            self.remove_callback(verbose)
        self.add_callback(self.step_meter)
        self.add_callback(ConsoleCallback(0, loss="distillation loss"))

    def train(self, resume_from_checkpoint: str | bool | None = None, **kwargs: Any) -> Any:
        """TRL's training loop, once the run folder is ready; see [`MInTRLTrainer.train`]."""
        self.run_description = describe_run(self) | {"method": settings_part(self.method)}
        with running(self, resume_from_checkpoint) as checkpoint, nothing_lost(self), watchdog(self):
            self._step, self._buffered_inputs = 0, None  # an interrupted run may have left half a batch
            self._losses = FiniteLosses()
            return super().train(checkpoint, **kwargs)

    def _save_checkpoint(self, model: torch.nn.Module, trial: Any) -> None:
        with completing_checkpoint(self):
            super()._save_checkpoint(model, trial)

    def _get_train_sampler(self, dataset: Dataset | None = None) -> RepeatSampler:
        """GRPO's order of rows: `num_generations` copies of each, the whole batch once per micro-batch."""
        copies, micro_batches = self.args.num_generations, self.args.gradient_accumulation_steps
        rows = self.args.per_device_train_batch_size * self.accelerator.num_processes * micro_batches
        self.row_sampler = RepeatSampler(
            data_source=self.train_dataset if dataset is None else dataset,
            mini_repeat_count=copies,
            batch_size=rows // copies,
            repeat_count=micro_batches,
            shuffle=self.args.shuffle_dataset,
            seed=self.args.seed,
        )
        return self.row_sampler

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        if isinstance(generation_batch, list):
            self._rows = generation_batch
        with self.step_meter.clock.stage("idle"):
            return super()._prepare_inputs(generation_batch)

    def roll_out(self, prompt_ids: Sequence[Sequence[int]]) -> list[list[int]]:
        """One response to each prompt of the batch that is being made, scored and reported.

        Args:
            prompt_ids (`Sequence[Sequence[int]]`): B rendered prompts, in the order of the rows.

        Returns:
            `list[list[int]]`: B responses as ids, with their end id where they ended.
        """
        batch = GeneratedBatch(self._rows, Phase.ON_POLICY, self.state.global_step, training=True)
        with self.step_meter.clock.stage("sync"):
            self.policy.sync(self)
        first = self.accelerator.process_index * len(prompt_ids)
        requests = [
            RolloutRequest(
                row=first + index,
                prompt_ids=tuple(ids),
                problem=problem_of(row),
                role=Role.CONTROL,
                update=batch.update,
            )
            for index, (ids, row) in enumerate(zip(prompt_ids, batch.rows, strict=True))
        ]
        with all_or_none(), self.step_meter.clock.stage("rollout"):
            batch.rollouts = self._sample(requests)
        with all_or_none(), self.step_meter.clock.stage("reward"):
            own, batch.reward_reasons = score_rollouts(self.reward, batch.rows, batch.rollouts, self.policy.vocabulary)
        batch.rewards = torch.tensor(gather_object(own))  # (N,)
        is_control = torch.ones(len(batch.rewards), dtype=torch.bool)
        report_batch(self, batch, is_control, torch.full((len(batch.rows),), math.nan))
        return [list(rollout.ids) for rollout in batch.rollouts]

    def _sample(self, requests: Sequence[RolloutRequest]) -> list[Rollout]:
        label = f"update {self.state.global_step + 1}"
        with self.policy.generating(), live_progress(self, self.sampler.progress, label), self.sampler:
            self.sampler.start(requests)
            rollouts = self.sampler.collect()
        return [rollouts[request.row] for request in requests]

    def compute_loss(self, model: torch.nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Tensor:
        """TRL's divergence; one that is not finite stops the run in all processes before the optimizer's step."""
        loss = super().compute_loss(model, inputs, *args, **kwargs)
        live, response = inputs["prompt_mask"].sum().item(), inputs["completion_mask"].sum().item()
        self.step_meter.tokens.add(live + response, inputs["prompt_mask"].numel() + inputs["completion_mask"].numel())
        self._losses.add(loss)
        if self.accelerator.sync_gradients:
            losses, self._losses = self._losses, FiniteLosses()
            losses.check(self.state.global_step + 1)
        return loss

    def close(self) -> None:
        """Stop the sampler, the generator and their threads. Training after `close` is an error."""
        self.sampler.close()
        self.policy.close()


def refuse_other_objectives(settings: MInTRLConfig, method: str) -> None:
    """Refuse settings of GRPO's loss, and whatever else a trainer without rewards and ratios would pass over.

    Raises:
        ConfigError: Names the setting.
    """
    for field in fields(settings):
        value = getattr(settings, field.name)
        if field.name in OF_GRPO and value != field.default:
            allowed = f"unset for `method: {method}`, whose loss is a divergence from a teacher"
            raise ConfigError(field.name, value, allowed, f"remove {field.name}")


class RecipeBehind:
    """In front of a dataclass of TRL's arguments: names that TRL has not are looked up in the recipe's settings."""

    recipe_settings: MInTRLConfig | None = None

    def __getattr__(self, name: str) -> Any:  # called only for what is not found otherwise
        if name.startswith("_") or self.recipe_settings is None:
            raise AttributeError(name)
        return getattr(self.recipe_settings, name)


def trl_arguments(kind: type[RecipeBehind], settings: MInTRLConfig, **changes: Any) -> Any:
    """TRL's own arguments for one of its trainers, with the recipe's settings.

    Args:
        kind (`type`): [`RecipeBehind`] and a dataclass of TRL, such as `DistillationConfig`.
        settings ([`MInTRLConfig`]): The recipe's settings.
        **changes: Values of `kind` that the method sets.

    Raises:
        ConfigError: TRL refuses a value.
    """
    known = {field.name for field in fields(settings)}
    values = {field.name: getattr(settings, field.name) for field in fields(kind) if field.init and field.name in known}
    try:
        arguments = kind(**values | changes)
    except ValueError as error:
        reason = " ".join(str(error).split())
        raise ConfigError("method", kind.__name__, f"settings that TRL accepts ({reason})", "correct it") from error
    arguments.recipe_settings = settings
    return arguments
