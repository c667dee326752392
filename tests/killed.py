"""Runs that are killed (signal 9) at chosen moments and go on, as a program: `python -m tests.killed FOLDER`.

Everything is imported once, before the runs part from this process one after the other. Each writes its weights into
`FOLDER/NAME.pt` when it ends; a killed one writes none.
"""

import multiprocessing
import os
import signal
import sys
from itertools import islice
from pathlib import Path

import torch
from datasets import Dataset
from transformers import TrainerCallback

from mintrl_trl import MInTRLConfig, MInTRLTrainer, export, resume
from mintrl_trl.data.chains import World, base_model_path, chains_reward
from mintrl_trl.judges.exact import ChainsJudge
from tests.trainers import settings, weights

UPDATES, SWITCH = 4, 2


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Killed(MInTRLTrainer):
    """Dies at the moment that its name says."""

    moment = ""

    def compute_loss(self, *args, **kwargs):
        loss = super().compute_loss(*args, **kwargs)
        if self.moment == "phase 1" and self.state.global_step == 1:
            die()
        return loss

    def _calculate_rewards(self, *args, **kwargs):
        if self.moment == "phase 2" and self.state.global_step == 3:
            die()
        return super()._calculate_rewards(*args, **kwargs)

    def _save_optimizer_and_scheduler(self, output_dir):
        if self.moment == "between the files of a save" and self.state.global_step == 3:
            die()
        super()._save_optimizer_and_scheduler(output_dir)

    def _save_checkpoint(self, *args, **kwargs):
        if self.state.global_step == 3:
            if self.moment == "before the mark":
                resume.write_mark = lambda *args, **kwargs: die()
            if self.moment == "while weights are thinned":
                export.replace_text = lambda *args: die()  # cast, but what is said about them is not up to date
            if self.moment == "while the rest is thinned":
                resume.cast_in_place = lambda path: (path / "optimizer.pt").unlink() or die()
        super()._save_checkpoint(*args, **kwargs)


class AtTheSwitch(TrainerCallback):
    """Dies when the last checkpoint of phase 1 is there and phase 2 has not begun."""

    def on_save(self, args, state, control, **kwargs):
        if state.global_step == SWITCH:
            die()


# Moment -> the checkpoint that the run goes on from.
MOMENTS = {
    "phase 1": 1,
    "at the switch": 2,
    "phase 2": 3,
    "between the files of a save": 2,
    "before the mark": 2,
    "while weights are thinned": 3,
    "while the rest is thinned": 3,
}


def run(folder: Path, name: str, moment: str, goes_on: bool) -> None:
    """Four updates on the small world, two in each phase, with the local generator and the exact judge."""
    torch.set_num_threads(1)
    world = World.load()
    trainer = Killed(
        str(base_model_path()),
        reward_funcs=chains_reward,
        args=MInTRLConfig(
            str(folder / name),
            **settings(
                num_control=4,
                num_intervened=4,
                chunk_tokens=16,
                correction_tokens=1,
                max_completion_length=52,
                max_steps=UPDATES,
                intervention_updates=SWITCH,
                reset_optimizer_at_switch=True,
                learning_rate=3e-4,
                save_strategy="steps",
                save_steps=1,
                resumable_checkpoints=1,
            ),
        ),
        train_dataset=Dataset.from_list(list(islice(world.training_rows(3), UPDATES * 2))),
        judge=ChainsJudge(world),
    )
    trainer.moment = moment
    if moment == "at the switch":
        trainer.add_callback(AtTheSwitch())
    trainer.train(resume_from_checkpoint=goes_on)
    torch.save({"weights": weights(trainer), "from": trainer.resumed_from}, folder / f"{name}.pt")
    trainer.close()


def main(folder: str) -> int:
    fork = multiprocessing.get_context("fork")
    runs = [("whole", "", False)]
    for moment in MOMENTS:
        runs += [(moment, moment, False), (moment, "", True)]
    for name, moment, goes_on in runs:
        process = fork.Process(target=run, args=(Path(folder), name, moment, goes_on), daemon=True)
        process.start()
        process.join(60)
        process.kill()
        process.join()
        if process.exitcode != (-signal.SIGKILL if moment else 0):
            sys.stderr.write(f"{name}, {'going on' if goes_on else 'first'}: exit code {process.exitcode}\n")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
