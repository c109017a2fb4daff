"""Whisper speech-to-text whose decoder keeps a several times smaller cache, with the same transcripts."""
