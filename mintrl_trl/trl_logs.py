"""The seams into TRL's table of completions and transformers' TensorBoard; the others are in `trl_seams.py`.

It names TRL's private parts and holds no state. Every fact it leans on is an assertion in `tests/test_trl_contract.py`.
"""

from typing import Any

from trl import GRPOTrainer


def add_completion_columns(trainer: GRPOTrainer, columns: dict[str, list[Any]]) -> None:
    """Give this process's rows of the completions table further columns, before TRL gathers them."""
    for name, values in columns.items():
        trainer._log_completion_extra(name, values)


def completion_rows(trainer: GRPOTrainer) -> list[dict[str, Any]]:
    """The completions table that the next log line is about, a dict a row: prompt, completion, rewards and so on."""
    logs = trainer._logs
    columns = {"prompt": logs["prompt"], "completion": logs["completion"], **logs["rewards"]}
    columns |= {"advantage": logs["advantages"], **logs["extra"]}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def tensorboard_writers(trainer: GRPOTrainer) -> list[Any]:
    """Open writers of transformers' TensorBoard callback."""
    callbacks = trainer.callback_handler.callbacks
    return [writer for callback in callbacks if (writer := getattr(callback, "tb_writer", None)) is not None]
