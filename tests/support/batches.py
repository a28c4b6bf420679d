"""Counts of generation batches made by hand, for the tests of the modules that know no trainer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from truncation_guard.batch.counts import BatchCounts, GroupCounts
from truncation_guard.lengths.histogram import LengthHistogram


def groups(of: int = 8, **overrides: Any) -> GroupCounts:
    """Groups of 4, none of them touched by truncation."""
    figures: dict[str, Any] = {
        "groups": of,
        "truncated": 0,
        "all_truncated": 0,
        "one_survivor": 0,
        "worst": 0,
        "size": 4,
        "without_signal": 0,
        "truncated_without_signal": 0,
        "survivor_advantage_sum": None,
    }
    return GroupCounts(**(figures | overrides))


def batch(
    truncated: int = 0,
    of: int = 32,
    *,
    ended: Mapping[int, int] | None = None,
    cut: Mapping[int, int] | None = None,
    causes: Mapping[str, int] | None = None,
    **overrides: Any,
) -> BatchCounts:
    """A training batch at limit 256: the truncated have 256 tokens, the others 100.

    `ended` and `cut` give the lengths of finished and of truncated completions. Without `causes`
    the limit cut them all. The groups know of no truncation unless told, so that a test names what
    it is about.
    """
    if ended is None:
        ended = {100: of - truncated} if of > truncated else {}
    if cut is None:
        cut = {256: truncated} if truncated else {}
    figures: dict[str, Any] = {
        "step": 0,
        "training": True,
        "limit": 256,
        "limit_name": "max_completion_length",
        "context_window": 4096,
        "lengths": LengthHistogram(ended, cut),
        "causes": {"limit": truncated, "context": 0, "tool": 0} | dict(causes or {}),
        "tool_iterations": 0,
        "stopped": 0,
        "stopped_unasked": 0,
        "searched": truncated + overrides.get("stopped", 0),
        "end_of_turn": {},
        "stop_tokens": (1,),
        "longest_prompt": 10,
        "groups": groups(),
        "reward": None,
        "reward_terminated": None,
        "reward_truncated": None,
    }
    return BatchCounts(**(figures | overrides))
