"""`LengthProfile`: how long completions are, and what each limit would hold and cost.

A profile says what it was taken from. Reference answers, rollouts and the completions of a finished
run are different things, and only some of them can size a limit.
"""

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from truncation_guard.argument_checks import check_positive
from truncation_guard.lengths.histogram import Bin
from truncation_guard.lengths.recommendation import LimitRecommendation
from truncation_guard.lengths.sample import LengthSample
from truncation_guard.profiling.limit_cost import LimitCost, limit_costs, telling_limits
from truncation_guard.profiling.printed_tables import render
from truncation_guard.rich_text import plain_lines
from truncation_guard.shares import percent

if TYPE_CHECKING:
    from rich.console import Group

Source = Literal["reference", "rollouts", "completions"]

_TITLES: dict[Source, str] = {
    "reference": "reference answers",
    "rollouts": "rollouts of the model",
    "completions": "completions of a run",
}
_QUANTILES = {"p50": 0.5, "p75": 0.75, "p90": 0.9, "p95": 0.95, "p99": 0.99, "max": 1.0}


@dataclass(frozen=True, slots=True, repr=False)
class LengthProfile:
    """How long completions are. `print` shows it as tables, and so does a notebook.

    `profile_dataset`, `profile_rollouts` and `profile_completions` make one.
    """

    sample: LengthSample
    """The lengths in tokens, with their stop token."""
    source: Source
    """What they are lengths of."""
    column: str | None = None
    """The column, file or folder that they were taken from."""
    limit: int | None = None
    """The current `max_completion_length`, to which costs are relative; None: there is none."""
    skipped: int = 0
    """Rows without an answer, or without one that can be counted, that were left out."""
    longest_prompt: int | None = None
    """Tokens of the longest prompt as the model gets it; None: not measured."""
    context_window: int | None = None
    """Tokens that prompt and completion may have together; None: not given."""
    notes: tuple[str, ...] = ()
    """What else there is to know about the figures, in sentences."""

    @property
    def percentiles(self) -> dict[str, int | None]:
        """`p50`, `p75`, `p90`, `p95`, `p99` and `max` in tokens; None: not identified."""
        return {name: self.sample.quantile(q) for name, q in _QUANTILES.items()}

    @property
    def share_truncated(self) -> float:
        """Share of the completions that were cut, in [0, 1]."""
        return self.sample.truncated / len(self.sample)

    def recommend(
        self, coverage: float = 0.95, multiple_of: int = 64, max_length: int | None = None
    ) -> LimitRecommendation:
        """The limit that holds at least this share of the completions.

        Args:
            coverage: in (0, 1].
            multiple_of: the limit is rounded up to a multiple of this.
            max_length: the limit is at most this; None: no bound but the context window's, where
                that is known.

        Returns:
            The limit and what it rests on: see `LengthSample.recommend`.

        Raises:
            ValueError: for an argument out of range, or where the longest prompt fills the context
                window.
        """
        room = self._room()
        if room is None or (max_length is not None and max_length <= room):
            return self.sample.recommend(coverage, multiple_of, max_length)
        recommendation = self.sample.recommend(coverage, multiple_of, room)
        if recommendation.max_completion_length != room:
            return recommendation
        capped = recommendation.reason.replace(f"max_length={room}", f"{room} tokens")
        reason = (
            f"{capped} (the context window of {self.context_window} tokens leaves "
            f"{room} beside the longest prompt of {self.longest_prompt})"
        )
        return dataclasses.replace(recommendation, reason=reason)

    def table(
        self, limits: Iterable[int] | None = None, relative_to: int | None = None
    ) -> list[LimitCost]:
        """What limits would hold and cost.

        Args:
            limits: in tokens; None: powers of two, the current limit, and the ones that hold 50,
                90, 95 and 99 %.
            relative_to: the limit that costs are relative to; None: the current one.

        Raises:
            ValueError: for a limit below 1.
        """
        if relative_to is not None:
            check_positive("relative_to", relative_to, "a number of tokens")
        if limits is None:
            limits = telling_limits(self.sample, self.limit)
        base = (self.limit or None) if relative_to is None else int(relative_to)
        return limit_costs(self.sample, limits, base)

    def to_dict(self, coverage: float = 0.95, multiple_of: int = 64) -> dict[str, Any]:
        """All of it as JSON values, with what `recommend` says of this coverage."""
        return {
            "source": self.source,
            "column": self.column,
            "completions": len(self.sample),
            "truncated": self.sample.truncated,
            "share_truncated": self.share_truncated,
            "skipped": self.skipped,
            "limit": self.limit,
            "longest": self.sample.longest,
            "longest_prompt": self.longest_prompt,
            "context_window": self.context_window,
            "percentiles": self.percentiles,
            "histogram": [dataclasses.asdict(part) for part in self.bins()],
            "table": [dataclasses.asdict(row) for row in self.table()],
            "recommendation": dataclasses.asdict(self.recommend(coverage, multiple_of)),
            "notes": list(self.notes),
        }

    def to_text(self, coverage: float = 0.95, multiple_of: int = 64) -> str:
        """The tables as plain text, with what `recommend` says of this coverage."""
        return "\n".join(plain_lines(self._tables(self.recommend(coverage, multiple_of))))

    def plot(self, path: str | Path, coverage: float = 0.95, multiple_of: int = 64) -> None:
        """Draw the histogram, percentiles and the recommended limit into a PNG file.

        Args:
            path: where the file goes.
            coverage: share of completions the recommended limit should cover, in (0, 1].
            multiple_of: the recommended limit is rounded up to a multiple of this.

        Raises:
            ImportError: without matplotlib, which the extra `plot` installs.
        """
        from truncation_guard.profiling.plot import plot_lengths

        plot_lengths(path, self._title, self.sample, self.recommend(coverage, multiple_of))

    def bins(self, number: int = 16) -> list[Bin]:
        """The histogram: at most so many bins of one width."""
        check_positive("number", number, "how many bins there may be")
        return self.sample.lengths.bins(number)

    def __repr__(self) -> str:
        """Source, size and the two percentiles that matter."""
        percentiles = self.percentiles
        return (
            f"LengthProfile(source={self.source!r}, column={self.column!r}, "
            f"completions={len(self.sample)}, truncated={self.sample.truncated}, "
            f"p50={percentiles['p50']}, p95={percentiles['p95']})"
        )

    def __str__(self) -> str:
        """The tables as plain text."""
        return self.to_text()

    def __rich__(self) -> "Group":
        """The tables for rich."""
        return self._tables(self.recommend())

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, str]:
        """What a notebook shows."""
        from rich.jupyter import JupyterMixin

        return JupyterMixin._repr_mimebundle_(self.__rich__(), (), ()) | {"text/plain": str(self)}

    @property
    def _title(self) -> str:
        taken_from = "" if self.column is None else f" ({self.column})"
        return f"{len(self.sample)} {_TITLES[self.source]}{taken_from}"

    def _tables(self, recommendation: LimitRecommendation) -> "Group":
        headline = [self._title, "lengths in tokens"]
        if self.sample.truncated:
            headline.append(f"{percent(self.share_truncated)} truncated")
        if self.skipped:
            headline.append(f"{self.skipped} rows without an answer skipped")
        if self.longest_prompt is not None:
            headline.append(f"longest prompt {self.longest_prompt}")
        return render(
            ", ".join(headline),
            self.sample.lengths,
            self.percentiles,
            self.table(),
            recommendation,
            relative_to=self.limit,
            notes=self.notes,
        )

    def _room(self) -> int | None:
        """What the longest prompt leaves of the context window."""
        if self.context_window is None or self.longest_prompt is None:
            return None
        room = self.context_window - self.longest_prompt
        if room < 1:
            raise ValueError(
                f"The longest prompt of {self.longest_prompt} tokens fills the context window of "
                f"{self.context_window}. Leave out or shorten such prompts."
            )
        return room
