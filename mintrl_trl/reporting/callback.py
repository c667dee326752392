"""Writes the run folder while a `transformers` trainer trains. Adds nothing to training and reads no tensor."""

from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from .run_folder import RunFolder


class RunFolderCallback(TrainerCallback):
    """Settings and versions at the start; metrics at each log step. Main process only.

    Args:
        run_folder ([`RunFolder`]): Where to.
        config (`Any`): The resolved settings: a mapping, a dataclass, or an object with `to_dict`.
    """

    def __init__(self, run_folder: RunFolder, config: Any):
        self.run_folder, self.config = run_folder, config

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if state.is_world_process_zero:
            self.run_folder.describe(self.run_folder.path, self.config)

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, logs: Any = None, **kwargs: Any
    ) -> None:
        if state.is_world_process_zero and logs:
            self.run_folder.append_metrics(state.global_step, logs)
