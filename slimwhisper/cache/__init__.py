"""The decoder's caches: one file a store, `base` with the protocols they share."""
