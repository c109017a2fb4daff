"""The parts of the `transcribe` command: inputs, outputs, the journal, progress."""
