"""What the gradient of the kept rows alone is, written from the papers' formulas.

Slow and plain on purpose, and without a line of the guard or of TRL: advantages are Python numbers
over the kept rows of a group, log-probabilities come from one unpadded forward for each row, and
each loss is its definition over the kept rows, with their own number of rows or tokens below it.

Sources: GRPO (arXiv:2402.03300), DAPO and BNPO (arXiv:2503.14476, 2506.02864), Dr. GRPO
(arXiv:2503.20783), CISPO (arXiv:2506.13585), SAPO (arXiv:2511.20347), VESPO (arXiv:2602.10693),
LUSPO (arXiv:2602.05261), GSPO for ratios of sequences (arXiv:2507.18071), RLOO (arXiv:2402.14740).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

DIVIDE_BY_ROWS = ("grpo", "sapo", "dr_grpo", "luspo", "rloo")
DIVIDE_BY_TOKENS = ("dapo", "cispo", "vespo")
LOSSES = ("grpo", "bnpo", "dr_grpo", "dapo", "cispo", "vespo", "sapo", "luspo")
_EPSILON = 1e-4


@dataclass(frozen=True)
class Row:
    """One completion of a generation batch."""

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    rewards: tuple[float | None, ...]
    """One for each reward function; None where it abstains."""
    kept: bool
    """Whether it may take part; a truncated row may not."""
    counted: tuple[int, ...] | None = None
    """1 on the tokens of the loss, 0 on those of tools; None: all of them."""


@dataclass
class Setting:
    """The trainer's settings that the loss depends on."""

    loss: str
    """One of `LOSSES`, or `rloo`."""
    group_size: int
    limit: int
    steps: float = 1.0
    """Optimizer steps for each generation batch, all its passes together."""
    micro_batches_per_step: int = 1
    scale_rewards: str = "group"
    aggregation: str = "sum_then_normalize"
    reward_weights: Sequence[float] = (1.0,)
    normalize_advantages: bool = False
    level: str = "token"
    epsilon: float = 0.2
    epsilon_high: float = 0.2
    beta: float = 0.0
    kl_corrected: bool = True
    """Whether the KL term is multiplied by the ratio (arXiv:2512.02556)."""
    kl_rows: int | None = None
    """What the KL term is divided by in the losses that divide by rows; None: the kept rows."""


def advantages(rows: Sequence[Row], setting: Setting, kl: Sequence[float] | None = None) -> Any:
    """One number for each row, 0 for those that are not kept or not scored.

    Args:
        rows: a generation batch, groups one after the other.
        setting: see there.
        kl: RLOO's penalty on each reward, for `beta` above 0.
    """
    groups = [
        [index for index in range(start, start + setting.group_size) if rows[index].kept]
        for start in range(0, len(rows), setting.group_size)
    ]
    if setting.aggregation == "normalize_then_sum":
        return _normalized_then_summed(rows, groups, setting)
    total = {}
    for group in groups:
        for index in group:
            given = list(zip(rows[index].rewards, setting.reward_weights, strict=True))
            if any(value is not None for value, _ in given):
                total[index] = sum(value * weight for value, weight in given if value is not None)
                if setting.loss == "rloo" and kl is not None:
                    total[index] -= setting.beta * kl[index]
    found = {}
    for group in groups:
        scored = [index for index in group if index in total]
        for index in scored:
            others = [total[other] for other in scored if other != index]
            if not others:
                continue
            if setting.loss == "rloo":
                found[index] = total[index] - statistics.fmean(others)
                continue
            found[index] = total[index] - statistics.fmean(total[i] for i in scored)
            if setting.scale_rewards == "group":
                found[index] /= statistics.stdev(total[i] for i in scored) + _EPSILON
    if setting.loss != "rloo" and setting.scale_rewards == "batch":
        deviation = statistics.stdev(total.values()) if len(total) > 1 else math.inf
        found = {index: value / (deviation + _EPSILON) for index, value in found.items()}
    if setting.loss == "rloo" and setting.normalize_advantages and len(found) > 1:
        found = _standardized(found)
    return [found.get(index, 0.0) for index in range(len(rows))]


def _normalized_then_summed(
    rows: Sequence[Row], groups: Sequence[Sequence[int]], setting: Setting
) -> list[float]:
    sums = {i: 0.0 for group in groups for i in group if set(rows[i].rewards) != {None}}
    for function, weight in enumerate(setting.reward_weights):
        for group in groups:
            values = {
                i: rows[i].rewards[function] for i in group if rows[i].rewards[function] is not None
            }
            if len(values) > 1:
                for index, value in _standardized(values).items():
                    sums[index] += weight * value
    found = _standardized(sums) if len(sums) > 1 else {}
    return [found.get(index, 0.0) for index in range(len(rows))]


def _standardized(values: dict[int, Any]) -> dict[int, float]:
    mean, deviation = statistics.fmean(values.values()), statistics.stdev(values.values())
    return {index: (value - mean) / (deviation + _EPSILON) for index, value in values.items()}


def log_probabilities(model: Any, row: Row) -> Tensor:
    """Of each token of the completion, (tokens,): one forward without padding."""
    ids = torch.tensor([[*row.prompt, *row.tokens]])
    logits = model(input_ids=ids, use_cache=False).logits[0, len(row.prompt) - 1 : -1]
    return logits.log_softmax(-1)[torch.arange(len(row.tokens)), torch.tensor(row.tokens)]


def gradient(
    model: Any,
    rows: Sequence[Row],
    setting: Setting,
    old: Any,
    reference: Any = None,
    micro_batches: Sequence[Sequence[int]] | None = None,
) -> Tensor:
    """Of the kept rows' loss at the weights of `model`, one flat tensor.

    Args:
        model: the policy as it is.
        rows: the generation batch.
        setting: see there.
        old: the policy that wrote the rows.
        reference: for `beta` above 0.
        micro_batches: the rows that make up each; all rows in one where they do not matter.
    """
    model.zero_grad(set_to_none=True)
    loss(model, rows, setting, old, reference, micro_batches).backward()
    found = flat_gradient(model)
    model.zero_grad(set_to_none=True)
    return found


def loss(
    model: Any,
    rows: Sequence[Row],
    setting: Setting,
    old: Any,
    reference: Any = None,
    micro_batches: Sequence[Sequence[int]] | None = None,
) -> Tensor:
    """Of the kept rows: see `gradient`."""
    with torch.no_grad():
        before = [log_probabilities(old, row) for row in rows]
        anchors = None
        if reference is not None:
            anchors = [log_probabilities(reference, row) for row in rows]
    kl = None
    if setting.loss == "rloo" and anchors is not None:
        kl = [
            float((b - a).sum()) if row.kept else math.nan
            for b, a, row in zip(before, anchors, rows, strict=True)
        ]
    scales = advantages(rows, setting, kl)
    counted = [torch.tensor(row.counted or [1] * len(row.tokens)).double() for row in rows]
    kept_rows = sum(row.kept for row in rows)
    kept_tokens = sum(int(n.sum()) for n, row in zip(counted, rows, strict=True) if row.kept)
    micro_batches = [range(len(rows))] if micro_batches is None else micro_batches
    total = sum(p.sum() for p in model.parameters()) * 0.0
    for members in micro_batches:
        kept = [index for index in members if rows[index].kept]
        tokens_here = sum(int(counted[index].sum()) for index in kept)
        for index in kept:
            now = log_probabilities(model, rows[index])
            mask = counted[index]
            terms = _policy_terms(setting, now, before[index], mask, scales[index])
            divisors = (kept_rows, kept_tokens, tokens_here)
            total = total + _reduced(setting, terms, mask, *divisors)
            if setting.beta and setting.loss != "rloo":
                drift = anchors[index] - now
                penalty = setting.beta * (drift.exp() - drift - 1)
                if setting.kl_corrected:
                    penalty = penalty * (now - before[index]).exp()
                kl_rows = setting.kl_rows or kept_rows
                total = total + _reduced(setting, penalty, mask, kl_rows, *divisors[1:])
    return total


def _policy_terms(
    setting: Setting, now: Tensor, before: Tensor, mask: Tensor, advantage: float
) -> Tensor:
    """The loss of each token, or of the row as a whole for RLOO."""
    log_ratio = now - before
    if setting.loss == "rloo":
        log_ratio = (log_ratio * mask).sum()
    elif setting.level == "sequence":
        log_ratio = ((log_ratio * mask).sum() / mask.sum()).expand_as(now)
    ratio = log_ratio.exp()
    if setting.loss == "cispo":
        return -ratio.clamp(max=setting.epsilon_high).detach() * advantage * now
    if setting.loss == "sapo":
        temperature = 1.0 if advantage > 0 else 1.05
        return -torch.sigmoid(temperature * (ratio - 1)) * 4 / temperature * advantage
    if setting.loss == "vespo":
        power, rate = (2.0, 3.0) if advantage >= 0 else (3.0, 2.0)
        weight = ((now - before) * mask).sum().clamp(math.log(1e-8), 20.0).detach().exp()
        gamma = math.exp(rate) * weight**power * torch.exp(-rate * weight)
        return -gamma * advantage * now
    clipped = ratio.clamp(1 - setting.epsilon, 1 + setting.epsilon_high)
    return -torch.minimum(ratio * advantage, clipped * advantage)


def _reduced(
    setting: Setting, terms: Tensor, mask: Tensor, rows: int, tokens: int, tokens_here: int
) -> Tensor:
    if setting.loss == "rloo":
        return setting.steps * terms / rows
    summed = (terms * mask).sum()
    if setting.loss == "bnpo":
        return summed / tokens_here / setting.micro_batches_per_step
    if setting.loss in DIVIDE_BY_TOKENS:
        return setting.steps * summed / tokens
    if setting.loss == "dr_grpo":
        return setting.steps * summed / (rows * setting.limit)
    if setting.loss == "luspo":
        return setting.steps * summed / rows
    return setting.steps * summed / mask.sum().clamp(min=1) / rows


def flat_gradient(model: Any) -> Tensor:
    """All gradients in one tensor, zeros where there is none."""
    grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]
    return torch.cat([grad.detach().flatten().double() for grad in grads])


def relative_error(found: Tensor, expected: Tensor) -> float:
    """Distance over the norm of what is expected."""
    return ((found - expected).norm() / expected.norm()).item()
