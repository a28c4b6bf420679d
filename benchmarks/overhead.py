"""The guard's own time for each generation batch, next to TRL's.

Generation is stubbed out, so that what is left of TRL's `_generate_and_score_completions` is what
the guard adds to: tokenizing, decoding, padding, rewards, advantages. The guard's part is timed
inside the very same calls. The completions are its worst case: most are truncated, and the
tokenizer has an end-of-turn token that generation does not stop at, which they are searched for.

    python benchmarks/overhead.py [--completions 64 512 4096] [--tokens 2048] [--repeats 7]
"""

import argparse
import logging
import random
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from datasets import Dataset
from rich.console import Console
from rich.table import Table
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer

from truncation_guard import TruncationGuardCallback
from truncation_guard.guard.fault_barrier import FaultBarrier

PAD, EOS, END_OF_TURN = 0, 1, 2
WORDS = 1000
GENERATIONS = 8
SHARE_TRUNCATED = 0.75
STAGES = ("begin", "generated", "rewarded", "scored")


def main() -> None:
    """Print a table: one row for each number of completions and each mode."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--completions", type=int, nargs="+", default=[64, 512, 4096])
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--repeats", type=int, default=7)
    arguments = parser.parse_args()
    logging.getLogger("truncation_guard").setLevel(logging.ERROR)

    table = Table(title=f"one generation batch, completions of up to {arguments.tokens} tokens")
    for column in ("completions", "mode", "TRL, ms", "guard, ms", "guard / TRL", "guard, µs/row"):
        table.add_column(column, justify="right")
    for completions in arguments.completions:
        for mode in ("observe", "downweight", "exclude", "penalize"):
            trl, guard = measure(completions, arguments.tokens, mode, arguments.repeats)
            table.add_row(
                str(completions),
                mode,
                f"{1e3 * trl:.1f}",
                f"{1e3 * guard:.2f}",
                f"{guard / trl:.2%}",
                f"{1e6 * guard / completions:.2f}",
            )
    Console(width=100).print(table)


def measure(completions: int, tokens: int, mode: Any, repeats: int) -> tuple[float, float]:
    """Medians of TRL's own and of the guard's own seconds for one batch."""
    with tempfile.TemporaryDirectory() as folder:
        trainer = build_trainer(folder, completions, tokens, mode)
        inputs = [{"prompt": f"w{3 + i // GENERATIONS}"} for i in range(completions)]
        trainer.model.train()
        seconds: list[tuple[float, float]] = []
        for _ in range(repeats + 1):
            with timed_stages() as in_guard:
                start = time.perf_counter()
                trainer._generate_and_score_completions(inputs)
                total = time.perf_counter() - start
            seconds.append((total - sum(in_guard), sum(in_guard)))
    warm = seconds[1:]
    return statistics.median(trl for trl, _ in warm), statistics.median(own for _, own in warm)


@contextmanager
def timed_stages() -> Iterator[list[float]]:
    """Collect the seconds that the trainer spends in the guard: its stages, and the counts."""
    seconds: list[float] = []
    methods = [(FaultBarrier, name) for name in STAGES]
    methods.append((TruncationGuardCallback, "batch_counted"))
    originals = [(owner, name, getattr(owner, name)) for owner, name in methods]

    def timed(original: Any) -> Any:
        def stage(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            try:
                return original(*args, **kwargs)
            finally:
                seconds.append(time.perf_counter() - start)

        return stage

    try:
        for owner, name, original in originals:
            setattr(owner, name, timed(original))
        yield seconds
    finally:
        for owner, name, original in originals:
            setattr(owner, name, original)


def build_trainer(folder: str, completions: int, tokens: int, mode: Any) -> GRPOTrainer:
    """A real trainer of a tiny model whose generation answers at once."""
    words = {"<pad>": PAD, "<eos>": EOS, "<|im_end|>": END_OF_TURN}
    words |= {f"w{i}": i for i in range(3, WORDS)}
    core = Tokenizer(models.WordLevel(words, unk_token="w3"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token="<pad>",
        eos_token="<eos>",
        additional_special_tokens=["<|im_end|>"],
    )
    config = LlamaConfig(
        vocab_size=WORDS,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        pad_token_id=PAD,
        eos_token_id=EOS,
        bos_token_id=None,
    )
    trainer = GRPOTrainer(
        model=LlamaForCausalLM(config),
        reward_funcs=lambda completions, **kwargs: [float(len(c) % 2) for c in completions],
        args=GRPOConfig(
            output_dir=folder,
            use_cpu=True,
            bf16=False,
            per_device_train_batch_size=completions,
            num_generations=GENERATIONS,
            max_completion_length=tokens,
            report_to="none",
            disable_tqdm=True,
        ),
        train_dataset=Dataset.from_dict({"prompt": ["w3"] * completions}),
        processing_class=tokenizer,
        callbacks=[TruncationGuardCallback(mode=mode)],
    )
    rows = canned_rollouts(completions, tokens)
    trainer._generate_single_turn = lambda *args, **kwargs: ([list(row) for row in rows], None)
    return trainer


def canned_rollouts(completions: int, tokens: int) -> list[list[int]]:
    """Token lists of which the share `SHARE_TRUNCATED` reaches the limit."""
    chance = random.Random(0)
    rows = []
    for _ in range(completions):
        row = chance.choices(range(3, WORDS), k=tokens)
        if chance.random() >= SHARE_TRUNCATED:
            row = [*row[: chance.randrange(tokens // 4, tokens)], EOS]
        rows.append(row)
    return rows


if __name__ == "__main__":
    main()
