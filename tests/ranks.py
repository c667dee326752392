"""A tiny training run spread over processes, as a program: `python -m tests.ranks FOLDER SERVER PROCESSES PORT`.

Everything is imported once, before the processes part. Each of them writes what it saw into
`FOLDER/rank-R-of-N.pt`.
"""

import multiprocessing
import os
import sys
from pathlib import Path

import torch
from accelerate import PartialState

from mintrl_trl import MInTRLTrainer, VLLMGenerator, trl_seams
from tests.trainers import RejectLastStep, make_trainer, weights


class Keeper(MInTRLTrainer):
    """Keeps its rollouts and batches."""

    def __init__(self, *args, **kwargs):
        self.rollouts, self.batches = [], []
        super().__init__(*args, **kwargs)

    def _sample(self, requests, **kwargs):
        rollouts = super()._sample(requests, **kwargs)
        self.rollouts += rollouts
        return rollouts

    def _generate_and_score_completions(self, inputs):
        self.batches.append(super()._generate_and_score_completions(inputs))
        return self.batches[-1]


def run(folder: Path, server: str) -> None:
    """Two updates of 2 prompts x (2 + 2) rollouts, spread over the processes there are."""
    state = PartialState(cpu=True)
    name = f"rank-{state.process_index}-of-{state.num_processes}"
    trainer = make_trainer(
        folder / f"run-of-{state.num_processes}",
        trainer_class=Keeper,
        model=str(folder / "model"),
        judge=RejectLastStep(),
        generator=None,
        per_device_train_batch_size=8 // state.num_processes,
        max_steps=2,
        intervention_updates=2,
        use_vllm=True,
        vllm_server_base_url=server,
        weight_sync_dir=str(folder / f"sync-of-{state.num_processes}"),
    )
    trainer.train()
    seen = {
        "own_client": isinstance(trainer.policy.generator, VLLMGenerator),
        "trls_client": hasattr(trainer, "vllm_generation"),
        "rollouts": {(r.request.update, r.request.row): (r.request.role.value, r.ids) for r in trainer.rollouts},
        "advantages": torch.cat([batch["advantages"] for batch in trainer.batches]),
        "controls": torch.cat([batch[trl_seams.IS_CONTROL] for batch in trainer.batches]),
        "weights": weights(trainer),
    }
    trainer.close()
    torch.save(seen, folder / f"{name}.pt")


def run_as(rank: int, folder: Path, server: str, processes: int, port: str) -> None:
    """`run` with the variables that a launcher would set."""
    os.environ |= {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "WORLD_SIZE": str(processes),
        "LOCAL_WORLD_SIZE": str(processes),
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
    }
    run(folder, server)


def main(folder: str, server: str, processes: str, port: str) -> int:
    fork = multiprocessing.get_context("fork")
    ranks = [
        fork.Process(target=run_as, args=(rank, Path(folder), server, int(processes), port), daemon=True)
        for rank in range(int(processes))
    ]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(90)
    for rank in ranks:
        rank.kill()  # nothing outlives this program
        rank.join()
    return max(abs(rank.exitcode) for rank in ranks)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
