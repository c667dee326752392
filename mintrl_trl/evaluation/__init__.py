"""How good the policy alone is: n samples of each problem, scored, as Pass@1 and Pass@k. No judge ever takes part."""

from .pass_at_k import pass_at_k
from .results import EvalProblem, EvalResult, ProblemResult
from .sampling import evaluate_policy, sample_responses
from .scoring import score_responses

__all__ = [
    "EvalProblem",
    "EvalResult",
    "ProblemResult",
    "evaluate_policy",
    "pass_at_k",
    "sample_responses",
    "score_responses",
]
