"""Checkpoints: name, file or folder -> dimensions and weights under OpenAI's tensor names."""
