"""The context window of a vLLM server.

TRL 1.16 does not ask the server for it, and a request that does not fit ends the training.
"""

import json
import logging
import urllib.request
from http.client import HTTPException
from typing import Any
from weakref import WeakKeyDictionary

from truncation_guard.marks_for_tests import unswept

_TIMEOUT_SECONDS = 10
_logger = logging.getLogger(__name__)
_windows: "WeakKeyDictionary[Any, int | None]" = WeakKeyDictionary()


@unswept  # with a vLLM server
def server_window(backend: Any) -> int | None:
    """The server's context window in tokens; None where unknown.

    Every process asks for itself, because TRL has its client on the main process only. The answer
    is kept as long as the backend lives.

    Args:
        backend: TRL's `VLLMGeneration` in server mode.
    """
    if backend not in _windows:
        _windows[backend] = _ask(backend)
    return _windows[backend]


@unswept  # with a vLLM server
def _ask(backend: Any) -> int | None:
    # TRL 1.16 builds its address from the same attributes.
    address = backend.server_base_url or f"http://{backend.server_host}:{backend.server_port}"
    try:
        with urllib.request.urlopen(
            f"{address.rstrip('/')}/v1/models", timeout=_TIMEOUT_SECONDS
        ) as answer:
            # TRL also generates with the first model.
            return int(json.load(answer)["data"][0]["max_model_len"])
    except (OSError, HTTPException, ValueError, LookupError, TypeError) as error:
        _logger.debug("The vLLM server at %s does not tell its window: %s", address, error)
        return None
