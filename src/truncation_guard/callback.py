"""`TruncationGuardCallback`: the trainer's events, translated for the pieces that do the work.

The one idea: everything that may be refused is refused at construction or before the first rollout
of a training; from then on every entry is contained, whatever happens here.
"""

import json
from typing import Any, cast

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import ExportableState

from truncation_guard.batch.counts import BatchCounts
from truncation_guard.fault_marks import outside_barrier, unswept
from truncation_guard.guard.fault_barrier import ContainedRollouts
from truncation_guard.guard.stages import BatchGuard
from truncation_guard.log import PREFIX, logger
from truncation_guard.options import GuardOptions, Mode
from truncation_guard.preflight import ceiling as limit_ceiling
from truncation_guard.preflight import subclasses
from truncation_guard.preflight.setup import (
    check_setup,
    soft_punishment_findings,
)
from truncation_guard.reporting.limit_raiser import LimitRaiser
from truncation_guard.reporting.metrics import batch_metrics
from truncation_guard.reporting.reporter import Reporter
from truncation_guard.trainer import hooks, settings
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
        coverage: share of completions that the advised limit is to hold, in (0, 1].
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
    """What the checkpoint held, where transformers rebuilt this object from it
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
        self._reporter: Reporter | None = None
        self._rollouts: ContainedRollouts | None = None
        self._has_met = False
        """Whether every process is known to have a guard on the trainer that it watches."""
        self._session = object()
        """Marks the trainer that all of this belongs to."""

    @property
    @unswept  # for users
    def advised_limit(self) -> int | None:
        """The `max_completion_length` to try, by the newest WARN line that named one."""
        return None if self._reporter is None else self._reporter.advised_limit

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
        self._be_savable(trainer, self.state())

    @outside_barrier
    def rollout_stages(self, trainer: Any) -> ContainedRollouts:
        """What the wrapped methods of the trainer talk to."""
        self._watch(trainer)
        if self._rollouts is not None:
            return self._rollouts
        rollouts = self._prepare(trainer, longest_prompt=0)  # no training came before
        rollouts.contain(self._open, trainer, None)
        try:
            self._meet(trainer)
        except Exception as error:
            rollouts.switch_off(error)
        return rollouts

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
        longest_prompt = self._check_ceiling(trainer)
        rollouts = self._prepare(trainer, longest_prompt)
        saved_states = cast(dict[str, Any], state.stateful_callbacks)
        if resumed_from_step is not None:
            rollouts.contain(self._restore, saved_states.get(type(self).__name__))
            restored = rollouts.restore_limit(
                trainer, lambda: self._limit_to_restore(trainer, longest_prompt)
            )
            rollouts.contain(self._raised_before, restored)
        rollouts.contain(self._open, trainer, resumed_from_step)
        saved_states[type(self).__name__] = self.state()
        if trainer.is_world_process_zero() and self._options.warn_above is not None:
            rollouts.contain(self._check_setup, trainer)

    @outside_barrier
    def on_evaluate(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Judge the evaluation that has ended."""
        if self._rollouts is not None and self._reporter is not None:
            self._rollouts.contain(self._reporter.end_evaluation)

    def on_predict(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: Any,
        **kwargs: Any,
    ) -> None:
        """Judge the prediction that has ended like an evaluation."""
        self.on_evaluate(args, state, control)

    @outside_barrier
    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Sum up the training."""
        if self._rollouts is not None and self._reporter is not None:
            self._rollouts.contain(self._reporter.end_training, state.global_step)

    @outside_barrier
    def state(self) -> dict[str, Any]:
        """Settings, window and cool-downs as JSON values, for transformers' checkpoint."""
        saved = None
        reporter = self._reporter
        if self._rollouts is not None and reporter is not None:
            # As a checkpoint would give it back: what JSON cannot hold fails here, not in the save.
            saved = self._rollouts.contain(lambda: json.loads(json.dumps(reporter.state())))
        elif self.restored_state is None and ((trainer := hooks.find_trainer(self)) is not None):
            # Nothing has attached this object yet. Either `train` starts, and transformers may
            # replace it by one with the checkpoint's settings; or it was added in the middle of a
            # training, which saves it now.
            hooks.remember_options(trainer, self._options)
            if hasattr(trainer, "state"):
                self._be_savable(trainer, {})
        # No settings: those of the script that resumes win, and of whatever version it is.
        return {"args": {}, "attributes": {"restored_state": saved or {"monitor": None}}}

    @outside_barrier
    def _be_savable(self, trainer: Any, state: dict[str, Any]) -> None:
        """Transformers (4.57 and 5.24) raises a KeyError at a save where it does not find the name.

        As it is in a checkpoint without a guard, or where the training has begun already.
        """
        cast(dict[str, Any], trainer.state.stateful_callbacks).setdefault(
            type(self).__name__, state
        )

    @outside_barrier
    def _watch(self, trainer: Any) -> None:
        if not hooks.is_marked(trainer, self._session):
            self._reporter, self._rollouts, self._has_met = None, None, False
            self._session = object()
            hooks.mark(trainer, self._session)
            hooks.announce(trainer)

    def _meet(self, trainer: Any) -> None:
        if not self._has_met:
            hooks.meet(trainer)
            self._has_met = True

    def _check_ceiling(self, trainer: Any) -> int:
        """Refuse a `raise_limit_to` that cannot work; tokens that prompts need besides it."""
        ceiling = self._options.raise_limit_to
        if ceiling is None:
            return 0
        limit_ceiling.check_ceiling(trainer, ceiling)
        return limit_ceiling.find_longest_prompt(trainer, ceiling)

    def _prepare(self, trainer: Any, longest_prompt: int) -> ContainedRollouts:
        options = self._options
        overridden = hooks.overridden_methods(trainer)
        mode: Mode = "observe" if overridden else options.mode
        reporter = Reporter(
            options,
            mode,
            is_main_process=trainer.is_world_process_zero(),
            output_dir=trainer.args.output_dir,
        )
        guard = BatchGuard(
            mode=mode,
            truncated_weight=options.truncated_weight,
            truncated_reward=options.truncated_reward,
            in_order=not overridden,
            longest_prompt=longest_prompt,
            on_counts=self._on_counts,
        )
        earlier = self._raiser
        self._reporter, self._rollouts = reporter, ContainedRollouts(guard)
        if earlier is not None:  # of a training before this one: the trainer has kept its limit
            self._raised_before(earlier.raised_to)
        return self._rollouts

    def _open(self, trainer: Any, resumed_from_step: int | None) -> None:
        reporter = self._reporter
        if reporter is None:
            return
        reporter.start(get_limit(trainer), resumed_from_step)
        step, mode = trainer.state.global_step, reporter.mode
        if mode != self._options.mode:
            reporter.warn(
                "measured-only", step, *subclasses.measured_only(trainer, self._options.mode)
            )
        elif mode == "exclude" and hooks.has_unknown_loss(trainer):
            reporter.warn("loss-scale", step, *subclasses.unknown_loss(trainer))

    def _on_counts(self, trainer: Any, counts: BatchCounts) -> None:
        settings.log_metrics(trainer, batch_metrics(counts), training=counts.training)
        if self._reporter is None or self._rollouts is None:
            return
        decision = self._reporter.batch(counts)
        if decision is None:
            return
        self._reporter.say_decision(decision, counts)
        if decision.after is not None:
            self._rollouts.propose_limit(decision.after, before=decision.before)
            findings = soft_punishment_findings(trainer, decision.after)
            self._reporter.warn_of_setup(counts.step, findings)

    @property
    def _raiser(self) -> LimitRaiser | None:
        return None if self._reporter is None else self._reporter.raiser

    def _raised_before(self, raised_to: int | None) -> None:
        """The limit in tokens was raised before this training; a checkpoint has to know of it."""
        if (raiser := self._raiser) is not None:
            raiser.raised_to = raised_to

    def _limit_to_restore(self, trainer: Any, longest_prompt: int) -> int:
        """Tokens; 0 where the limit of the checkpoint had not been raised."""
        raiser, ceiling = self._raiser, self._options.raise_limit_to
        if raiser is None or raiser.raised_to is None or ceiling is None:
            return 0
        return limit_ceiling.limit_to_restore(trainer, raiser.raised_to, ceiling, longest_prompt)

    def _check_setup(self, trainer: Any) -> None:
        if self._reporter is not None:
            weight = self._options.truncated_weight
            findings = check_setup(trainer, self._reporter.mode, weight)
            findings += limit_ceiling.ceiling_findings(
                trainer, self._options.raise_limit_to, self._reporter.raised_to
            )
            self._reporter.warn_of_setup(trainer.state.global_step, findings)

    def _restore(self, entry: Any) -> None:
        """Take window and cool-downs from the checkpoint: from this object or from `entry`."""
        saved, self.restored_state = self.restored_state, None
        if saved is None and entry is not None:
            try:
                saved = entry["attributes"]["restored_state"]
            except (LookupError, TypeError):
                saved = ()  # of which nothing can be restored
        if saved is None or self._reporter is None:
            return
        if lost := self._reporter.load_state(saved):
            logger.warning(
                "%s the guard's state in the checkpoint is damaged: it does not know %s any more",
                PREFIX,
                " nor ".join(lost),
            )
