"""Output formats: a transcript as a text file."""
