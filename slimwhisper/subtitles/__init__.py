"""Readable subtitles: sentences, and their lines."""
