"""What a repository holds: the card of a run's model, and a folder with the model, the card, the recipe and numbers.

It puts together what `card.py`, `recipe_file.py` and `folders.py` make, for a trainer and for the command line alike.
It opens no connection; who knows licences of the hub is passed in.
"""

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from ..export import merge_adapter
from .card import ModelFacts, is_hub_id, judge_model, model_card
from .folders import CARD, RECIPE, gather
from .recipe_file import recipe_yaml, run_settings

ADAPTER = "adapter_config.json"
WAITING = ".hub-"  # how the names of folders begin that wait to be uploaded


def card_of(
    run: Path,
    repo: str,
    *,
    adapter: bool,
    base_model: str | None,
    licence_of: Callable[[str], str | None],
    license: str | None = None,
    judge_license: str | None = None,
    dataset: str | None = None,
    update: int | None = None,
    examples: int = 3,
    tags: tuple[str, ...] = (),
) -> str:
    """The card of a run's model.

    Args:
        run (`Path`): The run folder.
        repo, adapter, dataset, update, examples, tags: As in [`ModelFacts`].
        base_model (`str`, *optional*): The model that training began with, where no recipe names it.
        licence_of (`Callable[[str], str | None]`): The licence of a model of the hub, if it can be known.
        license, judge_license (`str`, *optional*): Given by the user, and believed.

    Returns:
        `str`: Markdown.
    """
    settings, recipe = run_settings(run)
    named = recipe.get("model_name_or_path") or base_model
    base = named if named and is_hub_id(named) else None
    judge = judge_model(recipe | settings, base)

    def known(given: str | None, model: str | None) -> str | None:
        return given or (licence_of(model) if model and is_hub_id(model) else None)

    facts = ModelFacts(
        repo=repo,
        base_model=base,
        adapter=adapter,
        license=known(license, base),
        judge_license=known(judge_license, judge),
        dataset=dataset,
        update=update,
        examples=examples,
        tags=tags,
    )
    return model_card(run, facts)


def fill(
    target: Path,
    *,
    model: Path,
    run: Path,
    card: str | None,
    merge: bool = False,
    base: str | None = None,
    checkpoint: tuple[str, Path] | None = None,
) -> Path:
    """Gather what is uploaded; where that fails, nothing stays of it.

    Args:
        target (`Path`): A folder that does not exist, or is empty.
        model, run, checkpoint: As for [`gather`].
        card (`str`, *optional*): The card.
        merge (`bool`, *optional*, defaults to `False`): Merge an adapter into its base model; another model stays.
        base (`str`, *optional*): With `merge`, the base model, where the adapter's own word for it is missing.

    Returns:
        `Path`: `target`.
    """
    settings, recipe = run_settings(run)
    texts = {} if card is None else {CARD: card}
    if settings and recipe:
        texts[RECIPE] = recipe_yaml(settings, recipe)
    try:
        if not (merge and (model / ADAPTER).is_file()):
            return gather(target, model=model, run=run, texts=texts, checkpoint=checkpoint)
        with tempfile.TemporaryDirectory(prefix=WAITING, dir=target.parent) as scratch:
            merged = merge_adapter(model, Path(scratch) / "merged", base=base)
            return gather(target, model=merged, run=run, texts=texts, checkpoint=checkpoint)
    except BaseException:
        shutil.rmtree(target, ignore_errors=True)
        raise
