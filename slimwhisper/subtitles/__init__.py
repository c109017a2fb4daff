"""Subtitles that people can read: sentences, and their lines."""
