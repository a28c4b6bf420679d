"""What the tests share."""

import gc
from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def _fast_small_trainings() -> Iterator[None]:
    """Leave out what slows trainings of a tiny model down without being a part of them.

    Two threads get into each other's way on matrices this small, and `train` of transformers
    collects garbage among all the objects of torch and transformers, which are here to stay.
    """
    torch.set_num_threads(1)
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
