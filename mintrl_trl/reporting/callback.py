"""Writes the run folder while a `transformers` trainer trains. Adds nothing to training and reads no tensor."""

from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from .run_folder import RunFolder


class RunFolderCallback(TrainerCallback):
    """Settings and versions at the start and beside each checkpoint; metrics at each log step. Main process only.

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
            self._describe(self.run_folder)

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, logs: Any = None, **kwargs: Any
    ) -> None:
        if state.is_world_process_zero and logs:
            self.run_folder.append_metrics(state.global_step, logs)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            self._describe(RunFolder(Path(args.output_dir) / f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}"))

    def _describe(self, folder: RunFolder) -> None:
        if self.run_folder.recipe is not None:
            folder.write_recipe(self.run_folder.recipe)
        folder.write_config(self.config)
        folder.write_versions()
