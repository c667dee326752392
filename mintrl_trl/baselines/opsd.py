"""On-policy self-distillation (OPSD): the policy writes, and the same model, which has read the solution, corrects it.

TRL's `SDFTTrainer` on rollouts of our own: student prompt x, teacher prompt x with the row's `privileged_context`, one
response, and per token the divergence between both distributions; `divergence: 0.5` is the Jensen-Shannon divergence,
1 KL(policy || teacher). The teacher is the initial policy (`self_teacher: base`), or the policy of the moment (`live`).
Mean over a response's tokens, then over responses; no reward takes part.
"""

import warnings
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor
from trl import get_peft_config

from ..data.chains import SEPARATOR
from ..errors import ConfigError, DataError
from .on_policy import OnPolicyRollouts, RecipeBehind, trl_arguments

with warnings.catch_warnings():  # TRL says at each import that its experiments may change; its version is pinned
    warnings.simplefilter("ignore")
    from trl.experimental.sdft import SDFTConfig, SDFTTrainer

if TYPE_CHECKING:
    from ..recipe import Recipe
    from ..tasks import Task

# What the teacher reads, by task. The small world's base model was trained on prompts of the first form.
TEACHER_PROMPTS = {
    "chains": f"{{privileged_context}}{SEPARATOR}{{prompt}}",
    "math": (
        "{prompt}\n\nHere is a solution that is known to be right:\n\n{privileged_context}\n\n"
        "Now solve the problem yourself, step by step and in your own words. Do not mention that solution."
    ),
    "code": (
        "{prompt}\n\nHere is a program that is known to be right:\n\n{privileged_context}\n\n"
        "Now solve the task yourself and in your own words. Do not mention that program."
    ),
}


class OPSDArguments(RecipeBehind, SDFTConfig):
    """TRL's `SDFTConfig` with the recipe's settings behind it."""


class OPSDTrainer(OnPolicyRollouts, SDFTTrainer):
    """TRL's `SDFTTrainer` on rollouts of our own. Arguments as for [`OnPolicyRollouts`] and `SDFTTrainer`."""

    _tag_names: ClassVar[list[str]] = ["trl", "opsd"]
    _name = "OPSD"

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.max_prompt_length = None  # of a teacher's prompt TRL would cut the beginning off, which is the question

    def _generate(self, prompt_ids: list[list[int]]) -> tuple[list[list[int]], list[list[int]]]:
        return prompt_ids, self.roll_out(prompt_ids)

    def _compute_self_distillation_loss(self, model: Any, inputs: Any, distillation_logits: Any) -> Tensor:
        mask = inputs["completion_mask"].bool()  # (B, C)
        self._metrics["train"]["entropy/policy"].append(mean_entropy(distillation_logits.student_logits, mask))
        return super()._compute_self_distillation_loss(model, inputs, distillation_logits)


@torch.no_grad()
def mean_entropy(logits: Tensor, mask: Tensor) -> float:
    """Shannon entropy in nats, averaged over the positions of a mask.

    Args:
        logits (`Tensor`): (B, C, V). Read row by row, so that no second tensor of that size is made.
        mask (`Tensor`): (B, C) bool.
    """
    total = 0.0
    for row, kept in zip(logits, mask, strict=True):
        logps = row[kept].float().log_softmax(-1)  # (tokens, V)
        total -= (logps.exp() * logps).sum().item()
    return total / max(1, int(mask.sum()))


def build(recipe: "Recipe", task: "Task") -> OPSDTrainer:
    """The trainer of a recipe with `method: opsd`.

    Raises:
        DataError: A row has no `privileged_context`.
        ConfigError: A teacher's prompt with a whole response is longer than the model reads.
    """
    arguments, settings = recipe.arguments, recipe.config
    column = task.rows["privileged_context"] if "privileged_context" in task.rows.column_names else [None]
    missing = next((number for number, text in enumerate(column) if not text), None)
    if missing is not None:
        fix = "use rows with solutions (a column `solution` or `privileged_context`)"
        raise DataError(f"training rows, row {missing}", "privileged_context", None, "a solution in each row", fix)
    divergence = 0.5 if arguments.divergence is None else float(arguments.divergence)
    args = trl_arguments(
        OPSDArguments,
        settings,
        generation_batch_size=None,
        distillation_mode="full_logits",
        distillation_alpha=divergence,
        distillation_is_clip=None,
        teacher_model_kind=arguments.self_teacher,
        teacher_prompt_template=TEACHER_PROMPTS[arguments.task],
        num_loss_tokens_to_skip=arguments.skip_tokens,
    )
    method = {
        "name": "opsd",
        "divergence": divergence,
        "self_teacher": arguments.self_teacher,
        "skip_tokens": arguments.skip_tokens,
        "teacher_prompt": args.teacher_prompt_template,
    }
    trainer = OPSDTrainer(
        task.model,
        settings=settings,
        reward=task.reward,
        method=method,
        args=args,
        train_dataset=task.rows,
        peft_config=get_peft_config(recipe.policy),
    )
    _check_positions(trainer)
    return trainer


def _check_positions(trainer: OPSDTrainer) -> None:
    positions = getattr(trainer.model.config.get_text_config(), "max_position_embeddings", None)
    if positions is None:
        return
    rows, contexts = trainer.train_dataset, trainer.teacher_context_builder
    prompts = contexts.select_generation_prompts(rows["prompt"], rows["privileged_context"])
    longest = max(map(len, trainer._tokenize_prompts(prompts)))
    completion = trainer.args.max_completion_length
    if longest + completion > positions:
        allowed = f"at most {positions - longest}: the teacher's longest prompt has {longest} tokens, the model reads"
        fix = "lower max_completion_length, or leave rows with long solutions out"
        raise ConfigError("max_completion_length", completion, f"{allowed} {positions}", fix)
