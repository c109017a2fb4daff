"""Measures approximate caches: `tradeoff` compares their cost and savings, `calibrate` chooses."""
