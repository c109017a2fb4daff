"""Products and attention of a few rows on a CPU, in C."""
