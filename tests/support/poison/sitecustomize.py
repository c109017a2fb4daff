"""On PYTHONPATH, kills a worker of Ray that opens a recording of these names, as a defect would."""

import os
import signal
import sys

NAMES = set(os.environ.get("SLIMWHISPER_TEST_POISON", "").split("/")) - {""}


def _watch(event: str, arguments: tuple[object, ...]) -> None:
    if event == "open" and os.path.basename(str(arguments[0])) in NAMES:  # noqa: PTH119
        os.kill(os.getpid(), signal.SIGKILL)


if any(argument.endswith("default_worker.py") for argument in sys.orig_argv):
    sys.addaudithook(_watch)
