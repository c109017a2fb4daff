"""A byte-level BPE tokenizer, of the kind of Whisper's, from its tables."""

from collections.abc import Mapping, Sequence

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers


def byte_level_tokenizer(
    vocabulary: Mapping[str, int], merges: Sequence[tuple[str, str]], added: Mapping[str, bool]
) -> Tokenizer:
    """GPT-2's pattern and letters.

    Arguments:
        vocabulary: token, spelled as by `openai.spelled` -> id.
        merges: pairs of tokens, the first to merge first.
        added: tokens that are matched whole in texts, in the order of their ids -> whether they are
            special, not text. Those that are not in the vocabulary get the ids after it.
    Raises Exception, as `tokenizers` does, for merges of tokens that are not in the vocabulary.
    """
    tokenizer = Tokenizer(models.BPE(vocab=dict(vocabulary), merges=list(merges)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens(
        [AddedToken(name, special=special, normalized=False) for name, special in added.items()]
    )
    return tokenizer
