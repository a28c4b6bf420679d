"""`diagnose`: a run's folder, state or log in, a `Diagnosis` out.

Reading, measuring, judging and showing know nothing of each other; they meet here.
"""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from truncation_guard.diagnosis import report
from truncation_guard.diagnosis.checklist import find_all
from truncation_guard.diagnosis.finding import Finding
from truncation_guard.diagnosis.measurements import Measures, measure
from truncation_guard.diagnosis.readers.source_choice import read_run
from truncation_guard.diagnosis.run import RunTrace
from truncation_guard.diagnosis.truncated_share import drop_masked_lengths
from truncation_guard.diagnosis.verdict import RunVerdict, judge

if TYPE_CHECKING:
    from rich.console import Group


@dataclass(frozen=True, slots=True, repr=False)
class Diagnosis:
    """Whether truncation held a run back. `print`, rich and notebooks show it as a table."""

    verdict: RunVerdict
    findings: tuple[Finding, ...]
    """The answers to the checklist, then the caveats."""
    trace: RunTrace
    """The run that was read."""
    measures: Measures
    """The figures that the findings rest on."""

    @property
    def healthy(self) -> bool:
        """Whether truncation did not hold the run back, and no finding is a problem or a warning.

        An unknown answer does not count against a run, unless it is whether completions were
        truncated.
        """
        return self.verdict.answer == "is not" and not any(f.is_bad for f in self.findings)

    def to_dict(self) -> dict[str, Any]:
        """All but the run itself, as JSON values."""
        return {
            "path": self.trace.path,
            "source": self.trace.source,
            "healthy": self.healthy,
            "verdict": {"answer": self.verdict.answer, "reason": self.verdict.reason},
            "findings": [dataclasses.asdict(finding) for finding in self.findings],
            "notes": list(self.trace.notes),
        }

    def plot(self, path: str | Path) -> None:
        """Draw the truncated share, lengths and reward over the steps into a PNG file.

        Raises:
            ImportError: without matplotlib, which the extra `plot` installs.
        """
        from truncation_guard.diagnosis.plot import plot_run

        plot_run(self.trace, self.measures, self.verdict, path)

    def __repr__(self) -> str:
        """The verdict, and the codes of problems and warnings."""
        codes = [finding.code for finding in self.findings if finding.is_bad]
        return f"Diagnosis(answer={self.verdict.answer!r}, source={self.trace.source!r}, {codes=})"

    def __str__(self) -> str:
        """The report as plain text."""
        return report.to_text(self.verdict, self.findings, self.trace)

    def __rich__(self) -> "Group":
        """The report for rich."""
        return report.render(self.verdict, self.findings, self.trace)

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, str]:
        """The notebook view: the text, and rich's HTML."""
        from rich.jupyter import JupyterMixin

        return JupyterMixin._repr_mimebundle_(self.__rich__(), (), ()) | {"text/plain": str(self)}


def diagnose(path: str | Path) -> Diagnosis:
    """Tell from the files of a finished run whether truncation held it back.

    The first of these that a folder has is read:

    1. `truncation_guard.jsonl`, the guard's record: exact counts and lengths of every batch. Of
       several trainings the last one counts, and steps repeated after a resume count once. A state
       that goes on where the record ends, or that a later run wrote, goes before it.
    2. `trainer_state.json` of the furthest checkpoint. TRL's `completions/*` are means over the
       generation batches of a log entry. They are corrected where that is exact (a
       `mean_terminated_length` of 0 for "none"), and otherwise left open.
    3. The newest training log, with the lines that `Trainer` prints.
    4. `completions/*.parquet`: rewards and advantages alone, since text is not tokens.

    Args:
        path: an output folder, a `truncation_guard.jsonl`, a `trainer_state.json`, a log, or a
            completions table, of a run of GRPOTrainer or RLOOTrainer.

    Returns:
        The verdict and the findings. `print` it, or see `to_dict` and `plot`.

    Raises:
        FileNotFoundError: if the path does not exist, or a folder has nothing to read.
        OSError: if a file cannot be opened.
        ValueError: if a file cannot be read, or has nothing about rollouts.
    """
    trace = read_run(Path(path))
    if trace.with_tools and not trace.guarded:
        trace.notes.append(
            "Tools were called: TRL leaves their tokens out of the lengths, so a completion may be "
            "cut and yet be shorter than the limit."
        )
    drop_masked_lengths(trace)
    measures = measure(trace)
    findings = find_all(trace, measures)
    return Diagnosis(judge(trace, measures, findings), findings, trace, measures)
