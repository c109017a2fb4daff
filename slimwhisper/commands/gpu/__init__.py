"""What decoding costs on a GPU: computed, and measured where it was."""
