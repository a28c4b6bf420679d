from __future__ import annotations

import pytest

from truncation_guard.shares import percent


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (0.0, "0%"),
        (1 / 3, "33.33%"),
        (0.05, "5%"),
        (5 / 512, "0.9766%"),
        (0.99994, "99.99%"),
        (0.99996, "more than 99.99%"),
        (1.0, "100%"),
    ],
)
def test_a_share_has_four_digits_and_only_all_of_them_are_100_percent(
    share: float, text: str
) -> None:
    assert percent(share) == text


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (0.0, "0%"),
        (0.123456, "12.3%"),
        (1.0, "100%"),
        (0.99999, "more than 99.9%"),
        (0.0001, "0.01%"),
    ],
)
def test_a_share_may_have_three_digits(share: float, text: str) -> None:
    assert percent(share, 3) == text
