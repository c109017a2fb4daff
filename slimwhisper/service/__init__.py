"""One model and all who want something from it: who waits, who has a slot, and whose turn it is."""
