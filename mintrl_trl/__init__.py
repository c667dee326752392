"""MInTRL on TRL: on-policy reinforcement learning with minimal off-policy interventions by a judge.

The public names, written by hand. What needs only the standard library is imported here; the rest is loaded on first
use, so that `import mintrl_trl` loads neither torch nor TRL nor an HTTP library.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from .errors import (
    CheckpointError,
    ConfigError,
    DataError,
    FailureLimitError,
    GenerationError,
    JudgeError,
    MemoryLimitError,
    MInTRLError,
    NoVerdict,
    NumericsError,
    PeerError,
    RewardError,
    VersionError,
)
from .rollouts.doors import (
    KEEP,
    Correction,
    Judge,
    Keep,
    PolicyGenerator,
    Revise,
    SampledToken,
    TokenText,
    Verdict,
    Vocabulary,
)
from .rollouts.rollout import Author, Problem, Role, Rollout, RolloutRequest, Span, StopReason

if TYPE_CHECKING:
    from .config import MInTRLConfig
    from .generation.local import LocalGenerator
    from .generation.vllm import VLLMGenerator
    from .judges.llm import ChatReply, LLMJudge
    from .judges.local import LikelihoodJudge, LocalJudge
    from .judges.public_tests import PublicTestsJudge
    from .rewards.code import code_reward
    from .rewards.math import math_reward
    from .trainer import MInTRLTrainer

__version__ = "0.1.0"

__all__ = [
    "KEEP",
    "Author",
    "ChatReply",
    "CheckpointError",
    "ConfigError",
    "Correction",
    "DataError",
    "FailureLimitError",
    "GenerationError",
    "Judge",
    "JudgeError",
    "Keep",
    "LLMJudge",
    "LikelihoodJudge",
    "LocalGenerator",
    "LocalJudge",
    "MInTRLConfig",
    "MInTRLError",
    "MInTRLTrainer",
    "MemoryLimitError",
    "NoVerdict",
    "NumericsError",
    "PeerError",
    "PolicyGenerator",
    "Problem",
    "PublicTestsJudge",
    "Revise",
    "RewardError",
    "Role",
    "Rollout",
    "RolloutRequest",
    "SampledToken",
    "Span",
    "StopReason",
    "TokenText",
    "VLLMGenerator",
    "Verdict",
    "VersionError",
    "Vocabulary",
    "__version__",
    "code_reward",
    "math_reward",
]

_ON_FIRST_USE = {
    "ChatReply": "judges.llm",
    "LLMJudge": "judges.llm",
    "LikelihoodJudge": "judges.local",
    "LocalGenerator": "generation.local",
    "LocalJudge": "judges.local",
    "MInTRLConfig": "config",
    "MInTRLTrainer": "trainer",
    "PublicTestsJudge": "judges.public_tests",
    "VLLMGenerator": "generation.vllm",
    "code_reward": "rewards.code",
    "math_reward": "rewards.math",
}


def __getattr__(name: str):
    if name not in _ON_FIRST_USE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{_ON_FIRST_USE[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
