"""The arithmetic of the caches' attention: each operation with its plain PyTorch reference."""
