"""Two profiles side by side, and the command that prints them."""

from __future__ import annotations

import functools
import json
import re
from pathlib import Path

import pytest
import torch

import rfops
from rfops import cli
from rfops.vgpu import compare
from support.command import good

SIZES = ("--m", "16", "--n", "64", "--k", "256", "--arch", "gfx950")


@functools.cache
def records(m: int = 16) -> tuple[compare.Record, ...]:
    torch.manual_seed(1)
    x, x_scale = rfops.quant_mxfp8(torch.randn(m, 256))
    w, w_scale = rfops.quant_mxfp8(torch.randn(64, 256))
    with rfops.vgpu.timing("MI355X"), rfops.vgpu.profile() as p:
        rfops.gemm_mxfp8(x, w, x_scale, w_scale)
    return tuple(map(compare.record_of, p.launches))


def test_a_profile_against_itself() -> None:
    text = compare.text(records(), records(), ("before", "now"))
    head, _, *rows = text.splitlines()
    (one,) = records()
    assert head == f"now against before: {one['us']:.2f} us against {one['us']:.2f}, =, estimated"
    assert rows and all(row.endswith("=") or " bound " in row for row in rows), text


def test_what_changed_is_said() -> None:
    """Each figure that differs, with its ratio; what is new, and what is gone."""
    (before,) = records()
    after = json.loads(json.dumps(before))
    after["us"] *= 2
    after["bound"] = "hbm"
    after["stalls"]["flag"] = 10 * sum(before["stalls"].values())
    after["counters"]["vgpr"] += 8
    after["counters"]["lds_bytes_per_workgroup"] = 0
    after["memory"]["l2"]["bytes"] *= 3
    rows = {row.name: row for row in compare.rows(before, after)}
    text = compare.text([before], [after], ("a", "b"))

    def line(name: str) -> str:
        (found,) = re.findall(rf"^  {re.escape(name)}  .*$", text, re.M)
        return found

    assert "b against a: " in text and ", x 2.00, estimated" in text
    assert line("bound").endswith("changed") and line("us").endswith("x 2.00")
    assert line("  for flag").endswith("new") and line("L2, bytes").endswith("x 3.00")
    assert (rows["VGPRs"].old, rows["VGPRs"].new) == (
        before["counters"]["vgpr"],
        before["counters"]["vgpr"] + 8,
    )
    if before["counters"]["lds_bytes_per_workgroup"]:
        assert line("LDS a workgroup, bytes").endswith("x 0.00")


def test_other_numbers_of_launches_are_summed() -> None:
    text = compare.text(records(), [*records(), *records()], ("a", "b"))
    assert "2 launches against 1: not compared one by one" in text and ", x 2.00" in text


@pytest.mark.parametrize(
    "content, message",
    [
        ("", "no record; write it with"),
        ('{"us": 1', "line 1: no record of JSON"),
        ('{"kernel": "k", "us": 1}', "expected a record of `rfops profile OP --timing --json`"),
    ],
)
def test_a_file_that_is_no_profile(tmp_path: Path, content: str, message: str) -> None:
    file = tmp_path / "base.json"
    file.write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match=re.escape(message)):
        compare.read(file)


def test_a_baseline(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As the page of commands says: written by one call, read by the next."""
    file = tmp_path / "base.json"
    file.write_text(good("profile", "gemm_mxfp8", *SIZES, "--timing", "--json"), encoding="utf-8")
    asked = ["profile", "gemm_mxfp8", *SIZES, "--baseline", str(file)]
    assert cli.main(asked) == 0
    assert re.search(rf"^now against {re.escape(str(file))}: .*, =, estimated$", out(capsys), re.M)


def test_two_kernels(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["profile", "gemm_mxfp8", *SIZES, "--by", "mfma", "--by", "gemv"]
    assert cli.main(asked) == 0
    text = out(capsys)
    assert "on gfx950, 256 CUs: mfma, launches: 1" in text and ": gemv, launches: 1" in text
    assert re.search(r"^gemv against mfma: [\d.]+ us against [\d.]+, ", text, re.M)
    assert "mxfp8_gemv against mxfp8_mfma" in text


def test_a_sample(capsys: pytest.CaptureFixture[str]) -> None:
    """Time and bytes as of the whole; of the counters, those that do not need all workgroups."""
    asked = ["profile", "gemm_mxfp8", *SIZES, "--by", "gemv", "--timing", "--json"]
    whole, sample = (json.loads(good(*asked, *more)) for more in ((), ("--sample",)))
    assert sample["us"] == whole["us"] and sample["memory"] == whole["memory"]
    counters = sample["counters"]
    assert "instructions" not in counters and "lines_64B" not in counters["global_read"]
    assert counters["vgpr"] == whole["counters"]["vgpr"] > 0
    assert (
        cli.main(["profile", "gemm_mxfp8", *SIZES, "--sample", "--by", "mfma", "--by", "gemv"]) == 0
    )
    text = out(capsys)
    assert re.search(r"^  VGPRs ", text, re.M) and "instructions by waves  " not in text


@pytest.mark.parametrize(
    "words, message",
    [
        (("--by", "cuda"), "--by 'cuda': expected a kernel of gemm_mxfp8: gemv, mfma"),
        (("--by", "mfma waves=3 nothing=1"), "nothing"),
        (("--by", "mfma", "--by", "gemv", "--by", "mfma"), "two profiles are compared"),
        (("--sample", "--html", "page.html"), "--html must have all workgroups; omit --sample"),
    ],
)
def test_refusals(words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["profile", "gemm_mxfp8", *SIZES, *words]) == 1
    assert message in capsys.readouterr().err


def out(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().out
