"""Guesses of the next tokens, verified in one step: the same texts in fewer steps."""
