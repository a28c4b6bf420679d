"""Which trainers and versions of TRL are supported, and what differs between them.

Nothing else has to know a version. Each function says since when TRL differs, and goes when the
oldest supported version is newer than that.
"""

from typing import Any

from packaging.version import Version

OLDEST = "1.6.0"
"""The first TRL that leaves completions without any reward out of their group's baseline, which
`exclude` rests on; `pyproject.toml` says the same."""
NEWEST_TESTED = "1.16"
WRAPPED_METHODS = ("_generate", "_calculate_rewards", "_generate_and_score_completions")


def check_supported(who: str, trainer: Any, remedy: str) -> None:
    """Refuse a trainer that is neither a GRPOTrainer nor an RLOOTrainer.

    The classes are looked up in `trl` at each call: Unsloth replaces them there.

    Raises:
        TypeError: naming what is supported.
        RuntimeError: under a TRL that is too old, or that lacks what is needed.
    """
    import trl

    if not isinstance(trainer, (trl.GRPOTrainer, trl.RLOOTrainer)):
        raise TypeError(
            f"{who} works with trl's GRPOTrainer, RLOOTrainer and their subclasses, got "
            f"{type(trainer).__name__}. {remedy}"
        )
    check_version(type(trainer))


def is_grpo(trainer: Any) -> bool:
    """Whether the loss is one of GRPO's rather than RLOO's."""
    import trl

    return isinstance(trainer, trl.GRPOTrainer)


def is_gmpo(trainer: Any) -> bool:
    """Whether the trainer is TRL's experimental GMPO, whose loss is a mean over rows (1.16)."""
    return any(base.__name__ == "GMPOTrainer" for base in type(trainer).__mro__)


def check_version(trainer_class: type) -> None:
    """Refuse a TRL that is too old, or whose trainer lacks a method that the guard wraps.

    Raises:
        RuntimeError: naming the version, what is wrong with it, and the remedy.
    """
    import trl

    if Version(trl.__version__) < Version(OLDEST):
        raise RuntimeError(
            f"truncation-guard needs TRL {OLDEST} or newer, found {trl.__version__}: that one "
            "counts a completion without a reward as one with reward 0. Run "
            f"`pip install 'trl>={OLDEST}'`."
        )
    missing = [name for name in WRAPPED_METHODS if not hasattr(trainer_class, name)]
    if missing:
        raise RuntimeError(
            f"truncation-guard cannot watch the {trainer_class.__name__} of TRL {trl.__version__}, "
            f"which has no {' and no '.join(missing)}. Run `pip install -U truncation-guard`, or, "
            f"where that does not help, `pip install 'trl~={NEWEST_TESTED}.0'`."
        )


def eos_token_ids(trainer: Any) -> list[int]:
    """The tokens that end a completion by TRL's rule: before 1.14.2 the tokenizer's eos alone."""
    if hasattr(trainer, "eos_token_ids"):
        return list(trainer.eos_token_ids)
    processor = trainer.processing_class
    return [getattr(processor, "tokenizer", processor).eos_token_id]


def uses_continuous_batching(trainer: Any) -> bool:
    """Whether transformers generates with continuous batching, called `paged` before TRL 1.7."""
    if hasattr(trainer, "use_transformers_continuous_batching"):
        return bool(trainer.use_transformers_continuous_batching)
    return bool(trainer.use_transformers_paged)


def unset_max_length() -> int | None:
    """The `max_length` of a generation config that nobody set: 20 before transformers 5."""
    from transformers import GenerationConfig

    length: int | None = GenerationConfig().max_length  # type: ignore[no-untyped-call]
    return length


def writes_prompts_itself(trainer: Any) -> bool:
    """Whether only a rollout shows the prompt: a `rollout_func`, or environments that extend it.

    RLOO has neither. TRL keeps factories of environments since 1.8, environments before.
    """
    environments = getattr(trainer, "environments", None)
    environments = getattr(trainer, "environment_factories", environments)
    return getattr(trainer, "rollout_func", None) is not None or environments is not None
