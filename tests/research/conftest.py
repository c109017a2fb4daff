"""A form whose loss is known."""

from collections.abc import Iterator

import pytest

from tests.support.toy_form import first_form


@pytest.fixture(scope="module")
def first() -> Iterator[str]:
    """The name of a form that is registered meanwhile."""
    with first_form() as name:
        yield name
