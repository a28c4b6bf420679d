"""`LengthSample` and `choose_max_completion_length`: the public face of this folder."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Self, cast

from truncation_guard.argument_checks import is_integer, truth_values, whole_numbers
from truncation_guard.lengths.extrapolation import Plateau, find_plateau, quantile_range
from truncation_guard.lengths.histogram import LengthHistogram
from truncation_guard.lengths.quantiles import CensoredLengths
from truncation_guard.lengths.recommendation import LimitRecommendation, recommend


class LengthSample(CensoredLengths):
    """Lengths of completions, right-censored where a limit cut them.

    All of it assumes that where a completion was cut has nothing to do with how long it would have
    become, which holds for a `max_completion_length`, and for a context window where long prompts
    do not go with long answers.

    Args:
        lengths: in tokens, with the stop token; (completions,) non-negative integers.
        terminated: whether each of them ended by itself, (completions,) bool; None: all did. The
            others would have become longer than their length says. Limits may differ.

    Raises:
        TypeError: if `lengths` are no whole numbers or `terminated` no truth values.
        ValueError: without a completion, for negative lengths, NaN, or different sizes.

    Examples:
        Two of five were cut at 256 tokens. Half of all are at most 180 tokens long; where the
        longest tenth ends is not to be seen:

        >>> sample = LengthSample([120, 150, 180, 256, 256], [True, True, True, False, False])
        >>> sample
        LengthSample(5 completions of 120 to 256 tokens, 2 truncated)
        >>> sample.quantile(0.5), sample.quantile(0.9)
        (180, None)
        >>> round(sample.share_truncated(150), 2)
        0.6
        >>> sample.recommend(coverage=0.9).basis
        'not identified'
    """

    def __init__(self, lengths: Iterable[int], terminated: Iterable[bool] | None = None) -> None:
        tokens = whole_numbers(lengths)
        finished = truth_values(terminated, len(tokens))
        super().__init__(
            LengthHistogram(Counter(tokens[finished].tolist()), Counter(tokens[~finished].tolist()))
        )

    @classmethod
    def from_histograms(cls, ended: Mapping[int, int], cut: Mapping[int, int]) -> Self:
        """The sample of these histograms, as large as they are.

        Args:
            ended: length in tokens -> number of completions that ended by themselves at it.
            cut: length in tokens -> number of truncated completions.

        Raises:
            ValueError: without a completion, or for negative lengths or counts.
        """
        for count in (*ended.values(), *cut.values()):
            if not is_integer(count) or count < 0:
                raise ValueError(
                    f"A number of completions must be an integer of at least 0, got {count!r}."
                )
        return cls.of(LengthHistogram(ended, cut))

    @classmethod
    def of(cls, lengths: LengthHistogram) -> Self:
        """The sample of one histogram.

        Raises:
            ValueError: without a completion, or for negative lengths.
        """
        whole_numbers(sorted(lengths.tokens))
        sample = cls.__new__(cls)
        CensoredLengths.__init__(sample, lengths)
        return sample

    def __repr__(self) -> str:
        """The size and the lengths it spans."""
        return (
            f"LengthSample({len(self)} completions of {self._tokens[0]} to {self.longest} tokens, "
            f"{self.truncated} truncated)"
        )

    def __eq__(self, other: object) -> bool:
        """Whether both hold the same completions, in whatever order."""
        return isinstance(other, LengthSample) and self.lengths == other.lengths

    def __hash__(self) -> int:
        """Equal samples have equal hashes."""
        return hash(tuple(map(tuple, self.lengths.to_pairs())))

    @property
    def histograms(self) -> tuple[Mapping[int, int], Mapping[int, int]]:
        """Length in tokens -> finished completions; the same of truncated ones."""
        return self.lengths.finished_at, self.lengths.truncated_at

    @property
    def plateau(self) -> Plateau | None:
        """The two limits between which hardly any completion ended; None without such."""
        return find_plateau(self)

    def quantile_range(self, q: float) -> tuple[int, int] | None:
        """Where the quantile may be, past what was seen: a range over two families, no estimate.

        It assumes that every completion ends. How many never do cannot be known from lengths under
        one limit: any share from 0 to the truncated one.

        Args:
            q: in (0, 1].

        Returns:
            (low, high) in tokens; low = high where the quantile is identified. None where too
            few ended to go by, where there is a `plateau`, where the fits contradict what was
            seen or go ten times past it, and for the longest of all, `q` = 1.

        Raises:
            ValueError: for a `q` outside of (0, 1].
        """
        return quantile_range(self, q)

    def recommend(
        self, coverage: float = 0.95, multiple_of: int = 64, max_length: int | None = None
    ) -> LimitRecommendation:
        """The limit that holds at least this share of the completions, stop token included.

        Args:
            coverage: in (0, 1].
            multiple_of: the limit is rounded up to a multiple of this.
            max_length: the limit is at most this, whatever it holds then; None: no bound.

        Returns:
            The limit and what it rests on. An extrapolated one is the upper end of its range.

        Raises:
            ValueError: for an argument out of range.
        """
        return recommend(self, coverage, multiple_of, max_length)


def choose_max_completion_length(
    lengths: Iterable[int], coverage: float = 0.95, multiple_of: int = 1
) -> int:
    """The `max_completion_length` that holds at least this share of the lengths.

    Args:
        lengths: in tokens, with the stop token; (completions,) non-negative integers. None of them
            cut: for those take a `LengthSample`.
        coverage: in (0, 1].
        multiple_of: the limit is rounded up to a multiple of this.

    Raises:
        TypeError: if `lengths` are no whole numbers.
        ValueError: for an argument out of range.

    Examples:
        >>> choose_max_completion_length(range(1, 201), coverage=0.95)
        190
        >>> choose_max_completion_length(range(1, 201), coverage=0.95, multiple_of=64)
        192
    """
    recommendation = LengthSample(lengths).recommend(coverage, multiple_of)
    return cast(int, recommendation.max_completion_length)  # every length is known
