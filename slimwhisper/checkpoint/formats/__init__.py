"""Readers of checkpoint formats: file or folder -> dimensions, and tensors under OpenAI's names."""
