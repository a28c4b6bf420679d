"""`examples/with_vllm.py` runs on a real engine, colocated."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.vllm_engine import launch

pytestmark = pytest.mark.vllm


def test_the_example_sizes_trains_and_saves(tmp_path: Path) -> None:
    left = launch("example.py", tmp_path)
    assert left["window"] == 128 + 48
    # The untrained model hardly ever ends within the 24 tokens of the profile.
    assert [batch["limit"] for batch in left["batches"]] == [24, 24]
    assert [batch["completions"] for batch in left["batches"]] == [8, 8]
    assert all(batch["truncated"] > 0 for batch in left["batches"])
    assert left["saved"]
    shown = (tmp_path / "output.txt").read_text()
    assert "=== 3. Training at max_completion_length=24" in shown
    assert "[truncation-guard] WARN " in shown
