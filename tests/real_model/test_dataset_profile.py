"""SmolLM2 made to write real answers: it takes as many tokens as `profile_dataset` counts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.chats import assistant, tool, user
from transformers import LogitsProcessor, LogitsProcessorList

from truncation_guard.profiling.dataset.profile_dataset import profile_dataset

pytestmark = pytest.mark.real_model

PROBLEMS = 2
ROOM = 64
"""Tokens that generation could go on for."""
END = "<|im_end|>"


class Dictation(LogitsProcessor):
    """Leaves generation one token to choose at each step."""

    def __init__(self, prompt_length: int, script: list[int]) -> None:
        self._prompt_length, self._script = prompt_length, script

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        dictated = torch.full_like(scores, -torch.inf)
        dictated[:, self._script[input_ids.shape[1] - self._prompt_length]] = 0.0
        return dictated


def write(model: Any, tokenizer: Any, prompt_ids: list[int], answer_ids: list[int]) -> list[int]:
    """What `generate` writes after the prompt when the answer is dictated, and more after it."""
    script = [*answer_ids, *tokenizer("and so on" * ROOM)["input_ids"]]
    output = model.generate(
        torch.tensor([prompt_ids]),
        attention_mask=torch.ones(1, len(prompt_ids), dtype=torch.long),
        do_sample=False,
        max_new_tokens=len(answer_ids) + ROOM,
        logits_processor=LogitsProcessorList([Dictation(len(prompt_ids), script)]),
    )
    return list(output[0, len(prompt_ids) :].tolist())


def problems() -> list[tuple[str, str]]:
    """(question, worked answer)."""
    import reasoning_gym

    rows = reasoning_gym.create_dataset("gsm_symbolic", size=PROBLEMS, seed=11)
    return [(row["question"], row["metadata"]["answer_cot"]) for row in rows]


def conversations(
    question: str, answer: str
) -> dict[str, tuple[dict[str, Any], list[Any], list[Any]]]:
    """Format -> (row, the prompt's messages, the completion's messages)."""
    prompt, completion = [user(question)], [assistant(answer)]
    system = [{"role": "system", "content": "Answer step by step."}, *prompt]
    loop = [assistant("Let me compute."), tool("42"), *completion]
    blocks = [
        user([{"type": "text", "text": question}]),
        assistant([{"type": "text", "text": answer}]),
    ]
    return {
        "answer": ({"prompt": prompt, "answer": answer}, prompt, completion),
        "completion": ({"prompt": system, "completion": completion}, system, completion),
        "messages": ({"messages": prompt + completion}, prompt, completion),
        "blocks": ({"messages": blocks}, prompt, completion),
        "tool loop": ({"prompt": prompt, "completion": loop}, prompt, loop),
    }


@pytest.mark.parametrize("name", list(conversations("", "")))
def test_a_conversations_answer_takes_as_many_tokens_as_counted(
    model_and_tokenizer: tuple[Any, Any], name: str
) -> None:
    model, tokenizer = model_and_tokenizer
    for question, answer in problems():
        row, prompt, completion = conversations(question, answer)[name]
        sample = profile_dataset([row], tokenizer, progress=False).sample
        rendered = tokenizer.apply_chat_template(prompt + completion, tokenize=False)
        whole_ids = tokenizer(rendered.rstrip())["input_ids"]
        prompt_ids = tokenizer.apply_chat_template(prompt, add_generation_prompt=True)["input_ids"]
        assert whole_ids[: len(prompt_ids)] == prompt_ids
        assert sample.longest == len(whole_ids) - len(prompt_ids)
        # In a tool loop, the last turn is generated after what came before it.
        before = tokenizer.apply_chat_template(
            prompt + completion[:-1], add_generation_prompt=True
        )["input_ids"]
        written = write(model, tokenizer, before, whole_ids[len(before) :])
        assert before + written == whole_ids
        assert len(before) - len(prompt_ids) + len(written) == sample.longest
        assert tokenizer.decode(before + written) == rendered.rstrip()
        assert written[-1] == tokenizer.eos_token_id == tokenizer.convert_tokens_to_ids(END)


def test_a_texts_answer_takes_as_many_tokens_as_counted(
    model_and_tokenizer: tuple[Any, Any],
) -> None:
    model, tokenizer = model_and_tokenizer
    for question, answer in problems():
        for ending in ("", END):
            rows = [{"prompt": question, "completion": f"\n{answer}{ending}"}]
            sample = profile_dataset(rows, tokenizer, progress=False).sample
            prompt_ids = tokenizer(question)["input_ids"]
            written = write(
                model, tokenizer, prompt_ids, tokenizer(f"\n{answer}{END}")["input_ids"]
            )
            assert len(written) == sample.longest
            assert tokenizer.decode(prompt_ids + written) == f"{question}\n{answer}{END}"


def test_each_turn_of_a_conversation_is_counted(model_and_tokenizer: tuple[Any, Any]) -> None:
    _, tokenizer = model_and_tokenizer
    messages = [m for question, answer in problems() for m in (user(question), assistant(answer))]
    made = profile_dataset([messages], tokenizer, context_window=2048, progress=False)
    expected = [len(tokenizer(answer)["input_ids"]) + 1 for _, answer in problems()]
    ended, cut = made.sample.histograms
    assert sorted(n for n, count in ended.items() for _ in range(count)) == sorted(expected)
    assert not cut
    prompt = tokenizer.apply_chat_template(messages[:-1], add_generation_prompt=True)
    assert made.longest_prompt == len(prompt["input_ids"])
