from __future__ import annotations

import pytest

from truncation_guard.diagnosis.wording.phrases import share_text


@pytest.mark.parametrize(
    ("share", "text"),
    [(0.0, "0%"), (0.123456, "12.3%"), (1.0, "100%"), (0.99999, "nearly 100%"), (0.0001, "0.01%")],
)
def test_a_share_is_never_rounded_to_all(share: float, text: str) -> None:
    assert share_text(share) == text
