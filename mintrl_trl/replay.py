"""An update of a run, computed again from its folder: which updates can be, with which weights, and what comes out.

It reads settings, records and checkpoints, and needs no data set, server, judge or reward. Invariant: the run folder
stays as it is.
"""

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from peft import PeftModel
from transformers import AutoModelForCausalLM, PreTrainedModel
from trl import get_peft_config, get_quantization_config

from .analysis.runs import last_written
from .checkpoints import ADAPTER, list_checkpoints, plain_weights
from .config import MInTRLConfig
from .config_ablations import SWITCHES, AblationConfig
from .config_judge import WIRE_SETTINGS
from .data.chains import base_model_path
from .errors import CheckpointError, ConfigError, DataError
from .eval_models import find_models
from .recipe import PolicyArguments
from .replay_trainer import NoDoor, Replay, recorded_reward, replay_class
from .reporting.records import RolloutRecord
from .reporting.replay_report import ReplayedUpdate
from .reporting.rollout_index import RolloutFilter, RolloutIndex
from .reporting.run_folder import RunFolder, weights_before
from .rollouts.schedule import Phase
from .trainer import MInTRLTrainer
from .training_rows import load_tokenizer

METHODS = ("mintrl", "grpo")  # whose updates are made of what a run folder records
_NAMED = 3  # of what broke
_A_DEVICE = {None: "a GPU", "cpu": "a CPU", "cuda": "a GPU"}

# Settings of places, servers and what runs beside the update: none of them decides its loss.
_APART = dict.fromkeys(WIRE_SETTINGS) | {
    "weight_sync": "auto",
    "weight_sync_dir": None,
    "judge": None,
    "judge_model": None,
    "judge_base_url": None,
    "judge_api_key_env": None,
    "judge_variant": "none",
    "judge_likelihood_threshold": None,
    "judge_keep_bias": 0.0,
    "eval_strategy": "no",
    "save_strategy": "no",
    "report_to": "none",
    "push_to_hub": False,
    "hub_token": None,
    "resume_from_checkpoint": None,
    "deepspeed": None,
    "fsdp": None,
    "fsdp_config": None,
    "parallelism_config": None,
    "fp16": False,
    "torch_compile": False,
    "reset_optimizer_at_switch": False,  # there is no optimizer
    "reset_optimizer_at": None,
    "dry_run_worst_case": False,
    "unscored_limit": 1.0,
    "log_completions": False,
    "show_progress": False,
}
_DERIVED = ("gradient_accumulation_steps", "steps_per_generation", "generation_batch_size", "num_generations_eval")


@dataclass(frozen=True)
class Weights:
    """The weights before an update.

    Args:
        source (`str`): Folder or hub id.
        described (`str`): For people.
        is_base (`bool`): Whether they are what the run began with.
        rounded (`bool`): Whether they were saved with fewer digits than they were trained with.
    """

    source: str
    described: str
    is_base: bool = False
    rounded: bool = False


class Replayer:
    """A run folder's updates.

    Args:
        folder (`str` or `Path`): The run folder.
        trainers (`Mapping`): The trainer's class for each class of settings, `MInTRLConfig` and `AblationConfig`.

    Raises:
        DataError: The folder holds no settings.
        ConfigError: The run's method trains on more than its folder records.
    """

    def __init__(self, folder: str | Path, trainers: Mapping[type[MInTRLConfig], type[MInTRLTrainer]]):
        self.folder, self.trainers = Path(folder), trainers
        self.settings = self._read("settings.json")
        self.recipe, self.start = (
            self._read(name) if (self.folder / name).is_file() else {} for name in ("recipe.json", "start.json")
        )
        method = self.recipe.get("method", "mintrl")
        if method not in METHODS:
            allowed = f"a run of {' or '.join(METHODS)}: what else {method} trains on is not recorded"
            raise ConfigError("folder", str(folder), allowed, "name another run")

    def replayable(self) -> dict[int, Weights]:
        """Updates whose weights before them are there, in order."""
        found = {}
        if (base := self._base()) is not None:
            found[1] = base
        for checkpoint in list_checkpoints(self.folder):
            if checkpoint.mark is not None and plain_weights(checkpoint.path):
                thinned = bool(checkpoint.mark.get("thinned"))
                found[checkpoint.update + 1] = Weights(str(checkpoint.path), checkpoint.path.name, rounded=thinned)
        for number, path in weights_before(self.folder).items():
            if plain_weights(path):
                found[number] = Weights(str(path), path.name)
        with RolloutIndex(self.folder) as index:
            made = set(index.updates())
        return {update: weights for update, weights in sorted(found.items()) if update in made}

    def replay(self, update: int, *, model: str | None = None, micro_batch: int | None = None) -> ReplayedUpdate:
        """Compute an update again.

        Args:
            update (`int`): Which, from 1.
            model (`str`, *optional*): Folder or hub id of the weights before it, or `chains_base`. By default the
                checkpoint of the update before, or what the run began with.
            micro_batch (`int`, *optional*): Rows of one forward. By default those of the run.

        Returns:
            [`ReplayedUpdate`]: What came out, beside what was logged.

        Raises:
            ConfigError: The update cannot be replayed; the message says which can.
            CheckpointError: The weights before it are not there.
            DataError: Its rollouts are not all recorded, or lack what the loss is made of.
        """
        weights = self._named(model) if model is not None else self._weights_before(update)
        self.settings = self._settings_at(update)
        with tempfile.TemporaryDirectory(prefix="mintrl-replay-") as scratch:
            args = self._config(scratch, micro_batch)
            records = self._records(update, args)
            self._check(update, args, weights)
            trainer = self._trainer(args, records, weights)
            try:
                return self._run(trainer, records, update, weights)
            finally:
                trainer.close()

    def _read(self, name: str) -> dict[str, Any]:
        path = self.folder / name
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise DataError(str(path), name, None, "what a run writes when it begins", "name a run's folder") from error
        if not isinstance(content, dict):
            raise DataError(str(path), name, content, "an object", "name a run's folder")
        return content

    def _settings_at(self, update: int) -> Mapping[str, Any]:
        """The settings that an update was made with: a run may have gone on with others.

        Every checkpoint holds those under which it was saved, so it is the first one after the update that knows; where
        there is none, the settings that were written last.
        """
        places = [one.path for one in list_checkpoints(self.folder) if one.mark is not None and one.update >= update]
        found = (last_written(place, "settings") for place in (*places, self.folder))
        return next((settings for settings in found if settings is not None), self.settings)

    def _base(self) -> Weights | None:
        name = self.recipe.get("model_name_or_path")
        if name is None and self.recipe.get("task") == "chains":
            name = str(base_model_path())
        name = name or self.start.get("model")
        if name == str(base_model_path()):
            return Weights(name, "the small world's base model", is_base=True)
        return None if name is None else Weights(name, name, is_base=True)

    def _named(self, name: str) -> Weights:
        """The one model that a person names."""
        models = find_models([name])
        if len(models) > 1:
            fix = f"name one of its checkpoints, such as {models[-1].name}"
            raise ConfigError("model", name, "a single model", fix)
        base = self._base()
        return base if base is not None and base.source == models[0].name else Weights(models[0].name, name)

    def _weights_before(self, update: int) -> Weights:
        found = self.replayable()
        if update in found:
            return found[update]
        known = ", ".join(map(str, found)) or "none"
        where = f"checkpoint-{update - 1}" if update > 1 else "the model that the run began with"
        fix = f"name the weights before it (--model FOLDER), or one of these updates: {known}"
        raise CheckpointError(
            f"update {update} needs the weights before it, {where}, which the run does not have; {fix}"
        )

    def _config(self, scratch: str, micro_batch: int | None) -> MInTRLConfig:
        """The run's settings, for one process and without what surrounds an update."""
        kind = AblationConfig if set(SWITCHES) & set(self.settings) else MInTRLConfig
        known = kind.__dataclass_fields__
        values = {name: value for name, value in self.settings.items() if name in known and known[name].init}
        values |= {name: value for name, value in _APART.items() if name in known}
        values |= {"output_dir": scratch, "use_cpu": values.get("use_cpu") or not torch.cuda.is_available()}
        if micro_batch is not None:
            values["per_device_train_batch_size"] = micro_batch
        for name in _DERIVED:
            values.pop(name, None)
        try:
            return kind(**values)
        except ConfigError as error:
            allowed = f"{error.allowed}; another version of mintrl_trl wrote it"
            fix = "replay the run with the version in its versions.json"
            raise DataError(f"the settings of {self.folder}", error.field, error.value, allowed, fix) from error

    def _records(self, update: int, args: MInTRLConfig) -> list[RolloutRecord]:
        with RolloutIndex(self.folder) as index:
            records = [index.read(entry) for entry in index.find(RolloutFilter(update=update))]
            made = index.updates()
        records = sorted(records, key=lambda record: record.row)
        if not records and args.updates_per_batch > 1 and made:
            begin = max((number for number in made if number < update), default=None)
            allowed = f"the first update of a generated batch, which serves {args.updates_per_batch}"
            raise ConfigError("step", update, allowed, f"write --step {begin or made[0]}")
        wanted = args.generation_batch_size
        if [record.row for record in records] != list(range(wanted)):
            allowed = f"{wanted} rollouts of update {update}, each once"
            raise DataError(str(self.folder / "rollouts.jsonl"), "update", len(records), allowed, "name another update")
        if any(record.prompt_ids is None for record in records):
            allowed = "there in every record: this run's were written by an older version"
            raise DataError(str(self.folder / "rollouts.jsonl"), "prompt_ids", None, allowed, "make a new run")
        return records

    def _check(self, update: int, args: MInTRLConfig, weights: Weights) -> None:
        on_policy = args.schedule().phase(update - 1) is Phase.ON_POLICY
        if args.updates_per_batch > 1 and not args.lean_updates:
            allowed = "a run with lean_updates, or with one update per generated batch: TRL's shuffle is not recorded"
            raise ConfigError("step", update, allowed, "name another run")
        if on_policy and args.beta and not (weights.is_base or self._is_adapter(weights)):
            allowed = "an update without reference model (beta=0), the first one, or one of an adapter"
            raise ConfigError("step", update, allowed, "name one of those")

    def _is_adapter(self, weights: Weights) -> bool:
        return (Path(weights.source) / ADAPTER).is_file() or bool(self.recipe.get("use_peft") and weights.is_base)

    def _trainer(self, args: MInTRLConfig, records: list[RolloutRecord], weights: Weights) -> Replay:
        policy = PolicyArguments(**{n: v for n, v in self.recipe.items() if n in PolicyArguments.__dataclass_fields__})
        model: str | PreTrainedModel = weights.source
        tokenizer = load_tokenizer(weights.source, args)
        if (Path(weights.source) / ADAPTER).is_file():
            model = _adapted(Path(weights.source), args)
            args.model_init_kwargs = None
        prompts = {record.prompt: None for record in records}  # rows for the trainer to look at; none is sampled from
        return replay_class(self.trainers[type(args)])(
            model,
            reward_funcs=recorded_reward,
            args=args,
            train_dataset=Dataset.from_list([{"prompt": prompt} for prompt in prompts] * args.updates_per_generation),
            processing_class=tokenizer,
            judge=NoDoor(),
            generator=NoDoor(),
            peft_config=get_peft_config(policy) if self.recipe and weights.is_base else None,
            quantization_config=get_quantization_config(policy) if self.recipe and isinstance(model, str) else None,
        )

    def _run(self, trainer: Replay, records: list[RolloutRecord], update: int, weights: Weights) -> ReplayedUpdate:
        loss, norm = trainer.replay(records, update)
        logged = next(
            (line for line in RunFolder(self.folder).metrics() if line["update"] == update and "loss" in line), {}
        )
        on_policy = trainer.schedule.phase(update - 1) is Phase.ON_POLICY
        rollouts = trainer.seen.rollouts()
        places = [(rollout.row, rollout.broken_at) for rollout in rollouts if rollout.broken_at is not None]
        weighted = list(trainer.model.named_parameters())
        broken = [
            _broken("weights before the update", weighted),
            _few("log-probabilities", [f"row {row} from response token {token} on" for row, token in places]),
            _broken("gradients", [(name, weight.grad) for name, weight in weighted]),
        ]
        return ReplayedUpdate(
            update=update,
            phase="on-policy" if on_policy else "interventions",
            weights=weights.described,
            rounded=weights.rounded,
            loss=loss,
            grad_norm=norm,
            logged_loss=logged.get("loss") if _logs_each(trainer.args) else None,
            logged_grad_norm=logged.get("grad_norm"),
            rollouts=rollouts,
            notes=tuple(self._notes(trainer, weights)),
            broken=tuple(line for line in broken if line),
        )

    def _notes(self, trainer: Replay, weights: Weights) -> list[str]:
        """Why the result need not be what was logged."""
        args, notes = trainer.args, []
        if weights.rounded:
            notes.append(f"{weights.described} was thinned: its weights are rounded to bfloat16")
        if not _logs_each(args):
            notes.append("the logged loss is a mean over several updates (logging_steps), and not compared")
        if self.settings.get("fp16"):
            notes.append("the run was in float16, the replay is in float32")
        notes += self.device_notes(on_cpu=bool(args.use_cpu))
        if trainer.advantage_difference > 1e-4:
            notes.append(
                f"advantages from rewards differ from the recorded ones by up to {trainer.advantage_difference:.2g}"
            )
        return notes

    def device_notes(self, *, on_cpu: bool) -> list[str]:
        """Whether a replay computes on another kind of device than the run did, in words.

        Args:
            on_cpu (`bool`): Where the replay computes.
        """
        ran_on = self._device()
        if (ran_on == "cpu") == on_cpu:
            return []
        was = "was" if ran_on else "may have been"
        return [f"the run {was} on {_A_DEVICE.get(ran_on, ran_on)}, the replay is on {'a CPU' if on_cpu else 'a GPU'}"]

    def _device(self) -> str | None:
        """The kind of device that the run trained on; `None` where nothing says it."""
        if self.settings.get("use_cpu"):
            return "cpu"
        if "device" in self.start:
            return self.start["device"]
        path = self.folder / "versions.json"
        torch_version = (self._read(path.name).get("packages") or {}).get("torch") if path.is_file() else None
        return "cpu" if str(torch_version).endswith("+cpu") else None


def _logs_each(args: MInTRLConfig) -> bool:
    """Whether a logged loss is that of one update."""
    return args.logging_strategy == "steps" and args.logging_steps == 1


def _adapted(folder: Path, args: MInTRLConfig) -> PeftModel:
    """An adapter on its base model, ready to train."""
    config = json.loads((folder / ADAPTER).read_text(encoding="utf-8"))
    options = {name: value for name, value in (args.model_init_kwargs or {}).items() if value is not None}
    try:
        base = AutoModelForCausalLM.from_pretrained(config["base_model_name_or_path"], **options)
    except (OSError, ValueError) as error:
        why = str(error).strip().partition("\n")[0]
        raise CheckpointError(f"the base model of {folder} does not load: {why}") from error
    return PeftModel.from_pretrained(base, folder, is_trainable=True)


def _broken(what: str, tensors: Sequence[tuple[str, torch.Tensor | None]]) -> str:
    """Which tensors hold a number that is not finite."""
    return _few(what, [name for name, tensor in tensors if tensor is not None and not tensor.isfinite().all()])


def _few(what: str, names: Sequence[str]) -> str:
    """The first of some names, and how many more there are; nothing without any."""
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{what}: {', '.join(names[:_NAMED])}{more}" if names else ""
