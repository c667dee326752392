"""Pass@k of the policy alone while it trains: before, every few updates, after.

It asks the trainer's own generator, never the judge, and writes scores and counts into the run folder. It changes no
weight. A run that goes on from a checkpoint reads back what was measured before and measures no update twice.
"""

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from accelerate.utils import broadcast_object_list
from rich.console import Console
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from .errors import ConfigError
from .evaluation import EvalProblem, EvalResult, ProblemResult, evaluate_policy
from .processes import all_or_none
from .signs_of_life import live_progress

if TYPE_CHECKING:
    from .recipe import RecipeArguments
    from .tasks import Task
    from .trainer import MInTRLTrainer


class PassAtKCallback(TrainerCallback):
    """Evaluate on a task's fixed problems.

    Args:
        trainer ([`MInTRLTrainer`]): Whose policy is evaluated.
        task ([`Task`]): Holds the problems and what is asked of an answer.
        arguments ([`RecipeArguments`]): `eval_samples` responses per problem, every `eval_every` updates, of
            `eval_max_completion_length` tokens at most.

    Raises:
        ConfigError: Problems and responses that the model, or its server, has no room for; before anything is trained.

    Attributes:
        results (`dict[int, EvalResult]`): Scores by number of updates done; empty without problems.
    """

    def __init__(self, trainer: "MInTRLTrainer", task: "Task", arguments: "RecipeArguments"):
        self.trainer, self.reward = trainer, task.evaluation_reward or task.reward
        self.console = Console(file=sys.stdout, highlight=False, soft_wrap=True)
        self.samples, self.every = arguments.eval_samples, arguments.eval_every
        self.max_length = arguments.eval_max_completion_length or trainer.args.max_completion_length
        self.problems = [
            EvalProblem.from_row(
                row,
                trainer.processing_class,
                subset=task.subset(row),
                chat_template_kwargs=trainer.args.chat_template_kwargs,
            )
            for row in task.evaluation
        ]
        with all_or_none():
            if self.problems and trainer.accelerator.is_main_process:
                self._check_room()
        self.results: dict[int, EvalResult] = {}
        self._evaluated: set[int] = set()  # of every process, as all take part in a sync of weights

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        measured = {}
        with all_or_none():
            if self.trainer.accelerator.is_main_process:
                measured = self._read_back()
        self.results = broadcast_object_list([measured])[0]
        self._evaluated = set(self.results)
        if not self._evaluated:
            self._evaluate(state)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if self.every and state.global_step % self.every == 0:
            self._evaluate(state)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._evaluate(state)

    def _evaluate(self, state: TrainerState) -> None:
        trainer, update = self.trainer, state.global_step
        if not self.problems or update in self._evaluated:
            return
        self._evaluated.add(update)
        trainer.policy.sync(trainer)
        with all_or_none():
            if trainer.accelerator.is_main_process:
                self._evaluate_here(update)

    def _evaluate_here(self, update: int) -> None:
        trainer = self.trainer
        label = f"evaluation after {update} update{'' if update == 1 else 's'}"
        with trainer.policy.generating(), trainer.door_counters.apart():
            result = evaluate_policy(
                trainer.policy.generator,
                trainer.policy.vocabulary,
                self.problems,
                self.reward,
                num_samples=self.samples,
                max_completion_tokens=self.max_length,
                run_seed=trainer.args.seed,
                update=update,
                watch=lambda sampler: live_progress(trainer, sampler.progress, label, time_left=True, noun="responses"),
            )
        self.results[update] = result
        self.console.print(f"{label}: {self._scores(result)}", markup=False)
        trainer.run_folder.append_metrics(update, result.metrics(ks=sorted({1, self.samples})))
        trainer.run_folder.append_evaluation(update, asdict(result))

    def _check_room(self) -> None:
        """Longer prompts or responses than training's find out here, and not in an evaluation, whether they fit."""
        args, generator = self.trainer.args, self.trainer.policy.generator
        longest = max(len(problem.prompt_ids) for problem in self.problems)
        positions = getattr(generator, "max_positions", None)
        if positions is not None and longest + self.max_length > positions:
            allowed = (
                f"at most {positions - longest}: the model has {positions} positions, the longest prompt {longest}"
            )
            fix = f"set `eval_max_completion_length: {max(positions - longest, 1)}`, or leave long problems out"
            raise ConfigError("eval_max_completion_length", self.max_length, allowed, fix)
        if self.trainer.policy.served is not None and (
            longest > args.max_prompt_length or self.max_length > args.max_completion_length
        ):
            generator.verify(
                max_prompt_length=longest,
                max_completion_length=self.max_length,
                wait_seconds=args.vllm_server_timeout,
            )

    def _read_back(self) -> dict[int, EvalResult]:
        """Evaluations of this run before it was interrupted."""
        return {
            line["update"]: EvalResult(tuple(ProblemResult(**problem) for problem in line["problems"]))
            for line in self.trainer.run_folder.evaluations()
        }

    def _scores(self, result: EvalResult) -> str:
        """Pass@1 and Pass@k of each subset, in words."""
        return ", ".join(
            " ".join(
                [subset or "all", *(f"pass@{k} {result.pass_at(k, subset):.1%}" for k in sorted({1, self.samples}))]
            )
            for subset in result.subsets or (None,)
        )
