"""Many GPUs and hosts, with Ray: `transcribe --engine ray`, and `Transcriber` for Ray Data.

`import ray` means Ray itself, here as everywhere.
"""

from typing import TYPE_CHECKING

from slimwhisper._lazy import lazy_names

__all__ = ["SCHEMA", "Transcriber"]

if TYPE_CHECKING:
    from slimwhisper.ray.rows import SCHEMA
    from slimwhisper.ray.transcriber import Transcriber
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {"SCHEMA": "slimwhisper.ray.rows", "Transcriber": "slimwhisper.ray.transcriber"},
    )
