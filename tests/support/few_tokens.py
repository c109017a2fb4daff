"""Random models with few tokens, whose logits take a ninth of the time: Whisper's most frequent
ones of English text, with which any text can be written, and all special ones.
"""

from dataclasses import replace
from unittest.mock import patch

import tiktoken
import torch

from slimwhisper.checkpoint.files import EMBEDDING
from slimwhisper.checkpoint.load import Checkpoint
from slimwhisper.tokens.encoding import PIECES, Tokenizer, get_encoding
from slimwhisper.tokens.vocabulary import get_vocabulary
from slimwhisper.types import Dims
from tests.support.checkpoints import random_state, tiny_dims

TEXTS = 4096
SEED = 5  # whose texts are long, and differ
WHISPERS = tiny_dims(multilingual=False)
ALL = get_encoding()
FEWER = ALL.eot_token - TEXTS
TOKENIZER = Tokenizer(
    tiktoken.Encoding(
        "few",
        pat_str=PIECES,
        mergeable_ranks={ALL.decode_single_token_bytes(i): i for i in range(TEXTS)},
        special_tokens={n: ALL.encode_single_token(n) - FEWER for n in ALL.special_tokens_set},
    ),
    num_languages=99,
)
DIMS = replace(WHISPERS, n_vocab=ALL.n_vocab - FEWER)
with patch("slimwhisper.tokens.vocabulary.get_tokenizer", return_value=TOKENIZER):
    VOCABULARY = replace(get_vocabulary.__wrapped__(DIMS), is_whispers=False)


def with_few_tokens(checkpoint: Checkpoint) -> Checkpoint:
    """Of an English model."""
    rows = checkpoint.state[EMBEDDING]
    state = {**checkpoint.state, EMBEDDING: torch.cat([rows[:TEXTS], rows[ALL.eot_token :]])}
    dims = replace(checkpoint.dims, n_vocab=DIMS.n_vocab)
    return replace(checkpoint, dims=dims, state=state, vocabulary=VOCABULARY)


def random_checkpoint(dims: Dims = DIMS, seed: int = SEED) -> Checkpoint:
    """dims: the tokens are few whatever `n_vocab` is."""
    english = replace(dims, n_vocab=WHISPERS.n_vocab)
    return with_few_tokens(Checkpoint("random", english, random_state(english, seed)))
