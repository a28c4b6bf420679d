"""From the counts of each batch to what the user sees: WARN lines, histograms, the record.

Every process keeps the same books, so that all decide alike; the main process alone writes.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from truncation_guard import record
from truncation_guard.batch.counts import BatchCounts
from truncation_guard.lengths.histogram import LengthHistogram
from truncation_guard.lengths.recommendation import advise
from truncation_guard.logger import PREFIX, logger
from truncation_guard.marks_for_tests import contains_faults
from truncation_guard.options import GuardOptions, Mode
from truncation_guard.reporting import warn_lines
from truncation_guard.reporting.limit_raiser import LimitDecision, LimitRaiser
from truncation_guard.reporting.monitor import TruncationFinding, TruncationMonitor
from truncation_guard.reporting.setup_finding import SetupFinding


class Reporter:
    """Reports one training, and the evaluations in it.

    Args:
        options: the guard's options; `mode` is the one in effect.
        is_main_process: whether this process writes.
        output_dir: where the record goes.
    """

    def __init__(self, options: GuardOptions, *, is_main_process: bool, output_dir: str) -> None:
        self.recommended_limit: int | None = None
        """In tokens, by the newest WARN line that named one."""
        self.monitor = TruncationMonitor(
            warn_above=options.warn_above,
            window=options.window,
            cooldown=options.cooldown,
            coverage=options.coverage,
            nothing_pushes_back=options.mode == "exclude"
            or (options.mode == "downweight" and options.truncated_weight == 0.0),
        )
        self.raiser: LimitRaiser | None = None
        """Decides about the limit, where it may be raised."""
        if options.raise_limit_to is not None and options.warn_above is not None:
            self.raiser = LimitRaiser(
                ceiling=options.raise_limit_to,
                warn_above=options.warn_above,
                window=options.window,
                coverage=options.coverage,
            )
        self.checkpoint_limit: int | None = None
        """The limit in tokens that a checkpoint was written under, where it had been raised."""
        self._options = options
        self._is_main_process = is_main_process
        self._record: Path | None = None
        if options.record and is_main_process:
            self._record = Path(output_dir) / record.FILE_NAME
        self._total: BatchCounts | None = None
        self._since_histogram = LengthHistogram()
        self._histogram_step: int | None = None
        """Step of the newest histogram in the log, else of the first batch."""
        self._evaluation: BatchCounts | None = None
        self._newest: tuple[str, int, int] = ("", 0, 0)
        """Split, step and number of the newest batch."""

    @property
    def mode(self) -> Mode:
        """The mode in effect."""
        return self._options.mode

    @property
    def raised_to(self) -> int | None:
        """The limit in tokens that was raised to; None where it was not."""
        return None if self.raiser is None else self.raiser.raised_to

    def limit_was_raised(self, raised_to: int | None) -> None:
        """The limit was raised before this training, which its checkpoints have to know."""
        if self.raiser is not None:
            self.raiser.raised_to = raised_to

    def state(self) -> dict[str, Any]:
        """What a checkpoint has to hold, as JSON values."""
        raiser = None if self.raiser is None else self.raiser.state()
        return {"monitor": self.monitor.state(), "raiser": raiser}

    @contains_faults
    def load_state(self, state: Any) -> list[str]:
        """Go on where `state` left off; a part that is not there starts afresh.

        Returns:
            What is lost because its part is damaged.
        """
        parts = (
            ("monitor", self.monitor, "the window and the cool-downs of the WARN lines"),
            ("raiser", self.raiser, "the limit that it was raised to"),
        )
        if not isinstance(state, Mapping):
            return [lost for _, part, lost in parts if part is not None]
        damaged = []
        with suppress(Exception):  # also where this run does not raise
            self.checkpoint_limit = int(state["raiser"]["raised_to"])
        for name, part, lost in parts:
            if part is None or state.get(name) is None:
                continue
            try:
                part.load_state(state[name])
            except Exception:  # of whatever kind: anything may stand in a file
                damaged.append(lost)
        return damaged

    def warn_of_setup(self, step: int, findings: Sequence[SetupFinding]) -> None:
        """Write a WARN line for each thing that is wrong with the set-up."""
        for finding in findings:
            self.warn("config", step, finding.fact, finding.remedy, check=finding.kind)

    def start(self, limit: int | None, resumed_from_step: int | None) -> None:
        """A training, or an evaluation on its own, begins."""
        if self._record is not None:
            logger.info("%s recording every generation batch in %s", PREFIX, self._record)
        weight = self._options.truncated_weight if self.mode == "downweight" else None
        self._write(record.start_entry(self.mode, limit, resumed_from_step, weight))

    def warn(self, code: str, step: int, fact: str, remedy: str, **figures: object) -> None:
        """Write a WARN line that is about the set-up rather than a batch."""
        if self._options.warn_above is not None:
            self._warn(warn_lines.plain_warn_line(code, step, self.mode, figures, fact, remedy))

    def batch(self, counts: BatchCounts) -> LimitDecision | None:
        """Take a generation batch in.

        Returns:
            What is to be done about the limit, where that was decided.
        """
        split = "train" if counts.training else "eval"
        same_step = self._newest[:2] == (split, counts.step)
        self._newest = (split, counts.step, self._newest[2] + 1 if same_step else 0)
        self._write(record.batch_entry(counts, self.mode, self._newest[2]))
        if counts.training:
            self._evaluation = None  # an evaluation that did not get to its end
            self._total = counts if self._total is None else self._total + counts
            self._say(self.monitor.update(counts))
            self._histogram(counts)
        else:
            self._evaluation = counts if self._evaluation is None else self._evaluation + counts
        return None if self.raiser is None else self.raiser.update(counts)

    def say_decision(self, decision: LimitDecision, counts: BatchCounts) -> None:
        """Write the WARN line of a decision about the limit, made on this batch."""
        self._warn(warn_lines.limit_line(decision, counts, self.mode))

    def end_evaluation(self) -> None:
        """All batches of an evaluation have been taken in."""
        if self._evaluation is not None:
            self._say(self.monitor.evaluate(self._evaluation))
        self._evaluation = None

    def end_training(self, step: int) -> None:
        """Sum up what the training saw until this optimizer step."""
        total = self._total
        if total is None:
            return
        self._write(record.end_entry(total, step))
        advice = None
        if total.limit is not None:
            advice = advise(total.lengths, total.limit, self._options.coverage)
        self._info(warn_lines.summary_line(total, step, advice))
        self._info(warn_lines.histogram_text(total.lengths))

    def _say(self, finding: TruncationFinding | None) -> None:
        if finding is None:
            return
        if finding.advice is not None and finding.advice.recommended_limit is not None:
            self.recommended_limit = finding.advice.recommended_limit
        if self._is_main_process:
            options = self._options
            self._warn(
                warn_lines.warn_line(
                    finding, self.mode, options.truncated_weight, options.truncated_reward
                )
            )

    def _histogram(self, counts: BatchCounts) -> None:
        every = self._options.histogram_every
        if every is None:
            return
        if self._histogram_step is None:
            self._histogram_step = counts.step
        self._since_histogram += counts.lengths
        if counts.step >= self._histogram_step + every:
            self._info(warn_lines.histogram_text(self._since_histogram))
            self._since_histogram, self._histogram_step = LengthHistogram(), counts.step

    def _warn(self, line: str) -> None:
        if self._is_main_process:
            logger.warning("%s", line)

    def _info(self, text: str) -> None:
        if self._is_main_process:
            logger.info("%s", text)

    def _write(self, entry: dict[str, Any]) -> None:
        if self._record is None:
            return
        try:
            record.append(self._record, entry)
        except OSError as error:
            text = "%s the record is off: %s cannot be written (%s)"
            logger.warning(text, PREFIX, self._record, error)
            self._record = None
