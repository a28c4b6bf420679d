"""A vLLM server for all tests of this folder that want one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.vllm_engine import serve


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Its address. It is up after half a minute."""
    with serve(tmp_path_factory.mktemp("server")) as address:
        yield address
