"""The counter of a loop's instructions finds the loops that a program has."""

import pytest

pytest.importorskip("triton")

from bench.sass_loop import bytes_read, innermost, loops, parse

PROGRAM = """
        /*0000*/                   MOV R1, c[0x0][0x28] ;
.L_x_0:
        /*0010*/                   IADD3 R2, R2, 0x1, RZ ;
.L_x_1:
        /*0020*/                   SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR4+0x8], R3 ;
        /*0030*/              @!P0 BRA `(.L_x_3) ;
.L_x_2:
        /*0040*/                   HGMMA.64x16x16.F32 R24, gdesc[UR4], R24 ;
        /*0050*/                   BRA P1, `(.L_x_1) ;
        /*0060*/              @!P2 BRA `(.L_x_0) ;
        /*0070*/                   EXIT ;
.L_x_3:
        /*0080*/                   SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR4+0x8], R3 ;
        /*0090*/              @!P0 BRA `(.L_x_3) ;
        /*00a0*/                   BRA `(.L_x_2) ;
.L_x_4:
        /*00b0*/                   BRA `(.L_x_4);
"""


def test_loops() -> None:
    """One in another, a wait that stands behind the end, and a jump back that is no loop."""
    names, graph = parse(PROGRAM)
    assert len(names) == 12 and names[4] == "HGMMA.64x16x16.F32"
    found = {loop.header: set(loop.body) for loop in loops(graph)}
    inner = {2, 3, 4, 5, 8, 9, 10}
    assert found == {1: {1, 6} | inner, 2: inner, 8: {8, 9}}
    (main,) = innermost(loops(graph), names, ("HGMMA",))
    assert main.header == 2


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("HGMMA.64x16x16.F32", (64 + 16) * 32 // 4),
        ("HGMMA.64x8x16.F32.BF16", (64 + 8) * 32 // 4),
        ("LDSM.16.M88.4", 512),
        ("LDSM.16.MT88.2", 256),
        ("LDS.128", 512),
        ("LDS", 128),
        ("LDS.U8", 128),
        ("LDGSTS.E.BYPASS.128", 0),
    ],
)
def test_bytes_read(name: str, expected: int) -> None:
    assert bytes_read(name) == expected
