"""What the trainer refuses before a model loads, and what a judge may know of a row.

Checks the constructor's arguments and the data rows, drops prompts that do not fit, and turns a row into the judge's
`Problem`. It never changes a row.
"""

import difflib
import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from datasets import Dataset
from torch import nn
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from .config import MInTRLConfig
from .config_combinations import check_device, check_launch, check_trackers
from .errors import ConfigError, DataError
from .rollouts.rollout import Problem

logger = logging.getLogger(__name__)

_IMAGE_COLUMNS = ("image", "images")

_OWN_FOLDERS = (("models",), ("runs",))  # relative ones that hold models


def refuse_unsupported(
    *,
    model: Any,
    args: MInTRLConfig,
    reward_funcs: Any,
    reward_processing_classes: Any,
    peft_config: Any,
    datasets: Mapping[str, Any],
    processing_class: Any,
    tools: Any,
    rollout_func: Any,
    environment_factory: Any,
    judge: Any,
    generator: Any,
) -> None:
    """Refuse what MInTRL cannot train with, saying why.

    Raises:
        ConfigError: Names the argument, what was given, what is allowed and what to do instead.
    """
    if not isinstance(args, MInTRLConfig):
        raise ConfigError("args", type(args).__name__, "a MInTRLConfig", "build the arguments with MInTRLConfig(...)")
    check_launch(args, has_generator=generator is not None)
    check_trackers(args)
    if generator is None:
        check_device(args)
    one_turn = "None: a rollout is one response, written by the policy and the judge"
    if tools:
        raise ConfigError("tools", tools, one_turn, "leave tools out, or train with TRL's GRPOTrainer")
    if environment_factory is not None:
        raise ConfigError(
            "environment_factory", environment_factory, one_turn, "leave it out, or train with TRL's GRPOTrainer"
        )
    if rollout_func is not None:
        raise ConfigError(
            "rollout_func",
            rollout_func,
            "None: the intervention sampler makes the rollouts",
            "pass generator= (who continues token ids) and judge= instead",
        )
    _refuse_rewards(reward_funcs, reward_processing_classes, args)
    _refuse_adapter_dropout("peft_config", [peft_config])
    _refuse_adapter_dropout("model", getattr(model, "peft_config", {}).values())
    _refuse_adapter(model, peft_config, args)
    for name, dataset in datasets.items():
        _refuse_dataset(name, dataset)
    if processing_class is not None and not isinstance(processing_class, PreTrainedTokenizerBase):
        raise ConfigError(
            "processing_class",
            type(processing_class).__name__,
            "a tokenizer, because prompts are text only",
            "pass processing_class=processor.tokenizer",
        )
    if judge is not None and not callable(getattr(judge, "review", judge)):
        raise ConfigError(
            "judge",
            judge,
            "an object with `review` and `intervene`, or a function that makes one from the generator",
            "pass judge=LLMJudge(...), or set MInTRLConfig(judge=...) for a judge by name",
        )
    if args.needs_judge and judge is None and args.judge is None:
        raise ConfigError(
            "judge",
            None,
            "a judge object, a function that makes one from the generator, or a `judge` setting "
            "(llm, self, exact, local)",
            "pass judge=LLMJudge(...), or set judge_base_url and judge_model, or num_intervened=0 for no interventions",
        )


def _refuse_rewards(reward_funcs: Any, reward_processing_classes: Any, args: MInTRLConfig) -> None:
    """Refuse a missing reward, and lists beside the rewards that are of another length."""
    count = len(reward_funcs) if isinstance(reward_funcs, list) else int(reward_funcs is not None)
    if count == 0:
        raise ConfigError(
            "reward_funcs", reward_funcs, "a function, or a list of them", "pass reward_funcs=math_reward"
        )
    beside = {"reward_weights": args.reward_weights, "reward_processing_classes": reward_processing_classes}
    for name, values in beside.items():
        number = len(values) if isinstance(values, list | tuple) else count if values is None else 1
        if number != count:
            allowed = f"unset, or one for each of the {count} reward functions"
            raise ConfigError(name, values, allowed, f"remove {name}, or make it a list of length {count}")


def _refuse_adapter(model: Any, peft_config: Any, args: MInTRLConfig) -> None:
    """Refuse adapters that could not learn, and those that TRL's reference or the server would not find."""
    present = list(getattr(model, "peft_config", {}))
    if args.sync_ref_model and (present or peft_config is not None):
        allowed = "false with an adapter: its reference is the model without it, or as it was passed, and stays"
        raise ConfigError("sync_ref_model", True, allowed, "remove sync_ref_model, or train full weights")
    if not present:
        return
    if not any(weight.requires_grad for weight in model.parameters()):
        allowed = "an adapter that can be trained; all its weights are frozen"
        raise ConfigError("model", present, allowed, "pass is_trainable=True to PeftModel.from_pretrained")
    if "default" not in present and (args.beta != 0 or args.generation == "vllm"):
        allowed = "an adapter named 'default', which the reference of beta and the weight sync look for"
        raise ConfigError("model", present, allowed, "leave adapter_name out when the adapter is made or loaded")


def refuse_active_dropout(model: Any) -> None:
    """Refuse a loaded model that drops out in training: rollouts are sampled without, from another policy.

    Raises:
        ConfigError: Names the module and what to set.
    """
    for name, module in model.named_modules():
        if isinstance(module, nn.Dropout) and module.p > 0:
            allowed = f"true with this model: {name} drops out {module.p:.0%} in training, rollouts are sampled without"
            raise ConfigError("disable_dropout", False, allowed, "remove disable_dropout")
        for attribute, value in vars(module).items():
            if attribute.endswith("dropout") and isinstance(value, float) and value > 0:
                raise ConfigError(
                    "model",
                    f"{name}.{attribute}={value}",
                    "a model without dropout, because rollouts are sampled without",
                    f"load it with model_init_kwargs={{'{attribute}': 0.0}}, or from_pretrained(..., {attribute}=0.0)",
                )


def _refuse_adapter_dropout(kind: str, configs: Iterable[Any]) -> None:
    """Refuse adapters that drop out in training; PEFT calls it `lora_dropout`, `module_dropout`, `vera_dropout`, ..."""
    for config in configs:
        for name, value in (vars(config) if config is not None else {}).items():
            if name.endswith("dropout") and value:
                allowed = "0.0: rollouts are sampled without dropout, so training would be on another policy"
                raise ConfigError(f"{kind}.{name}", value, allowed, f"set {name}=0.0")


def _refuse_dataset(name: str, dataset: Any) -> None:
    """Refuse streams, images and whatever is not a `Dataset`; several are allowed for evaluation alone."""
    if isinstance(dataset, dict) and name == "train_dataset":
        splits = ", ".join(map(str, dataset)) or "none"
        raise ConfigError(name, f"splits {splits}", "one split, a datasets.Dataset", 'pass dataset["train"]')
    for part in dataset.values() if isinstance(dataset, dict) else [dataset]:
        if part is None:
            continue
        if not isinstance(part, Dataset):
            raise ConfigError(
                name,
                type(part).__name__,
                "a datasets.Dataset in memory or on disk: prompts are measured and groups are formed by position",
                "build one with Dataset.from_list(list(rows))",
            )
        images = [column for column in _IMAGE_COLUMNS if column in part.column_names]
        if images:
            fix = f"remove the column: dataset.remove_columns({images})"
            raise ConfigError(name, f"column {images[0]}", "text only", fix)


def check_rows(dataset: Dataset | Mapping[str, Dataset] | None, name: str) -> None:
    """Check what the trainer itself reads of each row: `prompt`, and the judge's columns where there are any.

    Args:
        dataset (`Dataset` or `Mapping[str, Dataset]`): The rows; of several data sets, each is checked.
        name (`str`): Name of the argument, for messages.

    Raises:
        ConfigError: There is no dataset, or it is empty.
        DataError: Names the row, the column, its value and what is allowed.
    """
    if isinstance(dataset, Mapping):
        for split, part in dataset.items():
            check_rows(part, f"{name}[{split!r}]")
        return
    if dataset is None or len(dataset) == 0:
        shown = None if dataset is None else "a dataset without rows"
        raise ConfigError(name, shown, "a dataset with at least one row", "pass rows with a `prompt` column")
    if "prompt" not in dataset.column_names:
        raise DataError(
            f"{name}, every row",
            "prompt",
            None,
            "text or a list of messages",
            f"rename the right one of the columns {dataset.column_names} to `prompt`",
        )
    columns = [c for c in ("question", "privileged_context") if c in dataset.column_names]
    for number, row in enumerate(dataset.select_columns(["prompt", *columns])):
        where = f"{name}, row {number}"
        _check_prompt(row["prompt"], where)
        for column in columns:
            if row[column] is not None and not isinstance(row[column], str):
                raise DataError(where, column, row[column], "text or None", "turn it into text")


def _check_prompt(prompt: Any, where: str) -> None:
    if isinstance(prompt, str) and prompt:
        return
    messages = "a list of messages with text in `role` and `content`, the last one not the assistant's"
    if not isinstance(prompt, list) or not prompt:
        raise DataError(where, "prompt", prompt, f"non-empty text or {messages}", "fill it in or drop the row")
    for message in prompt:
        ok = isinstance(message, dict) and all(isinstance(message.get(k), str) for k in ("role", "content"))
        if not ok:
            raise DataError(where, "prompt", message, messages, "give every message a `role` and a text `content`")
    if prompt[-1]["role"] == "assistant":
        raise DataError(where, "prompt", prompt[-1], messages, "end the prompt with the user's message")


def load_tokenizer(model: Any, args: MInTRLConfig) -> PreTrainedTokenizerBase:
    """The tokenizer that belongs to `model`, before the model itself loads.

    Raises:
        ConfigError: It cannot be loaded.
    """
    name = model if isinstance(model, str) else model.config._name_or_path
    revision = (args.model_init_kwargs or {}).get("revision")
    _refuse_misspelt_folder(name)
    try:
        return AutoTokenizer.from_pretrained(
            name,
            revision=revision,
            trust_remote_code=args.trust_remote_code,
            padding_side="left",
            truncation_side="left",
        )
    except (OSError, ValueError) as error:
        why = str(error).strip().partition("\n")[0]
        raise ConfigError(
            "model",
            name,
            f"a folder or hub id that holds a tokenizer ({why})",
            "correct the path or id (a recipe's model_name_or_path), or pass processing_class=",
        ) from error


def _refuse_misspelt_folder(name: str) -> None:
    """A path that can be no hub id, or is into a folder of ours, is not asked for at the hub, which takes long."""
    path, parts = Path(name), Path(name).parts
    is_path = path.is_absolute() or name.startswith((".", "~")) or len(parts) > 2 or parts[:1] in _OWN_FOLDERS
    if path.exists() or not is_path:
        return
    there = sorted(config.parent.name for config in path.parent.glob("*/config.json"))
    near = difflib.get_close_matches(path.name, there, 1, cutoff=0.4)
    fix = f"did you mean {str(path.parent / near[0])!r}" if near else "correct the path, or name a hub id"
    allowed = f"a folder that exists ({path.parent} holds {', '.join(there) or 'no model'})"
    raise ConfigError("model_name_or_path", name, allowed, fix)


def drop_long_rows(
    dataset: Dataset, tokenizer: PreTrainedTokenizerBase, args: MInTRLConfig, name: str = "train_dataset"
) -> tuple[Dataset, list[str]]:
    """Drop rows whose rendered prompt is longer than `max_prompt_length` tokens.

    Args:
        dataset (`Dataset`): Checked rows.
        tokenizer (`PreTrainedTokenizerBase`): The policy's tokenizer.
        args (`MInTRLConfig`): Settings.
        name (`str`, *optional*): Name of the argument, for messages.

    Returns:
        `tuple`: The rows that fit, and the ids (or row numbers) of those that do not.

    Raises:
        ConfigError: No row is left, or prompts are messages and the tokenizer has no chat template.
    """
    kwargs = args.chat_template_kwargs or {}
    if tokenizer.chat_template is None and not all(isinstance(prompt, str) for prompt in dataset["prompt"]):
        raise ConfigError(
            "processing_class",
            tokenizer.name_or_path or type(tokenizer).__name__,
            "a tokenizer with a chat template, because the prompts are messages",
            "train an instruct model, set tokenizer.chat_template, or give prompts as text",
        )

    def length(prompt: str | list[dict]) -> int:
        if isinstance(prompt, str):
            return len(tokenizer(text=prompt)["input_ids"])
        rendered = tokenizer.apply_chat_template(
            prompt, add_generation_prompt=True, tokenize=True, return_dict=True, **kwargs
        )
        return len(rendered["input_ids"])

    lengths = [length(prompt) for prompt in dataset["prompt"]]
    fits = [index for index, tokens in enumerate(lengths) if tokens <= args.max_prompt_length]
    if len(fits) == len(lengths):
        return dataset, []
    if not fits:
        raise ConfigError(
            "max_prompt_length",
            args.max_prompt_length,
            f"at least {min(lengths)}, the shortest prompt of {name} in tokens",
            "raise max_prompt_length or shorten the prompts",
        )
    kept = set(fits)
    ids = dataset["id"] if "id" in dataset.column_names else range(len(lengths))
    dropped = [str(row_id) for index, row_id in enumerate(ids) if index not in kept]
    logger.warning(
        "Dropped %d of %d rows of %s whose prompt is longer than max_prompt_length=%d tokens: %s%s",
        len(dropped),
        len(lengths),
        name,
        args.max_prompt_length,
        ", ".join(dropped[:10]),
        ", ..." if len(dropped) > 10 else "",
    )
    return dataset.select(fits), dropped


def drop_long_eval_rows(
    dataset: Dataset | Mapping[str, Dataset] | None, tokenizer: PreTrainedTokenizerBase, args: MInTRLConfig
) -> Dataset | dict[str, Dataset] | None:
    """[`drop_long_rows`] for evaluation, of one data set, of several by name, or of none."""
    if dataset is None:
        return None
    if isinstance(dataset, Mapping):
        return {k: drop_long_rows(part, tokenizer, args, f"eval_dataset[{k!r}]")[0] for k, part in dataset.items()}
    return drop_long_rows(dataset, tokenizer, args, "eval_dataset")[0]


def check_enough_rows(dataset: Dataset, dropped: int, args: MInTRLConfig) -> None:
    """Refuse fewer rows than the prompts of one generated batch: no update could be made of them.

    Args:
        dataset (`Dataset`): The rows that fit.
        dropped (`int`): How many were dropped because their prompts are too long.
        args (`MInTRLConfig`): Settings.

    Raises:
        ConfigError: Names both numbers.
    """
    rows, prompts, updates = len(dataset), args.prompts_per_update, args.updates_per_generation
    if rows >= prompts * updates:
        return
    fewer = f"prompts_per_update={max(1, rows // updates)}" + (
        " and updates_per_generation=1" if rows < updates else ""
    )
    raise ConfigError(
        "train_dataset",
        f"{rows} rows" + (f" ({dropped} more dropped for long prompts)" if dropped else ""),
        f"at least {prompts} x {updates} = {prompts * updates} rows: prompts_per_update x updates_per_generation",
        f"add rows, or set {fewer}",
    )


def problem_of(row: Mapping[str, Any]) -> Problem:
    """What a judge may know of a row: `question` (or the prompt's user text), `privileged_context`, `answer`."""
    question = row.get("question")
    if question is None:
        prompt = row["prompt"]
        texts = [prompt] if isinstance(prompt, str) else [m["content"] for m in prompt if m["role"] == "user"]
        question = "\n\n".join(texts)
    answer = row.get("answer")
    return Problem(
        question=question,
        privileged_context=row.get("privileged_context"),
        answer=answer if isinstance(answer, str) else None,
    )
