"""How exact is each cache form, unguarded, as W_K and W_V grow ill-conditioned?

Random decoders of width 384 (6 heads, 4 layers) whose condition numbers are set by log-spaced
singular values. For every form, dtype and condition: the root-mean-square error of the logits
against openai-whisper's modules in float64, as a multiple of openai-whisper's own error in that
dtype; and the guard's error (`guard.measure`), as a multiple of the baseline's. The guard's
margin is chosen from this table: docs/internals/numerics.md.

    python bench/exactness.py [--dtypes float32 bfloat16] [--conditions 3 10 30 100]
"""

import argparse
import json
import sys
from pathlib import Path

import torch
from timing import machine

sys.path.insert(0, str(Path(__file__).parents[1]))
from slimwhisper import guard
from slimwhisper.checkpoint.load import Checkpoint
from slimwhisper.model.model import Model
from tests.model.test_logits import CPU, cached_logits, errors, features_like_encoder_output, texts
from tests.support.checkpoints import random_state, tiny_dims
from tests.support.reference import set_spectrum, whisper_logits, whisper_model

FORMS = "kv+kv e+x e8+x8 k+x v+x hybrid+x e+k e+v k+k".split()  # cross+self
CONDITIONS = [3, 10, 30, 1e2, 1e3, 1e4, 1e6, 1.4e7]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--conditions", nargs="+", type=float, default=CONDITIONS)
    arguments = parser.parse_args()
    guard.MARGIN = float("inf")  # measure what the guard would reject
    guard.fits_dtype = lambda *_: True

    dims = tiny_dims(width=384, heads=6, text_layers=4, multilingual=False)
    sequences, rows = texts(2), []
    for condition in arguments.conditions:
        state = set_spectrum(random_state(dims, seed=0), dims, condition)
        plain, wide = whisper_model(dims, state), whisper_model(dims, state, torch.float64)
        for name in arguments.dtypes:
            dtype = getattr(torch, name)
            features = features_like_encoder_output(2, 1500, 384).to(dtype)
            pairs = list(zip(sequences, features, strict=True))
            true = [whisper_logits(wide, t, f.double()) for t, f in pairs]
            whisper_error = errors([whisper_logits(plain, t, f) for t, f in pairs], true)[0]
            row = {"condition": condition, "dtype": name, "whisper": whisper_error}
            for forms in FORMS:
                cross, text = forms.split("+")
                checkpoint = Checkpoint("random", dims, state)
                model = Model(checkpoint, CPU, dtype, (cross, text), guard.guarded_plan)
                error = errors(cached_logits(model, features, sequences), true)[0]
                measured = [i.error / i.baseline_error for i in model.plan.inspections]
                row[forms] = [error / whisper_error, max(measured, default=1.0)]
            rows.append(row)
            cells = (f"{k} {v[0]:.3g} ({v[1]:.3g})" for k, v in row.items() if isinstance(v, list))
            print(f"{condition:.1e} {name}: ", ", ".join(cells), flush=True)
    print(json.dumps({"bench": "exactness", "machine": machine(CPU), "rows": rows}))


if __name__ == "__main__":
    main()
