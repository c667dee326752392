"""The trainer of ablations: MInTRL with one thing changed, as [`AblationConfig`] says. Glue only.

The formulas are `objective.ablations`'s. Invariant: rollouts, rewards and their order are those of [`MInTRLTrainer`] on
the same settings; only the loss of phase 1 and the optimizer's state differ.
"""

from typing import Any

import torch
from torch import Tensor

from .. import trl_seams
from ..batch_report import GeneratedBatch
from ..config_ablations import AblationConfig
from ..objective.ablations import ConstBonus, const_bonus_loss, group_scaled, intervened_grpo_loss
from ..objective.advantage import Advantages
from ..objective.loss import RegressionLoss
from ..objective.metrics import Totals
from ..rollouts.schedule import Phase
from ..trainer import MInTRLTrainer

_SUCCEEDED = "succeeded"  # (B,) bool, a key of the batch dict: whether a rollout was rewarded


class AblationTrainer(MInTRLTrainer):
    """[`MInTRLTrainer`] on an [`AblationConfig`]; arguments and errors are the same."""

    args: AblationConfig

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        if self.model.training and self.state.global_step == self.args.reset_optimizer_at:
            trl_seams.clear_optimizer_state(self.optimizer)
        return super()._generate_and_score_completions(inputs)

    def _credit(self, batch: GeneratedBatch, is_control: Tensor, output: dict[str, Any]) -> dict[str, Tensor]:
        credit = super()._credit(batch, is_control, output)
        if batch.phase is Phase.INTERVENTION:
            credit[_SUCCEEDED] = batch.rewards[batch.own_rows(self.accelerator.process_index)] > 0
        return credit

    def _intervention_advantages(self, rewards: Tensor, is_control: Tensor) -> Advantages:
        advantages = super()._intervention_advantages(rewards, is_control)
        if self.args.phase1_loss == "grpo":
            return group_scaled(advantages, rewards, self.num_generations)
        return advantages

    def _regress(self, inputs: dict[str, Any], terms: dict[str, Any]) -> RegressionLoss:
        if self.args.const_bonus == ConstBonus.ROLLOUT.value:
            return super()._regress(inputs, terms)
        return const_bonus_loss(
            **terms,
            advantages=inputs["advantages"],
            scored=inputs[trl_seams.SCORED],
            succeeded=inputs[_SUCCEEDED],
            bonus=ConstBonus(self.args.const_bonus),
            settings=self.regression,
        )

    def _regression_loss(self, model: torch.nn.Module, inputs: dict[str, Any]) -> Tensor:
        if self.args.phase1_loss != "grpo":
            return super()._regression_loss(model, inputs)
        output = trl_seams.forward(self, model, inputs)
        terms = trl_seams.loss_terms(inputs, output.logps)
        loss, weights = intervened_grpo_loss(
            **terms,
            advantages=torch.where(inputs[trl_seams.SCORED], inputs["advantages"], 0.0),
            denominator=trl_seams.token_mean_denominator(self, inputs),
            settings=self.args.grpo_settings(),
        )
        by_judge = terms["response_mask"] & ~terms["policy_authored"]
        totals = Totals()
        totals.add("intervention/weight", weights[by_judge].sum().item(), by_judge.sum().item())
        self.window.add(totals)
        if output.aux_loss is not None:
            loss = loss + self.router_aux_loss_coef * output.aux_loss / self.current_gradient_accumulation_steps
        return loss
