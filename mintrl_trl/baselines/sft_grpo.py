"""SFT+GRPO: the policy first learns solutions that a teacher wrote, then trains with GRPO.

Stage one lives in the folder `sft` of the run: the teacher's trajectories, TRL's `SFTTrainer` on the right ones (masked
negative log-likelihood of the response, under the policy's own rendering of the prompt, with one end token), and the
model. It is a run folder like any other, with the initial policy's evaluation and that of the model after it. Stage two
is `method: grpo` from there, with a fresh optimizer. Updates of stage one are not counted among `max_steps`.

Invariant: a stage that is complete, with the same settings and data, is not done again.
"""

import json
import logging
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accelerate import PartialState
from datasets import Dataset
from peft import PeftModel
from transformers import (
    PreTrainedTokenizerBase,
    PrinterCallback,
    ProgressCallback,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)
from transformers.trainer_utils import get_last_checkpoint
from trl import SFTConfig, SFTTrainer, get_peft_config, get_quantization_config
from trl.trainer.utils import create_model_from_path

from ..batch_report import DoorCounters
from ..checkpoint_state import decisive_settings, describe_data, settings_part
from ..checkpoints import ADAPTER, replace_text
from ..errors import ConfigError
from ..pass_at_k_callback import PassAtKCallback
from ..policy import Policy, build_policy
from ..processes import all_or_none
from ..reporting.callback import RunFolderCallback
from ..reporting.console import ConsoleCallback
from ..reporting.run_folder import RunFolder
from ..trainer import MInTRLTrainer
from ..training_rows import check_rows, drop_long_rows, load_tokenizer
from .on_policy import RecipeBehind, trl_arguments
from .teacher import load_teacher_tokenizer, loading_of, render_prompts, spell_alike, teacher_generator
from .trajectories import Trajectory, collect_trajectories, read_trajectories

if TYPE_CHECKING:
    from ..recipe import Recipe
    from ..tasks import Task

logger = logging.getLogger(__name__)

STAGE, MODEL, TRAJECTORIES, DONE = "sft", "model", "trajectories.jsonl", "stage.json"
IGNORED = -100  # label of tokens that the loss passes over


class SFTArguments(RecipeBehind, SFTConfig):
    """TRL's `SFTConfig` with the recipe's settings behind it."""


class SupervisedTrainer(SFTTrainer):
    """TRL's `SFTTrainer` that [`PassAtKCallback`] can evaluate.

    Args:
        evaluated (`bool`): Whether there are problems to evaluate on; else nothing samples.
        **kwargs: As for `SFTTrainer`; a tokenizer as `processing_class`.
    """

    def __init__(self, *, evaluated: bool, **kwargs: Any):
        super().__init__(**kwargs)
        named = self.model.generation_config.eos_token_id
        self.eos_token_ids = [named] if isinstance(named, int) else list(named)
        adapter = kwargs.get("peft_config")
        self.policy: Policy | None = None
        if evaluated:
            self.policy = build_policy(self, judge=None, generator=None, new_adapter=adapter)
            self.door_counters = DoorCounters(self.policy.generator)
        self.run_folder = RunFolder(self.args.output_dir) if self.accelerator.is_main_process else None

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        metrics = self._metrics["train"]
        if "entropy" in metrics:
            metrics["entropy/policy"].extend(metrics.pop("entropy"))  # under the name that all methods give it
        super().log(logs, start_time)


class CopyBase(TrainerCallback):
    """The initial policy's evaluation, made before stage one, as the run's own at update 0.

    Args:
        trainer ([`MInTRLTrainer`]): Of stage two.
        stage ([`RunFolder`]): Of stage one.
        facts (`dict[str, float]`): What stage one took, as metrics at update 0.
    """

    def __init__(self, trainer: MInTRLTrainer, stage: RunFolder, facts: dict[str, float]):
        self.trainer, self.stage, self.facts = trainer, stage, facts

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        folder = self.trainer.run_folder
        if folder is None or state.global_step or next(folder.metrics(), None) is not None:
            return
        metrics = next((line for line in self.stage.metrics() if "eval/pass@1" in line), {"update": 0})
        folder.append_metrics(0, {name: metrics[name] for name in metrics if name != "update"} | self.facts)
        evaluation = next(self.stage.evaluations(), None)
        if evaluation is not None:
            folder.append_evaluation(0, {name: evaluation[name] for name in evaluation if name != "update"})


def build(recipe: "Recipe", task: "Task") -> MInTRLTrainer:
    """Do stage one, unless it is done, and make the trainer of stage two.

    Raises:
        ConfigError: The teacher cannot be loaded, or solved not one problem.
    """
    settings, folder = recipe.config, Path(recipe.config.output_dir) / STAGE
    check_rows(task.rows, "train_dataset")
    tokenizer = load_tokenizer(task.model, settings)
    rows, _ = drop_long_rows(task.rows, tokenizer, settings)
    description = describe_stage(recipe, task, rows)
    with all_or_none():
        done = _read(folder / DONE)
        if done is not None and done["description"] != description:
            set_aside(folder)
            done = None
    PartialState().wait_for_everyone()
    if done is None:
        done = {"description": description, "facts": supervise(recipe, task, rows, tokenizer, folder)}
        with all_or_none():
            if PartialState().is_main_process:
                replace_text(folder / DONE, json.dumps(done, indent=2) + "\n")
    else:
        logger.info("Stage one is complete: %s", folder)
    trainer = MInTRLTrainer(
        _load(recipe, task, folder / MODEL),
        reward_funcs=task.reward,
        args=settings,
        train_dataset=task.rows,
        processing_class=tokenizer,
    )
    trainer.add_callback(CopyBase(trainer, RunFolder(folder), done["facts"]))
    return trainer


def describe_stage(recipe: "Recipe", task: "Task", rows: Dataset) -> dict[str, Any]:
    """What the model after stage one depends on, as plain JSON values."""
    arguments, settings = recipe.arguments, recipe.config
    names = ("teacher_model", "sft_attempts", "sft_only_right", "sft_epochs", "sft_learning_rate", "sft_batch_size")
    shared = ("seed", "temperature", "max_completion_length", "chat_template_kwargs", "max_grad_norm", "optim")
    decisive = decisive_settings(settings)
    values = {name: getattr(arguments, name) for name in names} | {name: decisive[name] for name in shared}
    adapter = get_peft_config(recipe.policy)
    values |= {"model": task.model, "adapter": None if adapter is None else adapter.to_dict()}
    return settings_part(values) | {"data": describe_data(rows)["hash"]}


def supervise(
    recipe: "Recipe", task: "Task", rows: Dataset, tokenizer: PreTrainedTokenizerBase, folder: Path
) -> dict[str, float]:
    """Stage one: collect trajectories, learn them, save the model.

    Args:
        recipe ([`Recipe`]): Its settings.
        task ([`Task`]): Reward, model and problems to evaluate on.
        rows (`Dataset`): Training rows that fit.
        tokenizer (`PreTrainedTokenizerBase`): The policy's.
        folder (`Path`): Of the stage.

    Returns:
        `dict[str, float]`: What it took, as metrics.

    Raises:
        ConfigError: The teacher solved not one problem.
    """
    arguments, settings = recipe.arguments, recipe.config
    begun = time.monotonic()
    kept, teacher_tokenizer = _trajectories(recipe, task, rows, folder)
    teacher_seconds = time.monotonic() - begun
    if not kept:
        allowed = f"a model that solves at least one of {len(rows)} problems in {arguments.sft_attempts} tries"
        raise ConfigError(
            "teacher_model", arguments.teacher_model, allowed, "name a stronger model, or raise sft_attempts"
        )
    examples = supervised_rows(kept, rows, tokenizer, teacher_tokenizer, settings)
    args = stage_arguments(recipe, folder, len(examples))
    trainer = SupervisedTrainer(
        evaluated=bool(task.evaluation),
        model=task.model,
        args=args,
        train_dataset=examples,
        processing_class=tokenizer,
        peft_config=get_peft_config(recipe.policy),
        quantization_config=get_quantization_config(recipe.policy),
    )
    for verbose in (PrinterCallback, ProgressCallback):
        trainer.remove_callback(verbose)
    trainer.add_callback(ConsoleCallback(sys.maxsize, first_phase="supervised", loss="loss"))
    if trainer.run_folder is not None:
        trainer.run_folder.recipe = recipe.description()
        trainer.add_callback(RunFolderCallback(trainer.run_folder, args))
    if trainer.policy is not None:
        trainer.add_callback(PassAtKCallback(trainer, task, replace(arguments, eval_every=0)))
    trainer.train(get_last_checkpoint(str(folder)) if folder.is_dir() else None)
    trainer.save_model(str(folder / MODEL))
    if trainer.policy is not None:
        trainer.policy.close()
    tries = list(read_trajectories(folder / TRAJECTORIES))
    return {
        "sft/updates": trainer.state.global_step,
        "sft/trajectories": len(kept),
        "sft/tries": len(tries),
        "sft/teacher_tokens": sum(len(tried.ids) for tried in tries),
        "sft/teacher_seconds": teacher_seconds,
        "sft/seconds": trainer.state.log_history[-1].get("train_runtime", math.nan),
    }


def stage_arguments(recipe: "Recipe", folder: Path, num_rows: int) -> Any:
    """TRL's arguments of stage one: veRL's for SFT (betas 0.9 and 0.95, cosine, a tenth of warm-up, clip as set)."""
    arguments, settings = recipe.arguments, recipe.config
    processes = PartialState().num_processes
    per_device = min(int(settings.per_device_train_batch_size), max(1, arguments.sft_batch_size // processes))
    accumulated = max(1, round(arguments.sft_batch_size / (per_device * processes)))
    updates = max(1, math.ceil(num_rows / (per_device * processes * accumulated)) * arguments.sft_epochs)
    return trl_arguments(
        SFTArguments,
        settings,
        output_dir=str(folder),
        learning_rate=float(arguments.sft_learning_rate),
        lr_scheduler_type="cosine",
        warmup_steps=round(0.1 * updates),
        adam_beta2=0.95,
        weight_decay=0.01,
        num_train_epochs=float(arguments.sft_epochs),
        max_steps=-1,
        push_to_hub=False,  # the run's model goes to the hub, not what it begins with
        per_device_train_batch_size=per_device,
        gradient_accumulation_steps=accumulated,
        shuffle_dataset=False,
        loss_type="nll",
        packing=False,
        max_length=None,  # what is too long is left out, never cut
        dataset_kwargs={"skip_prepare_dataset": True},
        eval_strategy="no",
        load_best_model_at_end=False,
        resume_from_checkpoint=None,
    )


def supervised_rows(
    kept: Sequence[Trajectory],
    rows: Dataset,
    tokenizer: PreTrainedTokenizerBase,
    teacher_tokenizer: PreTrainedTokenizerBase,
    settings: Any,
) -> Dataset:
    """Rows of `input_ids` and `labels`: the policy's prompt, the teacher's response, one end token of the policy.

    Responses go over as ids where both tokenizers spell alike, else as text. What is longer than
    `max_completion_length` is left out.
    """
    alike = spell_alike(tokenizer, teacher_tokenizer)
    special = set(teacher_tokenizer.all_special_ids)
    prompts = render_prompts(
        [rows[trajectory.prompt]["prompt"] for trajectory in kept], tokenizer, settings.chat_template_kwargs
    )
    examples = []
    for trajectory, prompt in zip(kept, prompts, strict=True):
        ids = list(trajectory.ids)
        while ids and ids[-1] in special:
            ids.pop()
        if not alike:
            ids = tokenizer(teacher_tokenizer.decode(ids), add_special_tokens=False)["input_ids"]
        response = [*ids, tokenizer.eos_token_id]
        if len(response) <= settings.max_completion_length:
            labels = [IGNORED] * len(prompt) + response
            examples.append({"input_ids": [*prompt, *response], "labels": labels})
    return Dataset.from_list(examples)


def set_aside(folder: Path) -> None:
    """Rename a stage of other settings, so that nothing of it is mixed with the new one. The main process acts."""
    if PartialState().is_main_process:
        number = 1
        while (older := folder.with_name(f"{folder.name}-previous-{number}")).exists():
            number += 1
        folder.rename(older)
        logger.warning("Stage one was done with other settings or data; that is in %s now.", older)


def _trajectories(
    recipe: "Recipe", task: "Task", rows: Dataset, folder: Path
) -> tuple[list[Trajectory], PreTrainedTokenizerBase]:
    arguments, settings = recipe.arguments, recipe.config
    tokenizer = load_teacher_tokenizer(arguments.teacher_model)
    prompts = render_prompts(rows["prompt"], tokenizer, settings.chat_template_kwargs)
    loading = loading_of(settings, recipe.policy.attn_implementation)
    url = arguments.teacher_base_url
    with teacher_generator(arguments.teacher_model, tokenizer, settings, url, **loading) as (generator, vocabulary):
        kept = collect_trajectories(
            generator,
            vocabulary,
            prompts,
            list(rows),
            task.reward,
            folder / TRAJECTORIES,
            attempts=arguments.sft_attempts,
            only_right=arguments.sft_only_right,
            max_completion_tokens=settings.max_completion_length,
            seed=settings.seed,
            show_progress=settings.show_progress,
        )
    return kept, tokenizer


def _load(recipe: "Recipe", task: "Task", folder: Path) -> Any:
    """The model after stage one, under the initial one's name, by which servers know it."""
    loading = dict(recipe.config.model_init_kwargs or {})
    if (quantization := get_quantization_config(recipe.policy)) is not None:
        loading["quantization_config"] = quantization
    recipe.config.model_init_kwargs = None  # the trainer gets a loaded model
    if (folder / ADAPTER).exists():
        base = create_model_from_path(task.model, **loading)
        return PeftModel.from_pretrained(base, str(folder), is_trainable=True)
    loading.pop("revision", None)
    model = create_model_from_path(str(folder), **loading)
    model.config._name_or_path = task.model
    return model


def _read(path: Path) -> dict[str, Any] | None:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
