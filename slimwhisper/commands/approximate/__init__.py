"""What approximate caches cost and save: `tradeoff` measures them, `calibrate` chooses."""
