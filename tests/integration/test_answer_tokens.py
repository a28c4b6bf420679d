"""The counted tokens are those that the real trainer's model has to generate for the answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from support import chats, tiny
from support.chats import assistant, user
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    LogitsProcessor,
    LogitsProcessorList,
    PreTrainedTokenizerFast,
)

from truncation_guard.profiling.dataset.profile_dataset import profile_dataset


class Dictated(LlamaForCausalLM):
    """Generates as ever, but can only choose the next token of `script`."""

    script: tuple[int, ...] = ()

    def generate(self, input_ids: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        return super().generate(
            input_ids,
            *args,
            logits_processor=LogitsProcessorList([Dictation(input_ids.shape[1], self.script)]),
            **kwargs,
        )


class Dictation(LogitsProcessor):
    def __init__(self, prompt_length: int, script: tuple[int, ...]) -> None:
        self._prompt_length, self._script = prompt_length, script

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        dictated = torch.full_like(scores, -torch.inf)
        dictated[:, self._script[input_ids.shape[1] - self._prompt_length]] = 0.0
        return dictated


def generated(
    tokenizer: PreTrainedTokenizerFast,
    prompt: Any,
    script: list[int],
    limit: int,
    output_dir: Path,
    **config: Any,
) -> tuple[list[int], bool]:
    """The ids that GRPOTrainer's generation writes, and whether TRL calls them truncated."""
    end_of_turn = {"<|im_end|>", tokenizer.eos_token, chats.SPECIAL[-1], "<end_of_turn>"}
    model = Dictated(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=8,
            intermediate_size=8,
            num_hidden_layers=1,
            num_attention_heads=1,
            num_key_value_heads=1,
            max_position_embeddings=4096,
            pad_token_id=tokenizer.pad_token_id,
            eos_token_id=sorted(tokenizer.convert_tokens_to_ids(list(end_of_turn))),
            bos_token_id=None,
        )
    )
    # Where the answer's end is no stop token, eos is what ends it.
    model.script = (*script, *[tokenizer.eos_token_id] * limit)
    seen: list[list[int]] = []

    def reward(completion_ids: list[list[int]], **kwargs: Any) -> list[float]:
        seen.extend(completion_ids)
        return [0.0 for _ in completion_ids]

    trainer = tiny.trainer(
        tiny.config(
            output_dir,
            max_completion_length=limit,
            per_device_train_batch_size=2,
            num_generations=2,
            **config,
        ),
        reward,
        model=model,
        processing_class=tokenizer,
        train_dataset=Dataset.from_dict({"prompt": [prompt] * 2}),
    )
    trainer.train()
    assert seen[0] == seen[1]
    return seen[0], trainer.state.log_history[0]["completions/clipped_ratio"] > 0


def script_of(tokenizer: PreTrainedTokenizerFast, prompt: Any, answer: Any, kwargs: Any) -> Any:
    """The answer's ids: what follows the prompt's in those of the whole conversation."""
    if isinstance(prompt, str):
        return tokenizer(answer)["input_ids"]
    messages = [assistant(answer)] if isinstance(answer, str) else answer
    before = tokenizer.apply_chat_template(prompt, add_generation_prompt=True, **kwargs)
    whole = tokenizer.apply_chat_template([*prompt, *messages], **kwargs)
    length = len(before["input_ids"])
    assert whole["input_ids"][:length] == before["input_ids"]
    return whole["input_ids"][length:]


QUESTION = [user("Is it?")]
FORMATS = {
    "text": (chats.CHATML, "Is it?", "It is."),
    "text with its stop token": (chats.CHATML, "Is it?", "It is.<|im_end|>"),
    "text with another stop token": (chats.CHATML, "Is it?", "It is.</s>"),
    "answer to messages": (chats.CHATML, QUESTION, "It is."),
    "completion in messages": (chats.CHATML, QUESTION, [assistant("It is.")]),
    "completion of two turns": (chats.CHATML, QUESTION, [assistant("It is"), assistant("so.")]),
    "default system prompt": (chats.DEFAULT_SYSTEM, QUESTION, "It is."),
    "template that strips": (chats.STRIPS, QUESTION, "\n It is. "),
    "no generation prompt": (chats.NO_GENERATION_PROMPT, QUESTION, "It is."),
    "no stop token": (chats.NO_STOP, QUESTION, "It is."),
    "qwen3": (chats.template_of_trl("qwen3"), QUESTION, "It is."),
    "qwen3, thinking": (
        chats.template_of_trl("qwen3"),
        QUESTION,
        "<think>\nHm\n</think>\n\nIt is.",
    ),
    "gemma3": (chats.template_of_trl("gemma3"), QUESTION, " It is. "),
    "qwen2_5": (chats.template_of_trl("qwen2_5"), QUESTION, "<table>\n\u00e9"),
}


@pytest.mark.parametrize("name", FORMATS)
def test_the_trainer_generates_as_many_tokens_as_were_counted(name: str, tmp_path: Path) -> None:
    template, prompt, answer = FORMATS[name]
    tokenizer = chats.tokenizer(template)
    # With two messages, the first one's stop token would end the generation: TRL goes on in its
    # tool loop only.
    script = script_of(tokenizer, prompt, answer, {})
    rows = [{"prompt": prompt, "completion": answer}]
    sample = profile_dataset(rows, tokenizer, progress=False).sample
    if isinstance(answer, list) and len(answer) > 1:
        first, _ = generated(tokenizer, prompt, script, 200, tmp_path)
        header = tokenizer("\n<|im_start|>assistant\n")["input_ids"]
        second, _ = generated(
            tokenizer, prompt, script[len(first) + len(header) :], 200, tmp_path / "second"
        )
        assert sample.longest == len(first) + len(header) + len(second)
        return
    ids, truncated = generated(tokenizer, prompt, script, sample.longest, tmp_path)
    assert len(ids) == sample.longest
    assert not truncated
    one_less, truncated = generated(
        tokenizer, prompt, script, sample.longest - 1, tmp_path / "one less"
    )
    assert len(one_less) == sample.longest - 1
    assert truncated
    much_more, _ = generated(tokenizer, prompt, script, 200, tmp_path / "more")
    assert much_more == ids


def test_a_closed_thinking_block_is_not_generated(tmp_path: Path) -> None:
    tokenizer = chats.tokenizer(chats.template_of_trl("qwen3"))
    kwargs = {"enable_thinking": False}
    script = script_of(tokenizer, QUESTION, "It is.", kwargs)
    rows = [{"prompt": QUESTION, "answer": "It is."}]
    sample = profile_dataset(rows, tokenizer, chat_template_kwargs=kwargs, progress=False).sample
    ids, truncated = generated(
        tokenizer, QUESTION, script, sample.longest, tmp_path, chat_template_kwargs=kwargs
    )
    assert len(ids) == sample.longest == len("It is.") + 1
    assert not truncated


@pytest.mark.parametrize("answer", ["<table>", "Hm\n</think>\n\nIt is."])
def test_an_opened_thinking_block_is_not_generated(answer: str, tmp_path: Path) -> None:
    """DeepSeek-R1: the whole conversation does not begin with the prompt that generation gets."""
    tokenizer = chats.tokenizer(chats.template_of_trl("deepseek_r1_distill"))
    script = tokenizer(answer + chats.SPECIAL[-1])["input_ids"]
    sample = profile_dataset(
        [{"prompt": QUESTION, "answer": answer}], tokenizer, progress=False
    ).sample
    ids, truncated = generated(tokenizer, QUESTION, script, sample.longest, tmp_path)
    assert tokenizer.decode(ids) == answer + chats.SPECIAL[-1]
    assert len(ids) == sample.longest
    assert not truncated
