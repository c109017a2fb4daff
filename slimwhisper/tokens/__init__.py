"""Token ids: vocabularies, tokenizers, and openai-whisper's tables."""
