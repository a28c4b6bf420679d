"""The guard with TRL's `RLOOTrainer`: what each mode makes of the same completions.

    python examples/rloo.py

needs no network and no GPU and takes about half a minute on two cores. RLOO compares each
completion with the mean reward of the others of its group. A completion that was cut off before
its answer scores 0, so it lowers that mean and lifts all that finished, right or wrong.

A tiny model, taught to write out sums (see `sums.py`), is trained for a few steps from the same
weights in three modes of the guard. The first generation batch is the same in all of them; the
table shows what became of it. What finished in a group should not be pushed up as a whole: with
`exclude` the advantages of the finished sum to 0, and the gradient is theirs alone, averaged over
them alone.
"""

import copy
import tempfile
import time

import torch
from rich.console import Console
from rich.table import Table
from transformers import PreTrainedModel, PreTrainedTokenizerBase, PrinterCallback
from trl import RLOOConfig, RLOOTrainer

import quiet
import sums
from truncation_guard import TruncationGuardCallback

MODES = ("observe", "downweight", "exclude")
LIMIT = 29  # tokens; two of three right answers are longer
STEPS = 4  # optimizer steps for each mode
GENERATION_BATCH = 128  # completions per generation batch, one optimizer step each
NUM_GENERATIONS = 8  # completions per prompt
TEACH_STEPS = 500

COLUMNS = {
    "truncated": "truncation_guard/truncated_share",
    "advantages of the finished, summed": "truncation_guard/survivor_advantage_sum",
    "gradient norm": "grad_norm",
}


def first_step(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, guard: TruncationGuardCallback
) -> dict[str, float]:
    """Trains a copy of the model under this guard.

    Args:
        model: The model that all trainings start from.
        tokenizer: Its tokenizer.
        guard: The guard.

    Returns:
        What the trainer logged for the first step.
    """
    with tempfile.TemporaryDirectory() as folder:
        trainer = RLOOTrainer(
            model=copy.deepcopy(model),
            reward_funcs=sums.reward,
            args=RLOOConfig(
                output_dir=folder,
                max_completion_length=LIMIT,
                max_steps=STEPS,
                learning_rate=3e-4,
                num_generations=NUM_GENERATIONS,
                per_device_train_batch_size=GENERATION_BATCH,
                beta=0.0,  # without a reference model, the gradient is that of the advantages alone
                **quiet.ON_THE_CPU,
            ),
            train_dataset=sums.problems(512, seed=1000),
            processing_class=tokenizer,
            callbacks=[guard],
        )
        # Without progress bars transformers prints every log entry: the WARN lines drown in them.
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    return trainer.state.log_history[0]


def main() -> None:
    """Teaches the model, trains it in each mode and prints the table."""
    quiet.keep_quiet()
    torch.set_num_threads(1)  # as fast for matrices this small
    start = time.monotonic()

    print("== Teaching a tiny model to write out sums", flush=True)
    tokenizer = sums.build_tokenizer()
    model = sums.build_model(tokenizer)
    sums.teach(model, tokenizer, steps=TEACH_STEPS)

    table = Table(title="The first generation batch, the same completions in each mode")
    for heading in ("mode", *COLUMNS):
        table.add_column(heading, justify="right")
    for mode in MODES:
        print(f"\n== mode={mode}, max_completion_length={LIMIT}", flush=True)
        logged = first_step(model, tokenizer, TruncationGuardCallback(mode=mode))
        share, *numbers = (logged[name] for name in COLUMNS.values())
        table.add_row(mode, f"{share:.0%}", *(f"{round(n, 2) + 0.0:.2f}" for n in numbers))

    print()
    Console().print(table)
    print(f"{time.monotonic() - start:.0f} seconds")


if __name__ == "__main__":
    main()
