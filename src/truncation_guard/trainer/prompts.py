"""The prompts of a trainer's data sets, and how long they are.

Looking changes nothing: it draws no random number, makes no process wait for another, and leaves
alone what can be read only once or what code of the user's makes up on the way. Read in TRL 1.16.
"""

import json
from collections.abc import Sequence
from typing import Any

from truncation_guard.trainer.versions import writes_prompts_itself

PROMPTS_LOOKED_AT = 64
_PROMPTS_AT_ONCE = 1000


def sample_prompts(trainer: Any) -> list[Any]:
    """Up to 64 prompts, spread evenly over the training data, as the data loader yields them.

    Empty where reading has consequences or shows nothing: a stream may be readable only once or
    cost a download, a transform of the user's may draw random numbers, and an image has no tokens
    until it is processed.
    """
    dataset = trainer.train_dataset
    return _evenly(dataset.select_columns("prompt")) if _may_be_read(dataset) else []


def longest_prompt(trainer: Any, dataset: Any, *, above: int) -> int:
    """Tokens of the longest prompt of a data set; 0 where none exceeds `above`.

    It reads the whole data set, some 5,000 conversations a second, and tokenizes only prompts with
    enough bytes. Also 0 where only a rollout shows the prompts, or where reading has consequences
    (see `sample_prompts`).
    """
    if not _may_be_read(dataset):
        return 0
    prompts = dataset.select_columns("prompt")
    # A token has at least one byte. The chat template adds less than a whole prompt.
    added = max(prompt_lengths(trainer, _evenly(prompts)), default=0)
    longest = above
    for start in range(0, len(prompts), _PROMPTS_AT_ONCE):
        chunk = prompts[start : start + _PROMPTS_AT_ONCE]["prompt"]
        long = [prompt for prompt in chunk if _is_text(prompt) and _bytes(prompt) + added > longest]
        longest = max([longest, *prompt_lengths(trainer, long)])
    return longest if longest > above else 0


def prompt_lengths(trainer: Any, prompts: Sequence[Any]) -> list[int]:
    """Tokens of each prompt, by the trainer's own tokenization.

    Empty where only a rollout shows them: environments write into the prompt, and a `rollout_func`
    may do anything.
    """
    if writes_prompts_itself(trainer):
        return []
    if not prompts:
        return []
    prompt_ids, *_ = trainer._tokenize_prompts(prompts)
    return [len(ids) for ids in prompt_ids]


def is_conversational(prompts: Sequence[Any]) -> bool:
    """Whether TRL puts these prompts into the chat template."""
    import trl

    return bool(prompts) and bool(trl.is_conversational({"prompt": prompts[0]}))


def _may_be_read(dataset: Any) -> bool:
    from datasets import Dataset

    if not isinstance(dataset, Dataset) or dataset.format["type"] == "custom":
        return False
    return not {"image", "images"} & set(dataset.column_names)


def _evenly(prompts: Any) -> list[Any]:
    """Up to 64 prompts of text, spread evenly over a data set."""
    size = len(prompts)
    number = min(size, PROMPTS_LOOKED_AT)
    drawn = [prompts[i * size // number]["prompt"] for i in range(number)]
    return [prompt for prompt in drawn if _is_text(prompt)]


def _bytes(prompt: Any) -> int:
    """Bytes of a prompt, of its JSON where it is no string."""
    text = prompt if isinstance(prompt, str) else json.dumps(prompt, ensure_ascii=False)
    return len(text.encode(errors="replace"))


def _is_text(prompt: Any) -> bool:
    """Whether a prompt holds nothing but text."""
    if not isinstance(prompt, list):
        return isinstance(prompt, str)
    contents = [message["content"] for message in prompt]
    blocks = [block for content in contents if isinstance(content, list) for block in content]
    return all(block["type"] == "text" for block in blocks)
