"""The engines that `peers.py` compares.

To add one: a module with a function that writes the weights as it reads them, one that loads it and
returns a function of recordings, and a `Peer` with both in its PEERS; then its name below.
"""

from peer_engines import ctranslate, hugging_face, openvino_genai, ours, whisper_cpp
from peer_engines.case import Case, Peer

MODULES = (ours, hugging_face, ctranslate, whisper_cpp, openvino_genai)
PEERS: dict[str, Peer] = {name: peer for m in MODULES for name, peer in m.PEERS.items()}
OURS = "slimwhisper"  # what the names of our variants begin with


def name_of(case: Case) -> str:
    """For a person: with the dtype if the engine has several on this device."""
    several = len(PEERS[case.engine].dtypes[case.device]) > 1
    return f"{case.engine} {case.dtype}" if several else case.engine
