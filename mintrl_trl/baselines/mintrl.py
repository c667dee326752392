"""MInTRL itself, its ablations, and GRPO: the same trainer without phase 1, whose loss is TRL's own from the start.

GRPO follows veRL's defaults: group of `num_control + num_intervened` on-policy rollouts, token mean over the batch,
advantages over the group's standard deviation, clip 0.2 with a dual clip of 3, no reference, constant learning rate.
"""

from typing import TYPE_CHECKING

from trl import get_peft_config, get_quantization_config

from ..config_ablations import AblationConfig
from ..trainer import MInTRLTrainer
from .ablations import AblationTrainer

if TYPE_CHECKING:
    from ..recipe import Recipe
    from ..tasks import Task


def build(recipe: "Recipe", task: "Task") -> MInTRLTrainer:
    """The trainer of a recipe with `method: mintrl` or `method: grpo`."""
    trainer = AblationTrainer if isinstance(recipe.config, AblationConfig) else MInTRLTrainer
    return trainer(
        task.model,
        reward_funcs=task.reward,
        args=recipe.config,
        train_dataset=task.rows,
        judge=task.judge,
        peft_config=get_peft_config(recipe.policy),
        quantization_config=get_quantization_config(recipe.policy),
    )
