"""Multi-step sums: a task small enough to learn on two CPU cores, with answers of varying length.

A problem is a prompt such as ``7+5+9+4=``; the answer writes out every step and then the result,
``7+5=12;12+9=21;21+4=25;#25``, followed by the end-of-sequence token. The number of terms varies,
so a short `max_completion_length` cuts off some answers and leaves others whole.

`teach` gives the model a weakness on purpose: its teacher slips in long answers, after the third
step. So what is left to learn stands in the completions that a short limit cuts off.

The tokenizer (one token per character) and the model are built in code: nothing is downloaded.
The quickstart, the tests and the benchmarks share this module.
"""

import random
import re
import zlib
from collections.abc import Callable, Iterable

import torch
from datasets import Dataset
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)

PAD, EOS = "<pad>", "<eos>"
CHARACTERS = "0123456789+=;#"
MIN_TERMS, MAX_TERMS = 4, 6

# Far more than the longest prompt (12 tokens) and its answer (at most 43) need: a model that does
# not stop is to be stopped by max_completion_length, not by its context window.
CONTEXT_TOKENS = 512

# The teacher's slip: a step after the third forgets to add, as in "26+4=26;".
CAREFUL_STEPS = 3
SLIP_CHANCE = 0.45

# Small batches: on a CPU many small steps teach this model faster than few large ones.
TEACH_STEPS = 1100
TEACH_BATCH = 16
TEACH_LEARNING_RATE = 5e-3
TEACH_WARMUP = 0.1  # share of the steps over which the learning rate rises


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Builds the tokenizer: one token per character, and distinct pad and end-of-sequence tokens.

    Returns:
        A fast tokenizer with `len(CHARACTERS) + 2` tokens that pads on the left, as generation
        needs, and adds no special tokens of its own.
    """
    vocabulary = {token: index for index, token in enumerate([PAD, EOS, *CHARACTERS])}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token=PAD))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex("."), behavior="isolated")
    backend.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token=PAD,
        eos_token=EOS,
        padding_side="left",
        clean_up_tokenization_spaces=False,
        model_max_length=CONTEXT_TOKENS,
    )


def build_model(tokenizer: PreTrainedTokenizerFast, seed: int = 0) -> LlamaForCausalLM:
    """Builds an untrained Llama of about 80 thousand parameters in float32.

    Args:
        tokenizer: Gives the vocabulary size and the ids of the special tokens.
        seed: Seeds torch's global generator, from which the weights are drawn.

    Returns:
        The model, on the CPU.
    """
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=CONTEXT_TOKENS,
        # The base of the rotary angles: sequences have at most some 60 tokens, not thousands.
        rope_parameters={"rope_type": "default", "rope_theta": 100.0},
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
    )
    return LlamaForCausalLM(config)


def answer_text(terms: list[int], slips: random.Random | None = None) -> str:
    """Writes out the sum of `terms` step by step.

    Args:
        terms: At least two numbers, such as `[7, 5, 9]`.
        slips: Where given, the answer has the teacher's slips, drawn from this generator.

    Returns:
        The steps and the result, such as `"7+5=12;12+9=21;#21"`.
    """
    total = terms[0]
    text = ""
    for step, term in enumerate(terms[1:]):
        slip = slips is not None and step >= CAREFUL_STEPS and slips.random() < SLIP_CHANCE
        result = total if slip else total + term
        text += f"{total}+{term}={result};"
        total = result
    return f"{text}#{total}"


def problems(
    n: int,
    seed: int = 0,
    *,
    min_terms: int = MIN_TERMS,
    max_terms: int = MAX_TERMS,
    held_out: bool = False,
) -> Dataset:
    """Draws problems whose numbers of terms are uniform and whose terms are 1 to 9.

    Args:
        n: How many problems to draw; repeats are possible.
        seed: Seeds the draw.
        min_terms: Smallest number of terms, at least 2.
        max_terms: Largest number of terms.
        held_out: Draw from the fifth of all problems that is never drawn otherwise.

    Returns:
        A data set of `n` rows with the text columns `prompt` and `answer`.
    """
    generator = random.Random(seed)
    rows: list[dict[str, str]] = []
    while len(rows) < n:
        terms = [generator.randint(1, 9) for _ in range(generator.randint(min_terms, max_terms))]
        prompt = "+".join(map(str, terms)) + "="
        # A checksum splits the problems the same way in every process and for every seed.
        if (zlib.crc32(prompt.encode()) % 5 == 0) == held_out:
            rows.append({"prompt": prompt, "answer": answer_text(terms)})
    return Dataset.from_list(rows)


def _teaching_batch(tokenizer: PreTrainedTokenizerFast, rows: list[str]) -> dict[str, torch.Tensor]:
    """Makes the model's inputs and labels from problems with their answers.

    Args:
        tokenizer: The tokenizer of `build_tokenizer`.
        rows: Prompt, answer and end-of-sequence token, as one text each.

    Returns:
        `input_ids`, `attention_mask` and `labels`, each of shape (rows, tokens).
    """
    encoded = tokenizer(rows, padding=True, padding_side="right", return_tensors="pt")
    ids, mask = encoded["input_ids"], encoded["attention_mask"]
    # A prompt ends at its only "=", the first of the row; it is random and not worth learning.
    equals = (ids == tokenizer.convert_tokens_to_ids("=")).cumsum(dim=1)
    is_prompt = torch.cat([torch.ones_like(equals[:, :1]), equals[:, :-1] == 0], dim=1).bool()
    labels = ids.masked_fill(is_prompt | (mask == 0), -100)
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def teach(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    steps: int = TEACH_STEPS,
    seed: int = 0,
    write: Callable[[list[int], random.Random], str] = answer_text,
) -> float:
    """Teaches the model by plain supervised learning on worked answers with slips, in place.

    At the default number of steps it writes answers of the right form, mostly right up to the
    third step and often wrong after it: a start from which reinforcement learning has something
    to gain.

    Args:
        model: The model to teach.
        tokenizer: The tokenizer of `build_tokenizer`.
        steps: Optimizer steps of `TEACH_BATCH` problems each.
        seed: Seeds the problems and the slips.
        write: The teacher: writes the answer to some terms, with slips drawn from a generator.

    Returns:
        The mean loss per answer token of the last step, in nats.
    """
    slips = random.Random(seed)
    texts = [
        prompt + write([int(term) for term in prompt[:-1].split("+")], slips) + EOS
        for prompt in problems(steps * TEACH_BATCH, seed)["prompt"]
    ]
    batches = (
        _teaching_batch(tokenizer, texts[start : start + TEACH_BATCH])
        for start in range(0, len(texts), TEACH_BATCH)
    )
    return fit(model, batches, steps)


def fit(model: PreTrainedModel, batches: Iterable[dict[str, torch.Tensor]], steps: int) -> float:
    """Trains the model by plain supervised learning, in place.

    Args:
        model: The model to train.
        batches: `input_ids`, `attention_mask` and `labels` of each step.
        steps: How many of them there are; the learning rate rises and falls over these.

    Returns:
        The mean loss per labelled token of the last step, in nats.
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr=TEACH_LEARNING_RATE, betas=(0.9, 0.95))
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step / steps + 0.001) / TEACH_WARMUP, 1.0, 1.0 - step / steps)
    )
    model.train()
    loss = torch.zeros(())
    for batch in batches:
        loss = model(**batch).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    return float(loss.detach())


def final_result(text: str) -> str | None:
    """Finds the result that a completion ends on.

    Args:
        text: A completion without its special tokens.

    Returns:
        The digits after the last `#`, or None where the text does not end on such a result.
    """
    match = re.search(r"#(\d+)$", text)
    return match.group(1) if match else None


def reward(completions: list[str], answer: list[str], **kwargs: object) -> list[float]:
    """Scores completions the way TRL calls a reward function: 1.0 for the right result, else 0.0.

    Only the result after `#` counts, so a completion that was cut off before it gets 0.0. As with
    most rewards on text, one that was cut off between the result and the end-of-sequence token is
    still right.

    Args:
        completions: Completions as text.
        answer: The worked answer to each completion's problem.
        **kwargs: What else TRL passes; unused.

    Returns:
        One reward per completion.
    """
    return [
        float(final_result(written) == final_result(right))
        for written, right in zip(completions, answer, strict=True)
    ]


@torch.no_grad()
def sample(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: list[str],
    max_new_tokens: int,
    seed: int = 0,
) -> list[str]:
    """Samples one completion per prompt at temperature 1, as training does.

    Args:
        model: The model to sample from.
        tokenizer: Its tokenizer.
        prompts: The prompts.
        max_new_tokens: Limit on the tokens of a completion.
        seed: Seeds the sampling; torch's global generator is left as it was.

    Returns:
        The completions as text, without special tokens.
    """
    batch = tokenizer(prompts, padding=True, padding_side="left", return_tensors="pt")
    batch = batch.to(model.device)
    model.eval()
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        tokens = model.generate(
            input_ids=batch["input_ids"],
            attention_mask=batch["attention_mask"],
            max_new_tokens=max_new_tokens,
            do_sample=True,
            temperature=1.0,
            top_k=0,
        )
    return tokenizer.batch_decode(
        tokens[:, batch["input_ids"].shape[1] :], skip_special_tokens=True
    )


def accuracy(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    held_out: Dataset,
    max_new_tokens: int = 128,
    seed: int = 0,
) -> float:
    """Measures the share of problems whose result is right, sampled once at temperature 1.

    Args:
        model: The model to measure.
        tokenizer: Its tokenizer.
        held_out: Problems with the columns `prompt` and `answer`.
        max_new_tokens: Limit on the tokens of an answer; the default cuts off nothing that is
            still of use (the longest right answer has 43).
        seed: Seeds the sampling.

    Returns:
        A share between 0 and 1.
    """
    completions = sample(model, tokenizer, list(held_out["prompt"]), max_new_tokens, seed)
    rewards = reward(completions, list(held_out["answer"]))
    return sum(rewards) / len(rewards)
