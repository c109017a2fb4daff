"""The other commands, one module each, and the code they share."""
