"""What a run that cannot go on leaves behind: a checkpoint of what it learned, its last counts, and how to go on.

It decides nothing about retries: whoever raised has given up. Invariant: a failure that reaches all processes together
while rollouts, rewards or weights are on their way costs no finished update, where the run saves checkpoints at all;
and the first error is the one that is raised, whatever saving runs into.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from accelerate.utils import broadcast_object_list
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from . import trl_seams
from .batch_report import reduce_totals
from .checkpoints import read_checkpoint
from .errors import FailureLimitError, NumericsError
from .objective.metrics import Totals, counter_totals
from .processes import is_raised_by_all
from .reporting.run_folder import WEIGHTS_BEFORE

if TYPE_CHECKING:
    from .trainer import MInTRLTrainer

UNFINISHED = "unfinished"  # marks the metrics of an update that the run stopped in

logger = logging.getLogger(__name__)


@contextmanager
def nothing_lost(trainer: "MInTRLTrainer") -> Iterator[None]:
    """Around training: where it stops between two updates, save what has been learned, and say how to go on."""
    try:
        yield
    except Exception as error:
        if is_raised_by_all(error) and trainer.state.global_step > 0:
            try:
                _leave(trainer, error)
            except Exception as failure:
                logger.exception("What was learned could not be saved.")
                error.add_note(f"Saving a checkpoint failed, too: {type(failure).__name__}: {failure}")
        raise


def leave_weights(trainer: "MInTRLTrainer", update: int, error: NumericsError) -> None:
    """Save the weights that an update broke on, for a replay of it. Every process calls it; what fails is a note.

    They are no checkpoint: no run goes on from them, and no checkpoint is thinned or deleted in their place.

    Args:
        trainer ([`MInTRLTrainer`]): Its weights are those before the update.
        update (`int`): The update, from 1.
        error ([`NumericsError`]): What is about to be raised; gets a note.
    """
    args = trainer.args
    if args.save_strategy == "no":
        return
    path = Path(args.output_dir) / f"{WEIGHTS_BEFORE}{update}"
    try:
        trainer.save_model(str(path), _internal_call=True)  # otherwise it would go to the hub
        trl_seams.save_gathered(trainer, str(path))
    except Exception as failure:
        logger.exception("The weights before update %d could not be saved.", update)
        error.add_note(f"Saving the weights before it failed, too: {type(failure).__name__}: {failure}")
    else:
        command = f"mintrl replay {args.output_dir} --step {update}"
        error.add_note(f"The weights before it are in {path}; `{command}` shows where it broke.")


@contextmanager
def abandoned_reviews(trainer: "MInTRLTrainer") -> Iterator[None]:
    """Around a batch that is made: where it is given up, its reviews are counted but not held against the judge.

    A run that goes on reviews those rollouts anew, and the judge may have been lost with the policy's server.
    """
    sampler = trainer.sampler
    window, before = sampler.review_window, sampler.no_verdicts
    try:
        yield
    except BaseException as error:
        trainer.abandoned_no_verdicts = sampler.no_verdicts - before
        sampler.review_window = [] if isinstance(error, FailureLimitError) else window
        raise


def _leave(trainer: "MInTRLTrainer", error: Exception) -> None:
    args, update = trainer.args, trainer.state.global_step
    abandoned = counter_totals({}, {f"judge/no_verdict/{why}": n for why, n in trainer.abandoned_no_verdicts.items()})
    counts = reduce_totals(Totals.merge([trainer.door_counters.gained(), abandoned]))
    if counts:
        trainer.log(counts | {UNFINISHED: 1.0})
    if args.save_strategy == "no":
        return
    path = Path(args.output_dir) / f"{PREFIX_CHECKPOINT_DIR}-{update}"
    if not _on_main(trainer, lambda: _is_whole(path)):
        trainer._save_checkpoint(trainer.model, trial=None)
    if _on_main(trainer, lambda: read_checkpoint(path).problem is None):
        saved = "The one update is" if update == 1 else f"All {update} updates are"
        error.add_note(f"{saved} saved; go on with --resume_from_checkpoint {path}")
    else:
        error.add_note(f"The weights after update {update} are in {path}")


def _is_whole(path: Path) -> bool:
    checkpoint = read_checkpoint(path)
    return checkpoint is not None and checkpoint.mark is not None


def _on_main(trainer: "MInTRLTrainer", question: Callable[[], bool]) -> bool:
    """What the main process, which sees the files, answers; called on every process."""
    return broadcast_object_list([trainer.accelerator.is_main_process and question()])[0]
