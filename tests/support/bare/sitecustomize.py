"""On PYTHONPATH, takes away what only Unix has, and packages that a CPU does not need."""

import os
import sys

for name in ("fcntl", "resource", "pwd", "grp", "termios", "triton", "numba", "whisper"):
    sys.modules[name] = None  # type: ignore[assignment]  # importing it fails
for name in ("O_NOFOLLOW", "O_DIRECTORY", "O_CLOEXEC", "pread", "sysconf"):
    delattr(os, name)
