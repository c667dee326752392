"""On-policy distillation (OPD): the policy writes, and a stronger model says at each token how it would go on.

TRL's `DistillationTrainer` with `num_generations` rollouts of each prompt, as the other methods have, and a teacher
that reads the prompt as its own chat template renders it: only the response's ids are shared. Per token the loss is the
divergence between the policy's and the teacher's next-token distribution, over the whole vocabulary; `divergence: 1`
is KL(policy || teacher). Mean over the tokens of the batch; no reward takes part.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase
from trl import DistillationConfig, DistillationTrainer, get_peft_config, get_quantization_config
from trl.trainer.utils import pad

from ..completions_table import show_texts
from ..errors import ConfigError
from ..training_rows import load_tokenizer
from .on_policy import OnPolicyRollouts, RecipeBehind, trl_arguments
from .teacher import load_teacher_tokenizer, loading_of, render_prompts, spell_alike

if TYPE_CHECKING:
    from ..recipe import Recipe
    from ..tasks import Task

TEACHER_PROMPT_IDS, TEACHER_PROMPT_MASK = "teacher_prompt_ids", "teacher_prompt_mask"  # (B, P') in TRL's batch dict


class OPDArguments(RecipeBehind, DistillationConfig):
    """TRL's `DistillationConfig` with the recipe's settings behind it."""


class OPDTrainer(OnPolicyRollouts, DistillationTrainer):
    """TRL's `DistillationTrainer` on rollouts of our own, whose teacher has its own prompts.

    Args:
        model (`str`): The policy.
        teacher_tokenizer (`PreTrainedTokenizerBase`): Renders the teacher's prompts.
        teacher_template_kwargs (`Mapping`): For its chat template.
        **kwargs: For [`OnPolicyRollouts`] and `DistillationTrainer`.
    """

    _tag_names: ClassVar[list[str]] = ["trl", "opd"]

    def __init__(
        self,
        model: str,
        *,
        teacher_tokenizer: PreTrainedTokenizerBase,
        teacher_template_kwargs: Mapping[str, Any],
        **kwargs: Any,
    ):
        self.teacher_tokenizer, self.teacher_template_kwargs = teacher_tokenizer, dict(teacher_template_kwargs)
        self._teacher_prompts: tuple[Tensor, Tensor] | None = None  # of the micro-batch in the forward pass
        super().__init__(model, **kwargs)

    def _generate_single_turn(self, prompt_ids: list[list[int]], *args: Any, **kwargs: Any) -> list[list[int]]:
        return self.roll_out(prompt_ids)

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        output = super()._generate_and_score_completions(inputs)
        ids = render_prompts([row["prompt"] for row in inputs], self.teacher_tokenizer, self.teacher_template_kwargs)
        device = output["prompt_ids"].device
        fill = self.teacher_tokenizer.pad_token_id or 0
        output[TEACHER_PROMPT_IDS] = pad([torch.tensor(row) for row in ids], fill, padding_side="left").to(device)
        ones = [torch.ones(len(row), dtype=torch.long) for row in ids]
        output[TEACHER_PROMPT_MASK] = pad(ones, 0, padding_side="left").to(device)
        return output

    def _compute_loss(self, unwrapped_student: Any, inputs: dict[str, Any], num_items_in_batch: Any) -> Any:
        self._teacher_prompts = inputs[TEACHER_PROMPT_IDS], inputs[TEACHER_PROMPT_MASK]
        try:
            return super()._compute_loss(unwrapped_student, inputs, num_items_in_batch)
        finally:
            self._teacher_prompts = None

    def _get_last_hidden_state(
        self, unwrapped_model: Any, input_ids: Tensor, attention_mask: Tensor, logits_to_keep: int, **kwargs: Any
    ) -> Tensor:
        """TRL's forward; the teacher reads the same response after its own prompt."""
        if unwrapped_model is self.accelerator.unwrap_model(self.teacher_model):
            ids, mask = self._teacher_prompts
            input_ids = torch.cat([ids, input_ids[:, -logits_to_keep:]], dim=1)  # (B, P'+C)
            attention_mask = torch.cat([mask, attention_mask[:, -logits_to_keep:]], dim=1)
        return super()._get_last_hidden_state(unwrapped_model, input_ids, attention_mask, logits_to_keep, **kwargs)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """TRL's log lines, and its table of completions without anything that a terminal would obey."""
        show_texts(self)
        super().log(logs, start_time)

    def compute_loss(self, *args: Any, **kwargs: Any) -> Tensor:
        loss = super().compute_loss(*args, **kwargs)
        entropies = self._metrics["train"].pop("entropy", [])  # under the name that all methods give it
        self._metrics["train"]["entropy/policy"].extend(entropies)
        return loss


def build(recipe: "Recipe", task: "Task") -> OPDTrainer:
    """The trainer of a recipe with `method: opd`.

    Raises:
        ConfigError: The teacher cannot be loaded, or has another tokenizer.
    """
    arguments, settings = recipe.arguments, recipe.config
    divergence = 1.0 if arguments.divergence is None else float(arguments.divergence)
    tokenizer = load_teacher_tokenizer(arguments.teacher_model)
    if not spell_alike(tokenizer, load_tokenizer(task.model, settings)):
        allowed = f"a model with the tokenizer of {task.model}, since the loss compares distributions over its words"
        fix = "name a larger model of the policy's own family"
        raise ConfigError("teacher_model", arguments.teacher_model, allowed, fix)
    loading = loading_of(settings, recipe.policy.attn_implementation)
    return OPDTrainer(
        task.model,
        settings=settings,
        reward=task.reward,
        method={"name": "opd", "teacher_model": arguments.teacher_model, "divergence": divergence},
        args=trl_arguments(OPDArguments, settings, beta=divergence, teacher_model_init_kwargs=loading),
        teacher_model=arguments.teacher_model,
        teacher_tokenizer=tokenizer,
        teacher_template_kwargs=settings.chat_template_kwargs,
        train_dataset=task.rows,
        peft_config=get_peft_config(recipe.policy),
        quantization_config=get_quantization_config(recipe.policy),
    )
