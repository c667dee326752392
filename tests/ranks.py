"""Tiny training runs spread over processes, as a program: `python -m tests.ranks FOLDER SERVER PORT`.

DDP and FSDP2 get two processes each, which go through all scenarios; everything is imported once. Process R writes what
it saw into `FOLDER/KIND-R.pt`, by scenario. A test calls [`one_process`] for what a single process does.
"""

import gc
import multiprocessing
import os
import sys
import traceback
from pathlib import Path
from unittest.mock import patch

import torch
from accelerate import PartialState
from accelerate.utils import DistributedType
from datasets import Dataset
from peft import LoraConfig

from mintrl_trl import GenerationError, JudgeError, MInTRLTrainer, NoVerdict, config_combinations, trl_seams
from mintrl_trl import served_policy as serving
from mintrl_trl import training_rows as start
from mintrl_trl.errors import CheckpointError
from mintrl_trl.generation.server import ServerControl
from tests.tiny import double_precision, tiny_model
from tests.trainers import ROWS, HashGenerator, RejectLastStep, make_trainer
from tests.weight_receiver import FileChannel

PROCESSES = 2
# Three prompts x (2 + 2): with two processes, the group in the middle lies on both.
GROUPS = {
    "prompts_per_update": 3,
    "per_device_train_batch_size": 3,
    "max_steps": 2,
    "intervention_updates": 1,
    "adam_epsilon": 1e-4,  # so that rounding does not turn the step of a weight that hardly matters
    "ddp_find_unused_parameters": False,
}


class Keeper(MInTRLTrainer):
    """Keeps its rollouts and batches."""

    def __init__(self, *args, **kwargs):
        self.rollouts, self.batches = [], []
        super().__init__(*args, **kwargs)

    def _sample(self, requests, *, training):
        rollouts = super()._sample(requests, training=training)
        self.rollouts += [("training" if training else "evaluation", rollout) for rollout in rollouts]
        return rollouts

    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        if self.model.training:
            self.batches.append(output)
        return output


def seen(trainer: Keeper) -> dict:
    """What a trainer did, and the whole of its weights, which it gathers from all processes."""
    weights = trainer.accelerator.get_state_dict(trainer.model_wrapped)
    return {
        "generator": type(trainer.policy.generator).__name__,
        "trls_client": hasattr(trainer, "vllm_generation"),
        "sharded": type(trainer.model).__name__.startswith("FSDP"),
        "rollouts": {
            (purpose, rollout.request.update, rollout.request.row): (rollout.request.role.value, rollout.ids)
            for purpose, rollout in trainer.rollouts
        },
        "advantages": [batch["advantages"] for batch in trainer.batches],
        "controls": [batch[trl_seams.IS_CONTROL] for batch in trainer.batches if trl_seams.IS_CONTROL in batch],
        "log": [line for line in trainer.state.log_history if "loss" in line],
        "weights": {name: value.clone() for name, value in weights.items()},  # FSDP2: on the first process only
    }


def trained(folder: Path, **settings) -> dict:
    """Train to the end and save the model; gives what was seen."""
    trainer = make_trainer(folder, trainer_class=Keeper, **settings)
    trainer.train()
    trainer.save_model()
    trainer.close()
    return seen(trainer)


def groups(folder: Path, server: str, kind: str) -> dict:
    """Both phases, two micro-batches per update, a group on both processes, clipped gradients, a fresh optimizer."""
    longer = {"max_steps": 4, "intervention_updates": 2}
    return trained(folder, **GROUPS | longer, reset_optimizer_at_switch=True, max_grad_norm=0.01)


def reference_model(folder: Path, server: str, kind: str) -> dict:
    """A reference model, untied embeddings, gradient checkpointing, evaluations, and in two processes a dry run."""
    return trained(
        folder,
        **GROUPS,
        model=str(folder.parent / "untied"),
        beta=0.1,
        gradient_checkpointing=True,
        dry_run_worst_case=kind != "one",
        eval_strategy="steps",
        eval_steps=1,
        per_device_eval_batch_size=4,
        trainer_kwargs={"eval_dataset": Dataset.from_list(ROWS[:4])},
    )


def several_updates(folder: Path, server: str, kind: str) -> dict:
    """Two updates for each generated batch, in either phase."""
    longer = {"max_steps": 4, "intervention_updates": 2}
    return trained(folder, **GROUPS | longer, updates_per_generation=2)


def exact(folder: Path, server: str, kind: str) -> dict:
    """Lean updates of two processes in float64, to compare with the plain ones of one."""

    def parity_of_one_prompt(prompts, completion_ids, **kwargs):
        """Leaves groups without any difference, whose rows have no gradient."""
        return [
            float(len(ids) % 2) if int(prompt[0]) % 2 else 0.0
            for prompt, ids in zip(prompts, completion_ids, strict=True)
        ]

    with double_precision():
        return trained(
            folder,
            **GROUPS | {"per_device_train_batch_size": 6 if kind == "one" else 3, "learning_rate": 0.1},
            model=tiny_model().double(),
            reward=parity_of_one_prompt,
            lean_updates=kind != "one",
            optim="sgd",
            max_grad_norm=0.0,
            beta2=0.3,
            entropy_sample=1,
        )


def mixed_precision(folder: Path, server: str, kind: str) -> dict:
    """Passes in bfloat16, as the launch files ask for, over weights in float32."""
    return trained(folder, **GROUPS, model=str(folder.parent / "untied"), bf16=True, gradient_checkpointing=True)


def one_sided(folder: Path, server: str, kind: str) -> dict:
    """One prompt x (2 + 2): the first of two processes has the controls and never asks the judge."""
    size = {"prompts_per_update": 1, "per_device_train_batch_size": 4 if kind == "one" else 2}
    return trained(folder, **GROUPS | size)


def local(folder: Path, server: str, kind: str) -> dict:
    """Each process samples its own rows from its own copy of the model."""
    return trained(folder, **GROUPS, generator=None, max_completion_length=12)


def served(folder: Path, server: str, kind: str, **settings) -> dict:
    """Full weights go to a server, which all processes ask."""
    where = {"model": str(folder.parent / "model"), "use_vllm": True, "vllm_server_base_url": server}
    return trained(folder, **GROUPS, generator=None, **where, **settings)


def served_nccl(folder: Path, server: str, kind: str) -> dict:
    """They go by name, from the first process; the machine passes for one with GPUs."""
    sent = folder.with_suffix(".sent")
    with (
        patch.object(config_combinations, "_check_weight_sync"),
        patch.object(start, "check_device"),
        patch.object(serving, "GPUChannel", lambda device: FileChannel(sent)),
    ):
        return served(folder, server, kind, weight_sync="nccl")


def served_adapter(folder: Path, server: str, kind: str) -> dict:
    """An adapter goes to the server, which is as one started anew."""
    if PartialState().is_main_process:
        ServerControl(server).call("POST", "/update_weight_version", {"new_version": "default"}, seconds=5)
    adapter = LoraConfig(r=2, target_modules=["q_proj", "v_proj"])
    return served(folder, server, kind, trainer_kwargs={"peft_config": adapter})


def resumed(folder: Path, server: str, kind: str) -> dict:
    """Four updates with a checkpoint after each two, and the latter two again, from the first checkpoint."""
    settings = GROUPS | {"max_steps": 4, "intervention_updates": 3, "save_strategy": "steps", "save_steps": 2}
    whole = make_trainer(folder, trainer_class=Keeper, **settings)
    whole.train()
    whole.close()
    again = make_trainer(folder, trainer_class=Keeper, **settings)
    again.train(resume_from_checkpoint=str(folder / "checkpoint-2"))
    again.close()
    return {"whole": seen(whole), "again": seen(again)}


class StopsOnce(Keeper):
    """Stops, on every process, between two micro-batches of its third update, which is the first of phase 2."""

    def compute_loss(self, *args, **kwargs):
        if self.state.global_step == 2 and self.resumed_from is None:
            raise KeyboardInterrupt
        return super().compute_loss(*args, **kwargs)


def thinned(folder: Path, server: str, kind: str) -> dict:
    """A run that trains an adapter, stops and goes on, beside one that does not stop. One checkpoint stays whole."""
    settings = {
        **GROUPS,
        "model": str(folder.parent / "model"),
        "trainer_kwargs": {"peft_config": LoraConfig(r=2, target_modules=["q_proj", "v_proj"])},
        "max_steps": 4,
        "intervention_updates": 2,
        "save_strategy": "steps",
        "save_steps": 1,
        "resumable_checkpoints": 1,
    }
    whole = trained(folder / "whole", **settings)
    stops = make_trainer(folder / "stopped", trainer_class=StopsOnce, **settings)
    try:
        stops.train()
    except KeyboardInterrupt:
        stops.close()
    again = trained(folder / "stopped", resume_from_checkpoint="last", **settings)
    try:
        trained(folder / "stopped", resume_from_checkpoint=str(folder / "stopped" / "checkpoint-1"), **settings)
    except CheckpointError as error:
        return {"whole": whole, "again": again, "refused": str(error)}


class FaultyJudge(RejectLastStep):
    """Fails on the second of two processes, or, in `probe`, on the first."""

    def __init__(self, fault: Exception, probes: bool = False):
        super().__init__()
        self.fault, self.probes = fault, probes

    async def probe(self):
        if self.probes:
            raise self.fault

    async def review(self, *args, **kwargs):
        if not self.probes and is_second():
            raise self.fault
        return await super().review(*args, **kwargs)


class FaultyGenerator(HashGenerator):
    async def stream(self, *args):
        if is_second():
            raise GenerationError("the engine is gone")
        async for token in super().stream(*args):
            yield token


class FaultyLoss(Keeper):
    """Not a number in one row of the second process, so in one of its micro-batches."""

    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        if is_second():
            output["advantages"][0] = torch.nan
        return output


def faulty_reward(completion_ids, **kwargs):
    if not is_second():
        raise ValueError("no such answer")
    return [1.0] * len(completion_ids)


class FullDisk(Keeper):
    """The first process cannot write its rollouts down."""

    def _generate_and_score_completions(self, inputs):
        if self.run_folder is not None:
            self.run_folder.append_rollouts = self.fail
        return super()._generate_and_score_completions(inputs)

    def fail(self, records):
        raise OSError(28, "No space left on device")


def is_second() -> bool:
    return PartialState().process_index == 1


FAULTS = {
    "judge": {"judge": FaultyJudge(JudgeError("no such model"))},
    "probe": {"judge": FaultyJudge(JudgeError("no such server"), probes=True)},
    "no verdict": {"judge": FaultyJudge(NoVerdict("unparsable")), "no_verdict_window": 2},
    "generator": {"generator": FaultyGenerator()},
    "reward": {"reward": faulty_reward},
    "loss": {"trainer_class": FaultyLoss, "save_strategy": "steps", "save_steps": 2},  # so the weights are left
    "disk": {"trainer_class": FullDisk},
}


def faults(folder: Path, server: str, kind: str) -> dict:
    """One process fails, in one way after the other; gives what each raised."""
    raised = {}
    for name in FAULTS if kind == "ddp" else ("judge", "reward", "loss"):
        settings = FAULTS[name]
        trainer = make_trainer(folder / name, **{"trainer_class": Keeper} | GROUPS | settings)
        try:
            trainer.train()
        except Exception as error:
            raised[name] = "\n".join([f"{type(error).__name__}: {error}", *getattr(error, "__notes__", [])])
        trainer.close()
    return raised


SCENARIOS = {
    "groups": groups,
    "reference_model": reference_model,
    "several_updates": several_updates,
    "mixed_precision": mixed_precision,
    "exact": exact,
    "faults": faults,  # what comes next would notice a process that is a step behind
    "one_sided": one_sided,
    "local": local,
    "resumed": resumed,
    "thinned": thinned,
    "served": served,
    "served_nccl": served_nccl,
    "served_adapter": served_adapter,
}
KINDS = {"ddp": list(SCENARIOS), "fsdp2": [name for name in SCENARIOS if name != "local"]}  # which FSDP2 refuses


def one_process(name: str, folder: Path, server: str) -> dict:
    """A scenario in this very process."""
    return SCENARIOS[name](folder / f"one-{name}", server, "one")


def run_as(rank: int, folder: Path, server: str, port: str, kind: str) -> None:
    """All scenarios, with the variables that a launcher would set."""
    os.environ |= {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "WORLD_SIZE": str(PROCESSES),
        "LOCAL_WORLD_SIZE": str(PROCESSES),
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
    }
    if kind == "fsdp2":
        shard_on_cpu()
    saw = {}
    for name in KINDS[kind]:
        try:
            saw[name] = SCENARIOS[name](folder / f"{kind}-{name}", server, kind)
        except Exception:
            saw[name] = traceback.format_exc()
            break  # the other process may be waiting elsewhere
    torch.save(saw, folder / f"{kind}-{rank}.pt")


def shard_on_cpu() -> None:
    """Have accelerate take its own FSDP2 path on a CPU.

    It shards GPUs only: processes on CPUs are of a kind (`MULTI_CPU`) for which it does not look at FSDP's variables.
    So the group of processes is made here, over gloo, and accelerate is told that it is one of GPUs, the device
    being the CPU. From there on all is accelerate's and torch's: `fully_shard`, gathering, saving and loading.
    """
    os.environ |= {
        "ACCELERATE_TORCH_DEVICE": "cpu",
        "ACCELERATE_USE_FSDP": "true",
        "FSDP_VERSION": "2",
        "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP",
        "FSDP_RESHARD_AFTER_FORWARD": "true",
        "FSDP_STATE_DICT_TYPE": "SHARDED_STATE_DICT",
    }
    torch.distributed.init_process_group("gloo")
    PartialState._prepare_backend = lambda *args, **kwargs: ("gloo", DistributedType.MULTI_GPU)


def main(folder: str, server: str, port: str) -> int:
    gc.freeze()  # accelerate collects garbage again and again; what was imported is none
    fork = multiprocessing.get_context("fork")
    worst = 0
    for number, kind in enumerate(KINDS):
        there = str(int(port) + number)
        ranks = [
            fork.Process(target=run_as, args=(rank, Path(folder), server, there, kind), daemon=True)
            for rank in range(PROCESSES)
        ]
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join(100)
        for rank in ranks:
            rank.kill()  # nothing outlives this program
            rank.join()
        worst = max(worst, *(abs(rank.exitcode) for rank in ranks))
    return worst


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
