"""Large matrices in int8, on a CPU: what is rounded, by how much, and what still comes out."""

import pytest
import torch

import slimwhisper
from slimwhisper import devices
from slimwhisper.devices import choose_dtype
from slimwhisper.errors import OptionError
from slimwhisper.kernels import blocks as blocks_module
from slimwhisper.kernels import linear as linear_module
from slimwhisper.kernels.cpu import library as library_module
from slimwhisper.kernels.linear import Packed, Plain, Quantized
from slimwhisper.model.decoder import Decoder
from slimwhisper.model.encoder import Encoder
from slimwhisper.model.layers import Linear, Source
from tests.support.checkpoints import random_state, tiny_dims
from tests.support.spoken import EXPECTED, SAMPLES

CPU = torch.device("cpu")
DIMS = tiny_dims(width=128, heads=2)


def test_which_matrices_are_rounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", dict)  # without AMX
    state = random_state(DIMS, seed=0)
    encoder = Encoder(state, DIMS, CPU, torch.float32, int8=True)
    decoder = Decoder(state, DIMS, CPU, torch.float32, int8=True)
    for block in encoder.blocks:
        assert all(isinstance(one.weight, Quantized) for one in (*block.projections, block.out))
    for block in (*encoder.blocks, *decoder.blocks):
        ((up, down),) = block.mlp.parts
        assert isinstance(up.weight, Quantized) and isinstance(down.weight, Quantized)
    assert isinstance(decoder.head, Quantized)
    assert decoder.embedding.dtype == torch.float32  # what goes in is exact
    source = Source(state, "encoder.blocks.0.attn.query.", CPU, torch.float32)
    assert isinstance(Linear.read(source).weight, Packed | Plain)


@pytest.mark.parametrize("compiled", [True, False], ids=["C", "PyTorch"])
@pytest.mark.parametrize("amx", [False, True])
def test_the_encoder_is_near(amx: bool, compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """On any processor; with AMX, its weights are in bfloat16."""
    claimed = torch.cpu.get_capabilities() | {"amx_int8": amx, "amx_bf16": amx}
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: claimed)
    if not compiled:
        for user in (blocks_module, linear_module, library_module):
            monkeypatch.setattr(user, "library", lambda *_: None)
    mel = torch.randn(1, 80, 3000, generator=torch.Generator().manual_seed(0))
    for outlier, most in ((1, 0.01 if amx else 0.03), (20, 0.02 if amx else 0.036)):
        state = random_state(DIMS, seed=0)
        for name in (name for name in state if name.endswith("_ln.weight")):
            state[name][:2] *= outlier  # as of some of OpenAI's norms
        encoder = Encoder(state, DIMS, CPU, torch.float32, int8=True)
        ((_, down),) = encoder.blocks[0].mlp.parts
        assert isinstance(down.weight, Quantized) != amx
        exact, near = Encoder(state, DIMS, CPU, torch.float32)(mel), encoder(mel)
        assert near.dtype == torch.float32
        assert 0 < (near - exact).norm() / exact.norm() < most


@pytest.mark.slow
def test_the_same_words() -> None:
    """But one: in flight.m4a, float32 gives "one" 0.51 after a time, and "nine" nearly as much."""
    names = [name for name in EXPECTED if name != "three-minutes.ogg"]
    exact, near = (slimwhisper.load_model("digits", "cpu", dtype=t) for t in ("float32", "int8"))
    assert (near.compute_type, exact.compute_type) == ("int8", "float32")
    assert near.dtype == torch.float32
    words = [[m.transcribe(str(SAMPLES / n))["text"].split() for n in names] for m in (exact, near)]
    assert [len(text) for text in words[0]] == [len(text) for text in words[1]]
    pairs = [pair for texts in zip(*words, strict=True) for pair in zip(*texts, strict=True)]
    assert len(pairs) > 50 and {pair for pair in pairs if len(set(pair)) > 1} <= {("one", "nine")}


def test_where_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "INT8_PRODUCTS", False)
    monkeypatch.setattr(devices, "library", lambda: None)
    with pytest.raises(OptionError, match="int8 needs an x86 CPU, or compiled kernels"):
        choose_dtype("int8", CPU)
    monkeypatch.setattr(devices, "library", lambda: True)
    assert choose_dtype("int8", CPU) == torch.float32
    with pytest.raises(OptionError, match="int8 is for CPUs"):
        choose_dtype("int8", torch.device("cuda"))
