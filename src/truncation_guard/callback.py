"""`TruncationGuardCallback`: the trainer's events, handed to the parts that do the work.

What may be refused is refused at construction or before the first rollout of a training; from then
on every entry is contained.
"""

import dataclasses
import weakref
from dataclasses import dataclass
from typing import Any, cast

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import ExportableState

from truncation_guard.batch.counts import BatchCounts
from truncation_guard.guard import checkpoint
from truncation_guard.guard.batch_stages import BatchStages
from truncation_guard.guard.fault_barrier import FaultBarrier
from truncation_guard.marks_for_tests import outside_barrier, unswept
from truncation_guard.options import GuardOptions, Mode
from truncation_guard.preflight import raise_limit_to, subclasses
from truncation_guard.preflight.config_checks import check_setup, soft_punishment_findings
from truncation_guard.reporting.metrics import batch_metrics
from truncation_guard.reporting.reporter import Reporter
from truncation_guard.trainer import hooks, processes, settings
from truncation_guard.trainer.limit import get_limit


class TruncationGuardCallback(TrainerCallback, ExportableState, hooks.RolloutListener):
    """Makes completions that were cut off at `max_completion_length` visible and harmless.

    Add it to a `GRPOTrainer` or `RLOOTrainer` of TRL: `callbacks=[TruncationGuardCallback()]`.
    From the first generation batch on it writes WARN lines through the logger `truncation_guard`,
    on the main process; metrics (`truncation_guard/...`) through the trainer's own log; and one
    line for each generation batch to `<output_dir>/truncation_guard.jsonl`.

    Args:
        mode: what happens to the truncated completions of training. `"downweight"` multiplies
            their advantages by `truncated_weight` after the group's baseline is taken;
            `"exclude"` takes them out of baseline and loss, as if they had never been sampled;
            `"penalize"` lets none of their rewards be above `truncated_reward`; `"observe"`
            changes nothing. In every mode evaluation is only measured.
        truncated_weight: in [0, 1].
        truncated_reward: in units of reward.
        warn_above: share of truncated completions above which a WARN line is written; None: no
            WARN lines.
        window: completions that the share is taken over, at least 64.
        cooldown: optimizer steps between two WARN lines of one code, unless it got worse by 10
            points; twice as many after each repetition.
        coverage: share of completions the recommended limit should cover, in (0, 1].
        histogram_every: optimizer steps between two length histograms in the log (INFO); None:
            only the one at the end of training.
        record: whether to write `<output_dir>/truncation_guard.jsonl`.
        raise_limit_to: raise `max_completion_length` during training, up to this many tokens, where
            two windows after each other are above `warn_above` and the second is no better; None:
            leave the limit alone.

    Raises:
        ValueError: for an argument outside of its range; on a trainer that has a guard already.
        TypeError: on a trainer that is neither a `GRPOTrainer` nor an `RLOOTrainer`.
        RuntimeError: on a TRL older than 1.6, or a newer one that lacks what the guard needs; at
            the start of training, if the trainer is not found or a process has no guard.
    """

    restored_state: Any = None
    """The checkpoint's state, where transformers rebuilt this object from it
    (`restore_callback_states_from_checkpoint=True`)."""

    def __init__(
        self,
        *,
        mode: Mode = "downweight",
        truncated_weight: float = 0.0,
        truncated_reward: float = 0.0,
        warn_above: float | None = 0.05,
        window: int = 512,
        cooldown: int = 10,
        coverage: float = 0.95,
        histogram_every: int | None = None,
        record: bool = True,
        raise_limit_to: int | None = None,
    ) -> None:
        self._options = GuardOptions(
            mode=mode,
            truncated_weight=truncated_weight,
            truncated_reward=truncated_reward,
            warn_above=warn_above,
            window=window,
            cooldown=cooldown,
            coverage=coverage,
            histogram_every=histogram_every,
            record=record,
            raise_limit_to=raise_limit_to,
        )
        self._parts: _Parts | None = None
        self._has_met = False
        """Whether every process is known to have a guard on the trainer that it watches."""
        self._trainer: weakref.ref[Any] | None = None
        """The trainer that all of this belongs to."""

    @unswept  # for users who copy or pickle the callback
    def __getstate__(self) -> dict[str, Any]:
        """A copy watches no trainer."""
        return {**self.__dict__, "_trainer": None}

    @property
    @unswept  # for users
    def advised_limit(self) -> int | None:
        """The recommended limit in tokens, from the newest WARN line that named one."""
        return None if self._parts is None else self._parts.reporter.recommended_limit

    def attach(self, trainer: Any) -> None:
        """Watch this trainer, where it did not get the guard at construction.

        Adds the guard to the trainer's callbacks unless it is among them.

        Args:
            trainer: a `GRPOTrainer` or `RLOOTrainer`.

        Raises:
            TypeError: for any other trainer.
            ValueError: if the trainer has another guard.
            RuntimeError: on a TRL older than 1.6, or a newer one that lacks what the guard needs.
        """
        hooks.check_trainer(trainer)
        callbacks = trainer.callback_handler.callbacks
        if any(isinstance(c, TruncationGuardCallback) and c is not self for c in callbacks):
            raise ValueError(
                "This trainer has a TruncationGuardCallback already, and two would change its "
                "advantages twice. Remove one of them."
            )
        mine = [place for place, callback in enumerate(callbacks) if callback is self]
        if not mine:
            trainer.add_callback(self)
        for place in reversed(mine[1:]):  # added and attached: its events would come twice
            del callbacks[place]
        hooks.install(trainer)
        self._watch(trainer)
        if self.restored_state is None:
            hooks.remember_options(trainer, self._options)
        checkpoint.be_savable(trainer, self, self.state())

    @outside_barrier
    def rollout_stages(self, trainer: Any) -> FaultBarrier:
        """The stages that the wrapped methods of the trainer call."""
        self._watch(trainer)
        if self._parts is not None:
            return self._parts.barrier
        parts = self._prepare(trainer, longest_prompt=0)  # no training came before
        parts.barrier.contain(lambda: self._open(trainer, parts.reporter, None), otherwise=None)
        try:
            self._meet(trainer)
        except Exception as error:
            parts.barrier.switch_off(error)
        return parts.barrier

    @outside_barrier
    def batch_counted(self, trainer: Any, counts: BatchCounts) -> None:
        """Log, record and judge a generation batch."""
        if self._parts is not None:
            parts = self._parts
            parts.barrier.contain(lambda: self._report(trainer, parts, counts), otherwise=None)

    def on_init_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Wrap the rollout methods of the trainer that was given this callback."""
        self.attach(hooks.require_trainer(self))

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Refuse what must be refused, and go on where the checkpoint left off."""
        trainer = hooks.require_trainer(self)
        self.attach(trainer)
        if self.restored_state is not None:  # the settings of this script win
            self._options = hooks.remembered_options(trainer) or self._options
        self._meet(trainer)
        resumed_from_step = state.global_step or None
        ceiling = self._options.raise_limit_to
        raise_limit_to.check_ceiling(trainer, ceiling)
        longest_prompt = raise_limit_to.find_longest_prompt(trainer, ceiling)
        parts = self._prepare(trainer, longest_prompt)
        reporter, contain = parts.reporter, parts.barrier.contain
        states = cast(dict[str, Any], state.stateful_callbacks)
        name = type(self).__name__
        if resumed_from_step is not None:
            saved, self.restored_state = self.restored_state, None
            contain(lambda: checkpoint.restore(reporter, saved, states.get(name)), otherwise=None)
            restored = parts.barrier.restore_limit(
                trainer,
                lambda: raise_limit_to.limit_to_restore(
                    trainer, reporter.raised_to, ceiling, longest_prompt
                ),
            )
            reporter.limit_was_raised(restored)
        contain(lambda: self._open(trainer, reporter, resumed_from_step), otherwise=None)
        states[name] = self.state()
        if trainer.is_world_process_zero() and self._options.warn_above is not None:
            contain(lambda: self._check_setup(trainer, reporter), otherwise=None)

    @outside_barrier
    def on_evaluate(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Judge the evaluation that has ended."""
        if self._parts is not None:
            self._parts.barrier.contain(self._parts.reporter.end_evaluation, otherwise=None)

    def on_predict(self, *args: Any, **kwargs: Any) -> None:
        """Judge the prediction that has ended like an evaluation."""
        self.on_evaluate(*args, **kwargs)

    @outside_barrier
    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Sum up the training."""
        if self._parts is not None:
            reporter, step = self._parts.reporter, state.global_step
            self._parts.barrier.contain(lambda: reporter.end_training(step), otherwise=None)

    @outside_barrier
    def state(self) -> dict[str, Any]:
        """Windows and cool-downs as JSON values, for transformers' checkpoint."""
        saved: dict[str, Any] | None = None
        if self._parts is not None:
            reporter = self._parts.reporter
            saved = self._parts.barrier.contain(
                lambda: checkpoint.plain_state(reporter), otherwise=saved
            )
        elif self.restored_state is None and ((trainer := hooks.find_trainer(self)) is not None):
            # Nothing has attached this object yet: `train` starts, and transformers may replace it
            # by one with the checkpoint's settings, or a training it joined midway saves it now.
            hooks.remember_options(trainer, self._options)
            if hasattr(trainer, "state"):
                checkpoint.be_savable(trainer, self, {})
        return checkpoint.callback_state(saved)

    @outside_barrier
    def _watch(self, trainer: Any) -> None:
        if self._trainer is None or self._trainer() is not trainer:
            self._parts, self._has_met = None, False
            self._trainer = weakref.ref(trainer)
            processes.announce_guard(trainer)

    def _meet(self, trainer: Any) -> None:
        if not self._has_met:
            processes.meet_guards(trainer)
            self._has_met = True

    def _prepare(self, trainer: Any, longest_prompt: int) -> "_Parts":
        options, overridden = self._options, bool(hooks.overridden_methods(trainer))
        if overridden:
            options = dataclasses.replace(options, mode="observe")
        reporter = Reporter(
            options,
            is_main_process=trainer.is_world_process_zero(),
            output_dir=trainer.args.output_dir,
        )
        stages = BatchStages(options, in_order=not overridden, longest_prompt=longest_prompt)
        earlier, self._parts = self._parts, _Parts(reporter, FaultBarrier(stages))
        if earlier is not None:  # of a training before this one: the trainer has kept its limit
            reporter.limit_was_raised(earlier.reporter.raised_to)
        return self._parts

    def _open(self, trainer: Any, reporter: Reporter, resumed_from_step: int | None) -> None:
        reporter.start(get_limit(trainer), resumed_from_step)
        for line in subclasses.own_methods(trainer, self._options.mode):
            reporter.warn(line.code, trainer.state.global_step, line.fact, line.remedy)

    def _report(self, trainer: Any, parts: "_Parts", counts: BatchCounts) -> None:
        settings.log_metrics(trainer, batch_metrics(counts), training=counts.training)
        reporter = parts.reporter
        decision = reporter.batch(counts)
        if decision is None:
            return
        reporter.say_decision(decision, counts)
        if decision.after is not None:
            parts.barrier.limit.propose(decision.after, before=decision.before)
            findings = soft_punishment_findings(trainer, decision.after)
            reporter.warn_of_setup(counts.step, findings)

    def _check_setup(self, trainer: Any, reporter: Reporter) -> None:
        findings = check_setup(trainer, reporter.mode, self._options.truncated_weight)
        findings += raise_limit_to.ceiling_findings(
            trainer, self._options.raise_limit_to, reporter.checkpoint_limit
        )
        reporter.warn_of_setup(trainer.state.global_step, findings)


@dataclass(frozen=True, slots=True)
class _Parts:
    """The parts that watch one training."""

    reporter: Reporter
    barrier: FaultBarrier
