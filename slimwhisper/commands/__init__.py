"""The commands except `transcribe` and `serve`, one module each, and the code they share."""
