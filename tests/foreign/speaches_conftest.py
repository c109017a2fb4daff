"""In place of speaches' conftest: the same fixtures, for servers that run already."""

import ast
import os
import re
import sys
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import pytest_asyncio
from httpx import AsyncClient
from openai import AsyncOpenAI

SOURCE = Path(__file__).parents[1] / "src" / "speaches"
NAMES = {  # of speaches' modules, that tests import: literals, or classes of its own
    "api_types": ("TIMESTAMP_GRANULARITIES_COMBINATIONS", "TimestampGranularities"),
    "routers.stt": ("RESPONSE_FORMATS",),
    "routers.vad": ("MODEL_ID", "SpeechTimestamp"),
    "routers.diarization": ("DiarizationResponse",),
}


def value(module: str, name: str) -> Any:
    """What a module assigns to a name, if that is a literal. Its syntax may be a later Python's."""
    text = (SOURCE / f"{module.replace('.', '/')}.py").read_text()
    found = re.search(rf"^{name}\b[^=\n]*= (\[.*?^\]|[(\"].*?$)", text, re.S | re.M)
    return ast.literal_eval(found[1]) if found else None


for module, names in NAMES.items():
    made = ModuleType(f"speaches.{module}")
    made.__dict__.update({name: value(module, name) for name in names})
    sys.modules[made.__name__] = made


class Config:
    """Only whether there is a key."""

    def __init__(self, url: str) -> None:
        self.url = url

    def model_copy(self, update: dict[str, Any]) -> "Config":
        return Config(os.environ["FOREIGN_LOCKED_URL" if "api_key" in update else "FOREIGN_URL"])


DEFAULT_CONFIG = Config(os.environ["FOREIGN_URL"])
AclientFactory = Any


@pytest.fixture
def aclient_factory() -> Any:
    def made(config: Config = DEFAULT_CONFIG) -> AbstractAsyncContextManager[AsyncClient]:
        return AsyncClient(base_url=config.url, timeout=60)

    return made


@pytest_asyncio.fixture
async def aclient(aclient_factory: Any) -> AsyncIterator[AsyncClient]:
    async with aclient_factory() as client:
        yield client


@pytest.fixture
def openai_client() -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"{DEFAULT_CONFIG.url}/v1", max_retries=0)


@pytest.fixture
def actual_openai_client(openai_client: AsyncOpenAI) -> AsyncOpenAI:
    """What speaches' tests record of OpenAI is asked of our server."""
    return openai_client


@pytest.fixture
def pull_model_without_cleanup() -> None:
    """The model is there."""
