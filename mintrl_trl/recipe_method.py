"""The settings that say which method a recipe trains with, and what that method needs beside the trainer's settings.

It owns names, ranges and which setting goes with which method. It builds nothing: `baselines` does. Invariant: a
setting that the chosen method would not follow is refused.
"""

from dataclasses import MISSING, dataclass, field, fields
from typing import TYPE_CHECKING, Any

from .errors import ConfigError

if TYPE_CHECKING:
    from .config import MInTRLConfig

# Method -> what it is, as the paper's tables name it.
METHODS = {
    "mintrl": "MInTRL",
    "grpo": "GRPO",
}
WITHOUT_INTERVENTIONS = frozenset(METHODS) - {"mintrl"}  # every rollout is the policy's own


def belongs_to(*methods: str, default: Any, help: str) -> Any:
    """A setting of some methods: any value but its default is refused for all others."""
    return field(default=default, metadata={"help": f"`method: {' | '.join(methods)}`: {help}", "methods": methods})


@dataclass
class MethodArguments:
    """What a recipe says about its method."""

    method: str = field(
        default="mintrl",
        metadata={"help": "What to train with: " + ", ".join(f"`{name}` ({title})" for name, title in METHODS.items())},
    )

    def check_method(self) -> None:
        """Refuse an unknown method, and settings of another one.

        Raises:
            ConfigError: Names the setting.
        """
        if self.method not in METHODS:
            raise ConfigError("method", self.method, f"one of {', '.join(METHODS)}", "pick one of them")
        for setting in fields(self):
            methods = setting.metadata.get("methods")
            if methods is None or self.method in methods or setting.default is MISSING:
                continue
            if getattr(self, setting.name) != setting.default:
                allowed = f"unset for `method: {self.method}`; it belongs to {' and '.join(methods)}"
                fix = f"remove `{setting.name}`, or set `method: {methods[0]}`"
                raise ConfigError(setting.name, getattr(self, setting.name), allowed, fix)


def implied_settings(method: Any) -> dict[str, Any]:
    """Trainer's settings that a method brings along, unless the recipe says otherwise."""
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
