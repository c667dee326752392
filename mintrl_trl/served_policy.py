"""The policy on a vLLM server: builds the client and carries the trainer's weights to it, on every process in step.

Main process: gathers, saves and syncs. All processes: learn how it ended, then ask the server themselves which version
it serves. It holds no HTTP; that is `generation`'s. Invariant: no process samples from another version than the one
its trainer holds, and a failed sync stops all processes with the same message instead of leaving some at a barrier.
"""

import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accelerate.utils import broadcast_object_list
from peft import PeftModel
from torch import Tensor

from . import trl_seams
from .config_combinations import check_weight_sync
from .errors import ConfigError
from .generation.nccl_sync import NCCLSync
from .generation.recovery import Outage, Recovery, first_ready
from .generation.server import LOST_KINDS, ServerError
from .generation.server_sync import ServerSync, WeightSync
from .generation.servers import SeveralServers, SyncToAll
from .generation.vllm import VLLMGenerator
from .generation.weight_sync import CheckpointSync, LoRASync
from .processes import all_or_none
from .rollouts.doors import Vocabulary
from .weight_channel import GPUChannel
from .wire import server_of

if TYPE_CHECKING:
    from .trainer import MInTRLTrainer


logger = logging.getLogger(__name__)


class ServedPolicy:
    """A generator on a vLLM server together with its weight sync.

    Args:
        trainer ([`MInTRLTrainer`]): Whose weights are served.
        vocabulary ([`Vocabulary`]): Of the policy's tokenizer.

    Raises:
        ConfigError: The way of syncing does not go with the model.
        GenerationError: The server cannot be reached, serves another model, or has too little room.
    """

    def __init__(self, trainer: "MInTRLTrainer", vocabulary: Vocabulary):
        self.trainer = trainer
        args, accelerator = trainer.args, trainer.accelerator
        self.base_model = trainer.model.config._name_or_path  # as its servers name it
        generators = [
            VLLMGenerator(
                url,
                self.base_model,
                end_ids=vocabulary.end_ids,
                vocabulary_size=vocabulary.size,
                temperature=args.temperature,
                top_p=args.top_p,
                top_k=args.top_k,
                min_p=args.min_p or 0.0,
                repetition_penalty=args.repetition_penalty,
                max_concurrency=args.max_concurrent_rollouts,
            )
            for url in args.server_urls
        ]
        self.generator = generators[0] if len(generators) == 1 else SeveralServers(generators)
        with all_or_none():
            if accelerator.is_main_process:
                self.generator.verify(
                    max_prompt_length=args.max_prompt_length,
                    max_completion_length=args.max_completion_length,
                    wait_seconds=args.vllm_server_timeout,
                )
        self._times_synced: Counter[str] = Counter()
        with all_or_none():  # the main process alone may lack what it sends by
            self._sync = self._make_sync()
        (self._sync.run_id,) = broadcast_object_list([self._sync.run_id])
        syncs = [self._sync] if len(generators) == 1 else self._sync.syncs
        for generator, sync in zip(generators, syncs, strict=True):
            restore = partial(_restore, generator, sync)
            generator.recovery = Recovery(generator.control, restore, wait_seconds=args.vllm_server_timeout)
        self._generators = generators

    @property
    def keeps_base(self) -> bool:
        """Whether the servers go on serving the model without its adapter, as `base_model`."""
        return isinstance(self._model(), PeftModel)

    def _make_sync(self) -> WeightSync:
        args, is_adapter = self.trainer.args, isinstance(self._model(), PeftModel)
        check_weight_sync(args.weight_sync, is_adapter=is_adapter)
        folder = Path(args.weight_sync_dir or Path(args.output_dir) / "weight_sync")
        if is_adapter:
            syncs = [LoRASync(url, folder) for url in args.server_urls]
        elif args.weight_sync == "nccl":
            self._refuse_judge_on(args.server_urls)
            accelerator = self.trainer.accelerator
            channel = GPUChannel(accelerator.device) if accelerator.is_main_process else None
            syncs = [NCCLSync(url, channel) for url in args.server_urls]
        else:
            self._refuse_judge_on(args.server_urls)
            tied = bool(self._model().config.get_text_config().tie_word_embeddings)
            syncs = [CheckpointSync(url, folder, tied_weights=tied) for url in args.server_urls]
        return syncs[0] if len(syncs) == 1 else SyncToAll(syncs)

    def _refuse_judge_on(self, urls: Sequence[str]) -> None:
        """Full weights replace the model on its server, so a judge there would be the policy of the moment."""
        args = self.trainer.args
        if not args.needs_judge or args.judge_base_url is None:
            return
        if server_of(args.judge_base_url) in map(server_of, urls):
            raise ConfigError(
                "judge_base_url",
                args.judge_base_url,
                "another server than the policy's, whose weights every sync replaces",
                "start a second server for the judge and give its URL, or train an adapter (peft_config): the base "
                "model then stays on the policy's server under its own name",
            )

    def sync(self, version: str) -> None:
        """Bring the current weights to the server. Every process takes part and returns, or raises, together.

        A version that was synced before, as by an earlier call of `train`, gets a number: `update-0`, `update-0.2`.

        Raises:
            GenerationError: The server refused or took too long; its own text is in the message.
        """
        self._times_synced[version] += 1
        if self._times_synced[version] > 1:  # other weights than before, so they need another name
            version = f"{version}.{self._times_synced[version]}"
        weights, model = self._gathered(), None
        with all_or_none():
            if self.trainer.accelerator.is_main_process:
                model = self._sync_to_ready(version, weights)
        (model,) = broadcast_object_list([model])
        self.generator.use_weights(version, model)

    def _sync_to_ready(self, version: str, weights: Any) -> str:
        """Wait for the servers and sync; where one of them is lost meanwhile, again, as long as one may be waited for.

        Returns:
            `str`: The name that the weights have on the servers.
        """
        deadline = time.monotonic() + self.trainer.args.vllm_server_timeout
        while True:
            for generator in self._generators:
                generator.recovery.wait_until_ready(max(deadline - time.monotonic(), 1.0))
            try:
                return self._sync.sync(version, weights)
            except ServerError as fault:
                if fault.kind not in LOST_KINDS or time.monotonic() >= deadline:
                    raise
                logger.warning("A server was lost while it took weights, which are brought again: %s", fault)

    def verify(self) -> None:
        """See to it that every server has the weights named last; each process for itself.

        A server that was restarted is waited for and gets them again.

        Raises:
            GenerationError: It has another run's weights, or is not back within `vllm_server_timeout`.
        """
        for generator in self._generators:
            generator.recovery.restore()

    def outages(self) -> list[Outage]:
        """The servers that this process waits for at this moment; may be asked on any thread."""
        return [outage for one in self._generators if (outage := one.recovery.outage) is not None]

    def waiting_for(self, urls: Sequence[str]) -> Callable[[], Awaitable[None]] | None:
        """How a judge waits for those of the policy's servers that it is asked at; `None` where it has its own.

        It waits until one of them is back, as long as the policy does.
        """
        asked = set(map(server_of, urls))
        shared = [one.recovery for one in self._generators if server_of(one.control.root) in asked]
        return partial(first_ready, shared) if shared else None

    def close(self) -> None:
        """Give up what the ways to the servers hold open."""
        self._sync.close()

    def _model(self):
        return self.trainer.accelerator.unwrap_model(self.trainer.model)

    def _gathered(self) -> dict[str, Tensor] | Callable[[Path], None]:
        """Gather the weights, on every process; by name, or as what writes them on one, as the way of syncing asks."""
        model = self._model()
        is_adapter = isinstance(model, PeftModel)
        state_dict = trl_seams.whole_weights(self.trainer, trained_only=is_adapter)
        if self.trainer.args.weight_sync == "nccl":
            is_main = self.trainer.accelerator.is_main_process
            return trl_seams.checkpoint_weights(self.trainer, state_dict) if is_main else {}
        if is_adapter:
            return lambda path: model.save_pretrained(str(path), state_dict=state_dict, save_embedding_layers=False)
        return lambda path: model.save_pretrained(str(path), state_dict=state_dict)


def _restore(generator: VLLMGenerator, sync: ServerSync) -> bool:
    return sync.restore(generator.weight_version)
