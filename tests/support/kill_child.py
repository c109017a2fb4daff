"""Forks a job for each line on standard input, which names the file for its standard error.

A fork starts in milliseconds, so that kills hit the job and not the imports.

    python kill_child.py DELAY transcribe ...
"""

import os
import sys
from pathlib import Path
from types import SimpleNamespace

sys.path.insert(0, str(Path(__file__).parents[2]))

import slimwhisper.jobs.job
from slimwhisper.cli import main
from tests.support.fake_model import FakeModel, install

assert slimwhisper.jobs.job
sys.modules["slimwhisper.cores"] = SimpleNamespace(set_threads=int)  # not torch's
model = FakeModel(ahead=8, delay=float(sys.argv[1]))
install(model, lambda target, key, value: target.__setitem__(key, value))
for line in sys.stdin:
    child = os.fork()
    if child == 0:
        log = os.open(line.rstrip("\n"), os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        os.dup2(log, 2)
        os._exit(main(sys.argv[2:]))
    print(child, flush=True)
    _, status = os.waitpid(child, 0)
    print(os.waitstatus_to_exitcode(status), flush=True)
