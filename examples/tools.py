"""Completions that are cut off in the tool loop, what the guard says of them, and what cures it.

    python examples/tools.py

needs no network and no GPU and takes about a minute on two cores. A tiny model, taught to add up
numbers by calling a tool `add` for each step, is trained with TRL's `GRPOTrainer` twice from the
same weights. A completion is all of its turns together, the tool's results included:

    <call>add{"a": 7, "b": 5}<end><eos><tool>12<assistant><call>add{"a": 12, "b": 9}<end><eos> ...

So `max_completion_length` has to hold every call and every result. What the guard calls truncated
by `tool` ends on a call that nobody answered, because its result did not fit, or on a result that
left no room for a reply. TRL's own `completions/clipped_ratio` misses the first kind: the row ends
on the stop token behind its call.

1. At a limit that holds three calls, where most problems need more;
2. from the same limit, with a guard that may raise it.
"""

import copy
import random
import re
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import mean
from typing import Any

import torch
from datasets import Dataset
from rich.console import Console
from rich.table import Table
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedModel, PreTrainedTokenizerFast, PrinterCallback
from trl import GRPOConfig, GRPOTrainer

import quiet
import sums
from truncation_guard import TruncationGuardCallback

LIMIT = 48  # tokens; three calls with their results and the answer have 38 to 44, four 50 and more
CEILING = 128  # tokens; five calls have at most 72
WINDOW = 128  # completions that the guard looks at before it raises the limit; two windows
STEPS = 30  # optimizer steps of each act
SHOWN_STEPS = 10  # "first" and "last" are means over this many steps
GENERATION_BATCH = 64  # completions per generation batch, one optimizer step each
NUM_GENERATIONS = 8  # completions per prompt
LEARNING_RATE = 3e-4
PROBLEMS = 2048
TEACH_STEPS = 500

# The teacher's weakness: after the third call it often answers at once, whatever is left to add.
CAREFUL_CALLS = 3
SLIP_CHANCE = 0.5

PIECES = ("<user>", "<assistant>", "<tool>", "<call>", "<end>", "add", '{"a": ', ', "b": ', "}")
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message.role == 'user' %}<user>{{ message.content }}"
    "{% elif message.role == 'tool' %}<tool>{{ message.content }}"
    "{% else %}<assistant>{% for call in message.tool_calls or [] %}"
    "<call>{{ call.function.name }}{{ call.function.arguments | tojson }}<end>"
    "{% endfor %}{{ message.content }}<eos>"
    "{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
# How transformers finds the calls in what the model wrote.
RESPONSE_TEMPLATE = {
    "defaults": {"role": "assistant"},
    "start_anchor": "<assistant>",
    "fields": {
        "tool_calls": {
            "open_pattern": r"<call>(?P<name>[a-z]+)",
            "close": "<end>",
            "repeats": True,
            "content": "json",
            "transform": {
                "type": "function",
                "function": {"name": "{name}", "arguments": "{content}"},
            },
        },
        "content": {"close": "<eos>", "content": "text"},
    },
}


def add(a: int, b: int) -> int:
    """Adds two numbers.

    Args:
        a: The first number.
        b: The second number.

    Returns:
        Their sum.
    """
    return a + b


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Builds a tokenizer of digits and the pieces of a chat with calls, one token each."""
    tokens = [sums.PAD, sums.EOS, *sums.CHARACTERS, *PIECES]
    backend = Tokenizer(
        models.WordLevel({token: n for n, token in enumerate(tokens)}, unk_token=sums.PAD)
    )
    pieces = "|".join(map(re.escape, (sums.EOS, *PIECES)))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(f"{pieces}|."), behavior="isolated")
    backend.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token=sums.PAD,
        eos_token=sums.EOS,
        padding_side="left",
        clean_up_tokenization_spaces=False,
        model_max_length=sums.CONTEXT_TOKENS,
        chat_template=CHAT_TEMPLATE,
    )
    tokenizer.response_template = RESPONSE_TEMPLATE
    return tokenizer


def conversation(prompt: str, slips: random.Random) -> list[dict[str, Any]]:
    """Writes what the teacher would say, the tool's results among it.

    Args:
        prompt: A problem such as `"7+5+9="`.
        slips: From it the teacher's weakness is drawn.

    Returns:
        Messages, from the user's to the answer.
    """
    total, *terms = map(int, prompt.rstrip("=").split("+"))
    messages: list[dict[str, Any]] = [{"role": "user", "content": prompt}]
    for calls, term in enumerate(terms):
        if calls >= CAREFUL_CALLS and slips.random() < SLIP_CHANCE:
            break
        call = {"name": "add", "arguments": {"a": total, "b": term}}
        total = add(total, term)
        messages += [
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [{"type": "function", "function": call}],
            },
            {"role": "tool", "name": "add", "content": str(total)},
        ]
    return [*messages, {"role": "assistant", "content": str(total)}]


def teaching_batches(
    tokenizer: PreTrainedTokenizerFast, seed: int
) -> Iterator[dict[str, torch.Tensor]]:
    """Makes the inputs and labels of each step; labelled is what the assistant writes."""
    slips = random.Random(seed)
    prompts = sums.problems(TEACH_STEPS * sums.TEACH_BATCH, seed)["prompt"]
    talks = [conversation(prompt, slips) for prompt in prompts]
    texts = tokenizer.apply_chat_template(talks, tokenize=False)
    for start in range(0, len(texts), sums.TEACH_BATCH):
        rows = texts[start : start + sums.TEACH_BATCH]
        encoded = tokenizer(rows, padding=True, padding_side="right", return_tensors="pt")
        ids, mask = encoded["input_ids"], encoded["attention_mask"]
        begun, ended = (
            (ids == tokenizer.convert_tokens_to_ids(token)).cumsum(dim=1).roll(1, dims=1)
            for token in ("<assistant>", sums.EOS)
        )
        written = (begun > ended) & (mask == 1)
        written[:, 0] = False  # what the roll brought to the front
        labels = ids.masked_fill(~written, -100)
        yield {"input_ids": ids, "attention_mask": mask, "labels": labels}


def chat_problems(n: int, seed: int) -> Dataset:
    """Draws problems with the columns `prompt`, of one message, and `result`, the right answer."""
    drawn = sums.problems(n, seed)
    return Dataset.from_dict(
        {
            "prompt": [[{"role": "user", "content": prompt}] for prompt in drawn["prompt"]],
            "result": [sums.final_result(answer) for answer in drawn["answer"]],
        }
    )


def reward(
    completions: list[list[dict[str, Any]]], result: list[str], **kwargs: object
) -> list[float]:
    """Scores 1.0 where the last message is the right result, else 0.0."""
    return [
        float(messages[-1].get("content") == right)
        for messages, right in zip(completions, result, strict=True)
    ]


@dataclass
class Act:
    """One training run: what its log says, a value for each optimizer step."""

    limits: list[float]
    clipped: list[float]
    truncated: list[float]
    by_tool: list[float]
    rewards: list[float]


def train(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, guard: TruncationGuardCallback
) -> Act:
    """Trains a copy of the model at the short limit, under this guard."""
    with tempfile.TemporaryDirectory() as folder:
        trainer = GRPOTrainer(
            model=copy.deepcopy(model),
            reward_funcs=reward,
            args=GRPOConfig(
                output_dir=folder,
                max_completion_length=LIMIT,
                max_steps=STEPS,
                learning_rate=LEARNING_RATE,
                warmup_steps=STEPS // 10,
                num_generations=NUM_GENERATIONS,
                per_device_train_batch_size=GENERATION_BATCH,
                **quiet.ON_THE_CPU,
            ),
            train_dataset=chat_problems(PROBLEMS, seed=1000),
            processing_class=tokenizer,
            tools=[add],
            callbacks=[guard],
        )
        # Without progress bars transformers prints every log entry: the WARN lines drown in them.
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    log = [entry for entry in trainer.state.log_history if "reward" in entry]
    names = ("limit", "truncated_share", "cause/tool")
    limits, truncated, by_tool = ([e[f"truncation_guard/{name}"] for e in log] for name in names)
    return Act(
        limits=limits,
        clipped=[entry["completions/clipped_ratio"] for entry in log],
        truncated=truncated,
        by_tool=by_tool,
        rewards=[entry["reward"] for entry in log],
    )


def outcome_table(acts: list[Act]) -> Table:
    """Lays the acts out as a table, one row each."""
    table = Table(title=f"{STEPS} steps each (first -> last {SHOWN_STEPS} steps)")
    headings = ("", "limit", "truncated", "by tool", "clipped_ratio of TRL", "reward")
    for heading in headings:
        table.add_column(heading, justify="right")
    for number, act in enumerate(acts, start=1):
        ends = [
            (mean(values[:SHOWN_STEPS]), mean(values[-SHOWN_STEPS:]))
            for values in (act.truncated, act.by_tool, act.clipped)
        ]
        table.add_row(
            str(number),
            " -> ".join(dict.fromkeys(f"{limit:.0f}" for limit in act.limits)),
            *(f"{first:.0%} -> {last:.0%}" for first, last in ends),
            f"{mean(act.rewards[:SHOWN_STEPS]):.2f} -> {mean(act.rewards[-SHOWN_STEPS:]):.2f}",
        )
    return table


def main() -> None:
    """Teaches the model, trains it twice and prints the table."""
    quiet.keep_quiet()
    torch.set_num_threads(1)  # as fast for matrices this small
    start = time.monotonic()

    print("== Teaching a tiny model to call a tool", flush=True)
    tokenizer = build_tokenizer()
    model = sums.build_model(tokenizer)
    sums.fit(model, teaching_batches(tokenizer, seed=0), TEACH_STEPS)
    example = conversation("7+5+9+4=", random.Random(0))
    print(tokenizer.apply_chat_template(example, tokenize=False))

    print(f"\n== Act 1: max_completion_length={LIMIT}, with the guard", flush=True)
    acts = [train(model, tokenizer, TruncationGuardCallback())]

    print(f"\n== Act 2: the same, with raise_limit_to={CEILING}", flush=True)
    guard = TruncationGuardCallback(raise_limit_to=CEILING, window=WINDOW)
    acts.append(train(model, tokenizer, guard))

    print()
    Console().print(outcome_table(acts))
    print(f"{time.monotonic() - start:.0f} seconds")


if __name__ == "__main__":
    main()
