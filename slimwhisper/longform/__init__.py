"""Recordings of any length: windows one after the other, and text with timestamps."""
