"""Flags of doubtful segments. They change no text."""

# name in `Segment.flags`: description for people; the most serious first
NOT_IN_AUDIO = "not_in_audio"
REASONS: dict[str, str] = {
    NOT_IN_AUDIO: "the line is not in the audio",
    "repeats": "the text repeats itself",
    "invented": "Whisper often makes this phrase up over silence",
    "too_few_words": "hardly any words for so much sound",
    "too_fast": "faster than people speak",
    "language_changed": "not in the language of the rest",
    "improbable": "the model was unsure",
}
