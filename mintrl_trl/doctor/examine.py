"""The order in which a recipe is examined: what costs nothing first, what needs something else after it.

Owns that order, and nothing that is looked at. Invariant: whatever goes wrong becomes a finding; a thing that cannot be
looked at because of another is left out.
"""

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from ..errors import MInTRLError
from ..recipe import parse_recipe, refused_keys
from .findings import Finding, ok, refused
from .judge import examine_judge
from .machine import examine_batch, examine_device, examine_disk
from .policy import Policy, examine_prompts, examine_rows, load_policy
from .servers import examine_servers


def examine(config: str | Path, settings: Sequence[str] = (), *, num_processes: int = 1) -> Iterator[Finding]:
    """Look at everything that the run of a recipe needs.

    Args:
        config (`str` or `Path`): The recipe.
        settings (`Sequence[str]`, *optional*): Flags that win over the file.
        num_processes (`int`, *optional*, defaults to 1): Processes that will train.

    Yields:
        [`Finding`]: As soon as it is made.
    """
    try:
        recipe = parse_recipe(["--config", str(config), *settings], default=Path(config))
    except MInTRLError as error:
        yield from _unread(error, Path(config), settings)
        return
    args = recipe.config
    yield ok("recipe", f"{config}: {recipe.arguments.task}, rollouts {args.generation}, judge {args.judge or 'none'}")
    yield from examine_device(args)
    yield from examine_batch(args, num_processes)
    policy: Policy | None = None
    try:
        policy = load_policy(recipe)
    except MInTRLError as error:
        yield refused("tokenizer", error)
        yield from examine_rows(recipe)
    if policy is not None:
        yield from examine_prompts(recipe, policy)
    yield from examine_disk(recipe, policy)
    flags = shlex.join(["--config", str(config), *settings])
    yield from examine_servers(recipe, policy, flags)
    yield from examine_judge(recipe, policy, flags)


def _unread(error: MInTRLError, config: Path, settings: Sequence[str]) -> Iterator[Finding]:
    """Why a recipe cannot be read, and which of its keys cannot be beside that: none follows from another."""
    yield refused("recipe", error)
    try:
        others = refused_keys(config, settings)
    except MInTRLError:
        return
    for other in others:
        if str(other) != str(error):
            yield refused("recipe", other)
