"""A byte-level BPE tokenizer, as Whisper's are, made of its tables."""

from collections.abc import Mapping, Sequence

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers


def byte_level_tokenizer(
    vocabulary: Mapping[str, int], merges: Sequence[tuple[str, str]], added: Mapping[str, bool]
) -> Tokenizer:
    """GPT-2's pattern and letters.

    Arguments:
        vocabulary: token, spelled as by `openai.spelled` -> id.
        merges: pairs of tokens, the first to merge first.
        added: tokens that are found whole in texts, in the order of their ids -> whether they are
            special, which is no text. Those that the vocabulary lacks get the ids after it.
    Raises Exception, as `tokenizers` does, for merges of tokens that the vocabulary lacks.
    """
    found = Tokenizer(models.BPE(vocab=dict(vocabulary), merges=list(merges)))
    found.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    found.decoder = decoders.ByteLevel()
    found.add_tokens(
        [AddedToken(name, special=special, normalized=False) for name, special in added.items()]
    )
    return found
