"""Why checks of other people's suites do not pass: a row for each reason, and no check without."""

from tests.foreign.outcomes import Known, Status

NO_WEIGHTS = "asserts the words of OpenAI's models, which are not downloaded"
PLACEHOLDERS = (
    "sends all fields at once with placeholders that contradict one another, for a server that "
    "looks at none: known speakers without diarized_json, word times without verbose_json"
)
NO_ESCAPE = "SubRip has no escapes: {...}, \\N and <...> are tags to most readers"
NOT_ESCAPED = "cues without --sentences are whisper's byte for byte, which does not escape WebVTT"

NOT_DECODED = "it does not decode &lt; and &amp;, which are WebVTT's"
STATUS = "a missing or wrong key is 401, as at OpenAI"


def red(suite: str, name: str, message: str, reason: str) -> Known:
    return Known(suite, name, message, Status.FAILED, reason)


def inapplicable(suite: str, name: str, message: str, reason: str) -> Known:
    return Known(suite, name, message, Status.NOT_APPLICABLE, reason)


KNOWN = (
    inapplicable("whisper", "cuda|equivalence", "CUDA", "needs a GPU"),
    inapplicable("whisper", "test_transcribe", r"fellow americans|== 'en'", NO_WEIGHTS),
    inapplicable("faster-whisper", "", "physicsworks.wav: no such file", "its audio is missing"),
    inapplicable(
        "faster-whisper", "transcribe::", r"== 'en'|assert '.*' == '|ComfyUI|11\.0", NO_WEIGHTS
    ),
    red("faster-whisper", "download_model$", "copy the returned", "`output_dir` is refused"),
    inapplicable("faster-whisper", "in_cache", "cannot download", "needs the internet"),
    inapplicable("openai-python", "all_params", "known_speaker_references", PLACEHOLDERS),
    inapplicable("openai-node", "optional", "known_speaker_references", PLACEHOLDERS),
    red("openai-python", "delete", "405", "models are not deleted over HTTP"),
    red("openai-node", "delete", "405", "models are not deleted over HTTP"),
    red("openai-python", "all_params", "session.type", "no realtime session that answers"),
    red(
        *("speaches", "json_response_format", "word needs response_format"),
        "words with json are refused, as at OpenAI, which its other file records",
    ),
    red(
        *("speaches", "api_verbose_json", "is not None"),
        "words alone bring no segments, as at OpenAI, which its other file records",
    ),
    red("speaches", "", "stream needs response_format", "no streams of subtitle formats"),
    red("speaches", "test_transcription_srt", "subrip", "SubRip's media type, as in whisper.cpp"),
    red("speaches", "auth_test::test_health", "ready", "another body of /health"),
    red("speaches", "docs|openapi", "401", "with a key, no page of the API without it"),
    red("speaches", "auth_test", "401", STATUS),
    red("speaches", "api_ps|diarization|vad_test", "404", "an address that is not served"),
    red("whisper.cpp", "suppress_n", "only true", "non-speech symbols are never sampled here"),
    red(
        *("whisper.cpp", "verbose_json", "detected_language"),
        "verbose_json names the language, and no probabilities",
    ),
    red("pysubs2", "of days", "", "it reads two digits of hours"),
    red("pysubs2", "srt of (braces|less|back)", "", NO_ESCAPE),
    red("pysubs2", "vtt of (braces|back)", "", "it reads tags of ASS in WebVTT"),
    red("pysubs2", "vtt of less and more$", "", NOT_ESCAPED),
    red("pysubs2", "vtt of a time", "2 cues", "it takes a line with two times for a cue"),
    red("pysubs2", "escaped", "&", NOT_DECODED),
    red("pysubs2", "ass of braces", "", "it does not know ASS's \\{"),
    red("webvtt-py", "srt of nothing", "empty", "it takes no file without cues"),
    red("webvtt-py", "srt of (less|a time)", "", NO_ESCAPE),
    red("webvtt-py", "vtt of (less and more|a time in brackets)$", "", NOT_ESCAPED),
    red("webvtt-py", "escaped", "&", NOT_DECODED),
    red("ffmpeg", "srt of (braces|less|back|a time)", "", NO_ESCAPE),
    red("ffmpeg", "vtt of (less|a time|an amp|an arrow)[a-z ]*$", "", NOT_ESCAPED),
    red("ffmpeg", "of (braces|back)", "", "it writes SubRip, in which these are tags"),
    red("ffmpeg", "lrc of a time", r"\(00", "LRC cannot hold a time in brackets: ( is written"),
    red("stable-ts", "", "'speaker'", "it refuses the field `speaker`, there with --diarize"),
    red(
        *("stable-ts", "sentences", r"\d of \d"),
        "a sentence stays on the screen; stable-ts ends it with its last word",
    ),
)
