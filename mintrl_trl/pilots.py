"""Makes pilot rollouts, each kind in a folder of its own, and counts them.

Owns which folder holds what, and what its rollouts depend on. It chooses nothing and opens neither model nor judge.
Invariant: what is in a folder is not made again, and its name or header changes with whatever its rollouts depend on.

| folder | rollouts |
|---|---|
| `controls` | of the policy alone |
| `budgets/...` | with interventions, under each budget |
| `shadow/...` | controls again, reviewed without effect |
| `rescue/.../with`, `rescue/.../without` | continuations from where the judge cut |
| `first_errors/...` | whole solutions, each reviewed once |
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from rich.console import Console

from .calibration.judge_quality import Alarms, FirstErrors, Rescue, alarms, first_errors, rescue, rescue_cases
from .calibration.labelled import LabelledSolution, chains_solutions
from .calibration.pilot import Pilot, PilotFolder, measure
from .calibration.replay import Beginning, Beginnings, ShadowJudge
from .config import MInTRLConfig
from .data.chains import World
from .eval_models import EvalModel
from .evaluation.pass_at_k import SOLVED_ABOVE
from .evaluation.results import EvalProblem, EvalResult
from .evaluation.run import count, fill, policy_seed, problems_fingerprint, score
from .evaluation.sampling import Reviews
from .reporting.live import LiveProgress
from .reporting.run_folder import versions
from .rollouts.doors import Judge, PolicyGenerator
from .rollouts.rollout import Problem
from .rollouts.schedule import InterventionBudget
from .tasks import Task
from .training_rows import problem_of

if TYPE_CHECKING:
    from .calibrate import CalibrationSettings


@dataclass(frozen=True)
class PilotRollouts:
    """Everything that rollouts are made of.

    Args:
        settings ([`CalibrationSettings`]): How many.
        args ([`MInTRLConfig`]): The recipe's sampling and limits.
        model ([`EvalModel`]), generator ([`PolicyGenerator`]), judge ([`Judge`]): Who writes and who judges.
        rows (`Mapping`): Data rows by id.
        problems (`Sequence[EvalProblem]`): The same, rendered, in the same order.
        task ([`Task`]): Says what is right.
        console (`Console`): Where progress goes.
    """

    settings: "CalibrationSettings"
    args: MInTRLConfig
    model: EvalModel
    generator: PolicyGenerator
    judge: Judge
    rows: Mapping[str, Mapping[str, Any]] = field(repr=False)
    problems: Sequence[EvalProblem] = field(repr=False)
    task: Task = field(repr=False)
    console: Console = field(repr=False)

    def controls(self) -> tuple[PilotFolder, EvalResult]:
        """Rollouts of the policy alone, and their counts."""
        folder = self._folder("controls", self.problems, "controls")
        return folder, self._scored(folder, self.rows, self.settings.rollouts)

    def pilot(self, budget: InterventionBudget, controls: EvalResult, label: str) -> tuple[PilotFolder, Pilot]:
        """Rollouts with interventions, and what they do."""
        folder = self._folder(f"budgets/{_name(budget)}", self.problems, label, reviews=self._reviews(budget))
        own = self._scored(folder, self.rows, self.settings.rollouts)
        answers = {name: problem_of(row).answer for name, row in self.rows.items()}
        vocabulary = self.model.vocabulary
        return folder, measure(folder, budget, own, controls, answers=answers, vocabulary=vocabulary)

    @property
    def _shadowed(self) -> int:
        """Controls of each problem that are reviewed without effect."""
        share = self.settings.shadow_share
        return max(1, round(share * self.settings.rollouts)) if share else 0

    def alarms(self, controls: PilotFolder, budget: InterventionBudget) -> Alarms | None:
        """Objections of the judge to a share of the controls; `None` without a share."""
        if not self._shadowed:
            return None
        begun = {
            policy_seed(self.args.seed, *sample.key): Beginning(self._prompt_tokens[sample.problem], sample.ids)
            for sample in controls.samples()
        }
        folder = self._folder(
            f"shadow/{_name(budget)}",
            self.problems,
            "reviews without effect",
            reviews=self._reviews(budget, ShadowJudge(self.judge)),
            samples=self._shadowed,
            begun=begun,
        )
        rewards = controls.scores()
        solved = {key: (score.reward or 0.0) > SOLVED_ABOVE for key, score in rewards.items()}
        chosen = {key: rollout for key, rollout in folder.rollouts().items() if key[1] < self._shadowed}
        return alarms(chosen, solved)

    def rescue(self, folder: PilotFolder, budget: InterventionBudget) -> Rescue | None:
        """What corrections in a budget's rollouts are worth; `None` where there are none."""
        first = {key: rollout for key, rollout in folder.rollouts().items() if key[1] < self.settings.rollouts}
        cases = rescue_cases(first, self.settings.rescue_cases)
        if not cases:
            return None
        own = {problem.id: problem for problem in self.problems}
        problems = [
            EvalProblem(own[case.problem].prompt, own[case.problem].prompt_ids, own[case.problem].columns, id=case.id)
            for case in cases
        ]
        rows, results = {case.id: self.rows[case.problem] for case in cases}, []
        place = f"rescue/{_name(budget)}_{_digest(cases)}"
        for name, helped in (("without", False), ("with", True)):
            begun = {
                policy_seed(self.args.seed, case.id, number): Beginning(
                    self._prompt_tokens[case.problem], case.kept + (case.correction if helped else ())
                )
                for case in cases
                for number in range(self.settings.continuations)
            }
            samples, label = self.settings.continuations, f"{name} the correction"
            arm = self._folder(f"{place}/{name}", problems, label, samples=samples, begun=begun, budget=budget)
            results.append(self._scored(arm, rows, samples))
        return rescue(cases, *results)

    def first_errors(self, controls: PilotFolder, labelled: Sequence[LabelledSolution]) -> dict[str, FirstErrors]:
        """Whether the judge names first wrong steps: of the small world's controls, and of labelled solutions."""
        found = {}
        if "misconceived" in next(iter(self.rows.values())):  # the small world knows its first errors
            world = getattr(self.task.judge, "world", None) or World.load()
            responses = [
                (f"{sample.problem}#{sample.sample}", problem_of(self.rows[sample.problem]), sample.ids)
                for sample in controls.samples()
                if sample.sample < max(1, self._shadowed)
            ]
            found["chains"] = chains_solutions(world, sorted(responses), self.model.vocabulary)
        if labelled:
            found[self.settings.labelled.stem] = labelled
        return {name: self._reviewed(name, solutions) for name, solutions in found.items() if solutions}

    def _reviewed(self, name: str, solutions: Sequence[LabelledSolution]) -> FirstErrors:
        """Show the judge whole solutions, each once."""
        by_id = {solution.id: solution for solution in solutions}
        begun = {policy_seed(self.args.seed, one.id, 0): Beginning(1, one.ids) for one in solutions}
        longest = max(len(one.ids) for one in solutions)
        folder = self._folder(
            f"first_errors/{name}_{_digest(solutions)}",
            [EvalProblem(one.problem.question, one.ids[-1:], id=one.id) for one in solutions],
            f"solutions of {name}",
            reviews=self._reviews(InterventionBudget(longest, 1, 1, longest), ShadowJudge(self.judge)),
            samples=1,
            begun=begun,
            known=lambda problem: by_id[problem.id].problem,
        )
        rollouts = {key[0]: rollout for key, rollout in folder.rollouts().items()}
        return first_errors(solutions, rollouts, self.model.vocabulary)

    @property
    def _prompt_tokens(self) -> dict[str, int]:
        return {problem.id: len(problem.prompt_ids) for problem in self.problems}

    def _reviews(self, budget: InterventionBudget, judge: Judge | None = None) -> Reviews:
        options = self.args.sampler_settings()
        names = ("max_concurrent_reviews", "no_verdict_limit", "no_verdict_window", "review_timeout_seconds")
        own = {name: getattr(options, name) for name in (*names, "overlap_reviews")}
        return Reviews(self.judge if judge is None else judge, budget, own)

    def _folder(
        self,
        name: str,
        problems: Sequence[EvalProblem],
        label: str,
        *,
        reviews: Reviews | None = None,
        samples: int | None = None,
        begun: Mapping[int, Beginning] | None = None,
        budget: InterventionBudget | None = None,
        known: Callable[[EvalProblem], Problem] | None = None,
    ) -> PilotFolder:
        """A folder with all its rollouts."""
        folder, args = PilotFolder(self.settings.out / name), self.args
        samples = self.settings.rollouts if samples is None else samples
        budget = reviews.budget if reviews is not None else budget
        judge_settings = self.judge.settings() if hasattr(self.judge, "settings") else {}
        folder.begin(
            {
                "samples": samples,
                "model": {"label": self.model.label, "fingerprint": self.model.fingerprint},
                "problems": problems_fingerprint(problems),
                "sampling": {
                    "temperature": args.temperature,
                    "top_p": args.top_p,
                    "max_completion_length": args.max_completion_length,
                    "seed": args.seed,
                    "generator": args.generation,
                    "dtype": (args.model_init_kwargs or {}).get("dtype"),
                },
                "budget": None if budget is None else asdict(budget),
                "judge": None if reviews is None else {"name": args.judge, "model": args.judge_model} | judge_settings,
                "versions": versions(),
            }
        )

        def watch(progress: Callable[[], Any], there: int) -> AbstractContextManager:
            return LiveProgress(progress, label, console=self.console, time_left=True)

        counters = getattr(self.judge, "counters", None) if reviews is not None else None
        fill(
            folder,
            self.generator if begun is None else Beginnings(self.generator, begun),
            self.model.vocabulary,
            problems,
            num_samples=samples,
            max_completion_tokens=args.max_completion_length,
            seed=args.seed,
            max_concurrent_rollouts=args.max_concurrent_rollouts,
            watch=watch,
            reviews=reviews,
            problem_of=known or (lambda problem: problem_of({"prompt": problem.prompt, **problem.columns})),
            on_rollout=folder.recorder(counters or dict),
        )
        return folder

    def _scored(self, folder: PilotFolder, rows: Mapping[str, Mapping[str, Any]], samples: int) -> EvalResult:
        """The counts of a folder, by what training evaluates with."""
        with self.console.status(f"scoring {folder.path}"):
            score(folder, rows, self.task.evaluation_reward or self.task.reward)
        return count(folder, list(rows), samples)


def _name(budget: InterventionBudget) -> str:
    return f"chunk-{budget.chunk_tokens}_reviews-{budget.max_reviews}_correction-{budget.correction_tokens}"


def _digest(things: Sequence[Any]) -> str:
    return sha256(repr(things).encode("utf-8", "backslashreplace")).hexdigest()[:8]
