"""How many completions a limit cut, bounded from what TRL logs of known completions."""

from __future__ import annotations

import random

import pytest
from support import trl_logs

from truncation_guard.diagnosis.limit_history import LastLimit, find_limit
from truncation_guard.diagnosis.readers.trl_metrics import to_entry
from truncation_guard.diagnosis.run import EntryLimit, LogEntry, RunTrace
from truncation_guard.diagnosis.truncated_share import below_share, truncated_share


def entries(*batches: list[trl_logs.Completion]) -> list[LogEntry]:
    found = [to_entry(trl_logs.window_figures([batch])) for batch in batches]
    return [one[1] for one in found if one is not None]


def trace(*training: LogEntry, **details: object) -> RunTrace:
    return RunTrace(source="log", path="x", training=list(training), **details)  # type: ignore[arg-type]


def recorded(tokens: int) -> EntryLimit:
    return EntryLimit(tokens, "at")


@pytest.mark.parametrize("seed", range(30))
def test_the_bounds_hold(seed: int) -> None:
    """Some rows are cut at the limit, others end below it without a stop token that TRL knows."""
    draw = random.Random(seed)
    limit = 64
    batches = []
    for _ in range(4):
        batch = [(draw.randint(1, limit - 1), draw.random() < 0.6, 0.0) for _ in range(12)]
        batches.append(batch + [(limit, False, 0.0)] * draw.randint(1, 8))
    rows = [row for batch in batches for row in batch]
    # Batches of one size, as TRL's are: repeat the mean over rows by making them equally long.
    size = min(len(batch) for batch in batches)
    batches = [batch[-size:] for batch in batches]
    rows = [row for batch in batches for row in batch]
    cut = sum(length == limit for length, _, _ in rows) / len(rows)
    below = sum(length < limit and not ended for length, ended, _ in rows) / len(rows)
    found = to_entry(trl_logs.window_figures(batches))
    assert found is not None
    found[1].under = recorded(limit)
    at_most, at_least = truncated_share(found[1], False), below_share(found[1], False)
    assert at_most is not None
    assert at_least is not None
    assert cut <= at_most + 0.005
    assert at_least <= below + 0.005


def test_the_guards_own_shares_are_taken_as_they_are() -> None:
    entry = LogEntry(truncated=0.25, stopped=0.1, ratio=0.9, mean_length=3.0, max_length=4.0)
    entry.under = recorded(8)
    assert truncated_share(entry, False) == 0.25
    assert below_share(entry, False) == 0.1


def test_with_tools_the_lengths_bound_nothing() -> None:
    entry = LogEntry(ratio=0.4, mean_length=3.0, max_length=8.0, under=recorded(8))
    assert truncated_share(entry, True) == 0.4
    assert below_share(entry, True) == 0.0


@pytest.mark.parametrize(
    ("longest", "cut"),
    [(90.0, 0.6), (89.0, 0.0)],
)
def test_many_unfinished_far_below_the_limit_are_not_cut_by_it(longest: float, cut: float) -> None:
    entry = LogEntry(ratio=0.6, mean_length=70.0, max_length=longest, under=recorded(100))
    assert truncated_share(entry, False) == cut


def test_without_a_limit_that_comes_back_many_unfinished_are_not_cut() -> None:
    under = EntryLimit(None, "open", least=90.0)
    entry = LogEntry(ratio=1.0, mean_length=70.0, max_length=80.0, under=under)
    assert truncated_share(entry, False) == 0.0
    assert below_share(entry, False) == 1.0


def test_a_single_entry_without_a_limit_is_bounded_by_its_longest() -> None:
    entry = LogEntry(ratio=1.0, mean_length=41.0, max_length=81.0)
    assert find_limit(trace(entry)) == LastLimit(None, False, 81.0, 0, 1)
    assert truncated_share(entry, False) == 0.5


def test_a_ratio_without_lengths_is_taken_as_it_is() -> None:
    entry = LogEntry(ratio=0.3)
    find_limit(trace(entry))
    assert truncated_share(entry, False) == 0.3
    one_token = LogEntry(ratio=0.3, mean_length=1.0, max_length=1.0)
    find_limit(trace(one_token))
    assert truncated_share(one_token, False) == 0.3


def test_of_mean_lengths_alone_a_pile_up_tells() -> None:
    means = [LogEntry(mean_length=mean) for mean in (100.0, 100.0, 50.5)]
    limit = find_limit(trace(*means))
    assert limit == LastLimit(100, True, 100.0, 2, 3)
    assert [truncated_share(w, False) for w in means] == [1.0, 1.0, 0.5]
    assert below_share(means[0], False) is None


def test_mean_lengths_below_a_recorded_limit_tell_nothing() -> None:
    entry = LogEntry(mean_length=60.0)
    find_limit(trace(entry, limit=100))
    assert truncated_share(entry, False) is None
    assert truncated_share(LogEntry(under=recorded(100)), False) is None


def test_a_recorded_limit_is_not_assumed() -> None:
    found = find_limit(trace(LogEntry(max_length=8.0, ratio=0.5), limit=16))
    assert found == LastLimit(16, False, 8.0, 0, 1)


@pytest.mark.parametrize(
    ("lengths", "ratios", "assumed"),
    [
        ([64.0, 64.0, 50.0], [0.1, 0.1, 0.0], 64),
        ([64.0, 60.0, 50.0], [0.1, 0.1, 0.0], None),  # it does not come back
        ([64.0, 64.0, *map(float, range(20, 28))], [0.1] * 10, 64),
        ([64.0, 64.0, *map(float, range(20, 29))], [0.1] * 11, None),  # too seldom
        ([64.0, 64.0], [0.0, 0.0], None),  # nothing was cut there
        ([64.5, 64.5], [0.1, 0.1], None),  # no batch has half a token
        ([], [], None),
    ],
)
def test_a_limit_is_assumed_where_the_longest_length_comes_back(
    lengths: list[float], ratios: list[float], assumed: int | None
) -> None:
    entries = [
        LogEntry(max_length=length, ratio=ratio)
        for length, ratio in zip(lengths, ratios, strict=True)
    ]
    assert find_limit(trace(*entries)).tokens == assumed


@pytest.mark.parametrize(
    ("entry", "assumed"),
    [
        (LogEntry(max_length=64.0, mean_length=64.0, ratio=1.0), 64),
        (LogEntry(max_length=64.0, mean_length=40.0, ratio=0.5), 64),
        (LogEntry(max_length=64.0, mean_length=20.0, ratio=0.5), None),  # half cannot be that long
        (LogEntry(max_length=64.0, mean_length=64.0), None),
        (LogEntry(max_length=64.0, ratio=0.5), None),
        (LogEntry(max_length=1.0, mean_length=1.0, ratio=0.5), None),
    ],
)
def test_a_single_entry_must_allow_for_the_limit(entry: LogEntry, assumed: int | None) -> None:
    assert find_limit(trace(entry)).tokens == assumed


def test_evaluations_hint_at_the_limit_too() -> None:
    found = find_limit(
        trace(
            LogEntry(max_length=30.0, mean_length=20.0, ratio=0.0),
            evaluation=entries([(64, False, 0.0)] * 4, [(64, False, 0.0)] * 4),
        )
    )
    assert found == LastLimit(64, True, 30.0, 0, 1)


def test_empty_completions_make_no_share_below_none() -> None:
    entry = LogEntry(ratio=0.6, mean_length=0.0, max_length=100.0, under=recorded(100))
    assert (truncated_share(entry, False), below_share(entry, False)) == (0.0, 0.6)
    assert truncated_share(LogEntry(mean_length=0.0, under=recorded(100)), False) == 0.0
