"""In front of a trainer: its model goes to the hub with our card, and whatever the hub does, training goes on.

It replaces what `transformers` does for `push_to_hub`: that uploads the whole output folder, with rollouts and a pickle
that holds the token, and lets an error of the hub end the run. It decides when to push; what, is `contents.py`'s.
Invariant: pushes that the settings ask for never raise; one that is called for by name does.
"""

import logging
import shutil
import tempfile
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, HubStrategy
from trl.trainer.utils import get_config_model_id

from .. import trl_seams
from ..checkpoints import share_weights
from ..errors import DataError, HubError
from ..processes import all_or_none
from ..reporting.plots import learning_curves
from .contents import WAITING, card_of, fill
from .folders import CARD, own_weights
from .pusher import HubPusher, tell_failure

logger = logging.getLogger(__name__)


class PushesToHub:
    """In front of a trainer of `transformers`; its settings are those of `HubConfig`."""

    @cached_property
    def hub(self) -> HubPusher:
        """The repository of this run."""
        args = self.args
        return HubPusher(
            args.hub_model_id or Path(args.output_dir).absolute().name,
            token=args.hub_token,
            private=args.hub_private_repo,
            revision=args.hub_revision,
        )

    def init_hf_repo(self, token: str | None = None, private: bool | None = None) -> None:
        """Make the repository when training is set up, so that what is wrong with it shows now; it is tried again."""
        if self.is_world_process_zero():
            try:
                self.hub.prepare()
            except HubError as error:
                tell_failure(error)
        self.hub_model_id = self.hub.repo

    def create_model_card(
        self, model_name: str | None = None, dataset_name: str | None = None, tags: str | list[str] | None = None
    ) -> None:
        """Write our model card into the output folder. A card that cannot be written stops nothing.

        Args:
            model_name (`str`, *optional*): Name of the model; by default that of its repository.
            dataset_name (`str`, *optional*): Hub id of the training data, where the settings do not name it.
            tags (`str` or `list[str]`, *optional*): Of the hub, besides ours.
        """
        if self.is_world_process_zero():
            self._write_card(model_name, dataset_name, tags, pushed=self.args.push_to_hub)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """TRL's; a model that is sharded over processes is gathered and saved whole, except for a checkpoint. Then it
        is pushed, where the settings say so."""
        super().save_model(output_dir, True)  # upstream would push before sharded weights are whole
        if _internal_call:
            return
        folder = Path(output_dir or self.args.output_dir)
        trl_seams.save_gathered(self, str(folder))
        if self.is_world_process_zero():
            share_weights(folder)
        if self.args.push_to_hub and self.is_world_process_zero():
            try:
                self.create_model_card()
                self._wait_and_push(folder, "Model save")
            except Exception as error:
                tell_failure(error)
            self._count_after_training()

    def push_to_hub(
        self,
        commit_message: str | None = "End of training",
        blocking: bool = True,
        token: str | None = None,
        revision: str | None = None,
        private: bool | None = None,
        **kwargs: Any,
    ) -> Any:
        """Save the model and push it, with its card, recipe and numbers. Called on every process.

        Args:
            commit_message (`str`, *optional*): Of the commit.
            blocking (`bool`, *optional*, defaults to `True`): Whether to wait for the upload.
            token, revision (`str`, *optional*): Instead of `hub_token` and `hub_revision`.
            private (`bool`, *optional*): Instead of `hub_private_repo`.
            **kwargs: For [`create_model_card`].

        Returns:
            `CommitInfo` or `Future`: The commit, or what will be; `None` on other processes than the main one.

        Raises:
            HubError: It could not be pushed.
        """
        if token is not None or revision is not None or private is not None:
            args, older = self.args, self.hub
            older.wait()
            self.hub = HubPusher(
                older.repo,
                token=token or args.hub_token,
                private=args.hub_private_repo if private is None else private,
                revision=revision or args.hub_revision,
            )
            self.hub.pushes, self.hub.failed_pushes = older.pushes, older.failed_pushes
        folder, commit = Path(self.args.output_dir), None
        super().save_model(str(folder), True)
        trl_seams.save_gathered(self, str(folder))
        with all_or_none():
            if self.is_world_process_zero():
                self._write_card(**kwargs, pushed=True)
                commit = self._wait_and_push(folder, commit_message or "Model save", blocking=blocking)
        self.hub_model_id = self.hub.repo
        return commit

    def push_checkpoint(self, folder: Path) -> None:
        """Push a whole checkpoint's model beside the training, unless a push is on its way. On the main process."""
        args, strategy = self.args, HubStrategy(self.args.hub_strategy)
        if strategy is HubStrategy.END or (self.hub.busy and not args.hub_always_push):
            return
        if not own_weights(folder):
            logger.info("%s is not pushed: its weights are sharded. The model is, when it is saved.", folder)
            return
        names = {HubStrategy.CHECKPOINT: "last-checkpoint", HubStrategy.ALL_CHECKPOINTS: folder.name}
        try:
            waiting = self._gathered(folder, (names[strategy], folder) if strategy in names else None)
        except Exception as error:
            self.hub.failed_pushes += 1
            tell_failure(error)
            return
        self.hub.push_beside(waiting, f"Training in progress, update {self.state.global_step}")

    def _wait_and_push(self, folder: Path, message: str, *, blocking: bool = True) -> Any:
        self.hub.wait()
        self.callback_handler.on_push_begin(self.args, self.state, self.control)
        waiting = self._gathered(folder)
        return self.hub.push(waiting, message) if blocking else self.hub.push_beside(waiting, message)

    def _gathered(self, folder: Path, checkpoint: tuple[str, Path] | None = None) -> Path:
        """What is to be uploaded, in a folder of its own."""
        output = Path(self.args.output_dir)
        card = (output / CARD).read_text(encoding="utf-8") if (output / CARD).is_file() else None
        waiting, merge = Path(tempfile.mkdtemp(prefix=WAITING, dir=output)), self.args.hub_merge_adapter
        return fill(waiting, model=folder, run=output, card=card, merge=merge, checkpoint=checkpoint)

    def _write_card(
        self,
        model_name: str | None = None,
        dataset_name: str | None = None,
        tags: str | list[str] | None = None,
        *,
        pushed: bool,
    ) -> None:
        """The card of a model that is pushed knows licences and shows curves and rollouts, which takes time."""
        given = (tags,) if isinstance(tags, str) else tuple(tags or ())
        try:
            if pushed:
                with suppress(DataError):  # nothing was logged
                    learning_curves(self.args.output_dir)
            card = self._model_card(model_name, dataset_name, given, pushed)
            (Path(self.args.output_dir) / CARD).write_text(card, encoding="utf-8")
        except Exception as error:  # it is read by people, and needed by nothing
            logger.warning("No model card: %s", error, exc_info=True)

    def _model_card(self, model_name: str | None, dataset_name: str | None, tags: tuple[str, ...], pushed: bool) -> str:
        args, model = self.args, self.accelerator.unwrap_model(self.model)
        return card_of(
            Path(args.output_dir),
            self.hub.repo if model_name in (None, self.hub.repo.rpartition("/")[2]) else model_name,
            adapter=hasattr(model, "peft_config") and not args.hub_merge_adapter,
            base_model=get_config_model_id(model.config),
            licence_of=self.hub.licence_of if pushed else lambda model: None,
            license=args.hub_license,
            judge_license=args.hub_judge_license,
            dataset=dataset_name,
            examples=args.hub_card_examples if pushed else 0,
            tags=tags,
        )

    def _count_after_training(self) -> None:
        """The counts of pushes that no log line of an update has."""
        if self.run_folder is not None:
            self.run_folder.append_metrics(self.state.global_step, self.hub.counters())

    # transformers' own pushes, which the callback below makes instead, once a checkpoint is whole

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        """Nothing: the checkpoint is not whole yet."""

    def _finish_current_push(self) -> None:
        """Wait for pushes beside the training; they raise nothing."""
        if self.is_world_process_zero() and "hub" in vars(self):
            self.hub.wait()


class HubCallback(TrainerCallback):
    """Pushes each checkpoint once it is whole.

    Args:
        trainer ([`PushesToHub`]): Whose checkpoints.
    """

    def __init__(self, trainer: PushesToHub):
        self.trainer = trainer

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if state.is_world_process_zero:
            for left in Path(args.output_dir).glob(f"{WAITING}*"):  # by a run that was killed
                shutil.rmtree(left, ignore_errors=True)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if state.is_world_process_zero and args.push_to_hub:
            folder = Path(args.output_dir) / f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}"
            self.trainer.push_checkpoint(folder)
