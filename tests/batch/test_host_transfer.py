from __future__ import annotations

import numpy as np
import pytest
import torch

from truncation_guard.batch.host_transfer import to_host


def test_each_tensor_comes_back_by_its_name_in_its_shape() -> None:
    rows = torch.arange(6, dtype=torch.int64).view(2, 3)
    found = to_host(rows=rows.T, mask=torch.tensor([True, False]), none=torch.empty(0, 3))
    assert list(found) == ["rows", "mask", "none"]
    assert found["rows"].tolist() == [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]]
    assert found["mask"].tolist() == [1.0, 0.0]
    assert found["none"].shape == (0, 3)
    assert {array.dtype for array in found.values()} == {np.dtype("float32")}


@pytest.mark.parametrize("number", [0, 1, 2**24 - 1, 2**24])
def test_integers_up_to_2_to_the_24_are_exact(number: int) -> None:
    assert to_host(n=torch.tensor([number]))["n"].tolist() == [number]
