"""Recordings of any length: windows one after the other, text with its times."""
