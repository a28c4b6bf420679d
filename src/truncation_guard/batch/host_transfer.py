"""The way from the device to the host."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def to_host(**tensors: Tensor) -> dict[str, NDArray[np.float32]]:
    """Copy tensors of one device to the host in a single transfer.

    Args:
        tensors: of any shapes and dtypes. Integers must be below 2**24, up to which float32 holds
            every one.

    Returns:
        An array of each tensor's shape under its name, float32.
    """
    flat = torch.cat([tensor.flatten().float() for tensor in tensors.values()]).cpu().numpy()
    arrays, start = {}, 0
    for name, tensor in tensors.items():
        arrays[name] = flat[start : start + tensor.numel()].reshape(tensor.shape)
        start += tensor.numel()
    return arrays
