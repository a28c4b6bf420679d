from __future__ import annotations

from collections import Counter
from dataclasses import FrozenInstanceError
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from truncation_guard.lengths.histogram import LengthHistogram
from truncation_guard.lengths.recommendation import LimitAdvice, advise

LENGTHS = st.lists(st.integers(1, 4096), min_size=1, max_size=60)


def advice(
    ended: dict[int, int], cut: dict[int, int], limit: int, coverage: float = 0.95
) -> LimitAdvice:
    return advise(LengthHistogram(ended, cut), limit, coverage)


@pytest.mark.parametrize(
    ("quantile", "limit"),
    [(33, 64), (63, 64), (64, 64), (65, 128), (256, 256), (257, 320), (512, 512)],
)
def test_the_recommended_limit_is_the_next_multiple_of_64(quantile: int, limit: int) -> None:
    assert advice({quantile: 8}, {}, 32) == LimitAdvice(
        coverage=0.95, quantile=quantile, longest=quantile, recommended_limit=limit
    )


@pytest.mark.parametrize(
    ("quantile", "limit", "recommended_limit"),
    [(192, 256, None), (255, 256, None), (256, 256, None), (257, 256, 320), (256, 255, 256)],
)
def test_no_limit_is_recommended_where_the_limit_holds_the_coverage(
    quantile: int, limit: int, recommended_limit: int | None
) -> None:
    found = advice({quantile: 95}, {limit: 5}, limit)
    assert (found.quantile, found.recommended_limit) == (quantile, recommended_limit)


@pytest.mark.parametrize(
    ("quantile", "limit", "recommended"),
    [(90, 100, 128), (100, 100, 128), (65, 127, 128), (1, 64, None)],
)
def test_the_recommended_limit_is_rounded_up_even_where_the_limit_holds_the_quantile(
    quantile: int, limit: int, recommended: int | None
) -> None:
    assert advice({quantile: 97}, {limit: 3}, limit).recommended_limit == recommended


@pytest.mark.parametrize("limit", [1, 8, 100, 256])
def test_twice_the_limit_is_recommended_where_nothing_is_identified(limit: int) -> None:
    assert advice({}, {limit: 8}, limit, 0.5) == LimitAdvice(
        coverage=0.5, quantile=None, longest=limit, recommended_limit=2 * limit
    )


def test_advice_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        advice({100: 8}, {}, 256).recommended_limit = 64  # type: ignore[misc]


@settings(deadline=None)
@given(
    ended=LENGTHS,
    truncated=st.integers(0, 40),
    limit=st.integers(1, 128).map(lambda number: 64 * number),
    per_mille=st.integers(1, 1000),
)
def test_an_identified_limit_holds_the_coverage_and_the_multiple_below_it_does_not(
    ended: list[int], truncated: int, limit: int, per_mille: int
) -> None:
    ended = [min(length, limit) for length in ended]
    found = advice(Counter(ended), {limit: truncated}, limit, per_mille / 1000)
    needed = Fraction(per_mille, 1000) * (len(ended) + truncated)

    def certainly_within(tokens: int) -> bool:
        return sum(n <= tokens for n in ended) >= needed

    assert found.coverage == per_mille / 1000
    if found.quantile is None:
        assert not certainly_within(limit)
        assert found.recommended_limit == 2 * limit
    else:
        assert found.recommended_limit is None
        assert certainly_within(limit)
