"""The settings of what leaves the machine: the model's repository on the hub, and its card.

A part of [`MInTRLConfig`], kept by itself for its length. It owns fields and help texts; it opens no connection.
`push_to_hub`, `hub_model_id`, `hub_strategy`, `hub_always_push`, `hub_revision` and `hub_token` are transformers' own.
"""

from dataclasses import dataclass

from .config_judge import setting


@dataclass
class HubConfig:
    """Settings of the hub; [`MInTRLConfig`] has them all."""

    hub_private_repo: bool | None = setting(
        True,
        "Whether a repository that is made for the run is private. While true, nothing is pushed to one that is "
        "public. Unset (null): the hub's default for the owner.",
    )
    hub_license: str | None = setting(
        None, "Licence of the trained model, as the hub names it (apache-2.0). Unset: the base model's, if known."
    )
    hub_judge_license: str | None = setting(
        None, "Licence of the judge model, for the card. Unset: as the hub has it, if the judge's name is a hub id."
    )
    hub_merge_adapter: bool = setting(
        False, "Push an adapter merged into its base model, in bfloat16, as a model of its own."
    )
    hub_card_examples: int = setting(
        3, "Rollouts of the training, with their prompts, that the model card shows. At least 0."
    )
