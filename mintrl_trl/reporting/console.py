"""One short line per log step in place of transformers' bar and dict of fifty numbers. Reads logs, changes nothing."""

import sys
import time
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

# Name of the metric, how it is called in the line, how it is written. Absent metrics leave no gap.
_COLUMNS = (
    ("rewards/control", "reward", "{:.2f}"),
    ("rewards/intervened", "intervened", "{:.2f}"),
    ("groups/rescued", "rescued", "{:.0%}"),
    ("off_policy_share", "off-policy", "{:.1%}"),
    ("judge/revise_rate", "revised", "{:.0%}"),
    ("judge/no_verdict", "no verdict", "{:.0%}"),
    ("entropy/sample", "entropy", "{:.2f}"),
    ("entropy", "entropy", "{:.2f}"),
    ("grad_norm", "grad norm", "{:.2g}"),
)


class ConsoleCallback(TrainerCallback):
    """Says in a line what an update did and how long the rest will take. Main process only.

    Args:
        intervention_updates (`int`): Updates of the first phase, named in the line.
        console (`Console`, *optional*): Where to. Defaults to standard output.
        first_phase (`str`, *optional*, defaults to `"interventions"`): Its name.
        loss (`str`, *optional*): What the loss is called in the line, where it says how far a run is. By default it is
            left out.
    """

    def __init__(
        self,
        intervention_updates: int,
        console: Console | None = None,
        *,
        first_phase: str = "interventions",
        loss: str | None = None,
    ):
        self.intervention_updates, self.first_phase, self.loss = intervention_updates, first_phase, loss
        self.console = console if console is not None else Console(file=sys.stdout, highlight=False, soft_wrap=True)
        self._begun = 0.0
        self._seconds, self._updates = 0.0, 0  # of the updates alone: evaluations and checkpoints do not count

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._seconds, self._updates = 0.0, 0

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._begun = time.monotonic()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._seconds += time.monotonic() - self._begun
        self._updates += 1

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, logs: Any = None, **kwargs: Any
    ) -> None:
        if state.is_world_process_zero and logs and "loss" in logs:
            self.console.print(self.line(logs, state.global_step, state.max_steps), markup=False)

    def line(self, logs: Mapping[str, Any], update: int, updates: int) -> str:
        """The line about `logs`, which were taken after `update` of `updates`."""
        phase = self.first_phase if update <= self.intervention_updates else "on-policy"
        parts = [f"update {update:>{len(str(updates))}}/{updates} {phase}"]
        if self.loss is not None and "loss" in logs:
            parts.append(f"{self.loss} {logs['loss']:.3g}")
        shown = set()
        for name, label, form in _COLUMNS:
            value = logs.get(name)
            if value is not None and label not in shown:
                shown.add(label)
                parts.append(f"{label} {form.format(value)}")
        if logs.get("groups/dead") == 1:
            parts.append("all groups dead")
        if self._updates:
            each = self._seconds / self._updates
            parts.append(f"{each:.2f} s/update, {_clock(each * (updates - update))} left")
        return " · ".join(parts)


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
