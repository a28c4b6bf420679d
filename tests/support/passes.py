"""Trains a real trainer on one canned generation batch and keeps what every micro-batch did."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from datasets import Dataset
from support import tiny, versions
from support.oracle import Row, flat_gradient
from torch import Tensor

PROMPTS = ((3,), (4, 5, 6), (7, 8), (9, 10, 11, 12))
"""Of different lengths, so that the trainer pads them."""
CUT = ((0, 1, 0, 1), (1, 1, 1, 1), (0, 0, 0, 0), (1, 0, 1, 1))
"""Rows of each group that are truncated: some, all, none, all but one."""
CISPO_EPSILON_HIGH = 1.1
"""At TRL's default of 0.2 CISPO would bound every ratio."""


def rows(cut: Sequence[Sequence[int]] = CUT, functions: int = 1, seed: int = 0) -> list[Row]:
    """A generation batch, every row different: truncated ones fill the limit, others end below it.

    Args:
        cut: for each group and row whether it is truncated.
        functions: how many reward functions there are; all but the first abstain now and then.
        seed: of the tokens and rewards.
    """
    draw = random.Random(seed)
    made: dict[tuple[int, ...], Row] = {}
    for group, flags in enumerate(cut):
        for truncated in flags:
            tokens = ()
            while not tokens or tokens in made:
                length = tiny.LIMIT if truncated else draw.randrange(1, tiny.LIMIT - 1)
                tokens = tuple(draw.randrange(3, 16) for _ in range(length))
                tokens += () if truncated else (tiny.EOS,)
            rewards = [draw.choice((-0.5, 0.0, 0.25, 0.5, 0.75, 1.0)) for _ in range(functions)]
            abstains = [number > 0 and draw.random() < 0.2 for number in range(functions)]
            values = tuple(None if a else r for a, r in zip(abstains, rewards, strict=True))
            prompt = PROMPTS[group % len(PROMPTS)]
            made[tokens] = Row(prompt, tokens, values, not truncated)
    return list(made.values())


@dataclass
class Passes:
    """What happened in the micro-batches of a training, in order."""

    trainer: Any = None
    outputs: list[dict[str, Any]] = field(default_factory=list)
    """What the trainer went on with after each generation batch."""
    gradients: list[Tensor] = field(default_factory=list)
    """What each micro-batch added to the gradient."""
    losses: list[float] = field(default_factory=list)
    tokens: list[list[tuple[int, ...]]] = field(default_factory=list)
    """The completions of each micro-batch."""
    weights: list[dict[str, Tensor]] = field(default_factory=list)
    """Of the policy, before each micro-batch."""
    old_weights: dict[str, Tensor] = field(default_factory=dict)
    """Of the policy, when it scored the newest generation batch."""

    @property
    def gradient(self) -> Tensor:
        """Summed over all micro-batches."""
        return torch.stack(self.gradients).sum(0)

    def policy(self, micro_batch: int = -1) -> Any:
        """The policy before a micro-batch, as a model that nobody has patched."""
        return _model(self.trainer.model, self.weights[micro_batch])

    @property
    def old(self) -> Any:
        """The policy that scored the newest generation batch."""
        return _model(self.trainer.model, self.old_weights)

    @property
    def reference(self) -> Any:
        """The model that the KL term keeps the policy near; None without that term."""
        found = getattr(self.trainer, "ref_model", None)
        return None if found is None else _model(found, found.state_dict())

    def members(self, batch: Sequence[Row]) -> list[list[int]]:
        """The rows of each micro-batch, by their number in the generation batch."""
        number = {row.tokens: index for index, row in enumerate(batch)}
        return [[number[tokens] for tokens in part] for part in self.tokens]

    def kept(self, batch: Sequence[Row]) -> list[int]:
        """How many rows of each micro-batch are kept."""
        return [sum(batch[index].kept for index in part) for part in self.members(batch)]


def train(
    batch: Sequence[Row],
    output_dir: Any,
    loss: str = "dapo",
    *,
    guard: Any = None,
    group_size: int = 4,
    drift: float = 0.05,
    seed: int = 0,
    old_log_probability: tuple[int, float] | None = None,
    exact: bool = True,
    given: dict[str, Any] | None = None,
    **overrides: Any,
) -> Passes:
    """Train on `batch`, a generation batch of four micro-batches and two optimizer steps.

    The weights move between scoring and loss, so that ratios are not 1, and not at all after that:
    the sum over the micro-batches does not depend on how the trainer shuffles the rows.

    Args:
        batch: the rows that generation answers with, over and over.
        output_dir: where the trainer may write.
        loss: a `loss_type` of GRPO, or `rloo`.
        guard: the callback, or None.
        group_size: completions per prompt.
        drift: standard deviation of the noise on the weights after scoring.
        seed: of that noise and of the trainer's shuffle.
        old_log_probability: a row and the value that the policy gives to its first token at
            scoring.
        exact: whether log-probabilities are float64 like the model. TRL 1.16's own kernel works in
            float32 whatever the model is, which alone can put the gradient off by 2e-6.
        given: arguments of the trainer.
        overrides: of the configuration.
    """
    settings = {
        "per_device_train_batch_size": len(batch) // 4,
        "steps_per_generation": 4,
        "gradient_accumulation_steps": 2,
        "num_generations": group_size,
        "learning_rate": 0.0,
        "max_steps": 2,
    }
    if loss != "rloo":
        settings["loss_type"] = loss
    if loss == "cispo":
        settings["epsilon_high"] = CISPO_EPSILON_HIGH
    args = tiny.config(output_dir, "rloo" if loss == "rloo" else "grpo", **(settings | overrides))
    prompts = [" ".join(f"w{token}" for token in row.prompt) for row in batch[::group_size]]
    trainer = tiny.trainer(
        args,
        [_reward(batch, number) for number in range(len(batch[0].rewards))],
        [] if guard is None else [guard],
        rollouts=[row.tokens for row in batch],
        **(
            {
                "model": tiny.model(dtype=torch.float64),
                "train_dataset": Dataset.from_dict({"prompt": prompts * 4}),
            }
            | (given or {})
        ),
    )
    seen = _watch(trainer, drift, seed)
    if exact:
        _put_exact_log_probabilities(trainer)
    if old_log_probability is not None:
        _put_old_log_probability(trainer, *old_log_probability)
    trainer.train()
    return seen


def policy_with_reference(folder: Any) -> Any:
    """TRL loads its reference model from where the policy came from; the policy has moved since."""
    model = tiny.model(dtype=torch.float64)
    model.save_pretrained(folder / "model")
    model = type(model).from_pretrained(folder / "model", dtype=torch.float64)
    _move(model, drift=0.05, seed=1)
    return model


def _move(model: Any, drift: float, seed: int) -> None:
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(drift * torch.randn_like(parameter))


def _model(like: Any, weights: dict[str, Tensor]) -> Any:
    made = type(like)(copy.deepcopy(like.config)).to(next(like.parameters()).dtype)
    made.load_state_dict(weights)
    return made.eval()


def _weights(model: Any) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def _reward(batch: Sequence[Row], number: int) -> Callable[..., list[float | None]]:
    values = {row.tokens: row.rewards[number] for row in batch}

    def reward(completion_ids: Sequence[Sequence[int]], **kwargs: Any) -> list[float | None]:
        return [values[tuple(ids)] for ids in completion_ids]

    reward.__name__ = f"reward_{number}"
    return reward


def _watch(trainer: Any, drift: float, seed: int) -> Passes:
    seen = Passes(trainer)
    step, compute_loss = trainer.training_step, trainer.compute_loss
    score = trainer._generate_and_score_completions

    def scored(inputs: Any) -> Any:
        output = score(inputs)
        seen.outputs.append(dict(output))
        seen.old_weights = _weights(trainer.model)
        _move(trainer.model, drift, seed)
        torch.manual_seed(seed)
        return output

    def computed(model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        seen.tokens.append([_unpadded(row) for row in inputs["completion_ids"].tolist()])
        seen.weights.append(_weights(trainer.model))
        return compute_loss(model, inputs, *args, **kwargs)

    def stepped(model: Any, *args: Any, **kwargs: Any) -> Any:
        before = flat_gradient(trainer.model)
        result = step(model, *args, **kwargs)
        seen.gradients.append(flat_gradient(trainer.model) - before)
        seen.losses.append(float(result))
        return result

    trainer.training_step, trainer.compute_loss = stepped, computed
    trainer._generate_and_score_completions = scored
    return seen


def _unpadded(tokens: list[int]) -> tuple[int, ...]:
    while tokens and tokens[-1] == tiny.PAD:
        tokens = tokens[:-1]
    return tuple(tokens)


def _put_exact_log_probabilities(trainer: Any) -> None:
    # Since TRL 1.7 the loss of an MoE router comes with log-probabilities and entropies.
    nothing = (None,) if versions.Version("1.7") <= versions.TRL else ()

    def scored(
        model: Any,
        input_ids: Tensor,
        attention_mask: Tensor,
        logits_to_keep: int,
        *args: Any,
        **kwargs: Any,
    ) -> tuple[Tensor | None, ...]:
        outputs = model(input_ids=input_ids, attention_mask=attention_mask, use_cache=False)
        all_tokens = outputs.logits[:, -logits_to_keep - 1 : -1].log_softmax(-1)
        here = attention_mask[:, -logits_to_keep:]
        tokens = input_ids[:, -logits_to_keep:].unsqueeze(-1)
        entropies = -(all_tokens.exp() * all_tokens).sum(-1).detach()
        return all_tokens.gather(-1, tokens).squeeze(-1) * here, entropies * here, *nothing

    trainer._get_per_token_logps_and_entropies = scored


def _put_old_log_probability(trainer: Any, row: int, value: float) -> None:
    original = trainer._get_per_token_logps_and_entropies

    def scored(*args: Any, **kwargs: Any) -> Any:
        log_probabilities, *rest = original(*args, **kwargs)
        if not torch.is_grad_enabled():
            log_probabilities[row, 0] = value
        return log_probabilities, *rest

    trainer._get_per_token_logps_and_entropies = scored
