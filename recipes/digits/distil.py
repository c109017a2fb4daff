"""Distils a draft: python -m recipes.digits.distil CHECKPOINT FOLDER

The draft keeps the checkpoint's encoder, to the bit, and begins with the last of its decoder's
layers, as distil-whisper does (Gandhi et al., arXiv 2311.00430). FOLDER has the words.pt of
`train`; it gets draft.pt, and the state from which a stopped run resumes.
"""

import argparse
from pathlib import Path

import torch

from recipes.audio_window.match import save
from recipes.digits.model import Student, dimensions
from recipes.digits.sequences import TOKEN_IDS, Composer
from recipes.digits.train import EncodedWindows, fit
from recipes.digits.voices import Bank


def shortened(checkpoint: Path, layers: int) -> Student:
    """A student with the checkpoint's encoder and the last `layers` of its decoder.

    SystemExit for more layers than the checkpoint has, or none.
    """
    checkpoint_file = torch.load(checkpoint, weights_only=True)
    dims, old = checkpoint_file["dims"], checkpoint_file["model_state_dict"]
    width, skipped = dims["n_text_state"], dims["n_text_layer"] - layers
    if not 0 <= skipped < dims["n_text_layer"]:
        had = dims["n_text_layer"]
        raise SystemExit(f"{checkpoint}: has {had} decoder layers; choose --layers from 1 to {had}")
    student = Student(dimensions(width, (dims["n_audio_layer"], layers)))
    state = student.state_dict()
    for name in state:
        source = name
        if name.startswith("decoder.blocks."):
            number, rest = name.removeprefix("decoder.blocks.").split(".", 1)
            source = f"decoder.blocks.{int(number) + skipped}.{rest}"
        if source in old:
            state[name] = old[source].float()
    state["rows"] = old["decoder.token_embedding.weight"][list(TOKEN_IDS)].float()
    student.load_state_dict(state)
    return student


def distil(args: argparse.Namespace) -> None:
    """Train the draft's decoder on what the encoder, which stays as it is, hears."""
    torch.manual_seed(args.seed)
    words = args.folder / "words.pt"
    for path in (words, args.checkpoint):
        if not path.is_file():
            raise SystemExit(f"{path}: no such file; python -m recipes.digits.train makes it")
    student = shortened(args.checkpoint, args.layers)
    student.train_only("decoder")
    composer = Composer(Bank.load(words), args.real, None)
    examples = EncodedWindows(composer, student.train(), args.seed)
    state = args.folder / "draft.state"
    student = fit(student, student.saying_losses, examples.batch, args.steps, args.rate, state)
    save(student.checkpoint(), state.with_suffix(".pt"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("checkpoint", type=Path, help="of this recipe, in OpenAI's format")
    parser.add_argument("folder", type=Path, help="with words.pt; where the draft is written")
    parser.add_argument("--layers", type=int, default=1, help="of the draft's decoder [1]")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--real", type=float, default=0.6, help="share of windows of real speech")
    parser.add_argument("--seed", type=int, default=0)
    distil(parser.parse_args())


if __name__ == "__main__":
    main()
