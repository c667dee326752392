"""The claims: the paper's, and what a careful reader would ask. A declarative list; `claims.py` has the rules.

Hard problems are those that the base model gets wrong; Pass@1 of all problems stands for the paper's averages.
"""

from .claims import (
    ALIKE,
    NO_GAIN,
    SHARE,
    Claim,
    above_base,
    alike,
    all_of,
    falls,
    higher,
    higher_at_cost,
    not_above_base,
    not_higher,
    not_testable,
    peaks,
    peaks_within,
    ratio_within,
    within,
)

QUESTION = "question"
CONST, PROXY, GRPO = "table1/MInTRL-Const", "table1/MInTRL-Proxy", "table1/GRPO"
SFT_GRPO, OPD = "table1/SFT+GRPO", "table1/OPD"
OTHERS = (SFT_GRPO, OPD, "table1/MENTOR")
HARD_CONST, HARD_PROXY, HARD_GRPO = "harder/MInTRL-Const", "harder/MInTRL-Proxy", "harder/GRPO"
SELF = ("table2/MInTRL-Proxy, self judge", "table2/MInTRL-Const, self judge")
HARD_SELF = tuple(f"{name}, harder world" for name in SELF)
SAME_ANCHORS = (
    "with one step per batch and right corrections the anchors differ by a bonus of 0.01 on advantages near 1"
)
BY_MODEL = ("table4/MInTRL-Proxy, model as judge", "table4/MInTRL-Const, model as judge")
PERFECT, IMPERFECT = (
    tuple(f"figure6/{judge}, {size}" for size in ("1 x 1", "2 x 1", "4 x 1", "4 x 4", "4 x 16", "4 x 52"))
    for judge in ("perfect", "imperfect")
)
TERSE = (*PERFECT[:3], *(f"figure6/terse, {size}" for size in ("4 x 4", "4 x 16", "4 x 52")))
SEMI_GRPO = tuple(
    f"losses/semi-on-policy, GRPO{name}" for name in ("", ", masked", ", token weights", ", sequence weights")
)
NO_INTERVENTION = "figure6/no intervention"
UNTRUE = ("random reward", "format reward")
UNTRUE_REWARDS = tuple(f"questions/{name}, {reward}" for reward in UNTRUE for name in ("GRPO", "Proxy"))
UNTRUE_CONST = tuple(f"questions/Const, {reward}" for reward in UNTRUE)
UNTRUE_HARD_CONST = tuple(f"{name}, harder world" for name in UNTRUE_CONST)

PEAK_RULE = "the best arm beats both no intervention and the arm with the largest share, at 99 % with spreads pooled"
ALIKE_RULE = f"no difference in Pass@1 of all problems, and {100 * ALIKE:.0f} points ruled out"
NOT_HIGHER_RULE = f"no higher Pass@1 of all problems, and a gain of {100 * ALIKE:.0f} points ruled out"
NO_GAIN_RULE = (
    f"no arm above the base model in Pass@16 of hard problems, and a gain of {100 * NO_GAIN:.0f} points ruled out"
)

CLAIMS: tuple[Claim, ...] = (
    Claim("Table 1", "MInTRL-Const beats GRPO.", higher([CONST], [GRPO], "all@1"), "higher Pass@1 of all problems"),
    Claim("Table 1", "MInTRL-Proxy beats GRPO.", higher([PROXY], [GRPO], "all@1"), "higher Pass@1 of all problems"),
    Claim(
        "Table 1",
        "MInTRL-Const beats SFT+GRPO, OPD and MENTOR, too.",
        higher([CONST], OTHERS, "all@1"),
        "higher Pass@1 of all problems than each",
    ),
    Claim(
        "Table 1",
        "MInTRL-Const generally beats MInTRL-Proxy.",
        not_testable(SAME_ANCHORS, [CONST, PROXY]),
        "-",
    ),
    Claim(
        "Table 1, harder world",
        "MInTRL-Const generally beats MInTRL-Proxy.",
        higher([HARD_CONST], [HARD_PROXY], "all@1"),
        "higher Pass@1 of all problems",
    ),
    Claim(
        "Table 1, harder world",
        "Both variants of MInTRL beat GRPO.",
        higher([HARD_CONST, HARD_PROXY], [HARD_GRPO], "all@1"),
        "higher Pass@1 of all problems",
    ),
    Claim(
        "Table 1, harder world",
        "MInTRL-Const generally beats MInTRL-Proxy, with two optimizer steps per batch.",
        higher(["harder/MInTRL-Const, two steps per batch"], ["harder/MInTRL-Proxy, two steps per batch"], "all@1"),
        "higher Pass@1 of all problems",
    ),
    Claim(
        "Figure 4a",
        "Both variants beat GRPO at every k of Pass@k.",
        all_of({f"k = {k}": higher([CONST, PROXY], [GRPO], f"hard@{k}") for k in (1, 4, 16)}),
        "higher Pass@k of hard problems, for each k",
    ),
    Claim(
        "Lemma 3.3",
        "GRPO hardly learns what its own samples do not show.",
        within([GRPO], "hard@16", 0.0, 0.3),
        "Pass@16 of hard problems at most 30 %",
    ),
    Claim(
        "Figure 3a",
        "MInTRL reaches a higher training reward than GRPO and OPD.",
        higher([CONST, PROXY], [GRPO, OPD], "rewards/control:last"),
        "higher mean reward of control rollouts in the last fifth of the updates",
    ),
    Claim(
        "Figure 3a",
        "In the end MInTRL surpasses SFT+GRPO in training reward, too.",
        higher([CONST, PROXY], [SFT_GRPO], "rewards/control:last"),
        "higher mean reward of control rollouts in the last fifth of the updates",
    ),
    Claim(
        "Figure 3b",
        "MInTRL keeps longer responses.",
        not_testable("every right response has the same length here"),
        "-",
    ),
    Claim(
        "Figure 3c",
        "MInTRL keeps a higher entropy than GRPO and OPD.",
        higher([CONST, PROXY], [GRPO, OPD], "entropy/sample:last", share=False),
        "higher entropy per token in the last fifth of the updates",
    ),
    Claim(
        "Figure 4b",
        "Intervention tokens become likelier: the forward KL falls.",
        falls([CONST, PROXY], "intervention/nll"),
        "lower -log pi of intervention tokens in the last fifth of phase 1 than in the first, on every seed; the exact "
        "judge gives no log-probabilities, and a judge of one right answer has entropy 0",
    ),
    Claim(
        "Figure 4b",
        "Intervention tokens become likelier: the forward KL falls, with a model as judge.",
        falls(BY_MODEL, "intervention/kl"),
        "lower mean of log pi_JI - log pi over intervention tokens in the last fifth of phase 1 than in the first, on "
        "every seed",
    ),
    Claim(
        "Figure 4b",
        "The reward gap between semi-on-policy and on-policy rollouts narrows.",
        falls([CONST, PROXY], "reward_gap"),
        "smaller gap in the last fifth of phase 1 than in the first, on every seed",
    ),
    Claim(
        "Section 4.2",
        "Reliance on interventions falls.",
        falls([CONST, PROXY], "judge/interventions"),
        "fewer interventions per rollout in the last fifth of phase 1 than in the first, on every seed",
    ),
    Claim(
        "Figure 5",
        "MInTRL writes more words of reconsideration.",
        not_testable("the small world has no words"),
        "-",
    ),
    Claim(
        "Section 2.1",
        "Interventions are sparse: reviewed rollouts remain the policy's own but for a few tokens.",
        within([CONST, PROXY], SHARE, 0.001, 0.04),
        "a share of 0.1 to 4 %, the most at which the paper's gain peaks",
    ),
    Claim(
        "Figure 6",
        "MInTRL-Const gains most at moderate intensity, with a perfect judge.",
        peaks(PERFECT, NO_INTERVENTION, "all@1"),
        PEAK_RULE,
    ),
    Claim(
        "Figure 6",
        "MInTRL-Const gains most at moderate intensity, with an imperfect judge.",
        peaks(IMPERFECT, NO_INTERVENTION, "all@1"),
        PEAK_RULE,
    ),
    Claim(
        "Figure 6",
        "MInTRL-Const gains most at moderate intensity, with a judge whose words the policy cannot go on with.",
        peaks(TERSE, NO_INTERVENTION, "all@1"),
        PEAK_RULE,
    ),
    Claim(
        "Figure 6",
        "The peak lies at a share of 2 to 4 %.",
        all_of(
            {
                "imperfect": peaks_within(IMPERFECT, NO_INTERVENTION, "all@1", 0.02, 0.04),
                "terse": peaks_within(TERSE, NO_INTERVENTION, "all@1", 0.02, 0.04),
            }
        ),
        "the share of the best arm, where there is a peak",
    ),
    *(
        Claim(
            "Figure 6",
            f"Excessive intervention ends below none, with {words}.",
            higher([NO_INTERVENTION], arms[-1:], "all@1"),
            "higher Pass@1 of all problems without interventions than with four reviews and whole solutions",
        )
        for words, arms in (
            ("a perfect judge", PERFECT),
            ("an imperfect judge", IMPERFECT),
            ("a judge whose words the policy cannot go on with", TERSE),
        )
    ),
    Claim(
        "Figure 9",
        "A judge that errs in 15 % of its reviews still helps.",
        higher(["figure6/15 % of reviews wrong, 4 x 1"], [NO_INTERVENTION], "all@1"),
        "higher Pass@1 of all problems than without interventions",
    ),
    Claim(
        "Table 2",
        "With a self judge, both variants beat GRPO.",
        higher(SELF, ["table2/GRPO"], "all@1"),
        "higher Pass@1 of all problems",
    ),
    Claim(
        "Table 2",
        "With a self judge, both variants beat OPSD.",
        higher(SELF, ["table2/OPSD"], "all@1"),
        "higher Pass@1 of all problems",
    ),
    Claim(
        "Table 2",
        "With a self judge, MInTRL-Proxy beats MInTRL-Const.",
        not_testable(SAME_ANCHORS, SELF),
        "-",
    ),
    Claim(
        "Table 2, harder world",
        "With a self judge, MInTRL-Proxy beats MInTRL-Const.",
        higher(HARD_SELF[:1], HARD_SELF[1:], "all@1"),
        "higher Pass@1 of all problems",
    ),
    Claim(
        "Table 4",
        "With another judge, both variants beat GRPO and OPD.",
        higher(BY_MODEL, ["table4/GRPO", "table4/OPD"], "all@1"),
        "higher Pass@1 of all problems than each",
    ),
    Claim(
        "Section 5.3",
        "A stronger judge is not always better.",
        not_testable(
            "the exact judge writes one token and the model a line, so that more than strength differs",
            [PROXY, CONST, *BY_MODEL],
        ),
        "-",
    ),
    Claim(
        "Table 5",
        "The intervention phase takes MENTOR 2.50 to 3.45 times as long.",
        ratio_within("table5/MENTOR", "table5/MInTRL-Const", "step/seconds", 2.5, 3.45),
        "ratio of the seconds of all updates within that range; equal updates and rollouts, same expert",
    ),
    Claim(
        "Figure 10",
        "At equal wall-clock MInTRL is ahead of GRPO, trained for longer.",
        higher_at_cost([CONST, PROXY], GRPO, "all@1", "seconds"),
        "higher Pass@1 of all problems than GRPO's first evaluation that has taken as long",
    ),
    Claim(
        QUESTION,
        "MInTRL is ahead of GRPO at equal tokens, all that the judge reads and writes counted.",
        higher_at_cost([CONST, PROXY], GRPO, "all@1", "tokens"),
        "higher Pass@1 of all problems than GRPO's first evaluation that has cost as many",
    ),
    Claim(
        "Section 2.2",
        "On semi-on-policy rollouts the regression beats GRPO, plain, masked or with importance weights.",
        higher(["losses/MInTRL-Const"], SEMI_GRPO, "all@1"),
        "higher Pass@1 of all problems than each",
    ),
    Claim(
        QUESTION,
        "The gain is the rollouts': the regression on on-policy rollouts does not beat GRPO.",
        not_higher("losses/on-policy, regression", "losses/GRPO", "all@1"),
        NOT_HIGHER_RULE,
    ),
    Claim(
        "Section 2.3",
        "The baseline of controls alone beats that of all rollouts.",
        higher(["ablations/MInTRL-Const"], ["ablations/baseline of all rollouts"], "all@1"),
        "higher Pass@1 of all problems",
    ),
    Claim(
        "Section 2.3",
        "Ending interventions early beats keeping them to the end.",
        higher(["ablations/MInTRL-Const"], ["ablations/interventions to the end"], "all@1"),
        "higher Pass@1 of all problems",
    ),
    Claim(
        QUESTION,
        "Clearing the optimizer's state at the switch helps.",
        higher(["ablations/MInTRL-Const"], ["ablations/optimizer kept at the switch"], "all@1"),
        "higher Pass@1 of all problems",
    ),
    Claim(
        QUESTION,
        "It is not the reset of the optimizer: GRPO with one gains nothing.",
        not_higher("questions/GRPO, optimizer reset", "questions/GRPO", "all@1"),
        NOT_HIGHER_RULE,
    ),
    Claim(
        QUESTION,
        "It takes the correction: a cut alone does less.",
        higher(["questions/MInTRL-Const"], ["questions/placebo: cut, no correction"], "all@1"),
        "higher Pass@1 of all problems",
    ),
    Claim(
        QUESTION,
        "It takes the right place: a correction at a random step does less.",
        higher(["questions/MInTRL-Const"], ["questions/random cut"], "all@1"),
        "higher Pass@1 of all problems",
    ),
    Claim(
        QUESTION,
        "Without a true reward GRPO and MInTRL-Proxy learn nothing.",
        not_above_base(UNTRUE_REWARDS, "hard@16"),
        NO_GAIN_RULE,
    ),
    Claim(
        QUESTION,
        "Without a true reward MInTRL-Const learns nothing, either, with a bonus of a hundredth of an advantage.",
        not_above_base(UNTRUE_CONST, "hard@16"),
        NO_GAIN_RULE,
    ),
    Claim(
        QUESTION,
        "Without a true reward MInTRL-Const learns nothing in the harder world, where its bonus is a tenth to a third "
        "of an advantage: it does not imitate the judge.",
        not_above_base(UNTRUE_HARD_CONST, "hard@16"),
        NO_GAIN_RULE,
    ),
    Claim(
        QUESTION,
        "MInTRL-Const learns more than MInTRL-Proxy where few corrected rollouts are rewarded.",
        higher([HARD_CONST], [HARD_PROXY], "hard@1"),
        "higher Pass@1 of hard problems in the harder world",
    ),
    Claim(
        QUESTION,
        "Who gets the constant anchor's bonus does not matter.",
        alike("bonus/MInTRL-Const", "bonus/intervention tokens alone", "all@1"),
        ALIKE_RULE,
    ),
    Claim(
        QUESTION,
        "Withholding the bonus from rollouts that fail does not help.",
        not_higher("bonus/rewarded rollouts alone", "bonus/MInTRL-Const", "all@1"),
        NOT_HIGHER_RULE,
    ),
    Claim(
        QUESTION,
        "Every method improves on the base model.",
        above_base((GRPO, *OTHERS, PROXY, CONST), "all@1"),
        "higher Pass@1 of all problems after training than before, each",
    ),
)
