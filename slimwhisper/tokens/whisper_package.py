"""openai-whisper's modules: `whisper_package.tokenizer` is its tokenizer.py, and so on.

`import whisper` imports all of them, with `timing` numba, before any can be used. Here each is
imported by itself.
"""

from slimwhisper._lazy import openai_whisper_path

__path__ = openai_whisper_path()
