"""What a repository holds: the card of a run's model, and a folder with the model, the card, the recipe and numbers.

It puts together what `card.py`, `recipe_file.py` and `folders.py` make, for a trainer and for the command line alike.
It opens no connection; who knows licences of the hub is passed in.
"""

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from huggingface_hub.errors import RepositoryNotFoundError

from ..checkpoints import ADAPTER
from ..export import merge_adapter
from .card import ModelFacts, judge_model, model_card
from .folders import CARD, RECIPE, gather
from .hub_names import is_hub_id, started_in
from .recipe_file import recipe_yaml, run_settings

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
        base_model (`str`, *optional*): The model that training began with, where no recipe names one of the hub's.
        licence_of (`Callable[[str], str | None]`): The licence of a model of the hub, if it can be known. Where it
            raises `RepositoryNotFoundError`, there is no such model, and none is named.
        license, judge_license (`str`, *optional*): Given by the user, and believed.

    Returns:
        `str`: Markdown.
    """
    settings, recipe = run_settings(run)
    began = started_in(run, settings)

    def looked_up(model: str | None) -> tuple[str | None, str | None]:
        """The model, if it is one of the hub's, and its licence."""
        try:
            return (model, licence_of(model)) if model and is_hub_id(model, began) else (None, None)
        except RepositoryNotFoundError:
            return None, None

    known = map(looked_up, (recipe.get("model_name_or_path"), base_model))
    base, licence = next((one for one in known if one[0] is not None), (None, None))
    _, judges = looked_up(judge_model(recipe | settings, base))
    facts = ModelFacts(
        repo=repo,
        base_model=base,
        adapter=adapter,
        license=license or licence,
        judge_license=judge_license or judges,
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
    until: int | None = None,
) -> Path:
    """Gather what is uploaded; where that fails, nothing stays of it.

    Args:
        target (`Path`): A folder that does not exist, or is empty.
        model, run, checkpoint, until: As for [`gather`].
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
            return gather(target, model=model, run=run, texts=texts, checkpoint=checkpoint, until=until)
        with tempfile.TemporaryDirectory(prefix=WAITING, dir=target.parent) as scratch:
            merged = merge_adapter(model, Path(scratch) / "merged", base=base)
            return gather(target, model=merged, run=run, texts=texts, checkpoint=checkpoint, until=until)
    except BaseException:
        shutil.rmtree(target, ignore_errors=True)
        raise
