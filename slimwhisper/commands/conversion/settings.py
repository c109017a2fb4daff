"""Makes the settings files of a Hugging Face folder from the constants of Whisper's own code."""

from typing import TYPE_CHECKING, Any

from slimwhisper.checkpoint.alignment_heads import head_pairs
from slimwhisper.checkpoint.formats.hugging_face import DIMENSIONS
from slimwhisper.checkpoint.load import Checkpoint
from slimwhisper.commands.conversion.tokenizer_files import FIRST_TIMESTAMP, NO_TIMESTAMPS
from slimwhisper.option_group import TASKS, ModelFacts
from slimwhisper.options import changed_settings
from slimwhisper.tokens.openai import suppressed
from slimwhisper.types import HOP_SAMPLES, SAMPLE_RATE, Dims

if TYPE_CHECKING:
    from whisper.tokenizer import Tokenizer

FFT_SAMPLES = 400  # of a spectrogram's window


def model_settings(dims: Dims, tokenizer: "Tokenizer", dtype: str, tied: bool) -> dict[str, Any]:
    """config.json. dtype: such as "float16"."""
    sizes = {key: getattr(dims, field) for field, key in DIMENSIONS.items()}
    ends = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), tokenizer.eot)
    return (
        sizes
        | ends
        | {
            "architectures": ["WhisperForConditionalGeneration"],
            "model_type": "whisper",
            "activation_function": "gelu",
            "decoder_ffn_dim": 4 * dims.n_text_state,
            "decoder_start_token_id": tokenizer.sot,
            "encoder_ffn_dim": 4 * dims.n_audio_state,
            "is_encoder_decoder": True,
            "num_hidden_layers": dims.n_audio_layer,
            "scale_embedding": False,
            "tie_word_embeddings": tied,
            "torch_dtype": dtype,  # new versions of transformers know this older name too
            "use_cache": True,
        }
    )


def own_settings(checkpoint: Checkpoint) -> dict[str, Any]:
    """What a model's generation_config.json has that Whisper's own has not."""
    settings, heads = checkpoint.settings, checkpoint.alignment_heads
    own: dict[str, Any] = {} if heads is None else {"alignment_heads": head_pairs(heads)}
    for row in changed_settings(
        ModelFacts(checkpoint.name, checkpoint.dims, checkpoint.tokens, settings)
    ):
        value = getattr(settings, row.name, row.value)
        own[row.name] = list(value) if isinstance(value, tuple) else value
    own.pop("forced_decoder_ids", None)  # what is followed of them is the language and the task
    return own


def generation_settings(dims: Dims, tokenizer: "Tokenizer") -> dict[str, Any]:
    """generation_config.json: the rules of `whisper.decode` with its defaults."""
    special = tokenizer.special_tokens
    multilingual = tokenizer.language is not None
    never, never_first = suppressed(tokenizer)
    settings: dict[str, Any] = {
        "begin_suppress_tokens": list(never_first),
        "bos_token_id": tokenizer.eot,
        "decoder_start_token_id": tokenizer.sot,
        "eos_token_id": tokenizer.eot,
        "is_multilingual": multilingual,
        "max_initial_timestamp_index": 50,  # 1 s, in steps of 20 ms
        "max_length": dims.n_text_ctx,
        "no_timestamps_token_id": special[NO_TIMESTAMPS],
        "pad_token_id": tokenizer.eot,
        "prev_sot_token_id": tokenizer.sot_prev,
        "return_timestamps": False,
        "suppress_tokens": list(never),
    }
    if multilingual:
        codes = tokenizer.all_language_codes
        settings["lang_to_id"] = {f"<|{code}|>": special[f"<|{code}|>"] for code in codes}
        settings["task_to_id"] = {task: getattr(tokenizer, task) for task in TASKS}
    assert special[FIRST_TIMESTAMP] == special[NO_TIMESTAMPS] + 1  # transformers relies on it
    return settings


def feature_settings(dims: Dims) -> dict[str, Any]:
    """preprocessor_config.json: Whisper's spectrogram."""
    frames = 2 * dims.n_audio_ctx  # the encoder halves them
    samples = frames * HOP_SAMPLES
    return {
        "chunk_length": samples // SAMPLE_RATE,  # seconds
        "feature_extractor_type": "WhisperFeatureExtractor",
        "feature_size": dims.n_mels,
        "hop_length": HOP_SAMPLES,
        "n_fft": FFT_SAMPLES,
        "n_samples": samples,
        "nb_max_frames": frames,
        "padding_side": "right",
        "padding_value": 0.0,
        "processor_class": "WhisperProcessor",
        "return_attention_mask": False,
        "sampling_rate": SAMPLE_RATE,
    }
