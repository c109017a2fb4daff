"""The `transcribe` command: what a folder job is made of."""
