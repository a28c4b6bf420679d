"""Tests of what older supported versions of TRL do not have yet: skipped there, with the reason."""

from __future__ import annotations

import pytest
import trl
from packaging.version import Version

TRL = Version(trl.__version__)


def since(version: str, what: str) -> pytest.MarkDecorator:
    """A mark for tests of what this version of TRL brought."""
    return pytest.mark.skipif(Version(version) > TRL, reason=_reason(version, what))


def require(version: str, what: str) -> None:
    """Skip the running test unless this version's `what` is there."""
    if Version(version) > TRL:
        pytest.skip(_reason(version, what))


def _reason(version: str, what: str) -> str:
    return f"TRL {version} brought {what}, this is {TRL}"
