"""Subtitles that people can read: sentences, lines, and the formats that show them."""
