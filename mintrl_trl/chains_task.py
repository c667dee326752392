"""What a recipe of the small world trains on: fresh problems of its world, its reward, and its judge, good or bad.

It puts together what `data` and `judges` offer and contains no rule of the world itself. It loads no model; a judge
that needs one is a function that the trainer calls when its own model is there.
"""

import hashlib
from collections.abc import Callable
from functools import partial
from itertools import islice
from pathlib import Path

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM

from .checkpoint_state import bit_sums
from .config import MInTRLConfig
from .data.chains import (
    BOS_ID,
    EOS_ID,
    PAD_ID,
    TOKENS,
    WORLDS,
    World,
    base_model_path,
    chains_reward,
    encode,
    privileged_prompt_ids,
)
from .data.chains_rewards import format_reward, random_reward
from .errors import ConfigError
from .generation.local import LocalGenerator
from .judges.exact import ChainsJudge
from .judges.local import LikelihoodJudge
from .judges.teacher import THRESHOLD, TeacherJudge
from .recipe import RecipeArguments
from .rollouts.doors import Judge, PolicyGenerator
from .tasks import Task

_REWARDS = {"outcome": chains_reward, "format": format_reward, "random": random_reward}
_OF_THE_EXACT_JUDGE = ("judge_error_rate", "judge_value_error_rate", "judge_terse")


def chains_task(arguments: RecipeArguments, args: MInTRLConfig, model: str | None) -> Task:
    """The task of a recipe with `task: chains`.

    Args:
        arguments ([`RecipeArguments`]): Which world, reward and judge.
        args ([`MInTRLConfig`]): The trainer's settings; `max_steps` and the seed decide the rows.
        model (`str`, *optional*): The policy instead of the shipped base model.

    Raises:
        ConfigError: A setting that does not go with the small world.
    """
    if args.max_steps < 1:
        fix = "set `max_steps: 150`"
        raise ConfigError("max_steps", args.max_steps, "at least 1: the small world draws problems without end", fix)
    world = World.load(hard_counts=WORLDS[arguments.world])
    rows = Dataset.from_list(list(islice(world.training_rows(args.seed), args.max_steps * args.prompts_per_update)))
    half = arguments.eval_problems // 2
    return Task(
        model=model or str(base_model_path()),
        rows=rows,
        reward=_REWARDS[arguments.reward],
        judge=_judge(arguments, args, world),
        evaluation=world.evaluation_rows(arguments.eval_problems - half, half) if arguments.eval_problems else (),
        subset=lambda row: "hard" if row["misconceived"] else "easy",
        evaluation_reward=chains_reward,
    )


def _judge(
    arguments: RecipeArguments, args: MInTRLConfig, world: World
) -> Judge | Callable[[PolicyGenerator], Judge] | None:
    for name in _OF_THE_EXACT_JUDGE:
        if getattr(arguments, name) and args.judge != "exact":
            fix = f"remove `{name}`, or set `judge: exact`"
            allowed = "False" if getattr(arguments, name) is True else "0"
            raise ConfigError(name, getattr(arguments, name), f"{allowed} for `judge: {args.judge}`", fix)
    if args.judge == "exact":
        return ChainsJudge(
            world,
            arguments.judge_error_rate,
            value_error_rate=arguments.judge_value_error_rate,
            terse=arguments.judge_terse,
        )
    if args.judge == "self":
        if args.judge_keep_bias:
            allowed = "0 for `task: chains`, whose self-judge gives no replies"
            raise ConfigError(
                "judge_keep_bias", args.judge_keep_bias, allowed, "set `judge_likelihood_threshold: -3.6`"
            )
        threshold = args.judge_likelihood_threshold or world.privileged_threshold
        return partial(LikelihoodJudge, render_context=privileged_prompt_ids, threshold=threshold)
    if args.judge == "local" and args.needs_judge:
        if not args.judge_temperature:
            allowed = "above 0 for `judge: local`, whose corrections are sampled"
            raise ConfigError("judge_temperature", args.judge_temperature, allowed, "set `judge_temperature: 1.0`")
        folder, threshold = _teacher_folder(args), args.judge_likelihood_threshold or THRESHOLD
        return lambda policy: teacher_judge(folder, threshold, args.judge_temperature)
    if args.needs_judge:
        raise ConfigError("judge", args.judge, "exact, self or local for `task: chains`", "set `judge: exact`")
    return None


def _teacher_folder(args: MInTRLConfig) -> str:
    """The folder of the judge's model; a hub id would not know the small world."""
    if not (Path(args.judge_model) / "config.json").is_file():
        fix = "run `python scripts/train_chains_teacher.py` first, or name the folder of another model"
        raise ConfigError("judge_model", args.judge_model, "a folder with a model of the small world", fix)
    return args.judge_model


def teacher_judge(folder: str, threshold: float = THRESHOLD, temperature: float = 1.0) -> TeacherJudge:
    """The model in `folder` as judge. It solves problems itself, from the question alone.

    Args:
        folder (`str`): A model with the small world's tokens.
        threshold (`float`, *optional*, defaults to `THRESHOLD`): Log-probability of a step, in nats, below which it is
            rejected.
        temperature (`float`, *optional*, defaults to 1.0): Above 0; of verdicts and of corrections.

    Raises:
        ConfigError: The model has other tokens.
    """
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval().requires_grad_(False)
    if model.config.vocab_size != len(TOKENS):
        allowed = f"a model with the small world's {len(TOKENS)} tokens, not {model.config.vocab_size}"
        raise ConfigError("judge_model", folder, allowed, "name the folder of another model")
    generator = LocalGenerator(model, base_model=model, end_ids=(EOS_ID,), pad_id=PAD_ID, temperature=temperature)
    fingerprint = " ".join(map(str, bit_sums(model.parameters())))
    return TeacherJudge(
        generator,
        lambda problem: (BOS_ID, *encode(problem.question)),
        threshold=threshold,
        fingerprint=hashlib.blake2b(fingerprint.encode(), digest_size=16).hexdigest(),
    )
