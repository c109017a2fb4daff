"""The engine on pretend GPUs without CUDA: the texts of a CPU, by PyTorch's operators alone."""

from dataclasses import replace

import pytest
import torch

from slimwhisper.engine.engine import Engine
from slimwhisper.engine.requests import Decoded, Search
from tests.support.pretend.cuda import pretend_other
from tests.support.pretend.models import made, requests, then
from tests.support.windows import CPU, VOCABULARY, assert_same, run


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "search", "temperatures"),
    [("mps", Search(beams=2), (0.0,)), ("xpu", None, (0.0, 0.8))],
    ids=["mps", "xpu"],
)
def test_the_texts_of_a_cpu(
    kind: str, search: Search | None, temperatures: tuple[float, ...]
) -> None:
    """On MPS, tokens that are drawn are others: it draws from float32."""
    asked = dict(enumerate(requests(5, temperatures)))
    asked[1] = replace(asked[1], draft=(5, 6, 7))
    cpu = Engine(made(("e", "x"), CPU), VOCABULARY, 2, search)
    expected = run(cpu, asked, then)
    with pretend_other(kind) as gpu:
        model = made(("e", "x"), torch.device(kind, 0))
        engine = Engine(model, VOCABULARY, 2, search)
        engine.share_cores(True)
        with gpu.counting() as counts:
            found = run(engine, asked, then)
    for tag, answers in expected.items():
        texts = [[a for a in of[tag] if isinstance(a, Decoded)] for of in (found, expected)]
        assert_same(*texts)
        assert len(found[tag]) == len(answers)
    assert counts.kernels["linear"] > 50 and not counts.kernels["graph"]
    assert model.plan.kernels.describe() == f"PyTorch: Triton is not used on {kind}"
