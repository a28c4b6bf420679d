"""GSM8K as in `gsm8k.py`, with vLLM writing the completions.

    python examples/with_vllm.py                        # vLLM in this process, on the same GPU
    python examples/with_vllm.py --vllm_mode server     # vLLM as a server, on another GPU

needs `pip install "trl[vllm]"`. For `server`, start one first, on a GPU of its own:

    CUDA_VISIBLE_DEVICES=1 trl vllm-serve --model Qwen/Qwen2.5-0.5B-Instruct --max_model_len 2560

What is special: the engine's window, for prompt and completion together, is fixed when the engine
starts, and neither `raise_limit_to` nor a profile can go past it. So it has to hold the longest
prompt *and* the highest limit that the run may come to: here `--max_prompt_length` and
`--raise_limit_to`, 512 + 2048. Beyond it a colocated engine ends a completion (the guard's cause
`context`, which a longer limit does not cure), and a server refuses the request, which ends the
training. Longer prompts are therefore left out.
"""

import argparse

from datasets import Dataset
from transformers import AutoTokenizer

import gsm8k


def parser() -> argparse.ArgumentParser:
    """Makes the command line: that of `gsm8k.py`, and what concerns vLLM."""
    made = gsm8k.parser()
    made.add_argument("--vllm_mode", choices=["colocate", "server"], default="colocate")
    made.add_argument("--vllm_server_base_url", default="http://localhost:8000")
    made.add_argument("--max_prompt_length", type=int, default=512, help="in tokens")
    return made


def engine_settings(options: argparse.Namespace) -> dict[str, object]:
    """Gives the arguments of `GRPOConfig` that concern vLLM."""
    window = options.max_prompt_length + options.raise_limit_to
    settings = {"use_vllm": True, "vllm_mode": options.vllm_mode, "vllm_max_model_length": window}
    if options.vllm_mode == "server":
        settings["vllm_server_base_url"] = options.vllm_server_base_url
    return settings


def short_prompts(options: argparse.Namespace, questions: Dataset) -> Dataset:
    """Leaves out the questions whose prompts are longer than `max_prompt_length` tokens."""
    tokenizer = AutoTokenizer.from_pretrained(options.model)

    def fits(row: dict[str, list[dict[str, str]]]) -> bool:
        ids = tokenizer.apply_chat_template(
            row["prompt"], add_generation_prompt=True, return_dict=False
        )
        return len(ids) <= options.max_prompt_length

    return questions.filter(fits)


def main() -> None:
    """Sizes, trains and saves the model."""
    gsm8k.show_the_guard()
    options = parser().parse_args()
    questions = short_prompts(options, gsm8k.load_questions(options))
    trainer = gsm8k.size_and_train(options, questions, **engine_settings(options))
    trainer.save_model(options.output_dir)


if __name__ == "__main__":
    main()
