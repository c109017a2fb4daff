"""The model that most tests of the engine use."""

import pytest

from slimwhisper.model.model import Model
from tests.support.windows import short_model


@pytest.fixture(scope="session")
def model() -> Model:
    return short_model()
