"""The tokens that end a turn: by their names, and by the chat template."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from support import chats, tiny
from support.stand_ins import stand_in

from truncation_guard.trainer import settings
from truncation_guard.trainer.end_of_turn import template_ends

END_OF_TURN = [
    "<|im_end|>",
    "<|endoftext|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<|end|>",
    "<end_of_turn>",
    "<turn|>",
    "<|END_OF_TURN_TOKEN|>",
    "<\uff5cend\u2581of\u2581sentence\uff5c>",
    "</s>",
    "<|return|>",
    "<eos>",
]
OTHERS = [
    "<|im_start|>",
    "<|vision_end|>",
    "<|box_end|>",
    "<|fim_suffix|>",
    "<tool_call>",
    "<|turn>",
    "<s>",
    "<unk>",
    "<|reserved_special_token_0|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
]


@pytest.mark.parametrize(
    ("name", "ends"), [(n, True) for n in END_OF_TURN] + [(n, False) for n in OTHERS]
)
def test_names_that_look_like_an_end_of_turn(name, ends):
    tokenizer = tiny.tokenizer(additional_special_tokens=[name])
    made = stand_in(processing_class=tokenizer, eos_token_ids=[1])
    found = settings.generation_rules(made).end_of_turn.values()
    assert (name in found) == (ends and name != "<eos>")  # <eos> is a stop token here


def test_harmonys_end_stands_between_channels_and_ends_no_answer():
    tokenizer = tiny.tokenizer(additional_special_tokens=["<|end|>", "<|return|>"])
    found = settings.generation_rules(stand_in(processing_class=tokenizer)).end_of_turn
    assert set(found.values()) == {"<|return|>"}


def test_a_tokenizer_that_does_not_tell_its_added_tokens_is_not_searched():
    class Closed:
        pad_token_id, eos_token_id = 0, 1

        @property
        def added_tokens_decoder(self):
            raise NotImplementedError

    assert settings.generation_rules(stand_in(processing_class=Closed())).end_of_turn == {}


def ends(template, **overrides):
    made = stand_in(processing_class=chats.tokenizer(template), chat_template_kwargs={})
    return template_ends(SimpleNamespace(**(vars(made) | overrides)))


class TestTemplates:
    @pytest.mark.parametrize(
        ("template", "names"),
        [
            (chats.CHATML, ["<|im_end|>"]),
            (chats.OPEN_THINKING, ["<\uff5cend\u2581of\u2581sentence\uff5c>"]),
            (chats.CHATML + "{{ eos_token }}", ["<|im_end|>", "<|im_end|>"]),
            (chats.NO_STOP, []),
            (chats.CHATML.replace("m['content']", "'fixed'"), []),
        ],
        ids=["chatml", "thinking", "two", "words", "no answer"],
    )
    def test_what_stands_behind_an_answer(self, template, names):
        assert [name for _, name in ends(template)] == names

    def test_the_trainers_own_template_and_its_arguments_count(self):
        template = "{% for m in messages %}{{ m['content'] }}{{ end }}{% endfor %}"
        found = ends(None, chat_template=template, chat_template_kwargs={"end": "</s>"})
        assert [name for _, name in found] == ["</s>"]

    def test_a_processor_is_given_blocks(self):
        tokenizer = chats.tokenizer(chats.CHATML.replace("['content']", "['content'][0]['text']"))
        processor = SimpleNamespace(
            tokenizer=tokenizer, apply_chat_template=tokenizer.apply_chat_template
        )
        assert [name for _, name in ends(None, processing_class=processor)] == ["<|im_end|>"]
