"""Transcripts of speech that is still going on."""
