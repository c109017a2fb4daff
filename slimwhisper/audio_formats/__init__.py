"""Recordings in all formats that FFmpeg's libraries decode, and files whose headers are wrong."""
