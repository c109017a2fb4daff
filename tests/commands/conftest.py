"""Fixtures of the tests of `slimwhisper convert`."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slimwhisper.commands.conversion import hf_folder
from slimwhisper.commands.conversion.convert import convert
from slimwhisper.commands.conversion.tokenizer_files import tokenizer_files
from tests.support.checkpoints import DIMS, save_openai
from tests.support.conversion import STATE


@pytest.fixture(scope="module")
def tables_made_once() -> Iterator[None]:
    """The tokenizer's files, a second's work, once for each vocabulary."""
    made: dict[int, dict[str, str]] = {}

    def once(tokenizer: Any, n_text_ctx: int) -> dict[str, str]:
        size = tokenizer.encoding.n_vocab
        if size not in made:
            made[size] = tokenizer_files(tokenizer, n_text_ctx)
        return made[size]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hf_folder, "tokenizer_files", once)
        yield


@pytest.fixture(scope="module")
def openai_file(tables_made_once: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_openai(tmp_path_factory.mktemp("openai") / "tiny.pt", DIMS, STATE)


@pytest.fixture(scope="module")
def folder(openai_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`openai_file` as a Hugging Face folder."""
    return convert(str(openai_file), tmp_path_factory.mktemp("converted") / "tiny").path
