"""The recipe that fine-tunes with transformers: what it trains and writes, and that we read it."""

from argparse import Namespace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from safetensors.torch import load_file

import slimwhisper
from recipes.digits.voices import RATE, fsdd_words
from tests.support.spoken import spoken_words

ENGLISH = " zero one two three four five six seven eight nine"

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # other projects' warnings


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Namespace:
    """`digits` with new words, three steps later: `before`, its weights at the start, and `out`.

    The new words begin a little louder than the English ones, so that they are said from the start.
    """
    for package in ("transformers", "peft", "accelerate"):
        if find_spec(package) is None:
            pytest.skip(f"needs {package}: pip install '.[finetune]'")
    try:
        from recipes.finetune.train import extended, train
    except OSError as error:  # of a torchaudio that was built for another torch
        pytest.skip(f"transformers does not import: {error}")
    from slimwhisper.commands.convert import convert

    folder = tmp_path_factory.mktemp("finetune")
    asked = Namespace(fsdd=folder / "fsdd", out=folder / "out", steps=3, batch=2, rate=1e-3, rank=2)
    asked.fsdd.mkdir()
    for digit, samples in dict(spoken_words()).items():
        soundfile.write(asked.fsdd / f"{digit}_voice_5.wav", samples, RATE)
    convert("digits", folder / "digits")
    model, processor = extended(folder / "digits")
    rows = model.get_input_embeddings().weight
    with torch.no_grad():
        rows[-10:] = 1.1 * rows[processor.tokenizer.encode(ENGLISH, add_special_tokens=False)]
    asked.before = {name: weight.clone() for name, weight in model.state_dict().items()}
    train(model, processor, Namespace(seed=0, device="cpu", **vars(asked)))
    return asked


def test_the_decoder_and_the_new_rows_alone_are_trained(tuned: Namespace) -> None:
    after = load_file(tuned.out / "model.safetensors")
    assert tuned.before.keys() == after.keys() | {"proj_out.weight"}  # tied to the embedding
    before = {name: tuned.before[name] for name in after}
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    rows = "model.decoder.embed_tokens.weight"
    assert rows in changed
    assert all(name.startswith("model.decoder.layers.") for name in changed - {rows})
    assert len(changed) == 1 + 4 * 10  # matrices of two attentions, and of the MLP
    assert torch.equal(before[rows][:-10], after[rows][:-10])


def test_transformers_and_we_say_the_same(tuned: Namespace) -> None:
    """Greedily, in float32, also the new words."""
    from transformers import WhisperForConditionalGeneration, WhisperProcessor

    from recipes.finetune.train import WORDS, batch

    processor = WhisperProcessor.from_pretrained(tuned.out)
    theirs = WhisperForConditionalGeneration.from_pretrained(tuned.out).eval()
    ours = slimwhisper.load_model(tuned.out, device="cpu", dtype="float32")
    features = batch(processor, spoken_words(), 4, np.random.default_rng(2))["input_features"]
    rows = theirs.generate(input_features=features, return_timestamps=False).tolist()
    options = slimwhisper.DecodingOptions(language="en", without_timestamps=True)
    special = set(processor.tokenizer.all_special_ids)
    for row, result in zip(rows, ours.decode(features, options), strict=True):
        assert result.tokens == [token for token in row if token not in special]
        assert result.text == processor.tokenizer.decode(row, skip_special_tokens=True).strip()
        assert set(result.text.split()) & {word.strip() for word in WORDS}


def test_a_folder_without_recordings(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="7_george_3"):
        fsdd_words(tmp_path, test=True)
