"""The arithmetic of the caches: each operation next to its plain PyTorch reference."""
