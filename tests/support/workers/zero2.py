"""For `processes/test_sharded.py`: DeepSpeed's ZeRO, stage 2."""

from support.workers import sharded


def scenarios() -> None:
    """All of them."""
    sharded.run_deepspeed("2")
