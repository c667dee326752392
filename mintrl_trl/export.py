"""Weights of a checkpoint in other forms: a plain Hugging Face folder, a merged adapter, bfloat16 in place.

It reads what `transformers`, PEFT and accelerate write and trains nothing. Invariants: an export appears under its name
when it is whole; a checkpoint that is cast in place can be read at any moment, since each file is replaced by rename
and any mixture of the two precisions loads.
"""

import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from .checkpoints import ADAPTER, SHARDS, list_checkpoints, plain_weights, read_checkpoint, replace_text, share_weights
from .errors import CheckpointError, ConfigError

DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}
_GATHER = ".gather-"  # how the names of folders begin in which shards are gathered
_SMALL = (".json", ".jinja", ".txt", ".model", ".md")
_WIDE = (torch.float32, torch.float64)


def export_checkpoint(
    checkpoint: str | Path, out: str | Path, *, dtype: str = "bfloat16", merge: bool = False, base: str | None = None
) -> Path:
    """Write a checkpoint's model and tokenizer as a plain folder, for `from_pretrained` or a server.

    Args:
        checkpoint (`str` or `Path`): Any complete checkpoint of a run: of all weights or of an adapter, sharded by FSDP
            or not, thinned or not.
        out (`str` or `Path`): The folder to make. It must not exist, or be empty.
        dtype (`str`, *optional*, defaults to `"bfloat16"`): `"bfloat16"` or `"float32"`.
        merge (`bool`, *optional*, defaults to `False`): Add an adapter to its base model and write a model of its own.
            Otherwise an adapter stays an adapter, which PEFT and vLLM load beside the base model.
        base (`str`, *optional*): With `merge`, hub id or folder of the base model, where the adapter's own word for it
            is missing or has moved.

    Returns:
        `Path`: The folder.

    Raises:
        CheckpointError: No such checkpoint, or it is half, or its weights are in no form that can be read here.
        ConfigError: `out` is taken, an unknown `dtype`, or something to merge that is no adapter or has no base.
    """
    checkpoint, out = Path(checkpoint), Path(out)
    if dtype not in DTYPES:
        raise ConfigError("dtype", dtype, " or ".join(map(repr, DTYPES)), "use 'bfloat16'")
    if out.is_file() or (out.is_dir() and any(out.iterdir())):
        raise ConfigError("out", str(out), "a folder that does not exist yet, or is empty", "name another")
    _check(checkpoint)
    if checkpoint.resolve() in out.resolve().parents:
        raise ConfigError("out", str(out), "a folder outside of the checkpoint", "name another")
    adapter = (checkpoint / ADAPTER).is_file()
    if not adapter and (merge or base):
        name, value = ("merge", True) if merge else ("base", base)
        raise ConfigError(name, value, "unset for a checkpoint of all weights", f"leave {name} out")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError("out", str(out), f"a folder that can be made ({error.strerror})", "name another") from error
    with tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent) as scratch:
        source, new = Path(scratch) / "source", Path(scratch) / "new"
        if (checkpoint / SHARDS).is_dir() and not plain_weights(checkpoint):
            _copy_small_files(checkpoint, source)
            _gather_shards(checkpoint, source)
        else:
            source = checkpoint
        if adapter and not merge:
            _copy_small_files(source, new, only=("README.md", ADAPTER, "tokenizer", "chat_template"))
            for file in plain_weights(source):
                _cast_file(file, new / file.relative_to(source), DTYPES[dtype])
        else:
            _write(_merged(source, base) if adapter else _load(source), source, new, dtype)
        share_weights(new)
        if out.is_dir():
            out.rmdir()
        new.rename(out)
    return out


def merge_adapter(source: Path, out: Path, *, dtype: str = "bfloat16", base: str | None = None) -> Path:
    """Write the model that an adapter and its base model make, with the adapter's tokenizer.

    Args:
        source (`Path`): Folder of the adapter.
        out (`Path`): The folder to make.
        dtype, base (`str`): As for [`export_checkpoint`].

    Returns:
        `Path`: `out`.

    Raises:
        ConfigError: The base model is not known, or cannot be loaded.
    """
    _write(_merged(source, base), source, out, dtype)
    return out


def cast_in_place(checkpoint: Path) -> None:
    """Make the weights of a checkpoint plain files in bfloat16, each replaced by rename.

    Weights that FSDP sharded are gathered into plain files first; the shards stay, for the caller to delete.
    """
    for left in checkpoint.glob(f"{_GATHER}*"):  # by a kill
        shutil.rmtree(left, ignore_errors=True)
    if (checkpoint / SHARDS).is_dir() and not plain_weights(checkpoint):
        with tempfile.TemporaryDirectory(prefix=_GATHER, dir=checkpoint) as scratch:
            for file in _gather_shards(checkpoint, Path(scratch)):
                _cast_file(file, checkpoint / file.name, torch.bfloat16)
    for file in plain_weights(checkpoint):
        _cast_file(file, file, torch.bfloat16)
    _say_bfloat16(checkpoint)
    share_weights(checkpoint)


def _check(checkpoint: Path) -> None:
    """Refuse what is no complete checkpoint with weights in a form known here."""
    found = read_checkpoint(checkpoint)
    if found is None:
        raise CheckpointError(f"{checkpoint} does not exist, or is no folder. Name a checkpoint-N folder of a run.")
    if found.mark is None and (whole := [other for other in list_checkpoints(checkpoint) if other.mark is not None]):
        raise CheckpointError(f"{checkpoint} is the folder of a run. Name one of its checkpoints: {whole[-1].path}.")
    if found.mark is None:
        raise CheckpointError(f"{checkpoint} {found.problem}. Name another checkpoint of the run.")
    if not plain_weights(checkpoint) and not (checkpoint / SHARDS).is_dir():
        raise CheckpointError(
            f"{checkpoint} holds its weights in pieces that only DeepSpeed reads: run `python zero_to_fp32.py . .` in "
            "it, or train with `zero3_save_16bit_model: true`."
        )


def _load(source: Path, dtype: torch.dtype | str = torch.float32, **options: str) -> torch.nn.Module:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(source, dtype=dtype, **options)


def _merged(source: Path, base: str | None) -> torch.nn.Module:
    """The base model with the adapter added to its weights, in float32."""
    from peft import PeftModel

    config = json.loads((source / ADAPTER).read_text(encoding="utf-8"))
    named = base or config.get("base_model_name_or_path")
    fix = "pass base=... (on the command line --base), a hub id or a folder"
    if not named:
        raise ConfigError("base", named, "the base model, which the adapter does not name", fix)
    options = {"revision": config["revision"]} if config.get("revision") and not base else {}
    try:
        model = _load(named, **options)
    except (OSError, ValueError) as error:
        why = str(error).strip().partition("\n")[0]
        raise ConfigError("base", named, f"a model that loads ({why})", fix) from error
    return PeftModel.from_pretrained(model, source).merge_and_unload()


def _write(model: torch.nn.Module, source: Path, out: Path, dtype: str) -> None:
    model.to(DTYPES[dtype]).save_pretrained(out)
    _save_tokenizer(source, out)


def _save_tokenizer(source: Path, out: Path) -> None:
    from transformers import AutoTokenizer

    AutoTokenizer.from_pretrained(source).save_pretrained(out)


def _copy_small_files(source: Path, out: Path, only: tuple[str, ...] = ()) -> None:
    """Copy the files beside the weights, or those whose names begin as in `only`."""
    out.mkdir(parents=True, exist_ok=True)
    for file in source.iterdir():
        wanted = file.is_file() and file.suffix in _SMALL and (not only or file.name.startswith(only))
        if wanted:
            shutil.copyfile(file, out / file.name)


def _gather_shards(checkpoint: Path, out: Path) -> list[Path]:
    """FSDP's shards as one file of tensors in `out`. Takes memory for all weights; needs no process group."""
    gathered = out / "gathered.pt"
    dcp_to_torch_save(checkpoint / SHARDS, gathered)
    tensors = torch.load(gathered, map_location="cpu", weights_only=True)
    tensors = tensors.get("model", tensors)
    gathered.unlink()
    name = "adapter_model.safetensors" if (checkpoint / ADAPTER).is_file() else "model.safetensors"
    save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, out / name, metadata={"format": "pt"})
    return [out / name]


def _cast_file(source: Path, target: Path, dtype: torch.dtype) -> None:
    """Write a file of tensors with its wide floats as `dtype`, by rename; narrower and whole numbers stay."""
    with safe_open(source, framework="pt") as file:
        metadata = file.metadata()
        tensors = {name: _cast(file.get_tensor(name), dtype) for name in file.keys()}  # noqa: SIM118 - not a dict
    target.parent.mkdir(parents=True, exist_ok=True)
    beside = target.with_name(f".{target.name}.new")
    save_file(tensors, beside, metadata=metadata)
    beside.replace(target)


def _cast(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    wanted = tensor.dtype in _WIDE if dtype is torch.bfloat16 else tensor.is_floating_point()
    return tensor.to(dtype) if wanted else tensor


def _say_bfloat16(checkpoint: Path) -> None:
    """Bring what the files beside the weights say about them up to date."""

    def narrow(config: dict) -> None:
        for key in ("dtype", "torch_dtype"):
            if config.get(key) in ("float32", "float64"):
                config[key] = "bfloat16"

    def measure(index: dict) -> None:
        index.setdefault("metadata", {})["total_size"] = sum(_tensor_bytes(file) for file in plain_weights(checkpoint))

    _edit(checkpoint / "config.json", narrow)
    _edit(checkpoint / "model.safetensors.index.json", measure)


def _edit(path: Path, change: Callable[[dict], None]) -> None:
    if path.is_file():
        content = json.loads(path.read_text(encoding="utf-8"))
        change(content)
        replace_text(path, json.dumps(content, indent=2, sort_keys=True) + "\n")


def _tensor_bytes(path: Path) -> int:
    with safe_open(path, framework="pt") as file:
        return sum(tensor.numel() * tensor.element_size() for tensor in map(file.get_tensor, file.keys()))
