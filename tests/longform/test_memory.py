"""Peak memory of a decode, measured in a fresh process, grows with the windows by what they use."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT

SCRIPT = """
import json, re, sys
from pathlib import Path
import torch
from tests.support.checkpoints import random_state, tiny_dims
from tests.support.windows import run
from slimwhisper.longform.requests import make_rules
from slimwhisper.options import Options
from slimwhisper.checkpoint.load import Checkpoint
from slimwhisper.engine.engine import Engine
from slimwhisper.guard import guarded_plan
from slimwhisper.model.model import Model
from slimwhisper.engine.requests import Window
from slimwhisper.tokens.vocabulary import get_tokenizer, get_vocabulary

cross, own, slots = sys.argv[1], sys.argv[2], int(sys.argv[3])
dims = tiny_dims(width=384, heads=6, text_layers=4, multilingual=False)
checkpoint = Checkpoint("random", dims, random_state(dims, seed=0))
model = Model(checkpoint, torch.device("cpu"), torch.float32, (cross, own), guarded_plan)
tokenizer = get_tokenizer(dims)
rules = make_rules(dims, Options(sample_len=6))
encoded = torch.randn(1500, 384, generator=torch.Generator().manual_seed(0))
engine = Engine(model, slots)
run(engine, dict.fromkeys(range(slots), Window(encoded, tokenizer.sot_sequence, 0, rules)))
status = Path("/proc/self/status").read_text()  # ru_maxrss would begin with the parent's peak
peak = int(re.search(r"VmHWM:\\s+(\\d+) kB", status)[1]) * 1024
texts = engine.pool.peak * engine.runner.pages.page_bytes
print(json.dumps({"peak": peak, "window": (engine.runner.cross.nbytes() + texts) // slots}))
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")
def test_peak_memory_grows_by_what_is_used() -> None:
    """The audio's cache, and the pages of the texts: of a context that is not used, nothing."""
    few, many = 8, 40
    grown = {}
    for name, cross, own in (("slim", "e", "x"), ("baseline", "kv", "kv")):
        command = [sys.executable, "-c", SCRIPT, cross, own]
        small, large = (
            json.loads(subprocess.check_output([*command, str(slots)], cwd=ROOT))
            for slots in (few, many)
        )
        promised = (many - few) * small["window"]
        # a row's logits, and what the rules make of them: a few times 51,864 float32 values
        scratch = (many - few) * 5 * 51_864 * 4
        grown[name] = large["peak"] - small["peak"]
        assert 0.9 * promised <= grown[name] <= 1.1 * promised + scratch
    assert grown["baseline"] > 3 * grown["slim"]
