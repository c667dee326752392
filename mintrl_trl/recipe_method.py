"""The settings that say which method a recipe trains with, and what that method needs beside the trainer's settings.

It owns names, ranges and which setting goes with which method. It builds nothing: `baselines` does. Invariant: a
setting that the chosen method would not follow is refused.
"""

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from .config_ablations import SWITCHES
from .errors import ConfigError

if TYPE_CHECKING:
    from .config import MInTRLConfig

# Method -> what it is, as the paper's tables name it.
METHODS = {
    "mintrl": "MInTRL",
    "grpo": "GRPO",
    "sft_grpo": "SFT on a teacher's solutions, then GRPO",
    "opd": "on-policy distillation",
    "opsd": "on-policy self-distillation",
    "mentor": "MENTOR: an expert writes along",
}
NEED_TEACHER = frozenset({"sft_grpo", "opd", "mentor"})
WITH_SWITCHES = ("mintrl", "grpo")  # which ablations can take apart
WITHOUT_INTERVENTIONS = frozenset(METHODS) - {"mintrl", "mentor"}  # every rollout is the policy's own


# Setting -> the methods that follow it; all others refuse any value but its default.
METHODS_OF = {
    "teacher_model": ("sft_grpo", "opd", "mentor"),
    "teacher_base_url": ("sft_grpo",),
    "sft_attempts": ("sft_grpo",),
    "sft_only_right": ("sft_grpo",),
    "sft_epochs": ("sft_grpo",),
    "sft_learning_rate": ("sft_grpo",),
    "sft_batch_size": ("sft_grpo",),
    "divergence": ("opd", "opsd"),
    "self_teacher": ("opsd",),
    "skip_tokens": ("opsd",),
    "draft_tokens": ("mentor",),
    "mentor_alpha": ("mentor",),
    "entropy_quantile": ("mentor",),
    "gamma_floor": ("mentor",),
    "reward_range": ("mentor",),
}


def _setting(default: Any, help: str) -> Any:
    return field(default=default, metadata={"help": help})


@dataclass
class MethodArguments:
    """What a recipe says about its method."""

    method: str = field(
        default="mintrl",
        metadata={"help": "What to train with: " + ", ".join(f"`{name}` ({title})" for name, title in METHODS.items())},
    )

    teacher_model: str | None = _setting(
        None,
        "`sft_grpo`, `opd`, `mentor`: the model that is learned from, or writes along; a folder or hub id. For opd and "
        "mentor with the policy's tokenizer.",
    )
    teacher_base_url: str | None = _setting(
        None, "`sft_grpo`: a vLLM server with the teacher. Unset: it writes in the training process."
    )
    sft_attempts: int = _setting(4, "`sft_grpo`: tries of the teacher at a problem, until one is right. At least 1.")
    sft_only_right: bool = _setting(
        True, "`sft_grpo`: learn from right solutions alone; else from the first of each problem that ended."
    )
    sft_epochs: int = _setting(1, "`sft_grpo`: passes over the teacher's solutions. At least 1.")
    sft_learning_rate: float = _setting(1e-5, "`sft_grpo`: peak learning rate of that stage. Above 0.")
    sft_batch_size: int = _setting(256, "`sft_grpo`: solutions of one update of that stage. At least 1.")
    divergence: float | None = _setting(
        None,
        "`opd`, `opsd`: between policy and teacher at each token, from 0 to 1: 0 is KL(teacher || policy), 1 KL(policy "
        "|| teacher), what lies between a generalised Jensen-Shannon divergence. Unset: 1 for opd, 0.5 for opsd.",
    )
    self_teacher: str = _setting(
        "base", "`opsd`: whose weights read the solution, those of the initial policy (`base`) or the present (`live`)."
    )
    skip_tokens: int = _setting(
        0, "`opsd`: tokens at the beginning of a response that are not learned from. At least 0."
    )

    draft_tokens: int = _setting(
        4,
        "`mentor`: tokens that the policy drafts before the expert reads them. 1 is plain mixing; more makes fewer "
        "passes and the same rollouts. At least 1.",
    )
    mentor_alpha: float = _setting(
        1.0,
        "`mentor`: weight of mixed rollouts' advantages at first; 0 from update `intervention_updates` on. At least 0.",
    )
    entropy_quantile: float = _setting(
        0.95, "`mentor`: quantile of the policy's token entropies from which on the expert decides. From 0 to 1."
    )
    gamma_floor: float = _setting(
        0.0, "`mentor`: that entropy at least, in nats; MENTOR's released code has 1.5. At least 0."
    )
    reward_range: float = _setting(1.0, "`mentor`: largest minus smallest reward of the task. Above 0.")

    def check_method(self) -> None:
        """Refuse an unknown method, and settings of another one.

        Raises:
            ConfigError: Names the setting.
        """
        if self.method not in METHODS:
            raise ConfigError("method", self.method, f"one of {', '.join(METHODS)}", "pick one of them")
        for setting in fields(self):
            methods = METHODS_OF.get(setting.name)
            if methods is not None and self.method not in methods and getattr(self, setting.name) != setting.default:
                allowed = f"unset for `method: {self.method}`; it belongs to {' and '.join(methods)}"
                fix = f"remove `{setting.name}`, or set `method: {methods[0]}`"
                raise ConfigError(setting.name, getattr(self, setting.name), allowed, fix)
        if self.method in NEED_TEACHER and not self.teacher_model:
            fix = "set `teacher_model: Qwen/Qwen3-4B-Instruct-2507`"
            raise ConfigError("teacher_model", self.teacher_model, f"a model for `method: {self.method}`", fix)
        share = self.divergence
        if share is not None and (isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= 1):
            raise ConfigError("divergence", share, "a number from 0 to 1, or unset", "set `divergence: 1.0`")
        if self.self_teacher not in ("base", "live"):
            raise ConfigError("self_teacher", self.self_teacher, "base or live", "set `self_teacher: base`")
        for name, least in (("skip_tokens", 0), ("sft_attempts", 1), ("sft_epochs", 1), ("sft_batch_size", 1)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ConfigError(name, value, f"a whole number of at least {least}", f"set `{name}: {least}` or more")
        rate = self.sft_learning_rate
        if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate < float("inf"):
            raise ConfigError("sft_learning_rate", rate, "a number above 0", "set `sft_learning_rate: 1.0e-5`")


def implied_settings(method: Any) -> dict[str, Any]:
    """Trainer's settings that a method brings along, unless the recipe says otherwise."""
    if method == "mentor":
        return {"max_reviews": 0}
    return {"intervention_updates": 0} if isinstance(method, str) and method in WITHOUT_INTERVENTIONS else {}


def check_method_config(arguments: MethodArguments, config: "MInTRLConfig") -> None:
    """Refuse trainer's settings that contradict the method.

    Raises:
        ConfigError: Names the setting.
    """
    if arguments.method in WITHOUT_INTERVENTIONS and config.intervention_updates:
        raise ConfigError(
            "intervention_updates",
            config.intervention_updates,
            f"0 for `method: {arguments.method}`",
            "remove `intervention_updates`, or set `method: mintrl`",
        )
    if arguments.method in WITH_SWITCHES:
        return
    for setting in fields(config):
        if setting.name in SWITCHES and getattr(config, setting.name) != setting.default:
            allowed = f"unset for `method: {arguments.method}`; it belongs to {' and '.join(WITH_SWITCHES)}"
            raise ConfigError(setting.name, getattr(config, setting.name), allowed, f"remove `{setting.name}`")
