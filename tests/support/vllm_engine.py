"""A vLLM engine on the CPU under the real trainers, in processes of its own.

An engine leaves torch.distributed and RANK behind, which would turn later trainers of
the process into distributed ones. So each scenario is a worker script that leaves a JSON value.
`launch` and `serve` are for tests, the rest is for workers: only there TRL is imported, and vLLM
with it, which warns of much. Read in TRL 1.16 and vLLM 0.31.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

WORKERS = Path(__file__).parent / "vllm_workers"
EOS = 1
WINDOW = 24
"""The engine's max model length; the model itself could have 64."""
GENERATIONS = 16
"""A server samples anew at each run: with fewer, a test that asks for some that end and some that
do not would fail now and then."""
_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "CUDA_VISIBLE_DEVICES": "",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # the default pins every worker to core 0
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_SERVER_DEV_MODE": "1",  # TRL asks for it
    "GLOO_SOCKET_IFNAME": "lo",
    "PYTHONUNBUFFERED": "1",
}
_TIMEOUT = 240
_KV_CACHE_BYTES = 32 << 20


def launch(worker: str, folder: Path, *arguments: str) -> Any:
    """What the worker left, a JSON value.

    Args:
        worker: a script in `workers`; its arguments are a folder to write into, and these.
        folder: for what it writes.
        arguments: more of them.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with _started(
        [str(WORKERS / worker), str(folder), *arguments], folder / "output.txt"
    ) as running:
        try:
            code = running.wait(_TIMEOUT)
        except subprocess.TimeoutExpired:
            code = None
    assert code == 0, f"{worker} {arguments} ended with {code}:\n{_tail(folder / 'output.txt')}"
    return json.loads((folder / "result.json").read_text())


@contextmanager
def serve(folder: Path) -> Iterator[str]:
    """The address of a server of the tiny model, whose window is `WINDOW`."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    arguments = [str(WORKERS / "server.py"), str(folder / "model")]
    arguments += ["--host", "127.0.0.1", "--port", str(port), "--max-model-len", str(WINDOW)]
    arguments += ["--dtype", "float32", "--enforce-eager", "--seed", "0", "--max-num-seqs", "32"]
    arguments += ["--kv-cache-memory-bytes", str(_KV_CACHE_BYTES)]
    arguments += ["--logprobs-mode", "processed_logprobs"]
    address = f"http://127.0.0.1:{port}"
    with _started(arguments, folder / "server.txt") as running:
        deadline = time.monotonic() + _TIMEOUT
        while not _answers(address):
            is_wanted = running.poll() is None and time.monotonic() < deadline
            assert is_wanted, f"The server is not up:\n{_tail(folder / 'server.txt')}"
            time.sleep(0.5)
        yield address


class Lines(logging.Handler):
    """Keeps what a logger says in WARNING."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def leave(folder: Path, result: Any) -> None:
    """Leave the worker's result, and end without what an engine does at exit."""
    (folder / "result.json").write_text(json.dumps(result))
    sys.stdout.flush()
    os._exit(0)


def save_model(folder: Path, tokenizer: Any = None, window: int = 64) -> None:
    """One layer of a Llama with heads of 32, which vLLM can do on a CPU.

    Args:
        folder: where it goes.
        tokenizer: None: one of 16 words.
        window: tokens that prompt and completion may have together.
    """
    import torch
    from support import tiny
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    tokenizer = tokenizer or tiny.tokenizer(additional_special_tokens=[])
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=window,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def make_trainer(
    folder: Path,
    address: str,
    reward: Any,
    prompts: Sequence[str],
    algorithm: str = "grpo",
    callbacks: Sequence[Any] = (),
    **overrides: Any,
) -> Any:
    """A real trainer on a real engine; two groups are a generation batch and a step.

    Args:
        folder: to write into.
        address: of a server; empty: the engine is in this process.
        reward: a reward function.
        prompts: of the data set, in order.
        algorithm: grpo or rloo.
        callbacks: of the trainer.
        overrides: of the arguments.
    """
    from datasets import Dataset
    from support import tiny
    from transformers import AutoTokenizer, LlamaForCausalLM

    save_model(folder / "model")
    if address:
        _be_content_with_a_cpu()
        where: dict[str, Any] = {"vllm_mode": "server", "vllm_server_base_url": address}
    else:
        make_colocation_work_on_a_cpu()
        where = {"vllm_mode": "colocate", "vllm_max_model_length": WINDOW}
    settings = {
        "use_vllm": True,
        "per_device_train_batch_size": 2 * GENERATIONS,
        "num_generations": GENERATIONS,
    }
    return tiny.trainer(
        tiny.config(folder, algorithm, **(settings | where | overrides)),
        reward,
        callbacks,
        model=LlamaForCausalLM.from_pretrained(folder / "model"),
        processing_class=AutoTokenizer.from_pretrained(folder / "model"),
        train_dataset=Dataset.from_dict({"prompt": list(prompts)}),
    )


def words(count: int, first: int = 0) -> str:
    """A prompt of so many tokens."""
    return " ".join(f"w{3 + (first + i) % 12}" for i in range(count))


def make_colocation_work_on_a_cpu() -> None:
    """Let the weights of vLLM 0.31 stay where TRL's weight sync finds them.

    It packs those of a linear layer and empties them; those of the output layer, which may be tied,
    would go stale without an error. Both can go once vLLM can load weights on a CPU.
    """
    import torch
    import trl.generation.vllm_generation as generation
    from vllm.model_executor.layers import utils

    def keep(layer: Any, remove_weight: bool) -> None:
        layer.cpu_linear = torch.nn.functional.linear

    utils.dispatch_cpu_unquantized_gemm = keep
    generation.LLM = partial(
        generation.LLM,
        dtype="float32",
        enforce_eager=True,
        kv_cache_memory_bytes=_KV_CACHE_BYTES,
    )


def _be_content_with_a_cpu() -> None:
    """Leave out the sync of weights, which is NCCL: the server keeps those that it loaded."""
    from trl.generation.vllm_client import VLLMClient

    def drain(self: Any, metadata: Any, named_params: Any) -> None:
        for _ in named_params:
            pass

    VLLMClient.init_communicator = lambda self, device=0: None
    VLLMClient.update_named_params = drain


@contextmanager
def _started(arguments: Sequence[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    here = Path(__file__).parents
    paths = [str(here[1]), str(here[2] / "examples")]
    before = os.environ["PYTHONPATH"].split(os.pathsep) if "PYTHONPATH" in os.environ else []
    environment = os.environ | _ENVIRONMENT | {"PYTHONPATH": os.pathsep.join([*paths, *before])}
    with log.open("wb") as output:
        running = subprocess.Popen(
            [sys.executable, *arguments],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield running
    finally:
        with suppress(ProcessLookupError):  # an engine has processes of its own, in this session
            os.killpg(running.pid, signal.SIGKILL)
        running.wait()


def _answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"{address}/health", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def _tail(log: Path) -> str:
    return log.read_text(errors="replace")[-4000:]
