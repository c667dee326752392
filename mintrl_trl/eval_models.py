"""What a model to evaluate is, and how it is opened: a hub id, a folder, a checkpoint, or all checkpoints of a run.

Owns: telling these apart, the fingerprint of weights, the model in process, and bringing a checkpoint to vLLM servers.
It samples nothing and knows no benchmark. Invariants: everything that can be refused by files and questions is refused
before weights are read; the fingerprint of a model that was trained further differs.
"""

import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .checkpoints import ADAPTER, list_checkpoints, plain_weights, read_checkpoint
from .data.chains import base_model_path
from .errors import CheckpointError, ConfigError
from .generation.local import LocalGenerator
from .generation.server_sync import replaced_by
from .generation.servers import SeveralServers
from .generation.threads import fitting_threads
from .generation.vllm import VLLMGenerator
from .generation.vocabulary import TokenizerVocabulary
from .generation.weight_sync import CheckpointSync, LoRASync
from .rollouts.doors import PolicyGenerator

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedTokenizerBase

DTYPES = ("bfloat16", "float32")
CHAINS_BASE = "chains_base"  # in a model's place: the base model of the small world
_BLOCKS, _BLOCK_BYTES = 16, 1 << 20  # of each file of weights, as many pieces of this size are read for its fingerprint


@dataclass(frozen=True)
class EvalModel:
    """A model to evaluate.

    Args:
        label (`str`): How tables and folders name it.
        name (`str`): Hub id or folder, as `from_pretrained` takes it.
        run (`str`): Label of the run that it is a checkpoint of; empty for other models.
        update (`int`, *optional*): Of a checkpoint: optimizer steps taken.
    """

    label: str
    name: str
    run: str = ""
    update: int | None = None

    @property
    def slug(self) -> str:
        """Name of the folder that what is measured of it lies in."""
        return self.label.replace("/", "--")

    @cached_property
    def folder(self) -> Path | None:
        """Where its files are; `None` for a hub id."""
        return Path(self.name).resolve() if Path(self.name).is_dir() else None

    @cached_property
    def is_adapter(self) -> bool:
        """Whether it is an adapter, which needs its base model."""
        return self.folder is not None and (self.folder / ADAPTER).is_file()

    @cached_property
    def base(self) -> str:
        """Hub id or folder of the model whose configuration holds: its own name, or that of an adapter's base model.

        Raises:
            ConfigError: The adapter names none.
        """
        if not self.is_adapter:
            return self.name
        from peft import PeftConfig

        base = PeftConfig.from_pretrained(self.folder).base_model_name_or_path
        if not base:
            fix = "evaluate what `mintrl export --merge --base ...` makes of it"
            raise ConfigError("model", self.name, "an adapter that names its base model", fix)
        return base

    @cached_property
    def config(self) -> "PretrainedConfig":
        """Its configuration.

        Raises:
            ConfigError: There is no such model.
        """
        from transformers import AutoConfig

        return _loaded(AutoConfig, self.base)

    @cached_property
    def tokenizer(self) -> "PreTrainedTokenizerBase":
        """Its tokenizer: beside a checkpoint's weights, or the base model's.

        Raises:
            ConfigError: It has none, or none that spells its ids.
        """
        from transformers import AutoTokenizer

        own = self.folder is not None and (self.folder / "tokenizer_config.json").is_file()
        return _loaded(AutoTokenizer, self.name if own else self.base)

    @cached_property
    def vocabulary(self) -> TokenizerVocabulary:
        """What its ids spell, and which of them end a response: the tokenizer's end and those of its generation
        configuration, as TRL's trainer has it."""
        from transformers import GenerationConfig

        try:
            ends = GenerationConfig.from_pretrained(self.base).eos_token_id
        except OSError:
            ends = None
        ends = [ends] if isinstance(ends, int) else list(ends or ())
        own = self.tokenizer.eos_token_id
        ends = ends if own is None or own in ends else [own, *ends]
        if not ends:
            fix = "set eos_token in its tokenizer_config.json"
            raise ConfigError("model", self.name, "a model with a token that ends a response", fix)
        size = self.config.get_text_config().vocab_size
        return TokenizerVocabulary(self.tokenizer, end_ids=ends, size=size)

    @property
    def positions(self) -> int | None:
        """Room for prompt and response together, in tokens; `None` where the model has no limit."""
        return getattr(self.config.get_text_config(), "max_position_embeddings", None)

    @cached_property
    def fingerprint(self) -> str:
        """What its weights are, in 16 hexadecimal digits or as a commit of the hub. Large files are read in part."""
        if self.folder is None:
            return f"commit {getattr(self.config, '_commit_hash', None) or 'unknown'}"
        digest = sha256(self.base.encode() if self.is_adapter else b"")
        for file in plain_weights(self.folder):
            digest.update(f"{file.relative_to(self.folder).as_posix()},{file.stat().st_size}".encode())
            for block in _blocks(file):
                digest.update(block)
        return digest.hexdigest()[:16]


def find_models(names: Sequence[str]) -> list[EvalModel]:
    """Models by what a person writes.

    Args:
        names (`Sequence[str]`): Hub ids, folders of models or adapters, checkpoints, or run folders, which stand for
            all their whole checkpoints, oldest first. `chains_base` is the small world's base model.

    Raises:
        ConfigError: A folder that holds no model, or the same model twice.
        CheckpointError: A checkpoint that is half, or whose weights are in pieces.
    """
    models = [model for name in names for model in _models_of(name)]
    labels = [model.label for model in models]
    for label in labels:
        if labels.count(label) > 1:
            raise ConfigError("model", label, "each model once, under a name of its own", "leave one of them out")
    return models


def holds_models(name: str) -> bool:
    """Whether a folder is one that [`find_models`] finds models in, whatever else lies there."""
    path = Path(name)
    return path.is_dir() and bool(plain_weights(path) or any(one.mark is not None for one in list_checkpoints(path)))


@contextmanager
def local_generator(
    model: EvalModel,
    *,
    temperature: float,
    max_batch: int,
    dtype: str | None = None,
    device: str | None = None,
    serves_base: bool = False,
) -> Iterator[LocalGenerator]:
    """The model in this process, for as long as the block lasts; on a CPU a small one computes with one thread.

    Args:
        model ([`EvalModel`]): Which.
        temperature (`float`): Above 0.
        max_batch (`int`): Responses decoded together.
        dtype (`str`, *optional*): `"bfloat16"` or `"float32"`; by default bfloat16 on a GPU and float32 on CPU.
        device (`str`, *optional*): By default the GPU where there is one.
        serves_base (`bool`, *optional*, defaults to `False`): Whether it is its own frozen base model, too, for a
            self-judge.
    """
    import torch
    from transformers import AutoModelForCausalLM

    device = device or default_device()
    dtype = dtype or default_dtype(device)
    vocabulary = model.vocabulary
    loaded = _loaded(AutoModelForCausalLM, model.base, dtype=getattr(torch, dtype))
    if model.is_adapter:
        from peft import PeftModel

        loaded = PeftModel.from_pretrained(loaded, model.folder)
    loaded = loaded.eval().to(device)
    with fitting_threads(loaded):
        generator = LocalGenerator(
            loaded,
            end_ids=vocabulary.end_ids,
            pad_id=model.tokenizer.pad_token_id or 0,
            temperature=temperature,
            max_batch=max_batch,
            base_model=loaded if serves_base else None,
        )
        try:
            with generator.active():
                yield generator
        finally:
            generator.close()


def default_device() -> str:
    """Where a model runs in process if nothing is said: `"cuda"`, or `"cpu"` without a GPU."""
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def default_dtype(device: str) -> str:
    """In what a model computes there if nothing is said."""
    return "float32" if device == "cpu" else "bfloat16"


class Servers:
    """vLLM servers that models are sampled on, one after the other.

    A model that the servers were started with is used as it is. The weights of any other model in a folder are brought
    to them: an adapter beside the base model, full weights in place of those there.

    Args:
        urls (`Sequence[str]`): Addresses, with or without `/v1`.
        served_name (`str`, *optional*): The name to ask for, where it is not the model's.
        wait_seconds (`float`): How long to wait for a server that is starting.
        **sampling: `temperature`, `top_p` and `max_concurrency` of [`VLLMGenerator`].
    """

    def __init__(
        self, urls: Sequence[str], served_name: str | None = None, wait_seconds: float = 240.0, **sampling: Any
    ):
        self.urls, self.served_name, self.wait_seconds, self.sampling = urls, served_name, wait_seconds, sampling
        self._run_id = uuid.uuid4().hex[:8]

    @contextmanager
    def generator(self, model: EvalModel, max_prompt_length: int, max_completion_length: int) -> Iterator[Any]:
        """Have the servers serve a model, for as long as the block lasts.

        Raises:
            ConfigError: They serve other models and this one cannot be brought, or they have too little room.
            GenerationError: A server cannot be reached, or refuses the weights.
        """
        generators = [self._on(url, model) for url in self.urls]
        both: PolicyGenerator = generators[0] if len(generators) == 1 else SeveralServers(generators)
        try:
            for generator in generators:
                generator.verify(
                    max_prompt_length=max_prompt_length,
                    max_completion_length=max_completion_length,
                    wait_seconds=self.wait_seconds,
                )
            yield both
        finally:
            both.close()

    def _on(self, url: str, model: EvalModel) -> VLLMGenerator:
        vocabulary = model.vocabulary
        options = {"end_ids": vocabulary.end_ids, "vocabulary_size": vocabulary.size} | self.sampling
        generator = VLLMGenerator(url, self.served_name or model.name, **options)
        generator.control.wait_until_ready(self.wait_seconds)
        cards = generator.control.models(seconds=generator.silence_seconds)
        if generator.model not in cards:
            if self.served_name is not None or model.folder is None:
                allowed = f"what {generator.control.root} serves: {', '.join(map(repr, cards)) or 'nothing'}"
                fix = f"start it with --model {model.name}, or name what it serves with --served-name"
                raise ConfigError("base_url", url, allowed, fix)
            generator.model = self._bring(url, model)
        elif (version := replaced_by(generator.control, seconds=generator.silence_seconds)) is not None:
            if self.served_name is not None or model.folder is None:
                allowed = f"a server with the weights it was started with; {generator.control.root} has {version!r}"
                raise ConfigError("base_url", url, allowed, "restart the server")
            generator.model = self._bring(url, model)
        generator.use_weights(model.slug)
        return generator

    def _bring(self, url: str, model: EvalModel) -> str:
        """Have a server load a model from its folder; returns the name it serves it by."""
        kind = LoRASync if model.is_adapter else CheckpointSync
        options = {} if model.is_adapter else {"tied_weights": bool(model.config.get_text_config().tie_word_embeddings)}
        sync = kind(url, model.folder.parent, run_id=self._run_id, **options)
        return sync.load(f"{model.folder.name}-{model.fingerprint}", model.folder)


def _models_of(name: str) -> Iterator[EvalModel]:
    path = Path(name)
    if not path.exists() and name == CHAINS_BASE:
        path = base_model_path()
        name = str(path)
    if not path.is_dir():
        if path.is_absolute() or name.startswith(("./", "../", "runs/", "models/")) or name.count("/") > 1:
            raise ConfigError("model", name, "a hub id, a folder of a model, a checkpoint or a run", "check the path")
        if "/" not in name:  # the hub would be asked again and again
            allowed = f"a folder, a hub id with its owner such as Qwen/Qwen3-1.7B, or {CHAINS_BASE}, the small world's"
            raise ConfigError("model", name, allowed, "correct the name")
        yield EvalModel(name, name)
        return
    checkpoints = [one for one in list_checkpoints(path) if one.mark is not None]
    if checkpoints:
        run = path.resolve().name
        for one in checkpoints:
            _check_weights(one.path)
            yield EvalModel(f"{run}/{one.path.name}", str(one.path), run, one.update)
        return
    found = read_checkpoint(path)
    if found.mark is not None:
        _check_weights(path)
        run = path.resolve().parent.name
        yield EvalModel(f"{run}/{path.resolve().name}", name, run, found.update)
        return
    if not plain_weights(path):
        allowed = "a folder with weights (model*.safetensors, adapter_model.safetensors) or with complete checkpoints"
        raise ConfigError("model", name, allowed, "name a checkpoint-N folder, or what `mintrl export` made")
    yield EvalModel(path.resolve().name, name)


def _check_weights(path: Path) -> None:
    if not plain_weights(path):
        fix = f"Make a plain folder of it first: mintrl export {path} models/{path.resolve().parent.name}-{path.name}"
        raise CheckpointError(f"{path} holds its weights in pieces. {fix}")


def _loaded(kind: Any, name: str, **options: Any) -> Any:
    from safetensors import SafetensorError

    try:
        return kind.from_pretrained(name, **options)
    except (OSError, ValueError, SafetensorError) as error:
        why = str(error).strip().partition("\n")[0]
        raise ConfigError("model", name, f"a folder or hub id that loads ({why})", "correct the path or id") from error


def _blocks(file: Path) -> Iterator[bytes]:
    """Pieces of a file, evenly spaced, its first and last among them; all of a small one."""
    size = file.stat().st_size
    with open(file, "rb") as opened:
        if size <= _BLOCKS * _BLOCK_BYTES:
            yield opened.read()
            return
        for number in range(_BLOCKS):
            opened.seek((size - _BLOCK_BYTES) * number // (_BLOCKS - 1))
            yield opened.read(_BLOCK_BYTES)
