"""The seams into TRL's table of completions and transformers' TensorBoard; the others are in `trl_seams.py`.

It names TRL's private parts and holds no state. Every fact it leans on is an assertion in `tests/test_trl_contract.py`.
"""

from collections.abc import Callable
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


def replace_texts(trainer: GRPOTrainer, replace: Callable[[str], str]) -> None:
    """Put other texts into the completions table, before TRL prints it and hands it to trackers."""
    logs = trainer._logs
    for rows in (logs["prompt"], logs["completion"], *logs.get("extra", {}).values()):
        shown = [_replaced(row, replace) for row in rows]
        rows.clear()
        rows.extend(shown)


def _replaced(row: Any, replace: Callable[[str], str]) -> Any:
    """A cell with other texts: a string, or messages; anything else stays as it is."""
    if isinstance(row, str):
        return replace(row)
    if not isinstance(row, list) or not all(isinstance(message, dict) for message in row):
        return row
    return [
        message | {"content": replace(message["content"])} if isinstance(message.get("content"), str) else message
        for message in row
    ]


def tensorboard_writers(trainer: GRPOTrainer) -> list[Any]:
    """Open writers of transformers' TensorBoard callback."""
    callbacks = trainer.callback_handler.callbacks
    return [writer for callback in callbacks if (writer := getattr(callback, "tb_writer", None)) is not None]
