"""Builds the two doors of a trainer: who continues token ids, and who judges.

From the arguments and the model that TRL prepared it makes the generator (in process, or a vLLM server with its weight
sync), the vocabulary and the judge, and offers the trainer three verbs: `sync` before rollouts, `generating` around
them, `close` at the end. It samples nothing and knows no objective.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

from peft import PeftConfig

from . import trl_seams
from .config import MInTRLConfig
from .errors import ConfigError
from .generation.local import LocalGenerator
from .generation.vocabulary import TokenizerVocabulary
from .judge_setup import build_judge
from .processes import all_or_none
from .rollouts.doors import Judge, PolicyGenerator, Vocabulary
from .rollouts.loop import shared_loop

if TYPE_CHECKING:
    from transformers import TrainerState

    from .served_policy import ServedPolicy
    from .trainer import MInTRLTrainer


@dataclass
class Policy:
    """The generator, what its ids spell, the judge, and how weights reach the generator.

    Args:
        generator ([`PolicyGenerator`]): Continues token ids.
        vocabulary ([`Vocabulary`]): Of the policy's tokenizer.
        judge ([`Judge`], *optional*): None where nothing is reviewed.
        served ([`ServedPolicy`], *optional*): The server behind the generator and its weight sync; None in process.
    """

    generator: PolicyGenerator
    vocabulary: Vocabulary
    judge: Judge | None
    served: "ServedPolicy | None" = None
    _synced: "tuple[TrainerState, int] | None" = None  # every call of `train` has a new state and counts from 0

    def sync(self, trainer: "MInTRLTrainer") -> None:
        """Make the generator sample from the current weights. Every process returns only when it does."""
        update = trainer.state.global_step
        if isinstance(self.generator, LocalGenerator):
            self.generator.set_version(f"update-{update}")
        elif self.served is not None:
            if self._synced is None or self._synced[0] is not trainer.state or self._synced[1] != update:
                self.served.sync(f"update-{update}")
                self._synced = trainer.state, update
            trainer.accelerator.wait_for_everyone()
            with all_or_none():
                self.served.verify()

    def probe(self) -> None:
        """Let a judge that can be set up wrongly answer once, before any rollout is paid for, and find out how to ask.

        Every process has a judge of its own, so every process calls this.

        Raises:
            JudgeError: It gave no verdict on a trivial review; the message says what to try.
        """
        if hasattr(self.judge, "probe"):
            shared_loop().run(self.judge.probe())

    @contextmanager
    def generating(self) -> Iterator[None]:
        """While rollouts are made. In process the generator has the model meanwhile, and gives it back as it was."""
        with self.generator.active() if isinstance(self.generator, LocalGenerator) else nullcontext():
            yield

    def close(self) -> None:
        """Stop the generator's threads or connections, and the judge's."""
        if self.served is not None:
            self.served.close()
        if hasattr(self.generator, "close"):
            self.generator.close()
        if hasattr(self.judge, "aclose") and not shared_loop().closed:
            shared_loop().run(self.judge.aclose())


def build_policy(
    trainer: "MInTRLTrainer",
    *,
    judge: "Judge | Callable[[PolicyGenerator], Judge] | None",
    generator: PolicyGenerator | None,
    new_adapter: PeftConfig | None = None,
) -> Policy:
    """The doors of `trainer`, from what the user passed and, for the rest, from its arguments.

    Args:
        trainer ([`MInTRLTrainer`]): Its model is loaded, and wrapped where an adapter is trained.
        judge, generator: As for the trainer.
        new_adapter (`PeftConfig`, *optional*): That of the adapter the trainer began, not of one the model came with.
    """
    args = trainer.args
    model = trainer.accelerator.unwrap_model(trainer.model)
    tokenizer = trainer.processing_class
    vocabulary = TokenizerVocabulary(
        tokenizer, end_ids=trainer.eos_token_ids, size=model.get_input_embeddings().num_embeddings
    )
    served = None
    if generator is None and args.generation == "vllm":
        from .served_policy import ServedPolicy

        served = ServedPolicy(trainer, vocabulary)
        generator = served.generator
    elif generator is None:
        needs_copy = args.needs_judge and args.judge == "self" and not _begins_as_its_base(new_adapter)
        generator = LocalGenerator(
            model,
            end_ids=trainer.eos_token_ids,
            pad_id=tokenizer.pad_token_id,
            temperature=args.temperature,
            max_batch=args.local_max_batch,
            base_model=trl_seams.unfused_copy(model) if needs_copy else None,
            autocast=trainer.accelerator.autocast,
        )
        _check_positions(args, generator.max_positions)
    starts_as_base = _begins_as_its_base(new_adapter)
    judge = build_judge(trainer, judge, generator, vocabulary, served, starts_as_base=starts_as_base)
    return Policy(generator, vocabulary, judge, served)


def _begins_as_its_base(adapter: PeftConfig | None) -> bool:
    """Whether the frozen initial policy is the model with this adapter off, so that it needs no copy."""
    return adapter is not None and getattr(adapter, "init_lora_weights", True) in (True, "gaussian")


def _check_positions(args: MInTRLConfig, positions: int | None) -> None:
    """Refuse lengths that the model has no room for, before the first prompt that is too long stops the run."""
    prompt, completion = args.max_prompt_length, args.max_completion_length
    if positions is None or prompt + completion <= positions:
        return
    halves = f"max_prompt_length={positions // 2} and max_completion_length={positions - positions // 2}"
    raise ConfigError(
        "max_completion_length",
        completion,
        f"at most {positions}, the model's positions, together with max_prompt_length={prompt}",
        f"set max_completion_length={positions - prompt}" if prompt < positions else f"set {halves}",
    )
