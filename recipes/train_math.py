"""Train a language model with MInTRL, or with what it is compared with (`--method`), from a recipe.

    accelerate launch recipes/train_math.py                                            # recipes/quickstart.yaml
    accelerate launch recipes/train_math.py --config recipes/gsm8k_smollm2.yaml --max_steps 3

`--config_file recipes/accelerate/one_process.yaml` after `launch` spares the launcher's remarks on its defaults.

A recipe is a YAML file of settings; flags on the command line win. All settings: `--help`.
"""

import logging
import sys
from pathlib import Path

import transformers

from mintrl_trl.errors import MInTRLError
from mintrl_trl.recipe import parse_recipe

HERE = Path(__file__).parent
QUICKSTART = HERE / "quickstart.yaml"


def main(default: Path = QUICKSTART, task: str = "math") -> None:
    # Settings: YAML, then flags
    recipe = parse_recipe(default=default, task=task)
    args = recipe.config

    # A folder that holds another run, or a checkpoint that is not there
    from mintrl_trl.resume import check_output_folder

    check_output_folder(args)

    # Rows, reward and judge. Each part is imported when what comes before is right: a mistake is answered sooner
    from mintrl_trl.tasks import build_task

    task = build_task(recipe)

    from mintrl_trl.baselines import build_trainer
    from mintrl_trl.pass_at_k_callback import PassAtKCallback
    from mintrl_trl.summary import Stopwatch, interruption, print_summary

    # Trainer: MInTRL, or what `method` names
    trainer = build_trainer(recipe, task)
    evaluation = PassAtKCallback(trainer, task, recipe.arguments)
    trainer.add_callback(evaluation)

    # Train
    try:
        with Stopwatch() as stopwatch:
            trainer.train()  # or goes on, with --resume_from_checkpoint
    except KeyboardInterrupt:
        trainer.close()
        sys.exit(interruption(args.output_dir))
    trainer.save_model(args.output_dir)
    trainer.close()

    # What came of it
    if trainer.accelerator.is_main_process:
        print_summary(args.output_dir, stopwatch, evaluation.results)


def run(default: Path = QUICKSTART, task: str = "math") -> None:
    """`main` as a program: an error of ours is one message on standard error, without a traceback.

    It exits with 75 where a server or the judge was away too long, so that the run can go on later; else with 1.
    """
    logging.basicConfig(format="%(message)s")
    logging.getLogger("mintrl_trl").setLevel(logging.INFO)
    transformers.logging.disable_progress_bar()
    try:
        main(default, task)
    except MInTRLError as error:
        print("\n".join([f"{type(error).__name__}: {error}", *getattr(error, "__notes__", ())]), file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    run()
