"""A trainer whose model calls tools, each row by a script of turns."""

from itertools import count

from datasets import Dataset
from support import tiny, versions
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from truncation_guard import TruncationGuardCallback

USER, ASSISTANT, TOOL, CALL, END = 16, 17, 18, 19, 20
SHORT, LONG, EXACT = 21, 22, 23
TEMPLATE = (
    "{% for m in messages %}"
    "{% if m.role == 'user' %}<user> {{ m.content }} "
    "{% elif m.role == 'tool' %}<tool> {{ m.content }} "
    "{% else %}<assistant> {{ m.content }} {% for c in m.tool_calls or [] %}"
    "<call> {{ c.function.name }} {{ c.function.arguments | tojson }} <end> {% endfor %}<eos> "
    "{% endif %}{% endfor %}{% if add_generation_prompt %}<assistant> {% endif %}"
)


def short():
    """One word."""
    return "w5"


def long():
    """Nine words."""
    return " ".join(["w6"] * 9)


def exact():
    """Five words."""
    return " ".join(["w7"] * 5)


def chat_tokenizer():
    """`<call> name <end>` calls a tool, and an assistant's turn ends on eos."""
    words = {"<pad>": 0, "<eos>": 1, "<eot>": 2} | {f"w{i}": i for i in range(3, 16)}
    extra = ["<user>", "<assistant>", "<tool>", "<call>", "<end>", "short", "long", "exact"]
    words |= {word: 16 + number for number, word in enumerate(extra)}
    core = Tokenizer(models.WordLevel(words, unk_token="w3"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made = PreTrainedTokenizerFast(
        tokenizer_object=core, pad_token="<pad>", eos_token="<eos>", chat_template=TEMPLATE
    )
    call = {"type": "function", "function": {"name": "{content}", "arguments": {}}}
    made.response_template = {
        "defaults": {"role": "assistant"},
        "start_anchor": "<assistant>",
        "fields": {
            "tool_calls": {"open": "<call>", "close": "<end>", "repeats": True, "transform": call},
            "content": {"close": "<eos>", "content": "text"},
        },
    }
    return made


def chat_model():
    made = tiny.model()
    made.resize_token_embeddings(24, mean_resizing=False)
    return made


def talk(trainer, turns):
    """Let row n answer with the turns `turns[n]`, one after the other."""
    started = count()
    rows = {}

    def generate(prompt_ids, *args, **kwargs):
        answers = []
        for ids in prompt_ids:
            if TOOL not in ids:
                number = next(started) % len(turns)
                rows[number] = iter(turns[number])
            else:
                # The first token after the prompt is that of the row's first turn.
                first = ids[ids.index(ASSISTANT) + 1]
                number = next(n for n, turn in enumerate(turns) if turn[0][0] == first)
            answers.append(list(next(rows[number])))
        return answers, None

    trainer._generate_single_turn = generate


def rewards_in_turn(completion_ids, **kwargs):
    """0, 1, 2, and again."""
    return [float(number % 3) for number, _ in enumerate(completion_ids)]


def chat_trainer(tmp_path, turns, callback=None, given=None, guarded=True, model=None, **args):
    versions.require("1.7", "response templates, by which it finds the tool calls")
    prompts = [[{"role": "user", "content": f"w{3 + n}"}] for n in range(8)]
    callbacks = [TruncationGuardCallback()] if callback is None else [callback]
    trainer = tiny.trainer(
        tiny.config(
            tmp_path,
            **(
                {"per_device_train_batch_size": len(turns), "max_completion_length": 12}
                | {"max_tool_calling_iterations": 1}
                | args
            ),
        ),
        rewards_in_turn,
        callbacks if guarded else [],
        model=model or chat_model(),
        processing_class=chat_tokenizer(),
        train_dataset=Dataset.from_dict({"prompt": prompts}),
        **(given or {"tools": [short, long, exact]}),
    )
    talk(trainer, turns)
    return trainer


TURNS = [
    # A call of five tokens, a result of three, an answer: terminated.
    [[5, CALL, SHORT, END, 1], [9, 1]],
    # The second turn is cut at the limit: the stop token inside the row does not count.
    [[6, CALL, SHORT, END, 1], [9] * 12],
    # The result would not fit, TRL drops it, and the row ends on eos.
    [[7, CALL, LONG, END, 1]],
    # Calls again when the rounds are used up.
    [[8, CALL, SHORT, END, 1], [CALL, SHORT, END, 1]],
    [[9, 1]],
    # Cut within its first turn.
    [[10] * 12],
    # The result fills the limit, so nobody replies to it.
    [[11, CALL, EXACT, END, 1], [9, 1]],
    [[12, CALL, SHORT, END, 1], [1]],
]


class Environment:
    """One tool, and its own reward."""

    def reset(self, **kwargs):
        self.asked = 0

    def short(self):
        """One word."""
        self.asked += 1
        return "w5"

    def get_reward(self):
        return float(self.asked)
