"""Makes completions that are cut off at `max_completion_length` visible and harmless in TRL.

The names below are imported on first access, so that importing this package loads neither torch
nor transformers.
"""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from truncation_guard.batch.modes import guard_advantages
    from truncation_guard.batch.outcomes import detect_truncated
    from truncation_guard.callback import TruncationGuardCallback
    from truncation_guard.diagnosis.diagnose import Diagnosis, diagnose
    from truncation_guard.lengths.recommendation import LimitRecommendation
    from truncation_guard.lengths.sample import LengthSample, choose_max_completion_length
    from truncation_guard.profiling.dataset.profile_dataset import profile_dataset
    from truncation_guard.profiling.finished_run import profile_completions
    from truncation_guard.profiling.length_profile import LengthProfile
    from truncation_guard.profiling.limit_cost import LimitCost
    from truncation_guard.profiling.rollouts.profile_rollouts import profile_rollouts
    from truncation_guard.trainer.limit import set_max_completion_length

__version__ = version("truncation-guard")

__all__ = [
    "Diagnosis",
    "LengthProfile",
    "LengthSample",
    "LimitCost",
    "LimitRecommendation",
    "TruncationGuardCallback",
    "__version__",
    "choose_max_completion_length",
    "detect_truncated",
    "diagnose",
    "guard_advantages",
    "profile_completions",
    "profile_dataset",
    "profile_rollouts",
    "set_max_completion_length",
]

_MODULES = {
    "Diagnosis": "truncation_guard.diagnosis.diagnose",
    "LengthProfile": "truncation_guard.profiling.length_profile",
    "LengthSample": "truncation_guard.lengths.sample",
    "LimitCost": "truncation_guard.profiling.limit_cost",
    "LimitRecommendation": "truncation_guard.lengths.recommendation",
    "TruncationGuardCallback": "truncation_guard.callback",
    "choose_max_completion_length": "truncation_guard.lengths.sample",
    "detect_truncated": "truncation_guard.batch.outcomes",
    "diagnose": "truncation_guard.diagnosis.diagnose",
    "guard_advantages": "truncation_guard.batch.modes",
    "profile_completions": "truncation_guard.profiling.finished_run",
    "profile_dataset": "truncation_guard.profiling.dataset.profile_dataset",
    "profile_rollouts": "truncation_guard.profiling.rollouts.profile_rollouts",
    "set_max_completion_length": "truncation_guard.trainer.limit",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_MODULES[name]), name)
    value.__module__ = __name__
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
