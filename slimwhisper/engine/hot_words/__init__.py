"""Hot words: phrases whose tokens get a bonus where a text may continue with them.

The idea is shallow fusion with a graph of phrases: Zhao et al., "Shallow-Fusion End-to-End
Contextual Biasing" (Interspeech 2019); the context graphs of icefall, and the phrase boosting of
NeMo (Andrusenko et al., arXiv 2508.07014), are such Aho-Corasick automata (Aho and Corasick,
"Efficient String Matching", 1975).

    automaton   the arrays of one list: nodes, edges, bonuses
    tables      those of all lists in use, on the device
    rows        where each text stands, and what its tokens gain
"""
