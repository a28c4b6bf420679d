"""What a generation batch costs: one transfer to the host (invariant 7), and no memory that grows.

`test_processes.py` counts the collectives.
"""

from __future__ import annotations

import gc
import logging
import random
import tracemalloc
import warnings
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from support import canned, tiny
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from truncation_guard import TruncationGuardCallback
from truncation_guard.guard.fault_barrier import FaultBarrier

STAGES = ("generated", "rewarded", "scored")
WAITING = {
    "aten::_local_scalar_dense",  # item(), bool(), int(), float()
    "aten::nonzero",
    "aten::masked_select",
    "aten::equal",
    "aten::is_nonzero",
    "aten::_unique2",
    "aten::unique_dim",
    "aten::unique_consecutive",
    "aten::repeat_interleave",
    "aten::bincount",
}
"""Operators for which the host waits on a GPU."""
INDEXING = {"aten::index", "aten::index_put", "aten::index_put_"}
"""They wait where an index is a mask."""


class PretendedDevice(TorchDispatchMode):
    """While entered, tensors on the CPU that are marked count as a device's, and what is made of
    them too; `waits` lists for what the host would have waited."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = [value for value in tree_leaves((args, kwargs)) if isinstance(value, Tensor)]
        result = func(*args, **(kwargs or {}))
        if any(map(is_there, given)):
            name = func._schema.name
            masks = name in INDEXING and any(t.dtype == torch.bool for t in tree_leaves(args[1]))
            if name in WAITING or masks:
                self.waits.append(name)
            put_there(result)
        return result


def put_there(values: Any) -> Any:
    for value in tree_leaves(values):
        if isinstance(value, Tensor):
            value.is_there = True
    return values


def is_there(value: Tensor) -> bool:
    return getattr(value, "is_there", False)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> PretendedDevice:
    """The guard's stages run with all that they get from the trainer on a device."""
    pretended = PretendedDevice()

    def watch(owner: Any, name: str, work: Callable[..., Any]) -> None:
        monkeypatch.setattr(owner, name, work)

    def brought_back(name: str) -> None:
        original = getattr(Tensor, name)

        def bring_back(value: Tensor, *args: Any, **kwargs: Any) -> Any:
            if is_there(value):
                pretended.waits.append(name)
                value = value.detach().clone()
                value.is_there = False
            return original(value, *args, **kwargs)

        watch(Tensor, name, bring_back)

    def entered(name: str) -> None:
        original = getattr(FaultBarrier, name)

        def stage(stages: Any, trainer: Any, *args: Any) -> Any:
            with pretended:
                result = original(
                    stages, trainer, *(args if name == "generated" else put_there(args))
                )
            for value in tree_leaves((args, result)):
                if isinstance(value, Tensor):
                    value.is_there = False
            return result

        watch(FaultBarrier, name, stage)

    for name in ("cpu", "tolist", "numpy"):
        brought_back(name)
    for name in STAGES:
        entered(name)
    return pretended


def on_the_device(made: Any) -> None:
    """What the processes send each other arrives there."""
    gather = made.accelerator.gather
    made.accelerator.gather = lambda value: put_there(gather(value).clone())


class TestTransfers:
    @pytest.mark.parametrize("mode", canned.MODES)
    @pytest.mark.parametrize("algorithm", ["grpo", "rloo"])
    def test_one_for_each_batch(
        self, tmp_path: Path, device: PretendedDevice, mode: str, algorithm: str
    ) -> None:
        guard = TruncationGuardCallback(mode=mode, **canned.MODE_SETTINGS)
        made = canned.trainer(
            tmp_path,
            canned.FAULTY,
            guard,
            algorithm=algorithm,
            max_steps=3,
            eval_dataset=tiny.prompts(2),
            eval_strategy="steps",
            eval_steps=3,
            num_iterations=2,  # so that there are old log-probabilities
        )
        on_the_device(made)
        result = canned.train(made)
        # Two batches for three steps of training, and an evaluation of one.
        assert device.waits == ["cpu"] * 3
        assert result["metrics"][-1][f"eval_{canned.GUARD}truncated_share"] == 0.5

    @pytest.mark.parametrize(
        ("wait", "work"),
        [
            ("aten::_local_scalar_dense", lambda value: bool(value.any())),
            ("aten::_local_scalar_dense", lambda value: value.sum().item()),
            ("aten::index", lambda value: value[value > 1]),
            ("aten::nonzero", lambda value: value.nonzero()),
            ("tolist", lambda value: value.tolist()),
            ("numpy", lambda value: value.numpy()),
            ("cpu", lambda value: (value + 1).cpu()),
        ],
    )
    def test_each_wait_would_show(
        self, device: PretendedDevice, wait: str, work: Callable[[Tensor], Any]
    ) -> None:
        """A test of the test."""
        with device:
            work(torch.arange(4))
            assert device.waits == []
            work(put_there(torch.arange(4)))
        assert device.waits == [wait]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("mode", canned.MODES)
@pytest.mark.parametrize("algorithm", ["grpo", "rloo"])
def test_a_gpu_is_waited_for_once_for_each_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, algorithm: str
) -> None:
    waits: list[str] = []

    def entered(name: str) -> None:
        original = getattr(FaultBarrier, name)

        def stage(*args: Any) -> Any:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                torch.cuda.set_sync_debug_mode("warn")
                try:
                    return original(*args)
                finally:
                    torch.cuda.set_sync_debug_mode("default")
                    waits.extend(
                        str(warning.message)
                        for warning in caught
                        if "synchronizing CUDA operation" in str(warning.message)
                    )

        monkeypatch.setattr(FaultBarrier, name, stage)

    for name in STAGES:
        entered(name)
    guard = TruncationGuardCallback(mode=mode, **canned.MODE_SETTINGS)
    made = canned.trainer(
        tmp_path, canned.FAULTY, guard, algorithm=algorithm, use_cpu=False, max_steps=3
    )
    result = canned.train(made)
    assert len(waits) == 3
    shares = [entry[f"{canned.GUARD}truncated_share"] for entry in result["metrics"]]
    assert shares == [0.5] * 3


class TestMemory:
    ROWS, LIMIT, WINDOW = 64, 300, 256

    @pytest.mark.slow
    def test_does_not_grow_with_the_batches(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        """300 batches of completions of many lengths, through everything but the record's file."""
        caplog.set_level(logging.CRITICAL, "truncation_guard")  # pytest keeps what is logged
        guard = TruncationGuardCallback(
            mode="exclude", window=self.WINDOW, cooldown=0, histogram_every=50, record=False
        )
        batch = canned.Batch([tiny.E3] * self.ROWS, [0.0] * self.ROWS, 4)
        made = canned.trainer(tmp_path, batch, guard, max_completion_length=self.LIMIT)
        numbers = random.Random(0)
        sizes, memory = [], []
        tracemalloc.start()
        for index in range(300):
            self.one_batch(made, guard, numbers)
            if index in (99, 199, 299):
                gc.collect()
                memory.append(memory_of_the_guard())
                sizes.append(size_of(guard))
        tracemalloc.stop()
        # By then every length has been seen: the counts of the whole training are complete.
        assert max(sizes) - sizes[0] <= self.WINDOW
        # Two counts of lengths (all, since the last histogram) and the window.
        assert max(sizes) < 2 * 2 * self.LIMIT + 2 * self.WINDOW + 200
        # The lengths of one batch are some 5000 bytes; torch's own objects come and go.
        assert memory[-1] - memory[0] < 50_000

    def one_batch(self, made: Any, guard: Any, numbers: random.Random) -> None:
        """What TRL's methods call, without a model in between."""
        lengths = [numbers.randint(2, self.LIMIT) for _ in range(self.ROWS)]
        ids = [[5] * (n - 1) + [6 if n > self.LIMIT // 2 else tiny.EOS] for n in lengths]
        for row in ids:
            if row[-1] == 6:
                row.extend([6] * (self.LIMIT - len(row)))
        advantages = torch.randn(self.ROWS)
        made._logs["advantages"].extend(advantages.tolist())
        output = {
            "advantages": advantages,
            "completion_mask": torch.ones(self.ROWS, self.LIMIT, dtype=torch.int64),
            "num_items_in_batch": torch.tensor(sum(map(len, ids))),
        }
        stages = guard.rollout_stages(made)
        stages.begin(made)
        stages.generated(made, ids, ([[5]] * self.ROWS, ids, None, [""] * self.ROWS))
        stages.rewarded(made, torch.randn(self.ROWS, 1))
        guarded, counts = stages.scored(made, output)
        assert guarded["tool_mask"].shape == (self.ROWS, self.LIMIT)
        guard.batch_counted(made, counts)
        made.state.global_step += 1
        assert made._metrics["train"].pop(f"{canned.GUARD}truncated_share")
        made._metrics["train"].clear()  # as TRL's log does


def memory_of_the_guard() -> int:
    """Bytes that its code has asked for and not given back."""
    its_own = tracemalloc.take_snapshot().filter_traces(
        [tracemalloc.Filter(True, "*/truncation_guard/*")]
    )
    return sum(trace.size for trace in its_own.traces)


def size_of(value: Any, seen: set[int] | None = None) -> int:
    """Items of all containers that an object of the guard holds, whatever lies in between."""
    seen = set() if seen is None else seen
    if id(value) in seen:
        return 0
    seen.add(id(value))
    if isinstance(value, Mapping):
        return len(value) + sum(size_of(item, seen) for item in value.values())
    if isinstance(value, list | tuple | set | frozenset | deque):
        return len(value) + sum(size_of(item, seen) for item in value)
    if is_dataclass(value):
        return sum(size_of(getattr(value, field.name), seen) for field in fields(value))
    if type(value).__module__.startswith("truncation_guard"):
        return sum(size_of(item, seen) for item in vars(value).values())
    return 0
