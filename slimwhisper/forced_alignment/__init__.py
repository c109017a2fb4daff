"""A known text and its recording: which words are where, and where each begins and ends."""
