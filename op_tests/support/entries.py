"""Entries to GPU competitions, and what `rfops eval` says of them."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from rfops.challenge import problem, sandbox
from rfops.challenge.evaluate import evaluate
from rfops.challenge.problem import case_of
from rfops.challenge.verdict import Limits, Verdict

GOOD = """
import torch
from task import input_t, output_t

def custom_kernel(data: input_t) -> output_t:
    a, b, a_scale, b_scale, c = data
    k = a.shape[1]
    x = a.float() * a_scale.repeat_interleave(128, 1)[:, :k]
    wide = b_scale.repeat_interleave(128, 0)[: b.shape[0]]
    c.copy_((x @ (b.float() * wide.repeat_interleave(128, 1)[:, :k]).T).to(torch.bfloat16))
    return c
"""
TRITON = """
import torch, triton, triton.language as tl

@triton.jit
def kernel(a, b, sa, sb, c, M, N, K, sam, sak, sbn, sbk, ssm, ssk, stn, stk, B: tl.constexpr):
    rm = tl.program_id(0) * B + tl.arange(0, B)
    rn = tl.program_id(1) * B + tl.arange(0, B)
    acc = tl.zeros((B, B), dtype=tl.float32)
    for kb in range(0, K // 128):
        k = kb * 128 + tl.arange(0, 128)
        x = tl.load(a + rm[:, None] * sam + k[None, :] * sak, mask=rm[:, None] < M, other=0.0)
        w = tl.load(b + rn[None, :] * sbn + k[:, None] * sbk, mask=rn[None, :] < N, other=0.0)
        s = tl.load(sa + rm * ssm + kb * ssk, mask=rm < M, other=0.0)
        t = tl.load(sb + (rn // 128) * stn + kb * stk, mask=rn < N, other=0.0)
        acc += tl.dot(x, w) * s[:, None] * t[None, :]
    mask = (rm[:, None] < M) & (rn[None, :] < N)
    tl.store(c + rm[:, None] * N + rn[None, :], acc.to(tl.bfloat16), mask=mask)

def custom_kernel(data):
    a, b, sa, sb, c = data
    m, n = c.shape
    out = torch.empty((m, n), dtype=torch.bfloat16, device="cuda")
    grid = (triton.cdiv(m, 64), triton.cdiv(n, 64))
    strides = (*a.stride(), *b.stride(), *sa.stride(), *sb.stride())
    kernel[grid](a, b, sa, sb, out, m, n, a.shape[1], *strides, B=64)
    return out
"""
CASE = "m: 64; n: 64; k: 128; seed: 1"

ATTENTION = """
import torch

def custom_kernel(data):
    q, kv_data, qo_indptr, kv_indptr, config = data
    bs = config["batch_size"]
    kv = kv_data["bf16"].float().view(bs, -1, 576){part}
    p = (q.float().view(bs, -1, 576) @ kv.mT * config["sm_scale"]).softmax(-1)
    return (p @ kv[..., :512]).view(-1, 16, 512).bfloat16()
"""
KEYS = "batchsize: 2; qseqlen: 1; kvseqlen: 512; seed: 5"


def judged(
    folder: Path, code: str, name: str = "fp8-mm", case: str = CASE, limits: Limits | None = None
) -> Verdict:
    """The verdict on one case."""
    (verdict,) = judged_cases(folder, code, [case], name, limits)
    return verdict


def judged_cases(
    folder: Path,
    code: str,
    cases: list[str],
    name: str = "fp8-mm",
    limits: Limits | None = None,
) -> list[Verdict]:
    """A verdict a case, of an entry with this text. Walls are taken where they can be built."""
    file = folder / "entry.py"
    file.write_text(code, encoding="utf-8")
    limits = (limits or Limits())._replace(is_trusted=True)
    return list(evaluate(problem(name), file, list(map(case_of, cases)), limits))


def marked(monkeypatch: pytest.MonkeyPatch) -> str:
    """A word in the environment of all that an evaluation starts from now on."""
    token = f"rfops-{uuid.uuid4().hex}"
    monkeypatch.setenv("TZ", token)  # which the evaluator hands on
    return token


def processes_of(token: str) -> list[str]:
    """Commands of living processes with this word in their environment, but for this one's."""
    command_lines = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if token.encode() in (folder / "environ").read_bytes():
                command_lines.append(
                    (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                )
        except OSError:  # it has ended
            continue
    return command_lines


def is_walled() -> bool:
    """Whether this machine lets walls be built; without them an entry reaches what its user may."""
    try:
        sandbox.require_walls()
    except sandbox.WallsMissing:
        return False
    return True


_FP8_MM = """
using u8 = unsigned char;
extern "C" __attribute__((global)) void mm(const u8* a, const u8* b, const float* sa,
                                           const float* sb, float* wide, int m, int n, int k) {
  const int at = __builtin_amdgcn_workgroup_id_x() * 64 + __builtin_amdgcn_workitem_id_x();
  if (at >= m * n) return;
  const int row = at / n, col = at % n;
  float sum = START;
  for (int i = 0; i < k; ++i) {
    const int block = i / 128;
    const float scale = sa[block * m + row] * sb[block * ((n + 127) / 128) + col / 128];
    sum += scale * __builtin_amdgcn_cvt_f32_fp8(a[i * m + row], 0) *
           __builtin_amdgcn_cvt_f32_fp8(b[i * n + col], 0);
  }
  wide[at] = sum;
}
"""


def fp8_mm(start: str) -> str:
    """HIP source of `mm`, by no header: wide[at] = start + the element of fp8-mm's product.

    start : what the sum begins with, in terms of `wide` and `at`.
    """
    return _FP8_MM.replace("START", start)
