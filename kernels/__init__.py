"""The arithmetic of the caches: each operation beside its plain PyTorch reference."""
