"""Marks of single cases."""

from collections.abc import Sequence
from typing import Any

import pytest


def slow(*cases: Sequence[Any]) -> list[Any]:
    """Cases of a table that run only where slow tests are asked for."""
    return [pytest.param(*case, marks=pytest.mark.slow) for case in cases]
