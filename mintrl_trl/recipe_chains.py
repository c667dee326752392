"""The settings of the small world: which problems, what is wrong with its judge, what is rewarded.

It owns names and ranges, and builds nothing: `chains_task` does. Invariant: with the defaults the small world is that
of `recipes/quickstart.yaml`, and no setting acts on another task.
"""

from dataclasses import dataclass, field, fields

from .errors import ConfigError

WORLDS = ("lines", "hard")
REWARDS = ("outcome", "format", "random")


@dataclass
class ChainsArguments:
    """What a recipe says about the small world."""

    world: str = field(
        default="lines",
        metadata={
            "help": "`chains`: `lines`, whose hard problems meet one or two entries that the model has wrong, or "
            "`hard`, with three or four: a few corrections may not do, and rollouts with interventions fail, too."
        },
    )
    reward: str = field(
        default="outcome",
        metadata={
            "help": "`chains`: what is rewarded in training: the right `outcome`, the `format` of an answer whatever "
            "its values, or a `random` half of the rollouts. Evaluation always asks for the outcome."
        },
    )
    judge_error_rate: float = field(
        default=0.0,
        metadata={"help": "`chains` with the exact judge: chance in [0, 1] that a review goes wrong."},
    )
    judge_value_error_rate: float = field(
        default=0.0,
        metadata={
            "help": "`chains` with the exact judge: chance in [0, 1] that a value it writes is wrong, each by itself."
        },
    )
    judge_terse: bool = field(
        default=False,
        metadata={
            "help": "`chains` with the exact judge: whether it leaves letters and operands out of the lines it writes, "
            "a form that the policy cannot simply go on with."
        },
    )

    def check_chains(self, task: str) -> None:
        """Refuse unknown names, shares out of range, and any of these settings for another task.

        Raises:
            ConfigError: Names the setting.
        """
        for setting in fields(ChainsArguments):
            if task != "chains" and getattr(self, setting.name) != setting.default:
                allowed = f"{_shown(setting.default)} for `task: {task}`"
                raise ConfigError(setting.name, getattr(self, setting.name), allowed, f"remove `{setting.name}`")
        for name, names in (("world", WORLDS), ("reward", REWARDS)):
            if getattr(self, name) not in names:
                raise ConfigError(name, getattr(self, name), " or ".join(names), f"set `{name}: {names[0]}`")
        for name in ("judge_error_rate", "judge_value_error_rate"):
            rate = getattr(self, name)
            if isinstance(rate, bool) or not isinstance(rate, float | int) or not 0 <= rate <= 1:
                raise ConfigError(name, rate, "a number from 0 to 1", f"set `{name}: 0.0`")
        if not isinstance(self.judge_terse, bool):
            raise ConfigError("judge_terse", self.judge_terse, "true or false", "set `judge_terse: false`")


def _shown(default: object) -> object:
    return 0 if type(default) is float else repr(default)
