"""The experiments: which arms, on which seeds. A declarative list; it runs and judges nothing.

Arms that share all settings share their runs (see `cells.py`), so an experiment may list again what another one has.
"""

from dataclasses import replace

from .cells import Arm, Experiment, settings

THREE, TWO = (0, 1, 2), (0, 1)
# The intervention phase alone, and one update more: a run without phase 2 refuses settings of its loss.
PHASE_1 = settings(max_steps=91, intervention_updates=90, eval_every=0)
SIZES = ((1, 1), (2, 1), (4, 1), (4, 4), (4, 16), (4, 52))  # reviews x tokens of a correction
TWO_STEPS = settings(updates_per_generation=2)
# Of arms that are drawn as points, evaluations in between would cost a seventh of the time and be shown nowhere.
ENDS = settings(eval_every=0)

# The learning rate is constant and problems are fresh, so one long run is read off at several places: it may spend what
# the judge's reading costs, and MInTRL's wall-clock.
GRPO_UPDATES = 400
GRPO = Arm("GRPO", "chains_grpo", settings(max_steps=GRPO_UPDATES), at=150)
CONST, PROXY = Arm("MInTRL-Const", "quickstart"), Arm("MInTRL-Proxy", "chains_proxy")
OPD = Arm("OPD", "chains_opd")
OPSD = Arm("OPSD", "chains_opsd")
MENTOR = Arm("MENTOR", "chains_mentor")

# A world in which most corrected rollouts fail; see the recipe's head for why beta2 is larger there.
HARD_GRPO = Arm("GRPO", "chains_grpo", settings(world="hard"))
HARD_CONST, HARD_PROXY = Arm("MInTRL-Const", "chains_hard_const"), Arm("MInTRL-Proxy", "chains_hard_proxy")
SEMI_GRPO = {"phase1_loss": "grpo", "baseline": "pooled"}
BY_MODEL = Arm("MInTRL-Const, model as judge", "chains_teacher_judge")


def _hard(name: str, **changes: object) -> Arm:
    """MInTRL-Const in the harder world with something changed."""
    return Arm(name, "chains_hard_const", settings(**changes) + ENDS)


def _plain(name: str, recipe: str = "quickstart", **changes: object) -> Arm:
    """A method in the plain world with something changed."""
    return Arm(name, recipe, settings(**changes) + ENDS)


def _intensities(judge: str, sizes: tuple[tuple[int, int], ...] = SIZES, **changes: object) -> tuple[Arm, ...]:
    """From one review and one token to four reviews and whole solutions."""
    return tuple(
        _plain(f"{judge}, {reviews} x {tokens}", max_reviews=reviews, correction_tokens=tokens, **changes)
        for reviews, tokens in sizes
    )


EXPERIMENTS: tuple[Experiment, ...] = (
    Experiment(
        "table1",
        "Table 1: all methods",
        "Each method after 150 updates on the same problems, with the exact judge, or with a stronger small model as "
        "teacher and expert. GRPO's longer run is what others are compared with at equal cost.",
        (GRPO, Arm("SFT+GRPO", "chains_sft_grpo"), OPD, MENTOR, PROXY, CONST),
        THREE,
        quick=True,
    ),
    Experiment(
        "harder",
        "Table 1 in a harder world",
        "Three or four mistakes in a hard problem and two reviews, so that most corrected rollouts fail: there the "
        "anchors can differ. With two optimizer steps per batch the anchors regularize, too.",
        (
            HARD_GRPO,
            HARD_PROXY,
            HARD_CONST,
            Arm("MInTRL-Proxy, two steps per batch", "chains_hard_proxy", TWO_STEPS),
            Arm("MInTRL-Const, two steps per batch", "chains_hard_const", TWO_STEPS),
        ),
        TWO,
    ),
    Experiment(
        "table2",
        "Table 2: self judge",
        "The frozen base model judges and corrects, reading a reference solution that the policy does not see.",
        (
            GRPO,
            OPSD,
            Arm("MInTRL-Proxy, self judge", "chains_self_judge", settings(anchor="proxy")),
            Arm("MInTRL-Const, self judge", "chains_self_judge"),
            Arm("MInTRL-Proxy, self judge, harder world", "chains_hard_proxy", settings(judge="self")),
            Arm("MInTRL-Const, self judge, harder world", "chains_hard_const", settings(judge="self")),
        ),
        TWO,
        quick=True,
    ),
    Experiment(
        "table4",
        "Table 4: another judge",
        "A stronger small model judges and corrects, from the question alone.",
        (
            GRPO,
            OPD,
            Arm("MInTRL-Proxy, model as judge", "chains_teacher_judge", settings(anchor="proxy")),
            BY_MODEL,
        ),
        TWO,
    ),
    Experiment(
        "table5",
        "Table 5: cost against MENTOR",
        "The shared intervention phase alone: equal updates and rollouts, the same expert, no evaluation in between.",
        (
            Arm("MENTOR", "chains_mentor", PHASE_1),
            Arm("MInTRL-Const", "chains_teacher_judge", PHASE_1),
            Arm("MInTRL-Const, exact judge", "quickstart", PHASE_1),
        ),
        TWO,
    ),
    Experiment(
        "figure6",
        "Figure 6: off-policy intensity",
        "Reviews x tokens of a correction at most, with four judges: one that is perfect; one a fifth of whose values "
        "are wrong, so that longer corrections are wrong more often; a terse one, right in a form that the policy "
        "cannot go on with (of one token, that is the perfect one); and one whose reviews go wrong.",
        (
            _plain("no intervention", max_reviews=0),
            *_intensities("perfect", SIZES[:2]),
            replace(CONST, name="perfect, 4 x 1"),
            *_intensities("perfect", SIZES[3:]),
            *_intensities("imperfect", judge_value_error_rate=0.2),
            *_intensities("terse", SIZES[3:], judge_terse=True),
            _plain("15 % of reviews wrong, 4 x 1", judge_error_rate=0.15),
            _plain("30 % of reviews wrong, 4 x 1", judge_error_rate=0.3),
        ),
        TWO,
    ),
    Experiment(
        "ablations",
        "Ablations",
        "One setting of MInTRL-Const at a time, in the harder world; the judge's anchor, with a model as judge, in the "
        "plain one.",
        (
            HARD_CONST,
            _hard("baseline of all rollouts", baseline="pooled"),
            _hard("kappa -0.05", kappa=-0.05),
            _hard("kappa -1", kappa=-1.0),
            _hard("kappa -4", kappa=-4.0),
            _hard("beta2 0.001", beta2=1e-3, loss_scale=9.615),
            _hard("beta2 0.1", beta2=0.1, loss_scale=0.09615),
            _hard("optimizer kept at the switch", reset_optimizer_at_switch=False),
            _hard("30 updates of intervention", intervention_updates=30),
            _hard("interventions to the end", intervention_updates=150),
            BY_MODEL,
            _plain("anchor of the judge, model as judge", "chains_teacher_judge", anchor="judge"),
        ),
        TWO,
    ),
    Experiment(
        "losses",
        "Rollouts x loss",
        "On-policy or semi-on-policy rollouts in phase 1, trained with GRPO or with the regression; and GRPO with "
        "intervention tokens masked, or with truncated importance weights.",
        (
            GRPO,
            _plain("on-policy, regression", num_control=16, num_intervened=0),
            _plain("semi-on-policy, GRPO", **SEMI_GRPO),
            _plain("semi-on-policy, GRPO, control baseline", phase1_loss="grpo"),
            *(
                _plain(f"semi-on-policy, GRPO, {words}", **SEMI_GRPO, intervention_credit=credit)
                for words, credit in (
                    ("masked", "masked"),
                    ("token weights", "token_weights"),
                    ("sequence weights", "sequence_weights"),
                )
            ),
            CONST,
        ),
        TWO,
        quick=True,
    ),
    Experiment(
        "bonus",
        "The constant anchor's bonus",
        "Who gets what the constant anchor adds to an advantage, in the harder world.",
        (
            HARD_CONST,
            _hard("intervention tokens alone", const_bonus="tokens"),
            _hard("rewarded rollouts alone", const_bonus="successes"),
            _hard("a constant of equal mean", const_bonus="equal"),
            HARD_PROXY,
        ),
        TWO,
    ),
    Experiment(
        "questions",
        "What of an intervention helps",
        "The cut without the correction, the correction at a random place, the optimizer's reset without "
        "interventions, and rewards that say nothing: with the constant anchor's bonus as in the recipe, a hundredth "
        "of an advantage, and in the harder world, where it is as large as the paper's.",
        (
            CONST,
            _plain("placebo: cut, no correction", judge_variant="placebo"),
            _plain("random cut", judge_variant="random_cut"),
            _plain("GRPO, optimizer reset", "chains_grpo", reset_optimizer_at=90),
            GRPO,
            *(
                _plain(f"{name}, {reward} reward", recipe, reward=reward)
                for reward in ("random", "format")
                for name, recipe in (("GRPO", "chains_grpo"), ("Proxy", "chains_proxy"), ("Const", "quickstart"))
            ),
            *(_hard(f"Const, {reward} reward, harder world", reward=reward) for reward in ("random", "format")),
        ),
        TWO,
        quick=True,
    ),
)
