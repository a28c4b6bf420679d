"""`examples/gsm8k.py` from start to end, offline: a tiny model of bytes and questions in a file."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
from support import chats, tiny
from transformers import AutoTokenizer, LlamaForCausalLM

import gsm8k
import with_vllm
from truncation_guard import LengthProfile, LengthSample
from truncation_guard.record import FILE_NAME, read_record

STOP_EVERY = 4
"""One in so many tokens ends a completion of the untrained model, so that some end."""
QUESTIONS = [
    {"question": f"{n} and {n}?", "answer": f"{n}+{n}=<<{n}+{n}={2 * n}>>{2 * n}\n#### {2 * n}"}
    for n in range(1, 17)
]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `model` and `questions.jsonl`."""
    folder = tmp_path_factory.mktemp("gsm8k")
    tokenizer = chats.tokenizer()
    tokenizer.save_pretrained(folder / "model")
    model = tiny.model(
        vocab_size=len(tokenizer),
        max_position_embeddings=512,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    others = [n for n in range(0, len(tokenizer), STOP_EVERY) if n != tokenizer.pad_token_id]
    model.generation_config.eos_token_id = [tokenizer.eos_token_id, *others]
    model.save_pretrained(folder / "model")
    lines = [json.dumps(row) for row in QUESTIONS]
    (folder / "questions.jsonl").write_text("\n".join(lines))
    return folder


def options(files: Path, output: Path, *more: str) -> list[str]:
    return [
        *("--model", str(files / "model"), "--dataset", str(files / "questions.jsonl")),
        *("--output_dir", str(output), "--use_cpu", "--max_steps", "2", "--num_generations", "4"),
        *("--per_device_train_batch_size", "8", "--gradient_accumulation_steps", "1"),
        *("--num_prompts", "8", "--profile_limit", "32", "--raise_limit_to", "64", *more),
    ]


def test_from_the_questions_to_a_saved_model(
    files: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("sys.argv", ["gsm8k.py", *options(files, tmp_path)])
    monkeypatch.setattr(logging.getLogger("truncation_guard"), "level", logging.NOTSET)
    gsm8k.main()
    shown = capsys.readouterr().out
    assert "16 reference answers (answer)" in shown
    assert "32 completions" in shown  # 8 prompts x 4
    assert "=== 3. Training at max_completion_length=32" in shown
    (run,) = read_record(tmp_path / FILE_NAME)
    batches = list(run.batches.values())
    assert [batch["limit"] for batch in batches] == [32, 32]
    assert [batch["completions"] for batch in batches] == [8, 8]
    assert AutoTokenizer.from_pretrained(tmp_path).chat_template == chats.CHATML
    assert LlamaForCausalLM.from_pretrained(tmp_path).config.max_position_embeddings == 512


def test_the_questions_become_conversations(files: Path, tmp_path: Path) -> None:
    rows = gsm8k.load_questions(gsm8k.parser().parse_args(options(files, tmp_path)))
    assert rows.column_names == ["answer", "prompt"]
    (message,) = rows[2]["prompt"]
    assert message["role"] == "user"
    assert message["content"].startswith("3 and 3?\n")
    answers = list(rows["answer"])
    right = [[{"role": "assistant", "content": f"It is {2 * n}. #### {2 * n}"}] for n in (1, 2)]
    assert gsm8k.last_number_reward(right, answer=answers[:2]) == [1.0, 1.0]
    assert gsm8k.last_number_reward(right, answer=answers[1:3]) == [0.0, 0.0]


@pytest.mark.parametrize(
    ("ended", "cut", "limit"),
    [
        (range(1, 101), 0, 128),  # 95 of them hold 95 %, in steps of 64
        (range(1, 301), 0, 256),  # 285 would: more than was asked for
        (range(1, 101), 50, 256),  # not known
    ],
)
def test_the_limit_of_the_training(ended: range, cut: int, limit: int) -> None:
    lengths = [*ended, *[256] * cut]
    terminated = [True] * len(ended) + [False] * cut
    profile = LengthProfile(sample=LengthSample(lengths, terminated), source="rollouts")
    assert gsm8k.limit_for(profile, 256) == limit


def test_vllm_gets_a_window_for_the_longest_prompt_and_the_highest_limit(
    files: Path, tmp_path: Path
) -> None:
    given = with_vllm.parser().parse_args(options(files, tmp_path, "--max_prompt_length", "101"))
    assert with_vllm.engine_settings(given)["vllm_max_model_length"] == 101 + 64
    given.vllm_mode = "server"
    settings = with_vllm.engine_settings(given)
    assert settings["vllm_server_base_url"] == "http://localhost:8000"


def test_prompts_that_the_window_does_not_hold_are_left_out(files: Path, tmp_path: Path) -> None:
    questions = gsm8k.load_questions(gsm8k.parser().parse_args(options(files, tmp_path)))
    tokenizer = AutoTokenizer.from_pretrained(files / "model")
    # A byte is a token: two digits more make a question with two numbers longer.
    lengths = [
        chats.units(
            tokenizer.apply_chat_template(prompt, tokenize=False, add_generation_prompt=True)
        )
        for prompt in questions["prompt"]
    ]
    assert len(set(lengths)) == 2
    given = with_vllm.parser().parse_args(
        options(files, tmp_path, "--max_prompt_length", str(min(lengths)))
    )
    kept = with_vllm.short_prompts(given, questions)
    assert list(kept["answer"]) == [row["answer"] for row in QUESTIONS[:9]]
