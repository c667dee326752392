"""The model card: what was trained, how, on what, with whose help, and how well, from the files of its run folder.

It reads a run folder and writes Markdown with the hub's metadata. It says nothing that the files do not say: what is
not known is left out, or said to be unknown. Text from settings and from models is escaped; see also `examples.py`.
"""

import html
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult as CardResult
from huggingface_hub import ModelCardData

from ..analysis.curves import TRAINING_REWARD, training_curves
from ..analysis.runs import GRPO, Group, Run, read_run
from ..errors import DataError
from ..evaluation import EvalResult
from ..evaluation.intervals import mean_interval
from ..evaluation.pass_at_k import pass_at_k
from .examples import example_markdown, find_examples
from .hub_names import is_hub_id, started_in

PAPER_TITLE = "MInTRL: Off-policy Intervention can boost On-policy RL"
CITATION = """\
@article{mintrl,
    title = {{MInTRL: Off-policy Intervention can boost On-policy RL}}
}"""
_TRL_CITATION = """\
@misc{trl,
    title = {{TRL: Transformer Reinforcement Learning}},
    author = {{Hugging Face}},
    howpublished = {\\url{https://github.com/huggingface/trl}}
}"""
CURVES = "learning_curves.png"
_UNKNOWN = "not known here; see the page of the model"


@dataclass(frozen=True)
class ModelFacts:
    """What the run folder does not say.

    Args:
        repo (`str`): Where the model goes: `name` or `owner/name`.
        base_model (`str`, *optional*): Hub id of the model that training began with.
        adapter (`bool`, *optional*, defaults to `False`): Whether the repository holds an adapter, and no model.
        license (`str`, *optional*): Of the trained model, as the hub names it.
        judge_license (`str`, *optional*): Of the judge model.
        dataset (`str`, *optional*): Hub id of the training data, where the settings do not name it.
        update (`int`, *optional*): The last update that made this model, where it is a checkpoint; what came after is
            not told. By default that of the run.
        examples (`int`, *optional*, defaults to 3): Rollouts to show.
        tags (`tuple[str, ...]`, *optional*): Of the hub, besides ours.
    """

    repo: str
    base_model: str | None = None
    adapter: bool = False
    license: str | None = None
    judge_license: str | None = None
    dataset: str | None = None
    update: int | None = None
    examples: int = 3
    tags: tuple[str, ...] = ()


def model_card(folder: str | Path, facts: ModelFacts) -> str:
    """Write the card of a run's model.

    Args:
        folder (`str` or `Path`): The run folder; its files may be there in part.
        facts ([`ModelFacts`]): What else is known.

    Returns:
        `str`: Markdown that begins with the hub's metadata.
    """
    folder = Path(folder)
    try:
        run = read_run(folder)
    except DataError:  # nothing was logged yet
        run = Run(folder, {}, ())
    whole = run.num_updates
    if facts.update is not None:
        run = replace(run, metrics=tuple(line for line in run.metrics if line["update"] <= facts.update))
    sections = [
        *_introduction(run, facts),
        *_use(facts),
        *_training(run, whole),
        *_judge(run, facts),
        *_data(run),
        *_results(run, facts),
        *_examples(run, facts),
        *_files(),
        *_citation(),
    ]
    return f"---\n{metadata(run, facts).to_yaml()}\n---\n\n" + "\n\n".join(sections) + "\n"


def metadata(run: Run, facts: ModelFacts) -> ModelCardData:
    """The card's metadata, in the form of `huggingface_hub`."""
    dataset = facts.dataset or run.settings.get("dataset")
    on_hub = isinstance(dataset, str) and is_hub_id(dataset, started_in(run.folder, run.settings)) and "/" in dataset
    results = [_card_result(run, *result) for result in _final_scores(run)]
    return ModelCardData(
        base_model=facts.base_model,
        datasets=[dataset] if on_hub else None,
        eval_results=results or None,
        model_name=facts.repo.rpartition("/")[2] if results else None,
        library_name="peft" if facts.adapter else "transformers",
        license=facts.license,
        pipeline_tag="text-generation",
        tags=[*dict.fromkeys(("trl", "mintrl", *facts.tags))],
    )


def code(value: Any) -> str:
    """A value as code in Markdown, on one line, whatever it holds."""
    text = " ".join(str(value).split())
    return f"<code>{html.escape(text)}</code>".replace("|", "&#124;").replace("\\", "&#92;").replace("`", "&#96;")


def _introduction(run: Run, facts: ModelFacts) -> Iterator[str]:
    name = facts.repo.rpartition("/")[2]
    yield f"# {html.escape(name)}"
    base = f"[{facts.base_model}](https://huggingface.co/{facts.base_model})" if facts.base_model else _local(run)
    what = "An adapter for" if facts.adapter else "A version of"
    yield (
        f"{what} {base}, trained with **{run.method if run.settings else 'mintrl_trl'}** by `mintrl_trl` on "
        "[TRL](https://github.com/huggingface/trl)."
    )
    if run.settings and _has_interventions(run):
        yield (
            "In MInTRL a judge reads what the policy writes, chunk by chunk; where a step is wrong it cuts there and "
            "writes a short correction, and the policy goes on by itself. The policy learns from such rollouts by "
            f"regression on their outcome rewards. See *{PAPER_TITLE}*."
        )


def _local(run: Run) -> str:
    """A model that began the run and is not on the hub; of its path the last part alone, which says whose it is not."""
    named = run.settings.get("model_name_or_path")
    if named:
        return f"the local model {code(Path(str(named)).name)}"
    return "the base model of the small world `chains`" if run.settings.get("task") == "chains" else "a local model"


def _use(facts: ModelFacts) -> Iterator[str]:
    yield "## Use"
    if facts.adapter:
        base = facts.base_model or "PATH_OF_THE_BASE_MODEL"
        lines = (
            "from peft import PeftModel",
            "from transformers import AutoModelForCausalLM, AutoTokenizer",
            "",
            f'model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained("{base}"), "{facts.repo}")',
        )
    else:
        lines = (
            "from transformers import AutoModelForCausalLM, AutoTokenizer",
            "",
            f'model = AutoModelForCausalLM.from_pretrained("{facts.repo}")',
        )
    code_lines = (*lines, f'tokenizer = AutoTokenizer.from_pretrained("{facts.repo}")')
    yield "```python\n" + "\n".join(code_lines) + "\n```"


def _training(run: Run, whole: int) -> Iterator[str]:
    settings = run.settings
    if not settings:
        return
    yield "## Training"
    rows: list[tuple[str, Any]] = [("Method", run.method)]
    first = min(settings.get("intervention_updates") or 0, run.num_updates)
    phases = f", of which {first} with interventions, then GRPO" if run.switch else ""
    part = f" of the {whole} of the run" if run.num_updates < whole else ""
    rows.append(("Updates", f"{run.num_updates}{part}{phases}"))
    group = f"{settings.get('num_control')} control"
    if _has_interventions(run):
        group += f" + {settings.get('num_intervened')} with interventions"
        rows.append(
            (
                "Interventions",
                f"at most {settings.get('max_reviews')} reviews of a rollout, after {settings.get('chunk_tokens')} "
                f"tokens each; corrections of at most {_counted(settings.get('correction_tokens'), 'token')}",
            )
        )
        rows.append(("Anchor", _anchor(settings)))
    if teacher := settings.get("teacher_model"):
        known = is_hub_id(str(teacher), started_in(run.folder, settings))
        name = teacher if known else Path(str(teacher)).name
        rows.append(("Teacher", f"{name}; its licence may say what may be done with a model that learned from it"))
    rows.append(("Rollouts of an update", f"{settings.get('prompts_per_update')} prompts x ({group})"))
    rows.append(("Response length", f"at most {settings.get('max_completion_length')} tokens"))
    if settings.get("use_peft"):
        rows.append(("Adapter", f"LoRA, rank {settings.get('lora_r')}, alpha {settings.get('lora_alpha')}"))
    rows.append(("Learning rate", f"{settings.get('learning_rate')}, {settings.get('lr_scheduler_type')}"))
    rows.append(("Seed", settings.get("seed")))
    if seconds := run.series("train_runtime"):
        rows.append(
            ("Time", f"{seconds[-1][1] / 3600:.1f} hours" if seconds[-1][1] > 5400 else f"{seconds[-1][1]:.0f} s")
        )
    yield _table(("", ""), ((name, code(value)) for name, value in rows))


def _anchor(settings: Mapping[str, Any]) -> str:
    kappa = f", kappa = {settings.get('kappa')} nats per token" if settings.get("anchor") == "const" else ""
    return f"{settings.get('anchor')}{kappa}"


def _has_interventions(run: Run) -> bool:
    settings = run.settings
    wanted = all(settings.get(name) for name in ("num_intervened", "max_reviews", "intervention_updates"))
    return bool(wanted) and run.method != GRPO


def _judge(run: Run, facts: ModelFacts) -> Iterator[str]:
    if not _has_interventions(run):
        return
    yield "## The judge"
    rows = [("Judge", judge_in_words(run.settings, facts.base_model))]
    model = judge_model(run.settings, facts.base_model)
    if model is not None:
        rows.append(("Its licence", code(facts.judge_license) if facts.judge_license else _UNKNOWN))
    shares = [value for _, value in run.series("off_policy_share")]
    written = sum(value for _, value in run.series("tokens/intervention"))
    sampled = sum(value for _, value in run.series("tokens/policy"))
    if shares:
        spread = f" ({shares[0]:.2%} in the first update, {shares[-1]:.2%} in the last with interventions)"
        rows.append(("Share of its tokens", f"{sum(shares) / len(shares):.2%} of rollouts with interventions{spread}"))
    if written + sampled:
        rows.append(("", f"{written / (written + sampled):.2%} of all rollouts' tokens ({written:,.0f} tokens)"))
    for label, name in (("Chunks it rejected", "judge/revise_rate"), ("Without verdict", "judge/no_verdict")):
        if values := [value for _, value in run.series(name)]:
            rows.append((label, f"{sum(values) / len(values):.1%}"))
    if cost := sum(value for _, value in run.series("judge/cost")):
        rows.append(("Its cost", f"{cost:,.2f}, at the prices in settings.json"))
    yield _table(("", ""), rows)
    if model is not None:
        yield (
            "The model was trained on text that this judge wrote. The judge's licence and terms of use may say what "
            "may be done with such a model."
        )


def judge_model(settings: Mapping[str, Any], base_model: str | None) -> str | None:
    """The model behind the judge; `None` where a program judged, or it is not known."""
    if settings.get("judge") == "self":
        return base_model
    return settings.get("judge_model") if settings.get("judge") in ("llm", "local") else None


def judge_in_words(settings: Mapping[str, Any], base_model: str | None) -> str:
    """Who judged."""
    model = judge_model(settings, base_model)
    kinds = {
        "llm": "behind an endpoint" if model else "a model behind an endpoint that does not name it",
        "self": "the initial policy itself, shown privileged context"
        if not model
        else "the initial policy, shown privileged context",
        "exact": "a program that checks steps exactly",
        "local": "in the training process" if model else "a model in the training process",
    }
    words = kinds.get(str(settings.get("judge")), "an object of the training program")
    variant = settings.get("judge_variant")
    words += f"; varied: {html.escape(str(variant))}" if variant not in (None, "none") else ""
    return f"{code(model)}, {words}" if model else words


def _data(run: Run) -> Iterator[str]:
    settings = run.settings
    if "task" not in settings:
        return
    yield "## Data"
    dataset = settings.get("dataset")
    if settings.get("task") == "chains":
        yield f"Problems drawn afresh from the small world `chains`, world {code(settings.get('world') or 'plain')}."
        return
    where = code(Path(str(dataset)).name)  # of a path, no more: it may say whose machine it is
    on_hub = isinstance(dataset, str) and is_hub_id(dataset, started_in(run.folder, settings))
    if on_hub and "/" in dataset:
        where = f"[{dataset}](https://huggingface.co/datasets/{dataset}), split {code(settings.get('dataset_split'))}"
    limit = settings.get("dataset_limit")
    yield f"{where}{f', the first {limit} rows' if limit else ''}; rewards of the task {code(settings.get('task'))}."


def _final_scores(run: Run) -> list[tuple[EvalResult, EvalResult, str | None, int]]:
    """First and last evaluation by subset and k."""
    results = {update: result for update, result in run.evaluations.items() if update <= run.num_updates}
    if len(results) < 2:
        return []
    before, after = results[min(results)], results[max(results)]
    most = min(problem.samples for result in (before, after) for problem in result.problems)
    return [(before, after, subset, k) for subset in (*after.subsets, None) for k in sorted({1, most})]


def _card_result(run: Run, before: EvalResult, after: EvalResult, subset: str | None, k: int) -> CardResult:
    name = f"{run.settings.get('task', 'evaluation')}, {subset or 'all'} problems"
    return CardResult(
        task_type="text-generation",
        dataset_type=str(run.settings.get("task", "evaluation")),
        dataset_name=name,
        dataset_config=subset or "all",  # results of one configuration would be put under one name
        metric_type=f"pass@{k}",
        metric_value=round(after.pass_at(k, subset), 4),
        metric_name=f"pass@{k}",
    )


def _results(run: Run, facts: ModelFacts) -> Iterator[str]:
    reward = training_curves([Group(run.method, (run,), run.method)], TRAINING_REWARD)
    scores = _final_scores(run)
    if not reward and not scores:
        return
    yield "## Results"
    if scores:
        updates = [update for update in run.evaluations if update <= run.num_updates]
        first, last = updates[0], updates[-1]
        rows = []
        for before, after, subset, k in scores:
            ends = mean_interval(
                [pass_at_k(one.samples, one.solved, k) for one in after.problems if subset in (None, one.subset)]
            )
            rows.append(
                (
                    f"pass@{k}, {code(subset or 'all')}",
                    f"{before.pass_at(k, subset):.1%}",
                    f"{after.pass_at(k, subset):.1%} ({100 * ends.low:.1f} to {ends.high:.1%})",
                )
            )
        problems, samples = len(scores[0][1].problems), min(p.samples for p in scores[0][1].problems)
        yield (
            f"The policy alone, without any judge, on the {problems} fixed problems of the evaluation, {samples} "
            f"samples each, after {first} and {_counted(last, 'update')}. In brackets stands the 95 % interval over "
            "problems."
        )
        yield _table(("", "before", "after"), rows)
    if (run.folder / CURVES).is_file():
        yield f"![learning curves]({CURVES})"
    if reward:
        first, last = (reward[0].points[place].smoothed for place in (0, -1))
        yield (
            f"Reward of control rollouts in training: {first:.3g} to {last:.3g}, as a trailing mean over the last "
            "twentieth of the updates."
        )
    yield "Commands that print the training's numbers from the files here, and that measure the model on new samples:"
    yield "```shell\n" + "\n".join(_commands(run, facts)) + "\n```"


def _commands(run: Run, facts: ModelFacts) -> Iterator[str]:
    folder = facts.repo.rpartition("/")[2]
    yield f"hf download {facts.repo if '/' in facts.repo else f'OWNER/{facts.repo}'} --local-dir {folder}"
    yield f"mintrl analyze {folder} --figures 3{' 4a' if run.evaluations else ''}"
    yield f"mintrl report {folder}"
    task = run.settings.get("task")
    benchmarks = {"chains": "chains --samples 16", "math": "math --data data/eval", "code": "code --data data/eval"}
    if task in benchmarks:
        yield f"mintrl eval {folder} --benchmarks {benchmarks[task]}"


def _examples(run: Run, facts: ModelFacts) -> Iterator[str]:
    examples = find_examples(run.folder, facts.examples, facts.update)
    if not examples:
        return
    yield "## Interventions"
    yield (
        "Rollouts of the training, shortened. Struck through is what the judge cut, with its reason in brackets; bold "
        "and underlined is what it wrote. The policy wrote the rest, and was trained on all of it by the reward."
    )
    yield from map(example_markdown, examples)


def _files() -> Iterator[str]:
    yield "## Files"
    yield (
        "`recipe.yaml`, where there is one, trains such a model again: `accelerate launch recipes/train_math.py "
        "--config recipe.yaml`. `settings.json` holds every resolved setting, `versions.json` the versions of all "
        "packages, `metrics.jsonl` the numbers of every update, `evaluations.jsonl` the counts of every evaluation."
    )


def _citation() -> Iterator[str]:
    yield "## Citation"
    yield f"```bibtex\n{CITATION}\n\n{_TRL_CITATION}\n```"


def _counted(number: Any, noun: str) -> str:
    """`1 token`, `2 tokens`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [" | ".join(("", *head, "")).strip(), "|" + " --- |" * len(head)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])
