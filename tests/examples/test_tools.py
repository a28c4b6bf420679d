"""The pieces of `examples/tools.py`; the training itself is a step of `.ci/run`."""

from __future__ import annotations

import random
import re
from itertools import islice

import pytest

import sums
import tools

TOKENIZER = tools.build_tokenizer()


class NoSlips(random.Random):
    def random(self) -> float:
        return 1.0


def test_the_teacher_calls_the_tool_for_each_step() -> None:
    messages = tools.conversation("7+5+9=", NoSlips())
    assert TOKENIZER.apply_chat_template(messages, tokenize=False) == (
        '<user>7+5+9=<assistant><call>add{"a": 7, "b": 5}<end><eos><tool>12'
        '<assistant><call>add{"a": 12, "b": 9}<end><eos><tool>21<assistant>21<eos>'
    )


def test_a_call_is_found_in_the_tokens() -> None:
    ids = TOKENIZER('<call>add{"a": 12, "b": 9}<end><eos>')["input_ids"]
    assert len(ids) == 10
    (call,) = TOKENIZER.parse_response(ids, prefix="<user>1+2=<assistant>")["tool_calls"]
    assert call["function"] == {"name": "add", "arguments": {"a": 12, "b": 9}}
    assert tools.add(**call["function"]["arguments"]) == 21


@pytest.mark.slow
def test_the_model_is_taught_what_the_assistant_writes_and_nothing_else() -> None:
    for batch in islice(tools.teaching_batches(TOKENIZER, seed=0), 3):
        for ids, labels in zip(batch["input_ids"], batch["labels"], strict=True):
            text = TOKENIZER.decode(ids[ids != TOKENIZER.pad_token_id])
            written = "".join(re.findall("<assistant>(.*?<eos>)", text))
            assert TOKENIZER.decode(labels[labels != -100]) == written


@pytest.mark.parametrize(("terms", "fits"), [(4, True), (5, False), (6, False)])
def test_the_limit_holds_three_calls_and_the_ceiling_five(terms: int, fits: bool) -> None:
    problems = sums.problems(500, min_terms=terms, max_terms=terms)
    talks = [tools.conversation(prompt, NoSlips()) for prompt in problems["prompt"]]
    lengths = [
        len(ids) - len(prompt) - len(["<user>", "<assistant>"])
        for ids, prompt in zip(
            TOKENIZER.apply_chat_template(talks, return_dict=False),
            problems["prompt"],
            strict=True,
        )
    ]
    assert (max(lengths) <= tools.LIMIT) == fits
    assert (min(lengths) > tools.LIMIT) == (not fits)
    assert max(lengths) <= tools.CEILING


def test_the_reward_wants_the_result_in_the_last_message() -> None:
    rows = tools.chat_problems(3, seed=0)
    right = [[{"role": "assistant", "content": result}] for result in rows["result"]]
    assert tools.reward(right, rows["result"]) == [1.0, 1.0, 1.0]
    unanswered = {"role": "assistant", "content": "", "tool_calls": []}
    assert tools.reward([[unanswered]], rows["result"][:1]) == [0.0]
    for row in rows:
        terms = row["prompt"][0]["content"].rstrip("=").split("+")
        assert int(row["result"]) == sum(map(int, terms))
