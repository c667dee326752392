"""One of two processes of a run whose generator is gone after an update, in the second process alone."""

import sys
from pathlib import Path

import torch
from accelerate import PartialState

from mintrl_trl.errors import ServerLostError

from .ranks import GROUPS, Keeper, is_second, make_trainer, shard_on_cpu, trained
from .trainers import HashGenerator

SETTINGS = GROUPS | {"save_strategy": "steps", "save_steps": 50, "max_steps": 3}


class LostGenerator(HashGenerator):
    trainer = None

    async def stream(self, *args):
        if is_second() and self.trainer.state.global_step == 1:
            raise ServerLostError("the server is gone")
        async for token in super().stream(*args):
            yield token


def main(folder: Path, kind: str) -> None:
    """Saves what was raised, and the weights of the run that went on and of one that never stopped."""
    if kind == "fsdp2":
        shard_on_cpu()
    whole = trained(folder / "whole", **SETTINGS)
    generator = LostGenerator()
    trainer = generator.trainer = make_trainer(folder / "lost", trainer_class=Keeper, generator=generator, **SETTINGS)
    try:
        trainer.train()
        raised = None
    except ServerLostError as error:
        raised = [str(error), error.__notes__[-1]]
    trainer.close()
    again = trained(folder / "lost", resume_from_checkpoint="last", **SETTINGS)
    saw = {"raised": raised, "whole": whole["weights"], "again": again["weights"]}
    torch.save(saw, folder / f"{PartialState().process_index}.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
