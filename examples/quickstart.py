"""What a too small `max_completion_length` does to a GRPO run, and what the guard does about it.

    python examples/quickstart.py

needs no network and no GPU and takes one to two minutes. A tiny model, taught to write out sums
step by step (see `sums.py`), is trained with TRL's `GRPOTrainer` three times from the same weights:

1. at a limit that most answers exceed, without the guard: the reward stays flat, nothing is said;
2. at the same limit with the guard: WARN lines say what is wrong, and completions that were cut off
   get advantage 0;
3. from the same limit, with a guard that may raise it: the reward climbs.

With a model of your own (this downloads from the Hugging Face hub):

    python examples/quickstart.py --model Qwen/Qwen2.5-0.5B-Instruct --dataset openai/gsm8k \
        --dataset-config main --max-completion-length 128

The data set needs a column `prompt` or `question` and a column `answer`. A completion is right when
its last number equals the last number of `answer`.
"""

import argparse
import copy
import re
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import mean
from typing import Any

import torch
from datasets import Dataset, load_dataset
from rich.console import Console
from rich.table import Table
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PrinterCallback,
    TrainerCallback,
)
from trl import GRPOConfig, GRPOTrainer

import quiet
import sums
from truncation_guard import TruncationGuardCallback

STEPS = 80  # optimizer steps of each act, the same for all three
SHOWN_STEPS = 20  # the reward's "first" and "last" are means over this many steps
GENERATION_BATCH = 64  # completions per generation batch, one optimizer step each
NUM_GENERATIONS = 8  # completions per prompt
MICRO_BATCH = 32  # completions per forward and backward pass
WINDOW = 128  # completions that the guard looks at before it raises the limit; two windows

LIMIT = 25  # tokens; six of seven right answers to the sums are longer, none is longer than 43
GENEROUS_LIMIT = 128  # tokens; held-out accuracy is measured at this limit
LEARNING_RATE = 3e-4
PROBLEMS = 2048
HELD_OUT = 512

HUB_LIMIT = 128
HUB_GENEROUS_LIMIT = 1024
HUB_LEARNING_RATE = 1e-6
HUB_HELD_OUT = 128


@dataclass
class Task:
    """What the three acts share.

    Attributes:
        model: The model that each act starts from. It is never handed to a trainer: TRL binds a
            forward method to the models that it gets, and a copy made after that would go on
            calling the original.
        tokenizer: Its tokenizer.
        train: Training problems with the columns `prompt` and `answer`.
        held_out: Problems that are not trained on.
        reward: A reward function as TRL calls it; 1.0 for a right completion, else 0.0.
        limit: `max_completion_length` of the first two acts, in tokens.
        generous_limit: Limit at which held-out accuracy is measured, in tokens.
        learning_rate: Peak learning rate.
        use_cpu: Keep to the CPU even where there is a GPU.
        seed: Seeds the training.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    train: Dataset
    held_out: Dataset
    reward: Callable[..., list[float]]
    limit: int
    generous_limit: int
    learning_rate: float
    use_cpu: bool
    seed: int


@dataclass
class Act:
    """The outcome of one training run.

    Attributes:
        limits: `max_completion_length` at the beginning and at the end, in tokens.
        guarded: Whether the guard was on.
        first_truncated: Mean share of truncated completions of the first `SHOWN_STEPS` steps.
        last_truncated: Mean share of the last `SHOWN_STEPS` steps.
        first: Mean reward of the first `SHOWN_STEPS` steps.
        last: Mean reward of the last `SHOWN_STEPS` steps.
        accuracy: Share of held-out problems answered right at the generous limit.
    """

    limits: tuple[int, int]
    guarded: bool
    first_truncated: float
    last_truncated: float
    first: float
    last: float
    accuracy: float


def make_trainer(
    task: Task,
    model: PreTrainedModel,
    limit: int,
    folder: str,
    callbacks: list[TrainerCallback],
    **options: Any,
) -> GRPOTrainer:
    """Makes a GRPO trainer that prints nothing by itself.

    Args:
        task: The task.
        model: The model to train, in place.
        limit: `max_completion_length`, in tokens.
        folder: Output folder.
        callbacks: Callbacks, the guard among them or not.
        **options: Options of `GRPOConfig` that win over those set here.

    Returns:
        The trainer.
    """
    defaults: dict[str, Any] = {
        "max_steps": STEPS,
        "learning_rate": task.learning_rate,
        "warmup_steps": STEPS // 10,
        "num_generations": NUM_GENERATIONS,
        "per_device_train_batch_size": MICRO_BATCH,
        "gradient_accumulation_steps": GENERATION_BATCH // MICRO_BATCH,
        "gradient_checkpointing": not task.use_cpu,
        "bf16": not task.use_cpu and torch.cuda.is_available(),
        "use_cpu": task.use_cpu,
        "seed": task.seed,
        "logging_steps": 1,
        "report_to": "none",
        "save_strategy": "no",
        "disable_tqdm": True,
    }
    args = GRPOConfig(output_dir=folder, max_completion_length=limit, **(defaults | options))
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=task.reward,
        args=args,
        train_dataset=task.train,
        eval_dataset=task.held_out,
        processing_class=task.tokenizer,
        callbacks=callbacks,
    )
    # Without progress bars transformers prints every log entry, and the WARN lines drown in them.
    trainer.remove_callback(PrinterCallback)
    return trainer


def logged(trainer: GRPOTrainer, name: str) -> list[float]:
    """Collects what the trainer logged under `name`, one value per optimizer step."""
    return [entry[name] for entry in trainer.state.log_history if name in entry]


def held_out_accuracy(task: Task, model: PreTrainedModel) -> float:
    """Measures the share of held-out problems answered right, sampled once at temperature 1.

    Args:
        task: The task.
        model: The model to measure.

    Returns:
        A share between 0 and 1, measured at the task's generous limit.
    """
    with tempfile.TemporaryDirectory() as folder:
        evaluation = {"num_generations_eval": 1, "per_device_eval_batch_size": GENERATION_BATCH}
        trainer = make_trainer(task, model, task.generous_limit, folder, [], **evaluation)
        return float(trainer.evaluate()["eval_reward"])


def train(task: Task, limit: int, guard: TruncationGuardCallback | None) -> Act:
    """Trains a copy of the task's model and measures it.

    Args:
        task: The task.
        limit: `max_completion_length`, in tokens.
        guard: The guard, or None to train without it.

    Returns:
        The outcome.
    """
    model = copy.deepcopy(task.model)
    with tempfile.TemporaryDirectory() as folder:
        trainer = make_trainer(task, model, limit, folder, [guard] if guard else [])
        trainer.train()
    # TRL logs a share of its own; it says nothing about it.
    share = "truncation_guard/truncated_share" if guard else "completions/clipped_ratio"
    shares, rewards = logged(trainer, share), logged(trainer, "reward")
    last_limit = logged(trainer, "truncation_guard/limit")[-1] if guard else limit
    return Act(
        limits=(limit, int(last_limit)),
        guarded=guard is not None,
        first_truncated=mean(shares[:SHOWN_STEPS]),
        last_truncated=mean(shares[-SHOWN_STEPS:]),
        first=mean(rewards[:SHOWN_STEPS]),
        last=mean(rewards[-SHOWN_STEPS:]),
        accuracy=held_out_accuracy(task, model),
    )


def sums_task(seed: int, limit: int | None) -> Task:
    """Builds the offline task: a tiny model that has been taught to write out sums.

    Args:
        seed: Seeds weights, problems and training.
        limit: `max_completion_length` in tokens; None for `LIMIT`.

    Returns:
        The task.
    """
    # One thread is as fast for matrices this small, and much faster where the cores are shared.
    torch.set_num_threads(1)
    tokenizer = sums.build_tokenizer()
    model = sums.build_model(tokenizer, seed)
    sums.teach(model, tokenizer, seed=seed)
    return Task(
        model=model,
        tokenizer=tokenizer,
        train=sums.problems(PROBLEMS, seed + 1000),  # not the problems of the teaching again
        held_out=sums.problems(HELD_OUT, seed, held_out=True),
        reward=sums.reward,
        limit=limit or LIMIT,
        generous_limit=GENEROUS_LIMIT,
        learning_rate=LEARNING_RATE,
        use_cpu=True,
        seed=seed,
    )


def last_number(text: str) -> float | None:
    """Finds the last number of a text, ignoring thousands separators; None where there is none."""
    numbers = re.findall(r"-?\d+(?:\.\d+)?", text.replace(",", ""))
    return float(numbers[-1]) if numbers else None


def last_number_reward(completions: list[Any], answer: list[str], **kwargs: Any) -> list[float]:
    """Scores 1.0 where the last number of a completion is the last number of the answer, else 0.0.

    Args:
        completions: Completions as text, or as lists of messages.
        answer: Each problem's answer.
        **kwargs: What else TRL passes; unused.

    Returns:
        One reward per completion.
    """
    texts = [c if isinstance(c, str) else c[-1]["content"] for c in completions]
    return [
        float(last_number(text) is not None and last_number(text) == last_number(right))
        for text, right in zip(texts, answer, strict=True)
    ]


def hub_task(options: argparse.Namespace) -> Task:
    """Builds the same task from a model of the hub, and a data set of the hub or the sums.

    Args:
        options: The command line.

    Returns:
        The task.
    """
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    if options.dataset:
        data = load_dataset(options.dataset, options.dataset_config, split=options.dataset_split)
    else:
        data = sums.problems(PROBLEMS, options.seed)
    column = "prompt" if "prompt" in data.column_names else "question"

    def row(example: dict[str, Any]) -> dict[str, Any]:
        prompt = example[column]
        if tokenizer.chat_template and isinstance(prompt, str):
            prompt = [{"role": "user", "content": prompt}]
        return {"prompt": prompt, "answer": str(example["answer"])}

    data = data.map(row, remove_columns=data.column_names)
    parts = data.train_test_split(test_size=HUB_HELD_OUT, seed=options.seed)
    return Task(
        model=AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32),
        tokenizer=tokenizer,
        train=parts["train"],
        held_out=parts["test"],
        reward=last_number_reward,
        limit=options.max_completion_length or HUB_LIMIT,
        generous_limit=HUB_GENEROUS_LIMIT,
        learning_rate=HUB_LEARNING_RATE,
        use_cpu=False,
        seed=options.seed,
    )


def outcome_table(acts: list[Act]) -> Table:
    """Lays the acts out as a table, one row each."""
    title = f"{STEPS} steps each, from the same weights (first -> last {SHOWN_STEPS} steps)"
    table = Table(title=title)
    for heading in (
        "",
        "limit",
        "guard",
        "truncated",
        "reward",
        "held-out accuracy",
    ):
        table.add_column(heading, justify="right")
    for number, act in enumerate(acts, start=1):
        table.add_row(
            str(number),
            " -> ".join(dict.fromkeys(map(str, act.limits))),
            "on" if act.guarded else "off",
            f"{act.first_truncated:.0%} -> {act.last_truncated:.0%}",
            f"{act.first:.2f} -> {act.last:.2f}",
            f"{act.accuracy:.0%}",
        )
    return table


def parse_options() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        description="Train three times: at a short limit, with the guard, and with one that raises."
    )
    parser.add_argument("--model", help="a model of the hub; default: a tiny one, built here")
    parser.add_argument("--dataset", help="a data set of the hub (needs --model); default: sums")
    parser.add_argument("--dataset-config", help="name of the data set's configuration")
    parser.add_argument("--dataset-split", default="train", help="default: %(default)s")
    parser.add_argument(
        "--max-completion-length",
        type=int,
        help=f"limit at the beginning in tokens; default: {LIMIT}, or {HUB_LIMIT} with --model",
    )
    parser.add_argument("--seed", type=int, default=0, help="default: %(default)s")
    options = parser.parse_args()
    if options.dataset and not options.model:
        parser.error("--dataset needs --model: the tiny model knows digits only")
    return options


def main() -> None:
    """Runs the three acts and prints the table."""
    options = parse_options()
    quiet.keep_quiet()
    start = time.monotonic()

    print("== Preparing the model", flush=True)
    task = (
        hub_task(options)
        if options.model
        else sums_task(options.seed, options.max_completion_length)
    )
    untrained = held_out_accuracy(task, copy.deepcopy(task.model))
    print(f"held-out accuracy before training: {untrained:.0%}")

    print(f"\n== Act 1: max_completion_length={task.limit}, without the guard", flush=True)
    acts = [train(task, task.limit, guard=None)]

    print(f"\n== Act 2: max_completion_length={task.limit}, with the guard", flush=True)
    acts.append(train(task, task.limit, TruncationGuardCallback()))

    ceiling = task.generous_limit
    print(
        f"\n== Act 3: max_completion_length={task.limit}, with the guard and "
        f"raise_limit_to={ceiling}",
        flush=True,
    )
    guard = TruncationGuardCallback(raise_limit_to=ceiling, window=WINDOW)
    acts.append(train(task, task.limit, guard))

    print()
    Console().print(outcome_table(acts))
    print(f"{time.monotonic() - start:.0f} seconds")


if __name__ == "__main__":
    main()
