"""GSM8K from start to end: size the limit, train, let the guard watch and raise.

    python examples/gsm8k.py

is for one GPU and takes model and data set from the Hugging Face hub: Qwen2.5-0.5B-Instruct and
openai/gsm8k. Files and folders will do as well; without a GPU, a small model and a few steps:

    python examples/gsm8k.py --model my-model --dataset questions.jsonl --use_cpu --max_steps 2

The data set needs the columns `question` and `answer`; the answer ends in its number, in GSM8K
after `####`. A completion is right when its last number is that one.

1. `profile_dataset` measures the worked answers: a lower bound of what a model writes.
2. `profile_rollouts` samples the model itself, by the trainer that is about to train, at a
   generous limit. The limit of the training follows from it.
3. The training has the guard. As the model learns its answers change their length: where they
   outgrow the limit, WARN lines say so, and the guard raises it, up to `--raise_limit_to`.
"""

import argparse
import logging
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset, load_dataset
from transformers import AutoConfig, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

from quickstart import last_number_reward
from truncation_guard import (
    LengthProfile,
    TruncationGuardCallback,
    profile_dataset,
    profile_rollouts,
    set_max_completion_length,
)

INSTRUCTION = "Reason step by step. End with a line that holds #### and the number."


def parser() -> argparse.ArgumentParser:
    """Makes the command line."""
    made = argparse.ArgumentParser(description="GRPO on GSM8K, sized and guarded.")
    made.add_argument("--model", default="Qwen/Qwen2.5-0.5B-Instruct", help="name or folder")
    made.add_argument("--dataset", default="openai/gsm8k", help="name, or a .json(l) file")
    made.add_argument("--dataset_config", default="main", help="of a data set of the hub")
    made.add_argument("--output_dir", default="gsm8k")
    made.add_argument("--max_steps", type=int, default=200)
    made.add_argument("--num_generations", type=int, default=8, help="completions per prompt")
    made.add_argument("--per_device_train_batch_size", type=int, default=16)
    made.add_argument("--gradient_accumulation_steps", type=int, default=4)
    made.add_argument("--learning_rate", type=float, default=1e-6)
    made.add_argument("--num_prompts", type=int, default=32, help="of the profile")
    made.add_argument("--profile_limit", type=int, default=1024, help="in tokens: be generous")
    made.add_argument("--raise_limit_to", type=int, default=2048, help="the guard's ceiling")
    made.add_argument("--use_cpu", action="store_true")
    return made


def load_questions(options: argparse.Namespace) -> Dataset:
    """Loads the data set.

    Args:
        options: The command line.

    Returns:
        Rows with the columns `prompt`, a conversation, and `answer`, a text.
    """
    if Path(options.dataset).suffix in (".json", ".jsonl"):
        rows = load_dataset("json", data_files=options.dataset, split="train")
    else:
        rows = load_dataset(options.dataset, options.dataset_config, split="train")

    def conversation(row: dict[str, Any]) -> dict[str, Any]:
        text = f"{row['question']}\n\n{INSTRUCTION}"
        return {"prompt": [{"role": "user", "content": text}], "answer": row["answer"]}

    return rows.map(conversation, remove_columns=rows.column_names)


def profile_answers(options: argparse.Namespace, questions: Dataset) -> LengthProfile:
    """Measures the worked answers, and the prompts, in the model's tokens."""
    return profile_dataset(
        questions,
        AutoTokenizer.from_pretrained(options.model),
        column="answer",
        context_window=AutoConfig.from_pretrained(options.model).max_position_embeddings,
    )


def make_trainer(
    options: argparse.Namespace, questions: Dataset, limit: int, **settings: Any
) -> GRPOTrainer:
    """Makes a guarded trainer.

    Args:
        options: The command line.
        questions: The training data.
        limit: `max_completion_length`, in tokens.
        **settings: Further arguments of `GRPOConfig`.

    Returns:
        The trainer.
    """
    args = GRPOConfig(
        output_dir=options.output_dir,
        max_completion_length=limit,
        max_steps=options.max_steps,
        num_generations=options.num_generations,
        per_device_train_batch_size=options.per_device_train_batch_size,
        gradient_accumulation_steps=options.gradient_accumulation_steps,
        learning_rate=options.learning_rate,
        logging_steps=1,
        report_to="none",
        use_cpu=options.use_cpu,
        bf16=not options.use_cpu and torch.cuda.is_bf16_supported(),
        **settings,
    )
    return GRPOTrainer(
        model=options.model,
        reward_funcs=last_number_reward,
        args=args,
        train_dataset=questions,
        callbacks=[TruncationGuardCallback(raise_limit_to=options.raise_limit_to)],
    )


def limit_for(profile: LengthProfile, profile_limit: int) -> int:
    """Chooses the limit of the training.

    Args:
        profile: Of the model's rollouts.
        profile_limit: What they were sampled at, in tokens.

    Returns:
        In tokens: what holds 95 % of the completions, or `profile_limit` where that is longer or
        not known. An extrapolation is not to be trained at.
    """
    found = profile.recommend(coverage=0.95, max_length=profile_limit).max_completion_length
    return found or profile_limit


def size_and_train(options: argparse.Namespace, questions: Dataset, **settings: Any) -> GRPOTrainer:
    """Does all three steps.

    Args:
        options: The command line.
        questions: The training data.
        **settings: Further arguments of `GRPOConfig`.

    Returns:
        The trainer, after its training.
    """
    print("=== 1. What the worked answers say\n")
    answers = profile_answers(options, questions)
    print(answers)
    limit = answers.recommend(coverage=0.95, max_length=options.profile_limit)

    print("\n=== 2. What the model writes\n")
    trainer = make_trainer(options, questions, limit.max_completion_length, **settings)
    profile = profile_rollouts(
        trainer, max_completion_length=options.profile_limit, num_prompts=options.num_prompts
    )
    print(profile)

    chosen = limit_for(profile, options.profile_limit)
    set_max_completion_length(trainer, chosen, longest_prompt=answers.longest_prompt or 0)
    print(f"\n=== 3. Training at max_completion_length={chosen}\n", flush=True)
    trainer.train()
    return trainer


def show_the_guard() -> None:
    """Shows the guard's summary and histogram at the end of the training too, which are INFO."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    logging.getLogger("truncation_guard").setLevel(logging.INFO)


def main() -> None:
    """Sizes, trains and saves the model."""
    show_the_guard()
    options = parser().parse_args()
    trainer = size_and_train(options, load_questions(options))
    trainer.save_model(options.output_dir)


if __name__ == "__main__":
    main()
