"""The way into a trainer of TRL: find it, and wrap its rollout methods.

A `TrainerCallback` is never given its trainer, and no event fires between a rollout and its
advantages. So the guard finds the trainer among the callers of the callback and wraps three of its
methods, on the instance. Read in TRL 1.16 and transformers 5.24; in a new version, check the names
that begin with an underscore.
"""

import copy
import inspect
import weakref
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol

from torch import Tensor

from truncation_guard.batch.counts import BatchCounts
from truncation_guard.marks_for_tests import outside_barrier, unswept
from truncation_guard.options import GuardOptions
from truncation_guard.trainer.limit import tool_budget
from truncation_guard.trainer.versions import WRAPPED_METHODS, check_supported, is_gmpo, is_grpo


class RolloutStages(Protocol):
    """What the wrapped methods call, in this order. None of it may raise."""

    def begin(self, trainer: Any) -> None:
        """A generation batch is about to be made."""

    def generated(self, trainer: Any, prompts: Sequence[Any], generated: tuple[Any, ...]) -> None:
        """TRL's `_generate` has returned `generated` for `prompts`."""

    def rewarded(self, trainer: Any, rewards: Tensor) -> Tensor:
        """Return the rewards, (rows of all processes, reward functions), that TRL goes on with."""

    def scored(
        self, trainer: Any, output: dict[str, Any]
    ) -> tuple[dict[str, Any], BatchCounts | None]:
        """Return the batch that TRL goes on with, and its counts."""


class RolloutListener(ABC):
    """A callback that wants to see the rollouts."""

    @abstractmethod
    def rollout_stages(self, trainer: Any) -> RolloutStages:
        """The stages that the wrapped methods of `trainer` call."""

    @abstractmethod
    def batch_counted(self, trainer: Any, counts: BatchCounts) -> None:
        """Take in the counts of a generation batch. Raises nothing."""


class _WrappedMethod:
    """A bound method of one trainer with the listener's part around it.

    The listener is looked up at each call: `remove_callback` switches it off, and a resume that
    replaces the callback object needs nothing.
    """

    def __init__(self, trainer: Any, name: str) -> None:
        # A strong reference would keep the trainer, and its model, until the next collection.
        self._trainer = weakref.ref(trainer)
        self._name = name
        replaced = vars(trainer).get(name)  # a wrapper of ours is that of a trainer it is a copy of
        self._replaced = None if isinstance(replaced, _WrappedMethod) else replaced

    @unswept  # for users who copy a trainer
    def __deepcopy__(self, memo: dict[int, Any]) -> "_WrappedMethod":
        """That of the copied trainer."""
        trainer = self._trainer()
        copied = object.__new__(_WrappedMethod)
        copied._trainer = weakref.ref(memo.get(id(trainer), trainer))
        copied._name, copied._replaced = self._name, copy.deepcopy(self._replaced, memo)
        return copied

    def is_of(self, trainer: Any) -> bool:
        """Whether it is this trainer's own, and not that of one it is a copy of."""
        return self._trainer() is trainer

    @outside_barrier
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        trainer = self._trainer()
        original = self._replaced or partial(getattr(type(trainer), self._name), trainer)
        listener = find_listener(trainer)
        stages = None if listener is None else listener.rollout_stages(trainer)
        if self._name == "_generate_and_score_completions":
            if stages is not None:
                stages.begin(trainer)
            with tool_budget(trainer):  # a raised limit stays where the guard is removed
                output = original(*args, **kwargs)
            if listener is None or stages is None:
                return output
            output, counts = stages.scored(trainer, output)
            if counts is not None:
                listener.batch_counted(trainer, counts)
            return output
        result = original(*args, **kwargs)
        if stages is None:
            return result
        if self._name == "_calculate_rewards":
            return stages.rewarded(trainer, result)
        stages.generated(trainer, args[0] if args else kwargs["prompts"], result)
        return result


@outside_barrier
def find_trainer(callback: object) -> Any | None:
    """The nearest caller that is a `transformers.Trainer` with this very callback object."""
    from transformers import Trainer

    frame = inspect.currentframe()
    while frame is not None:
        candidate = frame.f_locals.get("self")
        if isinstance(candidate, Trainer):
            handler = getattr(candidate, "callback_handler", None)  # none early in __init__
            if handler is not None and any(known is callback for known in handler.callbacks):
                return candidate
        frame = frame.f_back
    return None


def require_trainer(callback: object) -> Any:
    """The same, where there has to be one.

    Raises:
        RuntimeError: if there is none.
    """
    trainer = find_trainer(callback)
    if trainer is None:
        raise RuntimeError(
            "TruncationGuardCallback found no trainer among its callers that has it in its "
            "callbacks. Call `guard.attach(trainer)` before `trainer.train()`."
        )
    return trainer


@outside_barrier
def find_listener(trainer: Any) -> RolloutListener | None:
    """The listener among the trainer's callbacks, as they are now."""
    callbacks = trainer.callback_handler.callbacks
    return next((known for known in callbacks if isinstance(known, RolloutListener)), None)


def check_trainer(trainer: Any) -> None:
    """Refuse a trainer without rollouts of groups.

    Raises:
        TypeError: naming what is supported.
        RuntimeError: under a TRL that is too old, or that lacks what is needed.
    """
    remedy = "Remove the callback from this trainer."
    check_supported("TruncationGuardCallback", trainer, remedy)


def install(trainer: Any) -> None:
    """Wrap the three rollout methods of this instance, unless they are.

    Where somebody has put a wrapper of their own around ours, another one comes on top of theirs;
    the stages see to it that the inner one does the work. Where they have replaced ours, this puts
    it back.
    """
    for name in WRAPPED_METHODS:
        method = getattr(trainer, name)
        if not (isinstance(method, _WrappedMethod) and method.is_of(trainer)):
            setattr(trainer, name, _WrappedMethod(trainer, name))


@outside_barrier
def remember_options(trainer: Any, options: GuardOptions) -> None:
    """Keep the settings of this script where a callback that transformers rebuilds finds them."""
    trainer._truncation_guard_options = options


@unswept  # before a training that resumes
def remembered_options(trainer: Any) -> GuardOptions | None:
    """The settings that this script gave, whatever the checkpoint holds."""
    options: GuardOptions | None = getattr(trainer, "_truncation_guard_options", None)
    return options


def overridden_methods(trainer: Any, names: Sequence[str] = WRAPPED_METHODS) -> list[str]:
    """The methods that a subclass has of its own: those of the rollouts may replace rows."""
    import trl

    base = trl.GRPOTrainer if is_grpo(trainer) else trl.RLOOTrainer
    return [name for name in names if getattr(type(trainer), name) is not getattr(base, name)]


def has_unknown_loss(trainer: Any) -> bool:
    """Whether a subclass has a loss of its own that is not one of TRL's."""
    own = overridden_methods(trainer, ("compute_loss", "_compute_loss"))
    return bool(own) and not is_gmpo(trainer)
