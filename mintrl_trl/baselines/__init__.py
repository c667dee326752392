"""Every method behind one entry point: MInTRL and what it is compared with.

[`build_trainer`] makes what a recipe trains with. Each method has a module here with a function `build(recipe, task)`;
what it returns has the methods and attributes that recipes, evaluation and reports use: `train`, `save_model`,
`close`, `add_callback`, `run_folder`, `accelerator`, `args`, `policy`, `processing_class`. Invariant: whatever the
method, the run folder holds the same files with the same names in them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..recipe import Recipe
    from ..tasks import Task

_MODULES = {
    "mintrl": "mintrl",
    "grpo": "mintrl",
    "sft_grpo": "sft_grpo",
    "opd": "opd",
    "opsd": "opsd",
    "mentor": "mentor",
}


def build_trainer(recipe: "Recipe", task: "Task") -> Any:
    """What trains, for the method that a recipe names.

    Args:
        recipe ([`Recipe`]): Its settings; `recipe.arguments.method` decides.
        task ([`Task`]): Rows, reward, judge and model.

    Raises:
        ConfigError: A setting that the method cannot follow.
        DataError: A row that the method cannot use.
    """
    module = import_module(f".{_MODULES[recipe.arguments.method]}", __package__)
    trainer = module.build(recipe, task)
    if trainer.run_folder is not None:  # on the main process
        trainer.run_folder.recipe = recipe.description()
    return trainer
