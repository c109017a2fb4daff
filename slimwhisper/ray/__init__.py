"""Uses many GPUs and hosts with Ray: `transcribe --engine ray`, and `Transcriber` for Ray Data.

In this package, too, `import ray` imports Ray itself.
"""

from typing import TYPE_CHECKING

from slimwhisper._lazy import lazy_names

__all__ = ["SCHEMA", "Transcriber"]

if TYPE_CHECKING:
    from slimwhisper.ray.transcriber import SCHEMA, Transcriber
else:
    homes = dict.fromkeys(__all__, "slimwhisper.ray.transcriber")
    __getattr__, __dir__ = lazy_names(__name__, homes)
