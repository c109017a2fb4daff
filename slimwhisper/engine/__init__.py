"""Batch decoding: windows of audio in slots, their texts in rows, answers to whoever asked."""
