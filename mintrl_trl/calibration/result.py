"""All that a calibration found, as one value and as JSON. It computes nothing."""

import json
from dataclasses import asdict, dataclass

from ..evaluation.intervals import Interval
from ..rollouts.schedule import InterventionBudget
from .choice import Choice
from .judge_quality import Alarms, FirstErrors, Rescue
from .pilot import Pilot, pilot_json


@dataclass(frozen=True)
class Calibration:
    """What was found.

    Args:
        model, judge (`str`): Who wrote and who judged.
        problems, rollouts (`int`): Problems, and rollouts of each under each budget.
        controls (`Interval`): Share of right rollouts without interventions.
        pilots (`tuple[Pilot, ...]`): One per budget.
        choice ([`Choice`]): Which of them.
        judged (`InterventionBudget`): The budget under which the judge was measured: the chosen one, or the first.
        alarms ([`Alarms`], *optional*): Objections without effect.
        rescue ([`Rescue`], *optional*): What corrections are worth.
        first_errors (`dict[str, FirstErrors]`): By where the labelled solutions are from.
    """

    model: str
    judge: str
    problems: int
    rollouts: int
    controls: Interval
    pilots: tuple[Pilot, ...]
    choice: Choice
    judged: InterventionBudget
    alarms: Alarms | None
    rescue: Rescue | None
    first_errors: dict[str, FirstErrors]

    @property
    def measured_on(self) -> str:
        """Model, judge and problems, in words."""
        return f"{self.model} with judge {self.judge}, {self.problems} problems, {self.rollouts} rollouts each"

    def as_json(self) -> str:
        """All of it."""
        chosen = None if self.choice.pilot is None else asdict(self.choice.pilot.budget)
        plain = {name: getattr(self, name) for name in ("model", "judge", "problems", "rollouts")}
        quality = {name: getattr(self, name) for name in ("alarms", "rescue")}
        found = plain | {"controls": asdict(self.controls), "pilots": [pilot_json(pilot) for pilot in self.pilots]}
        found |= {"choice": {"budget": chosen, "why": self.choice.why}, "judged": asdict(self.judged)}
        found |= {name: None if value is None else asdict(value) for name, value in quality.items()}
        found["first_errors"] = {name: asdict(one) for name, one in self.first_errors.items()}
        return json.dumps(found, indent=2) + "\n"
