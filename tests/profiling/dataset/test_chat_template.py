from __future__ import annotations

from typing import Any

import pytest
from support import chats
from support.chats import assistant, call, tool, user

from truncation_guard.profiling.dataset.chat_template import ChatRenderer
from truncation_guard.profiling.dataset.conversations import Chat

ANSWERS = ["yes", "<table>", "<t", " yes ", "\nyes", "<|im_end|>", "a\n\nb", "\u00e9", "<think"]
HEADER = "<|im_start|>assistant\n"
DEEPSEEK_END = "<\uff5cend\u2581of\u2581sentence\uff5c>"


def render(
    template: str,
    completion: list[dict[str, Any]] | str,
    prompt: list[dict[str, Any]] | None = None,
    tools: list[Any] | None = None,
    **kwargs: Any,
) -> tuple[str, str]:
    if isinstance(completion, str):
        completion = [assistant(completion)]
    made = chats.tokenizer(template)
    renderer = ChatRenderer(made, kwargs, made.all_special_tokens, prefers_blocks=False)
    chat = Chat(3, prompt or [user("Is it?")], completion, tools)
    (rendered,) = renderer.render([chat])
    return rendered


# --- hand-written templates ---------------------------------------------------------------------


@pytest.mark.parametrize("answer", ANSWERS)
def test_the_answer_begins_after_the_generation_prompt(answer: str) -> None:
    prompt, rendered = render(chats.CHATML, answer)
    assert prompt == f"<|im_start|>user\nIs it?<|im_end|>\n{HEADER}"
    assert rendered == f"{answer}<|im_end|>\n"


def test_a_default_system_prompt_is_a_part_of_the_prompt() -> None:
    prompt, rendered = render(chats.DEFAULT_SYSTEM, "yes")
    assert prompt.startswith("<|im_start|>system\nBe nice.<|im_end|>\n<|im_start|>user\n")
    assert rendered == "yes<|im_end|>\n"


def test_what_the_template_strips_does_not_count() -> None:
    assert render(chats.STRIPS, "\n yes ")[1] == "yes<|im_end|>\n"


def test_without_a_generation_prompt_the_header_is_generated() -> None:
    prompt, rendered = render(chats.NO_GENERATION_PROMPT, "yes")
    assert prompt == "<|im_start|>user\nIs it?<|im_end|>\n"
    assert rendered == f"{HEADER}yes<|im_end|>\n"


def test_a_template_without_a_stop_token_ends_with_the_answer() -> None:
    assert render(chats.NO_STOP, "yes") == ("user: Is it?\nassistant: ", "yes\n")


@pytest.mark.parametrize("answer", ANSWERS)
def test_an_empty_thinking_block_is_the_prompts_whatever_the_answer_begins_with(
    answer: str,
) -> None:
    prompt, rendered = render(chats.EMPTY_THINKING, answer)
    assert prompt.endswith("<think>\n\n</think>\n\n")
    assert rendered == f"{answer}<|im_end|>\n"


@pytest.mark.parametrize("answer", ["yes", "<table>", "<t", " yes ", "\nyes", "<think", "<"])
def test_an_opened_thinking_block_is_the_prompts_whatever_the_answer_begins_with(
    answer: str,
) -> None:
    prompt, rendered = render(chats.OPEN_THINKING, answer)
    assert prompt == "<s><\uff5cUser\uff5c>Is it?<\uff5cAssistant\uff5c><think>\n"
    assert rendered == f"{answer}{DEEPSEEK_END}"


@pytest.mark.parametrize(
    ("answer", "rendered"),
    [
        # What the generation prompt has opened is not generated again.
        ("<think>\nhm\n</think>\n\nyes", "hm\n</think>\n\nyes"),
        ("hm\n</think>\n\nyes", "hm\n</think>\n\nyes"),
        # The template drops it, generation would not.
        ("<think>hm</think>yes", "<think>hm</think>yes"),
    ],
)
def test_thinking_that_the_template_drops_is_generated_all_the_same(
    answer: str, rendered: str
) -> None:
    assert render(chats.OPEN_THINKING, answer)[1] == rendered + DEEPSEEK_END


def test_thinking_that_is_dropped_without_a_thinking_prompt_counts_too() -> None:
    template = chats.OPEN_THINKING.replace("<think>\n{% endif %}", "{% endif %}")
    assert render(template, "<think>hm</think>yes")[1] == f"<think>hm</think>yes{DEEPSEEK_END}"


def test_a_template_that_writes_the_prompt_anew_costs_the_answer_nothing() -> None:
    template = (
        "{% if messages[-1]['role'] == 'assistant' %}[done]{% else %}[open]{% endif %}"
        + chats.CHATML
    )
    assert render(template, "yes")[1] == "yes<|im_end|>\n"


def test_a_tool_loop_is_rendered_as_a_whole() -> None:
    completion = [assistant("let me see"), tool("2"), assistant("two")]
    assert render(chats.CHATML, completion)[1] == (
        f"let me see<|im_end|>\n<|im_start|>tool\n2<|im_end|>\n{HEADER}two<|im_end|>\n"
    )


def test_template_arguments_and_tools_reach_the_template() -> None:
    template = "{{ tools | length if tools else 0 }}{{ style }}" + chats.CHATML
    prompt, rendered = render(template, "yes", tools=[{"type": "function"}], style="short")
    assert prompt.startswith("1short<|im_start|>")
    assert rendered == "yes<|im_end|>\n"


def test_a_row_that_the_template_refuses_is_named() -> None:
    template = "{% if messages | length > 2 %}{{ raise_exception('too long') }}{% endif %}" + (
        chats.CHATML
    )
    made = chats.tokenizer(template)
    renderer = ChatRenderer(made, {}, made.all_special_tokens, prefers_blocks=False)
    short = Chat(3, [user("1")], [assistant("a")], None)
    long = Chat(4, [user("1"), user("2")], [assistant("a")], None)
    with pytest.raises(ValueError, match=r".") as error:
        renderer.render([short, long, short])
    assert str(error.value) == (
        "The chat template cannot render row 4: too long. Filter out such rows, or pass what the "
        "template needs in `chat_template_kwargs`."
    )


@pytest.mark.parametrize(
    ("own", "passed", "has_template"),
    [("{{ 1 }}", None, True), (None, "{{ 1 }}", True), (None, None, False), ("", None, False)],
)
def test_a_template_may_be_passed(own: str | None, passed: str | None, has_template: bool) -> None:
    kwargs = {} if passed is None else {"chat_template": passed}
    renderer = ChatRenderer(chats.tokenizer(own), kwargs, (), prefers_blocks=False)
    assert renderer.has_template is has_template


def test_blocks_of_a_processor_are_probed_as_blocks() -> None:
    class Processor:
        chat_template = chats.OPEN_THINKING.replace(
            "m['content'].split('</think>')[-1]", "m['content'][0]['text'].split('</think>')[-1]"
        ).replace("{{ m['content'] }}", "{{ m['content'][0]['text'] }}")
        tokenizer = chats.tokenizer(None)

        def apply_chat_template(self, *args: Any, **kwargs: Any) -> Any:
            return self.tokenizer.apply_chat_template(
                *args, chat_template=self.chat_template, **kwargs
            )

    def blocks(text: str) -> list[dict[str, str]]:
        return [{"type": "text", "text": text}]

    renderer = ChatRenderer(Processor(), {}, (), prefers_blocks=True)
    for answer in ("<table>", "hm</think>yes"):
        chat = Chat(0, [user(blocks("Is it?"))], [assistant(blocks(answer))], None)
        assert renderer.render([chat])[0][1] == answer + DEEPSEEK_END


BLOCKS = chats.CHATML.replace("m['content']", "m['content'][0]['text']")
BLOCKS_ALONE = chats.CHATML.replace(
    "{{ m['content'] }}", "{% for b in m['content'] %}{{ b.text }}{% endfor %}"
)


@pytest.mark.parametrize(
    ("template", "takes_blocks"),
    [
        (chats.CHATML, {False: False, True: False}),  # prints blocks as Python does
        (chats.CHATML.replace("m['content']", "m['content'] | tojson"), {False: False, True: True}),
        (BLOCKS, {False: True, True: True}),  # raises at a text
        (BLOCKS_ALONE, {False: True, True: True}),  # leaves a text out
        (chats.template_of_trl("gemma3"), {False: False, True: True}),
        (chats.template_of_trl("qwen3"), {False: False, True: False}),
        (chats.template_of_trl("smolvlm"), {False: True, True: True}),
        (chats.template_of_trl("llava_next"), {False: True, True: True}),
        ("{{ raise_exception('no') }}", {False: False, True: True}),
    ],
)
def test_content_goes_in_as_the_template_takes_it(
    template: str, takes_blocks: dict[bool, bool]
) -> None:
    for preferred, taken in takes_blocks.items():
        renderer = ChatRenderer(chats.tokenizer(template), {}, (), prefers_blocks=preferred)
        assert renderer.takes_blocks is taken


def test_a_template_that_shows_no_answers_is_read_as_far_as_it_agrees_with_the_prompt() -> None:
    template = (
        "{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
        "{% if m['tool_calls'] %}<call>{% endif %}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n<think>{% endif %}"
    )
    assert render(template, [assistant("yes", tool_calls=call(a=1))])[1] == "<call><|im_end|>\n"


# --- the model families' own templates ----------------------------------------------------------


@pytest.mark.parametrize("answer", ["yes", "<table>", "<t"])
@pytest.mark.parametrize(
    ("name", "kwargs", "before", "after"),
    [
        ("qwen2_5", {}, "", "<|im_end|>\n"),
        ("qwen3", {}, "<think>\n\n</think>\n\n", "<|im_end|>\n"),
        ("qwen3", {"enable_thinking": False}, "", "<|im_end|>\n"),
        ("qwen3_5_think", {}, "\n</think>\n\n", "<|im_end|>\n"),
        ("deepseek_r1_distill", {}, "", DEEPSEEK_END),
        ("llama3", {}, "", "<|eot_id|>"),
        ("gemma3", {}, "", "<end_of_turn>\n"),
        ("phi3", {}, "", "<|end|>\n<|im_end|>"),  # the last is the tokenizer's eos
        ("gptoss", {}, "<|channel|>final<|message|>", "<|return|>"),
    ],
)
def test_the_templates_of_the_model_families_are_read_right(
    name: str, kwargs: dict[str, Any], before: str, after: str, answer: str
) -> None:
    template = chats.template_of_trl(name)
    prompt = [user("Is it?")]
    assert render(template, answer, prompt, **kwargs)[1] == f"{before}{answer}{after}"


def test_thinking_beside_a_prompt_that_closed_it_counts() -> None:
    template = chats.template_of_trl("qwen3")
    answer = "<think>\nhm\n</think>\n\nyes"
    assert render(template, answer)[1] == f"{answer}<|im_end|>\n"
    assert render(template, answer, enable_thinking=False)[1] == ("hm\n</think>\n\nyes<|im_end|>\n")


def test_tool_calls_are_rendered_as_the_model_writes_them() -> None:
    template = chats.template_of_trl("qwen2_5")
    completion = [assistant("", tool_calls=call(a=1)), tool("2"), assistant("two")]
    assert render(template, completion)[1] == (
        '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\n<tool_response>\n2\n</tool_response><|im_end|>\n"
        f"{HEADER}two<|im_end|>\n"
    )
