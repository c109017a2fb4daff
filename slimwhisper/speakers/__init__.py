"""Who spoke when: back ends that find turns, and the speakers of words and segments."""
