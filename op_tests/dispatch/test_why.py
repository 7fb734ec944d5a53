"""What `rfops why` says of a choice, and `rfops doctor` of tables."""

from __future__ import annotations

import pytest

from rfops import cli
from support.tables import Write

pytestmark = pytest.mark.usefixtures("own_misses")


def why(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert cli.main(["why", *arguments]) == 0
    return capsys.readouterr().out


def test_why(capsys: pytest.CaptureFixture[str]) -> None:
    shape = ("--m", "7", "--n", "2304", "--k", "6144", "--arch", "gfx950")
    out = why(capsys, "gemm_mxfp8", *shape)
    for text in (
        "gemm_mxfp8 m=7 n=2304 k=6144 on gfx950 with 256 CUs",
        "decision    mfma, a HIP kernel",
        "config      m_tiles=1 n_tiles=1 steps=4 waves=12 split=1",
        "rule        nearest row",
        "(published) says: take mfma",
        "m=8 n=2304 k=6144: mfma m_tiles=1 n_tiles=1 steps=4 waves=12 split=1, speedup 2.49; "
        "published, aiter pull",
        "not gemv    the row names mfma",
        "not triton  the row names mfma",
    ):
        assert text in out, out


def test_why_grouped(capsys: pytest.CaptureFixture[str]) -> None:
    shape = ("--m", "20", "--n", "992", "--k", "4096", "--e", "8", "--top-k", "4", "--a-div", "4")
    out = why(capsys, "grouped_gemm_mxfp8", *shape)
    assert "m=20 n=992 k=4096 e=8 a_div=4 mul_weight_by=0" in out
    assert "moe" in out and "triton" in out
    assert "none for this shape" in out


def test_why_of_routed_experts(capsys: pytest.CaptureFixture[str], overlay: Write) -> None:
    """Of 257 experts one is shared, which counts among the eight and one that a token has."""
    sizes = {"m": 16, "d": 7168, "i": 256, "e": 257, "k": 9, "r": 256}
    overlay({**sizes, "kernel": "hip"}, op="fused_moe_mxfp4")
    shape = (
        "--m",
        "16",
        "--d",
        "7168",
        "--i",
        "256",
        "--e",
        "257",
        "--w-layout",
        "16x16",
        "--scale-layout",
        "32x8",
    )
    out = why(capsys, "fused_moe_mxfp4", *shape, "--k", "8", "--r", "256")
    assert "rule        exact row" in out and "e=257 k=9 r=256: hip" in out, out
    assert "exact row" not in why(capsys, "fused_moe_mxfp4", *shape, "--k", "8")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--m", "0", "--n", "1", "--k", "32"), "--m 0: expected 1 or more"),
        (
            ("--m", "1", "--n", "1", "--k", "33"),
            "K must be a positive multiple of 32, got K=33; pad",
        ),
        (("--m", "1", "--n", "1", "--k", "32", "--arch", "mi3"), "--arch mi3: expected gfx950"),
        (("--m", "1", "--n", "1", "--k", "32", "--arch", "gfx90a"), "say --cu-num too"),
    ],
)
def test_why_refuses(
    arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["why", "gemm_mxfp8", *arguments]) == 1
    assert message in capsys.readouterr().err


def test_why_of_an_unknown_op(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main(["why", "softmax"])
    assert stop.value.code == 2
    assert "invalid choice: 'softmax' (choose from" in capsys.readouterr().err


def test_doctor_shows_conflicts(overlay: Write, capsys: pytest.CaptureFixture[str]) -> None:
    overlay({"kernel": "gemv"}, {"kernel": "triton"})
    cli.main(["doctor"])
    out = capsys.readouterr().out
    assert "tuned table gemm_mxfp8: " in out and "1 conflicts" in out and "line 3 holds" in out
    overlay("nonsense\n")
    assert cli.main(["doctor"]) == 1
    assert "tuned table gemm_mxfp8: NOT readable: " in capsys.readouterr().out
