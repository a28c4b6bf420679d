"""Size `max_completion_length` before training: from reference answers, and from rollouts.

    python examples/size_it_first.py

needs no network and no GPU and takes about a minute on two free cores. It leaves a data set and a
model in the folder `sums`, so that the snippets and the command of the README have something to
work on:

- `sums/problems.jsonl`: problems with worked answers, the columns `prompt` and `answer`;
- `sums/model`: a tiny model, taught to write out sums step by step (see `sums.py`);
- `sums/answers.png` and `sums/rollouts.png`: pictures of the two profiles.
"""

import argparse
from pathlib import Path

from datasets import disable_progress_bars
from trl import GRPOConfig, GRPOTrainer

import sums
from truncation_guard import profile_dataset, profile_rollouts

PROBLEMS = 2000
GENEROUS_LIMIT = 128  # tokens; far more than the longest right answer, which has 43
CURRENT_LIMIT = 25  # tokens; what a run would have used, had nobody looked


def main() -> None:
    """Make the files and print the two profiles."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=Path("sums"), help="where the files go")
    folder = parser.parse_args().folder
    disable_progress_bars()

    print("Teaching a tiny model to write out sums ...")
    tokenizer = sums.build_tokenizer()
    model = sums.build_model(tokenizer)
    sums.teach(model, tokenizer)
    model.save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    problems = sums.problems(PROBLEMS)
    problems.to_json(folder / "problems.jsonl")

    print("\n=== What the reference answers say\n")
    profile = profile_dataset(problems, tokenizer, column="answer")
    print(profile)
    profile.plot(folder / "answers.png")

    print("\n=== What the model writes\n")
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=sums.reward,
        args=GRPOConfig(
            output_dir=str(folder / "run"),
            max_completion_length=CURRENT_LIMIT,
            use_cpu=True,
            bf16=False,
            report_to="none",
        ),
        train_dataset=problems,
        processing_class=tokenizer,
    )
    profile = profile_rollouts(trainer, max_completion_length=GENEROUS_LIMIT, num_prompts=64)
    print(profile)
    profile.plot(folder / "rollouts.png")
    print(f"\nFiles for the snippets of the README are in {folder}/.")


if __name__ == "__main__":
    main()
