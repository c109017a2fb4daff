"""Whisper speech-to-text with a decoder cache several times smaller and the same transcripts."""
