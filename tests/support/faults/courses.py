"""Trainings with everything switched on, for faults to be put into.

A completion depends on nothing but its place and the live limit, and SGD without
momentum has no memory. So a training without a guard can go on from the weights that another one
had before a batch, and has to end at the very same weights.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from support import canned, tiny
from support.faults.injecting import Call, Fault, watched
from transformers import TrainerCallback
from trl import GRPOTrainer
from trl.rewards import get_soft_overlong_punishment

from truncation_guard import TruncationGuardCallback
from truncation_guard.trainer.settings import _end_of_turn_tokens

BATCHES = 4
FAULTY_BATCH = 1
"""The second, after which the limit is raised: before the fourth, unless the guard failed."""
ROWS = 64
"""Of all processes: each batch is a full window."""

_ENDS = [[5 + i % 9, *[3 + (i * j) % 12 for j in range(i % 6)], tiny.EOS] for i in range(ROWS)]
_NEEDS_MORE = [
    [*(4 + (i + j) % 11 for j in range(11 + 9 * (i % 4))), tiny.EOS] for i in range(ROWS)
]
COMPLETIONS = [
    _ENDS[i] if i % 2 else _NEEDS_MORE[i] if i % 32 else [3 + i // 8, 7, tiny.EOT, 5]
    for i in range(ROWS)
]
"""A half ends within 7 tokens; most of the others need 12 or 30, which the limit of 8 cuts off, and
two stop without a stop token, behind an end of turn that generation does not know."""


def _cut(per_group: int, of: int = 16) -> list[list[int]]:
    """So many rows cut off in the first groups of 4."""
    cut = [[*row, *row, *row][:8] for row in _NEEDS_MORE]
    return [cut[i] if i // 4 < of and i % 4 < per_group else _ENDS[i] for i in range(ROWS)]


VERDICTS: list[tuple[int | None, Sequence[Sequence[int]]]] = [
    (8, _ENDS),
    (8, _cut(1)),  # truncated
    (8, _cut(1)),  # rising
    (8, _cut(3, of=4)),  # no-signal
    (8, _cut(4, of=5)),  # all-truncated
    (9, [*_ENDS[:-1], [5] * 30]),  # limit-ignored
    (None, [*_ENDS[:32], *[[5] * 63] * 32]),  # context
]
"""Limit and completions of batches for which the monitor has something else to say each time."""
ONE_SIDED: list[tuple[int | None, Sequence[Sequence[int]]]] = [
    (8, [*_cut(1)[: ROWS * 3 // 4], *_cut(4)[ROWS * 3 // 4 :]])
] * 2
"""Over four processes the last one has truncated rows only."""
CHATS = Dataset.from_dict(
    {"prompt": [[{"role": "user", "content": f"w{3 + i % 12}"}] for i in range(64)]}
)
WORDS = tiny.prompts(64)
TEMPLATE = (
    "{% for m in messages %}{{ m['content'] }} <eot> {% endfor %}"
    "{% if add_generation_prompt %}w15{% endif %}"
)


@dataclass
class Outcome:
    """What a training left behind on this process."""

    weights: str
    """Fingerprint of the last ones, the same on all processes."""
    limits: list[int | None]
    """Of each generation of training."""
    before: list[Any] = field(default_factory=list)
    """Weights and random state before each batch of training, and after the last."""
    failed_in: list[int] = field(default_factory=list)
    """For each traceback in the log, of any logger at WARNING and above: how many batches of
    training had been generated."""
    errors: list[str] = field(default_factory=list)
    """The ERROR lines."""
    steps: int = 0
    finite: bool = True

    @property
    def limits_and_weights(self) -> tuple[tuple[int | None, ...], str]:
        """What all processes have in common."""
        return tuple(self.limits), self.weights


class Measured(GRPOTrainer):
    """A subclass that the guard only measures."""

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        return super()._generate_and_score_completions(inputs)


class OwnLoss(GRPOTrainer):
    """A subclass of which the guard does not know what its loss divides by."""

    def _compute_loss(self, model: Any, inputs: Any) -> Any:
        return super()._compute_loss(model, inputs)


def reward(completion_ids: Sequence[Sequence[int]], **kwargs: Any) -> list[float]:
    """Depends on the tokens alone."""
    return [sum(ids) % 7 / 4 - 0.5 for ids in completion_ids]


class _Log(logging.Handler):
    def __init__(self, generations: list[int | None]) -> None:
        super().__init__(logging.WARNING)
        self._generations = generations
        self.failed_in: list[int] = []
        self.errors: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.format(record)  # what a real handler does, and may fail at
        self.failed_in += [len(self._generations)] * (record.exc_info is not None)
        if record.levelno >= logging.ERROR:
            self.errors.append(record.getMessage())


class _Steps(TrainerCallback):
    """Looks at the weights before each batch, or goes on from those of another training."""

    def __init__(self, go_on: tuple[int, Any] | None) -> None:
        self.made: Any = None
        self.seen: list[Any] = []
        self._go_on = go_on

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._go_on is not None and self._go_on[0] == len(self.seen):
            set_state(self.made, self._go_on[1])
        self.seen.append(get_state(self.made))


def get_state(made: Any) -> Any:
    """All that the next steps depend on."""
    model = made.accelerator.unwrap_model(made.model)
    return [p.detach().clone() for p in model.parameters()], torch.get_rng_state()


def set_state(made: Any, state: Any) -> None:
    """Put it back."""
    model = made.accelerator.unwrap_model(made.model)
    with torch.no_grad():
        for parameter, value in zip(model.parameters(), state[0], strict=True):
            parameter.copy_(value)
    torch.set_rng_state(state[1])


def fingerprint(tensors: Sequence[torch.Tensor]) -> str:
    """The same for the same numbers, bit for bit."""
    hashed = hashlib.sha256()
    for tensor in tensors:
        hashed.update(tensor.numpy().tobytes())
    return hashed.hexdigest()


@contextmanager
def _logged(log: _Log) -> Any:
    root, own = logging.getLogger(), logging.getLogger("truncation_guard")
    root.addHandler(log)
    level, own.level = own.level, logging.INFO
    try:
        yield
    finally:
        root.removeHandler(log)
        own.setLevel(level)


def run(
    folder: Path | str,
    *faults: Fault,
    guarded: bool = True,
    go_on: tuple[int, Any] | None = None,
    limits: Sequence[int | None] | None = None,
    calls: list[Call] | None = None,
    base: type | None = None,
    prompts: Dataset = WORDS,
    batches: Sequence[tuple[int | None, Sequence[Sequence[int]]]] | None = None,
    options: dict[str, Any] | None = None,
    work: Callable[[Any], Any] = lambda made: made.train(),
    **settings: Any,
) -> Outcome:
    """A training.

    Args:
        folder: where it writes.
        faults: that are put into it.
        guarded: whether it has a guard.
        go_on: before which batch to go on from which state.
        limits: of each generation; None: the live ones.
        calls: gets the calls of the guard's functions.
        base: the trainer's class.
        prompts: what it trains and evaluates on.
        batches: limit and completions of each; None: the live limit and `COMPLETIONS`.
        options: of the guard.
        work: what is done with the trainer.
        settings: for the trainer's configuration.
    """
    defaults: dict[str, Any] = {"mode": "exclude", "window": 64, "raise_limit_to": 32}
    given = defaults | {"histogram_every": 1} | (options or {})
    seen: list[int | None] = []
    steps, log = _Steps(go_on), _Log(seen)
    if batches is not None:
        settings = {"max_steps": len(batches)} | settings
    _end_of_turn_tokens.cache_clear()  # else the first training alone calls it
    with ExitStack() as stack:
        stack.enter_context(_logged(log))
        for fault in faults:
            stack.enter_context(fault)
        if calls is not None:
            stack.enter_context(watched(calls))
        guards = [TruncationGuardCallback(**given)] if guarded else []
        made = _trainer(folder, [*guards, steps], base, prompts, settings)
        steps.made = made
        made._generate_single_turn = _generation(made, seen, batches, limits)
        work(made)
    last = get_state(made)
    return Outcome(
        weights=fingerprint(last[0]),
        limits=seen,
        before=[*steps.seen, last],
        failed_in=log.failed_in,
        errors=log.errors,
        steps=made.state.global_step,
        finite=all(bool(p.isfinite().all()) for p in last[0]),
    )


def _generation(
    made: Any,
    seen: list[int | None],
    batches: Sequence[tuple[int | None, Sequence[Sequence[int]]]] | None,
    limits: Sequence[int | None] | None,
) -> Callable[..., tuple[Any, None]]:
    """Generation that adds the limit of each batch of training to `seen`."""

    def generate(prompt_ids: Sequence[Any], *args: Any, **kwargs: Any) -> tuple[Any, None]:
        rows: Sequence[Sequence[int]] = COMPLETIONS
        if made.model.training:
            given = [limit for limit, _ in batches] if batches and limits is None else limits
            if given is not None:
                _set_limit(made, given[len(seen)])
            rows = COMPLETIONS if batches is None else batches[len(seen)][1]
            seen.append(_live_limit(made))
        mine = rows[canned.RANK * len(prompt_ids) : (canned.RANK + 1) * len(prompt_ids)]
        return [list(row if batches else row[: _live_limit(made)]) for row in mine], None

    return generate


def _set_limit(made: Any, limit: int | None) -> None:
    """Without a function of the guard, whose calls are counted. None: the window alone limits."""
    made.max_completion_length = made.args.max_completion_length = limit
    made.generation_config.max_new_tokens = made.generation_kwargs["max_new_tokens"] = limit
    made.generation_config.max_length = 64 if limit is None else None


def _live_limit(made: Any) -> int | None:
    limit: int | None = made.generation_config.max_new_tokens
    return limit


def _trainer(
    folder: Any, callbacks: list[Any], base: Any, prompts: Dataset, settings: dict[str, Any]
) -> Any:
    tokenizer = tiny.tokenizer()
    tokenizer.chat_template = TEMPLATE
    rows_here = ROWS // canned.PROCESSES
    defaults = {
        "per_device_train_batch_size": rows_here,
        "per_device_eval_batch_size": rows_here,
        "max_steps": BATCHES,
        "optim": "sgd",
        "learning_rate": 0.1,
        "lr_scheduler_type": "constant",
        "max_grad_norm": 0.0,
        "ddp_timeout": canned.COLLECTIVE_TIMEOUT,
    }
    return tiny.trainer(
        tiny.config(folder, **(defaults | settings)),
        [reward, get_soft_overlong_punishment(20, 2)],
        callbacks,
        base=base,
        train_dataset=prompts,
        eval_dataset=prompts.select(range(ROWS // 4)),
        processing_class=tokenizer,
    )
