"""SmolLM2 for the tests of this folder."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture(scope="module")
def model_and_tokenizer() -> tuple[Any, Any]:
    """A copy of the model that a module may train."""
    from support import smollm2

    return smollm2.trainable(), smollm2.tokenizer()
