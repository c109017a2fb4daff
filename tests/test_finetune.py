"""The recipe that fine-tunes with transformers: what it trains and writes, and that we read it."""

from argparse import Namespace
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import pytest
import soundfile
import torch
from safetensors.torch import load_file

from recipes.digits.voices import RATE
from tests.support.spoken import spoken_words

ENGLISH = " zero one two three four five six seven eight nine"

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # other projects' warnings


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Namespace:
    """`digits` with new words, three steps later: `start`, `out`, and the recordings, `fsdd`.

    The new words begin a little louder than the English ones, so that they are said from the start.
    """
    for package in ("transformers", "peft", "accelerate"):
        if find_spec(package) is None:
            pytest.skip(f"needs {package}: pip install '.[finetune]'")
    try:
        from recipes.finetune import extend, train
    except OSError as error:  # of a torchaudio that was built for another torch
        pytest.skip(f"transformers does not import: {error}")
    from recipes.finetune.words import WORDS
    from slimwhisper.commands.conversion.convert import convert

    folder = tmp_path_factory.mktemp("finetune")
    asked = Namespace(start=folder / "start", fsdd=folder / "fsdd", out=folder / "out")
    asked.fsdd.mkdir()
    seen: Counter[int] = Counter()
    for digit, samples in spoken_words():
        place = {0: 0, 1: 5}.get(seen[digit])  # of the test set, and of the others
        seen[digit] += 1
        if place is not None:
            soundfile.write(asked.fsdd / f"{digit}_voice_{place}.wav", samples, RATE)
    convert("digits", folder / "digits")
    model, processor = extend.extended(folder / "digits", WORDS)
    rows = model.get_input_embeddings().weight
    with torch.no_grad():
        rows[-10:] = 1.1 * rows[processor.tokenizer.encode(ENGLISH, add_special_tokens=False)]
    extend.save(model, processor, asked.start)
    run = Namespace(steps=3, batch=2, rate=1e-3, rank=2, tests=2, seed=0, **vars(asked))
    asked.errors = train.train(run)
    return asked


def test_the_decoder_and_the_new_rows_alone_are_trained(tuned: Namespace) -> None:
    before = load_file(tuned.start / "model.safetensors")
    after = load_file(tuned.out / "merged" / "model.safetensors")
    assert before.keys() == after.keys()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    rows = "model.decoder.embed_tokens.weight"
    assert rows in changed
    assert all(name.startswith("model.decoder.layers.") for name in changed - {rows})
    assert len(changed) == 1 + 4 * 10  # matrices of two attentions, and of the MLP
    assert torch.equal(before[rows][:-10], after[rows][:-10])


def test_transformers_and_we_say_the_same(tuned: Namespace) -> None:
    from recipes.finetune.agreement import agreement

    found = agreement(Namespace(count=4, **vars(tuned)))
    same = {"tokens": 0, "texts": 0}
    assert found["different"] == {"merged": same, "timestamps": same}
    assert found["word_error_percent"]["merged"] < 50  # it says the new words


def test_a_folder_without_recordings(tuned: Namespace, tmp_path: Path) -> None:
    from recipes.finetune.words import recordings

    with pytest.raises(SystemExit, match="7_george_3"):
        recordings(tmp_path, test=True)
