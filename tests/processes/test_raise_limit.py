"""Two processes raise the limit together."""

from __future__ import annotations

import itertools

from support.distributed import Launch


def test_two_processes_come_to_the_same_limit_at_the_same_batch(two_processes: Launch) -> None:
    outcome = two_processes.part("raise_limit")
    first, second = outcome.of("raising")
    assert first == second
    assert [limit for limit, _ in itertools.groupby(first["limits"])] == [16, 32, 62]
    # One process knows a window of 64 tokens and prompts of 20, the other 60 and 1.
    first, second = outcome.of("differing")
    assert first == second
    assert [limit for limit, _ in itertools.groupby(first["limits"])] == [16, 32, 40]
