"""The design's invariants over random batches, through all stages of the guard."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import oracle
from support.pipeline import LIMIT, Batch, grpo_advantages, through

from truncation_guard.record import batch_entry
from truncation_guard.reporting.metrics import batch_metrics

MODES = ("observe", "downweight", "exclude", "penalize")
OPTIONS = {"truncated_weight": 0.25, "truncated_reward": -0.5}
NAN = math.nan


@st.composite
def batches(draw: st.DrawFn, cut: bool = True) -> Batch:
    """Groups of 2 to 5; empty completions and ones past the limit too, unless none is to be cut."""
    size, groups = draw(st.integers(2, 5)), draw(st.integers(1, 4))
    length = st.integers(1, LIMIT - 1)
    ends = length.map(lambda n: [5] * (n - 1) + [1])
    kinds = [ends, length.map(lambda n: [6] * n)]  # terminated, stopped
    if cut:
        kinds.append(st.integers(LIMIT, LIMIT + 2).map(lambda n: [7] * n))
        kinds.append(st.just([5] * (LIMIT - 1) + [1]))  # ends right at the limit
    functions = draw(st.integers(1, 2))
    reward = st.sampled_from([NAN, -1.0, 0.0, 0.25, 1.0])
    rows = st.lists(st.one_of(kinds), min_size=size * groups, max_size=size * groups)
    rewards = st.lists(reward, min_size=functions, max_size=functions)
    return Batch(draw(rows), [draw(rewards) for _ in range(size * groups)], size)


def parts(batch: Batch) -> list[int]:
    """How many processes the batch may lie on."""
    return [p for p in range(1, 7) if len(batch.completions) % p == 0]


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Bit for bit, NaN like NaN."""
    return torch.equal(one.view(torch.int32), other.view(torch.int32))


@settings(deadline=None)
@given(batch=batches(), mode=st.sampled_from(MODES), loss=st.sampled_from(["dapo", "grpo"]))
def test_nothing_depends_on_how_the_rows_lie_over_processes(
    batch: Batch, mode: str, loss: str
) -> None:
    """Invariant 5, groups that straddle included."""
    one = through(batch, 1, loss, mode=mode, **OPTIONS)
    for processes in parts(batch):
        found = through(batch, processes, loss, mode=mode, **OPTIONS)
        # The search for an end of turn samples the rows of each process.
        whole = [replace(c, searched=0, end_of_turn={}) for c in one.counts * processes]
        assert [replace(c, searched=0, end_of_turn={}) for c in found.counts] == whole
        assert same(found.rewards, one.rewards)
        assert found.advantages == one.advantages
        assert (found.tokens, found.in_loss) == (one.tokens, one.in_loss)


@settings(deadline=None)
@given(batch=batches())
def test_the_counts_are_those_of_a_slow_loop(batch: Batch) -> None:
    (counts,) = through(batch, 1, mode="downweight").counts
    groups = [
        batch.truncated[i : i + batch.group_size]
        for i in range(0, len(batch.truncated), batch.group_size)
    ]
    assert counts.truncated == sum(batch.truncated)
    assert counts.groups.groups == len(groups)
    assert counts.groups.truncated == sum(map(any, groups))
    assert counts.groups.all_truncated == sum(map(all, groups))
    assert counts.groups.worst == max(map(sum, groups))
    ended = [row for row, cut in zip(batch.completions, batch.truncated, strict=True) if not cut]
    assert counts.stopped == sum(row[-1] != 1 for row in ended)
    lengths = sorted(n for n, times in counts.lengths.finished_at.items() for _ in range(times))
    assert lengths == sorted(map(len, ended))


@settings(deadline=None)
@given(batch=batches())
def test_observe_changes_nothing(batch: Batch) -> None:
    """Invariant 1."""
    found = through(batch, parts(batch)[-1], mode="observe", **OPTIONS)
    assert found.changed == set()
    assert same(found.rewards, torch.tensor(batch.rewards))


@settings(deadline=None)
@given(
    batch=batches(cut=False), mode=st.sampled_from(MODES), loss=st.sampled_from(["dapo", "grpo"])
)
def test_without_truncated_rows_no_mode_changes_a_bit(batch: Batch, mode: str, loss: str) -> None:
    """Invariant 2."""
    found = through(batch, parts(batch)[-1], loss, mode=mode, **OPTIONS)
    assert same(found.rewards, torch.tensor(batch.rewards))
    given_advantages = torch.tensor(grpo_advantages(batch.rewards, batch.group_size))
    assert torch.equal(torch.tensor(found.advantages), given_advantages)
    assert found.tokens == sum(map(len, batch.completions))
    assert all(found.in_loss)


@settings(deadline=None)
@given(batch=batches(), loss=st.sampled_from(oracle.LOSSES))
def test_exclude_is_the_kept_rows_alone(batch: Batch, loss: str) -> None:
    """Invariant 3: advantages, loss mask and denominator, with the losses that divide by rows."""
    found = through(batch, parts(batch)[-1], loss, mode="exclude")
    kept = [not cut for cut in batch.truncated]
    rows = [
        oracle.Row((3,), tuple(ids), tuple(None if r != r else r for r in rewards), keep)
        for ids, rewards, keep in zip(batch.completions, batch.rewards, kept, strict=True)
    ]
    weights = (1.0,) * len(batch.rewards[0])
    setting = oracle.Setting(loss, batch.group_size, LIMIT, reward_weights=weights)
    alone = oracle.advantages(rows, setting)
    factor = len(kept) / max(sum(kept), 1) if loss in oracle.DIVIDE_BY_ROWS else 1.0
    assert found.advantages == pytest.approx([a * factor for a in alone], rel=1e-5, abs=1e-6)
    assert found.in_loss == kept
    assert found.tokens == max(sum(len(row.tokens) for row in rows if row.kept), 1)


@settings(deadline=None)
@given(batch=batches(), weight=st.floats(0.0, 1.0, width=32))
def test_downweight_is_linear_in_the_weight(batch: Batch, weight: float) -> None:
    """Invariant 4, and the loss mask and its denominator stay."""

    def at(truncated_weight: float) -> Any:
        return through(batch, mode="downweight", truncated_weight=truncated_weight)

    none, all_of_it, some = at(0.0), at(1.0), at(weight)
    observed = through(batch, mode="observe")
    assert all_of_it.advantages == observed.advantages
    mixed = [
        (1 - weight) * a + weight * b
        for a, b in zip(none.advantages, all_of_it.advantages, strict=True)
    ]
    assert some.advantages == pytest.approx(mixed, rel=1e-5, abs=1e-6)
    assert (some.tokens, some.in_loss) == (observed.tokens, observed.in_loss)


@settings(deadline=None)
@given(batch=batches(), loss=st.sampled_from(oracle.LOSSES))
def test_no_number_is_nan(batch: Batch, loss: str) -> None:
    for mode in MODES:
        found = through(batch, parts(batch)[-1], loss, mode=mode, **OPTIONS)
        assert all(map(math.isfinite, found.advantages))
        for counts in found.counts:
            assert all(map(math.isfinite, batch_metrics(counts).values()))
            json.dumps(batch_entry(counts, mode, 0), allow_nan=False)
