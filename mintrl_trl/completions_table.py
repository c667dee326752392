"""TRL's table of completions, for trackers and the terminal: who wrote what in each row, and the same for TensorBoard.

It adds columns to what TRL logs and decides nothing. Everything a model wrote is hostile text: control characters are
shown, not sent, and TensorBoard gets it as indented code, which it reads no markup in.
"""

from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from . import trl_logs
from .batch_report import GeneratedBatch
from .reporting.colours import marked_response, visible
from .reporting.records import rollout_record

if TYPE_CHECKING:
    from trl import DistillationTrainer

    from .trainer import MInTRLTrainer

ROLE, AUTHORS = "role", "authors"
ALL_BY_POLICY = "policy"
_TENSORBOARD = "tensorboard"
_SHOWN_ROWS = 16  # of an update, in TensorBoard, which keeps the text of every log line


def mark_authors(trainer: "MInTRLTrainer", batch: GeneratedBatch) -> None:
    """Give the table of a batch its columns `role` and `authors`. On every process, before TRL gathers its columns.

    `authors` is `policy` where the judge changed nothing; else the response with `{+what the judge wrote+}`,
    `[-what was cut-]` and the judge's reason.
    """
    if not trainer.log_completions:
        return
    roles, authors = [], []
    for rollout in batch.rollouts:
        roles.append(rollout.request.role.value)
        if any(review.cuts for review in rollout.reviews) or rollout.intervention_tokens:
            record = rollout_record(rollout, vocabulary=trainer.policy.vocabulary, update=batch.update + 1, group=0)
            authors.append(marked_response(record))
        else:
            authors.append(ALL_BY_POLICY)
    trl_logs.add_completion_columns(trainer, {ROLE: roles, AUTHORS: authors})


def show_texts(trainer: "MInTRLTrainer | DistillationTrainer") -> None:
    """Make the table's texts harmless where they are printed: no character is left that a terminal would obey or hide.

    On the main process, before TRL prints the table; `rollouts.jsonl` has them as they were written.
    """
    if trainer.log_completions and trainer.accelerator.is_main_process:
        trl_logs.replace_texts(trainer, visible)


class CompletionsText(TrainerCallback):
    """Writes the table to TensorBoard, which TRL leaves out, with each log line of an update.

    Args:
        trainer ([`MInTRLTrainer`]): Whose table.
    """

    def __init__(self, trainer: "MInTRLTrainer"):
        self.trainer = trainer

    @staticmethod
    def wanted(args: TrainingArguments) -> bool:
        """Whether there is a table and a TensorBoard to write it to."""
        return bool(args.log_completions) and _TENSORBOARD in args.report_to

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, logs: Any = None, **kwargs: Any
    ) -> None:
        if not (state.is_world_process_zero and logs and "loss" in logs):
            return
        rows = trl_logs.completion_rows(self.trainer)
        for writer in trl_logs.tensorboard_writers(self.trainer):
            writer.add_text("completions", _markdown(rows), state.global_step)


def _markdown(rows: list[dict[str, Any]]) -> str:
    """Those rows first in which the judge wrote: they are what this method adds."""
    by_judge = sorted(rows, key=lambda row: row.get(AUTHORS, ALL_BY_POLICY) == ALL_BY_POLICY)
    parts = [f"{min(len(rows), _SHOWN_ROWS)} of {len(rows)} rollouts"]
    for row in by_judge[:_SHOWN_ROWS]:
        marked = row.get(AUTHORS, ALL_BY_POLICY)
        response = _text(row["completion"]) if marked == ALL_BY_POLICY else marked
        numbers = [f"{name} {value:.3g}" for name, value in row.items() if isinstance(value, float)]
        parts.append(" · ".join(["rollout", str(row.get(ROLE, "")), *numbers]))
        parts.append(_code(f"{_text(row['prompt'])}\n{response}"))
    return "\n\n".join(parts)


def _code(text: str) -> str:
    """An indented block of code, which ends where the indent does; so each of its lines has one."""
    return "\n".join(f"    {line}" for line in visible(text).splitlines())


def _text(content: Any) -> str:
    """Text of a prompt or completion: a string, or messages."""
    if isinstance(content, list):
        return "\n".join(str(message.get("content", "")) for message in content)
    return str(content)
