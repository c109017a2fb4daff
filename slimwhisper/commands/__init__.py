"""The other commands: one module each, and what they share."""
