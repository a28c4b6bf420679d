"""`raise_limit_to` on a real vLLM engine: it obeys, and its window is never passed.

Prompts have 2 to 4 tokens, the last one 5, and the window 24: 19 is the most that a server takes.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
from support.vllm_engine import launch

pytestmark = pytest.mark.vllm


@pytest.mark.parametrize("is_served", [False, True], ids=["colocate", "server"])
def test_the_limit_goes_up_to_what_the_window_leaves(
    is_served: bool, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    address = request.getfixturevalue("server") if is_served else ""
    settings = {"ceiling": 23, "generation_kwargs": {"max_tokens": 6} if is_served else None}
    left = launch("raising.py", tmp_path, address, json.dumps(settings))
    limits = [limit for limit, _ in itertools.groupby(limit for limit, _ in left["batches"])]
    assert limits == [6, 12, 19]
    assert len(left["batches"]) == 80  # the server refused none
    for limit, group in itertools.groupby(left["batches"], key=lambda batch: batch[0]):
        assert max(longest for _, longest in group) == limit
    raised = [line for line in left["lines"] if " WARN limit-raised " in line]
    assert len(raised) == 2
    assert " limit=6 raised_to=12 " in raised[0]
    assert " limit=12 raised_to=19 " in raised[1]
