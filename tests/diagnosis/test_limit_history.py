"""Under which limit every entry was written, on metrics of completions whose limit is known."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from support import trl_logs

from truncation_guard.diagnosis.limit_history import (
    find_limit,
    phases,
    settle_limits,
    settle_logged_limits,
)
from truncation_guard.diagnosis.measurements import measure
from truncation_guard.diagnosis.readers.trl_metrics import to_entry
from truncation_guard.diagnosis.run import LogEntry, RunTrace
from truncation_guard.diagnosis.truncated_share import truncated_share


def entries(limits: Sequence[int], mean: float, batches: int = 1, seed: int = 0) -> list[LogEntry]:
    """Entries of a run, one for each limit."""
    tasks = {limit: trl_logs.Task(seed, limit, mean, mean / 6) for limit in limits}
    made = []
    for step, limit in enumerate(limits, start=1):
        metrics = trl_logs.window_figures([tasks[limit].batch() for _ in range(batches)])
        found = to_entry(metrics | {"step": step})
        assert found is not None
        made.append(found[1])
    return made


def settled(training: list[LogEntry], evaluation: list[LogEntry] | None = None) -> list[int | None]:
    settle_limits(RunTrace("log", "x", training, evaluation or []))
    return [None if entry.under is None else entry.under.tokens for entry in training]


@pytest.mark.parametrize("batches", [1, 4])
@pytest.mark.parametrize(
    "limits",
    [
        [256] * 20 + [512] * 20,
        [512] * 20 + [256] * 5,
        [256] * 4 + [512] * 30,
        [128] * 6 + [256] * 6 + [512] * 6,
        [512] * 6 + [128] * 6 + [512] * 6,
        [128] * 6 + [512] * 6 + [128] * 6,
    ],
    ids=lambda limits: "-".join(map(str, dict.fromkeys(limits))) + f" of {len(limits)}",
)
def test_the_lengths_tell_limits_that_cut(limits: list[int], batches: int) -> None:
    training = entries(limits, mean=550, batches=batches)
    assert settled(training) == limits
    for entry in training:  # nothing else was unfinished, so the ratio is the share
        assert truncated_share(entry, False) == entry.ratio


def test_shares_of_an_earlier_limit_are_not_bounded_by_a_later_one() -> None:
    """All were cut at 256; by a limit of 512 it could be half of them, or none."""
    course = measure(RunTrace("log", "x", entries([256] * 10 + [512] * 10, mean=600))).cut
    assert course is not None
    assert course.first == 1.0


def test_a_limit_that_nothing_reaches_is_not_made_up() -> None:
    training = entries([256] * 10 + [2048] * 10, mean=600)
    assert settled(training) == [256] * 10 + [None] * 10
    assert [truncated_share(entry, False) for entry in training] == [1.0] * 10 + [0.0] * 10
    assert [(p.tokens, p.first_step, p.last_step) for p in phases(training)] == [
        (256, 1, 10),
        (None, 11, 20),
    ]
    assert phases(training)[1].least == max(entry.max_length or 0 for entry in training)
    assert find_limit(RunTrace("log", "x", training)).tokens is None


def test_a_limit_that_came_back_is_told_around_one_that_cut_nothing() -> None:
    limits = [256] * 6 + [1024] * 6 + [256] * 6
    training = entries(limits, mean=600)
    assert settled(training) == [None if limit == 1024 else limit for limit in limits]
    assert [truncated_share(entry, False) for entry in training] == [1.0] * 6 + [0.0] * 6 + [
        1.0
    ] * 6


@pytest.mark.parametrize("seed", range(20))
def test_at_least_what_was_cut_is_told(seed: int) -> None:
    """Whatever the limits, and whatever else does not end on a known stop token."""
    draw = random.Random(seed)
    limits = draw.choices([128, 300, 512, 1024], k=draw.randint(1, 3))
    mean, known = draw.choice([150, 300, 600]), draw.choice([1.0, 0.8])
    training, shares = [], []
    for limit in [limit for limit in limits for _ in range(draw.randint(3, 20))]:
        lengths = [max(round(draw.gauss(mean, mean / 5)), 1) for _ in range(16)]
        batch = [(min(n, limit), n <= limit and draw.random() < known, 0.0) for n in lengths]
        found = to_entry(trl_logs.window_figures([batch]))
        assert found is not None
        training.append(found[1])
        shares.append(sum(n > limit for n in lengths) / len(lengths))
    settled(training)
    for entry, share in zip(training, shares, strict=True):
        told = truncated_share(entry, False)
        assert told is not None
        assert told >= share - 0.006, (limits, mean, known, entry)


@pytest.mark.parametrize("seed", range(10))
def test_a_run_under_one_limit_has_one_phase(seed: int) -> None:
    """Of much and of little truncation, and of unfinished completions of any length."""
    for mean in (300, 400, 500):
        assert set(settled(entries([512] * 30, mean, seed=seed))) <= {512, None}
    draw = random.Random(seed)
    batches = [[(draw.randint(20, 40), False, 0.0) for _ in range(16)] for _ in range(30)]
    found = [to_entry(trl_logs.window_figures([batch])) for batch in batches]
    assert set(settled([one[1] for one in found if one is not None])) == {None}


def test_the_entry_in_which_the_limit_changed_has_none() -> None:
    before, after = entries([256] * 5, 600), entries([512] * 5, 600, seed=1)
    both = LogEntry(step=5.5, ratio=1.0, mean_length=384.0, max_length=384.0)
    training = [*before, both, *after]
    assert settled(training) == [256] * 5 + [None] + [512] * 5
    assert both.under is not None
    assert both.under.how == "between"
    assert truncated_share(both, False) == 1.0


def test_evaluations_are_under_the_limit_of_their_time() -> None:
    evaluation = [LogEntry(step=step, ratio=0.5, mean_length=200.0) for step in (3.0, 15.0, 99.0)]
    settled(entries([256] * 10 + [512] * 10, 600), evaluation)
    assert [w.under and w.under.tokens for w in evaluation] == [256, 512, 512]


def test_the_end_is_told_of_the_last_limit_alone() -> None:
    """Three fifths of the last fifth are of the earlier limit, under which everything was cut."""
    training = [
        LogEntry(
            step=float(n),
            ratio=share,
            mean_length=limit * share + 30 * (1 - share),
            max_length=float(limit),
            limit=limit,
        )
        for n, (limit, share) in enumerate([(64, 1.0)] * 23 + [(128, 0.25)] * 2)
    ]
    measures = measure(RunTrace("log", "x", training, limit=128))
    assert measures.cut is not None
    assert (measures.cut.first, measures.cut.last) == (1.0, 0.25)
    assert (measures.limit.tokens, measures.limit.entries) == (128, 2)
    assert measures.cut_last_limit is not None
    assert (measures.cut_last_limit.overall, measures.cut_last_limit.entries) == (0.25, 2)


# --- the guard's metric is a mean -----------------------------------------------------------------


def logged(*means: float | None) -> list[LogEntry]:
    return [
        LogEntry(step=float(n), logged_limit=mean, truncated=0.5, max_length=mean)
        for n, mean in enumerate(means, start=1)
    ]


@pytest.mark.parametrize(
    ("means", "limits"),
    [
        ([16.0, 16.0, 24.0, 32.0, 32.0], [16, 16, None, 32, 32]),  # 24 may be a mean of 16 and 32
        ([16.0, 16.0, 18.3, 32.0, 32.0], [16, 16, None, 32, 32]),
        ([16.0, 24.0, 24.0, 32.0, 32.0], [None, 24, 24, 32, 32]),
        ([16.0, 16.0, 24.0], [16, 16, None]),  # the next batch may be under 32
        ([16.0], [16]),
        ([16.5], [None]),
        ([16.0, None, 16.0], [16, None, 16]),
        ([0.0, 0.0], [None, None]),
    ],
)
def test_only_what_is_surely_no_mean_is_a_limit(
    means: list[float | None], limits: list[int | None]
) -> None:
    found = logged(*means)
    settle_logged_limits(found)
    assert [entry.limit for entry in found] == limits


def test_a_limit_that_a_warn_line_names_is_one() -> None:
    found = logged(16.0, 24.0, 32.0)
    settle_logged_limits(found, {16, 32})
    assert [entry.limit for entry in found] == [16, None, 32]


def test_an_entry_that_lost_the_metric_is_under_that_of_its_neighbours() -> None:
    training = logged(16.0, 16.0, None, 16.0, 16.0, None, 32.0, 32.0, None)
    settle_logged_limits(training)
    assert settled(training) == [16, 16, 16, 16, 16, None, 32, 32, 32]


def test_before_the_guard_was_added_the_lengths_tell_the_limit() -> None:
    """A run was resumed with a guard and another limit."""
    training = entries([256] * 6, 600) + logged(512.0, 512.0, 512.0)
    settle_logged_limits(training)
    assert settled(training) == [256] * 6 + [512] * 3
    assert [truncated_share(entry, False) for entry in training[:6]] == [1.0] * 6


def test_the_guards_limit_of_evaluations_alone_is_known() -> None:
    evaluation = logged(16.0, 16.0)
    settle_logged_limits(evaluation)
    assert find_limit(RunTrace("record", "x", [], evaluation)).tokens == 16


def test_a_length_that_the_guard_did_not_cut_at_is_no_limit() -> None:
    """A run without a limit, of which the guard knows that everything ended."""
    ended = [LogEntry(truncated=0.0, mean_length=90.0, max_length=100.0) for _ in range(6)]
    assert find_limit(RunTrace("record", "x", ended, guarded=True)).tokens is None
    cut = [LogEntry(truncated=1.0, mean_length=20.0, max_length=20.0) for _ in range(6)]
    measures = measure(RunTrace("record", "x", cut, guarded=True))
    assert (measures.limit.tokens, measures.constant_length) == (20, None)


# --- one short length -----------------------------------------------------------------------------


def constant(length: int, ratio: float = 1.0, entries: int = 5) -> list[LogEntry]:
    return [
        LogEntry(step=float(n), ratio=ratio, mean_length=float(length), max_length=float(length))
        for n in range(entries)
    ]


@pytest.mark.parametrize(
    ("training", "tokens", "share", "length"),
    [
        (constant(20), None, None, 20),  # the limit, or answers of 20 tokens
        (constant(20, entries=1), None, None, 20),
        (constant(63), None, None, 63),
        (constant(64), 64, 1.0, None),
        (constant(7), None, 0.0, None),  # no limit is that short
        ([*constant(20), *constant(20, 0.9)], 20, 1.0, None),  # some end, so stop tokens are known
        ([*constant(20), *constant(30, 0.0)], None, None, None),  # longer ones: it is no limit
    ],
)
def test_completions_of_one_short_length(
    training: list[LogEntry], tokens: int | None, share: float | None, length: int | None
) -> None:
    measures = measure(RunTrace("log", "x", training))
    assert measures.limit.tokens == tokens
    assert measures.constant_length == length
    if length is not None:
        assert measures.cut is None
    elif share is not None:
        assert truncated_share(training[0], False) == share


def test_a_longest_length_that_comes_back_is_no_limit_where_no_stop_token_is_known() -> None:
    """Nothing ends on a known stop token, and some that are shorter count as unfinished too."""
    varied = [LogEntry(ratio=1.0, mean_length=15.0, max_length=20.0) for _ in range(9)]
    assert find_limit(RunTrace("log", "x", varied)).tokens is None
    assert truncated_share(varied[0], False) == 0.0
    round_one = [
        LogEntry(ratio=1.0, mean_length=400.0, max_length=512.0 if n % 3 else 400.0 + n)
        for n in range(9)
    ]
    assert find_limit(RunTrace("log", "x", round_one)).tokens == 512
    in_most = [LogEntry(ratio=1.0, mean_length=60.0, max_length=73.0) for n in range(9)]
    assert find_limit(RunTrace("log", "x", in_most)).tokens == 73
