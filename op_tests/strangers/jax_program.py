"""JAX on AMD's HIP runtime: numpy's functions, an MLP with gradients, attention, scan, sort.

Run by run_jax.py. Each result is compared with numpy's in float64, or with another way to compute
it; a line each, and the exit status is 1 where one is off.
"""

from __future__ import annotations

import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax._src import hardware_utils

# The plugin counts GPUs by files of the kernel's driver, which a virtual one has not.
hardware_utils.num_available_amd_gpus = lambda stop_at=None: 1

EPS = 2.0**-24  # half a unit in float32's last place
rng = np.random.default_rng(7)
failures: list[str] = []


def normal(*shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def check(name: str, actual: Any, expected: Any, bound: float) -> None:
    """Values within `bound` of the largest expected one; integers are equal."""
    actual, expected = np.asarray(actual), np.asarray(expected)
    assert actual.shape == expected.shape, (name, actual.shape, expected.shape)
    error = np.abs(actual.astype(np.float64) - expected.astype(np.float64)).max(initial=0.0)
    limit = bound * max(1.0, np.abs(expected).max(initial=0.0))
    passes = bool(np.isfinite(error) and error <= limit)
    print(f"{'pass' if passes else 'FAIL'}  {name}: {error:.2e}, at most {limit:.2e}", flush=True)
    if not passes:
        failures.append(name)


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


(device,) = jax.devices()
print(device, device.device_kind, device.platform, flush=True)
assert device.platform in ("gpu", "rocm"), "not a GPU"

x, y = normal(33, 65), normal(33, 65)
check("add", jnp.asarray(x) + y, x + y, EPS)
check("exp", jnp.exp(x), np.exp(x.astype(np.float64)), 8 * EPS)
check("sum", jnp.sum(jnp.asarray(x), axis=0), x.astype(np.float64).sum(0), 33 * EPS)
check("mean of none", jnp.sum(jnp.zeros((0, 4)), axis=0), np.zeros(4), 0)
check("transpose", jnp.asarray(x).T[::-1, 3:], x.T[::-1, 3:], 0)
check("gather", jnp.asarray(x)[jnp.array([3, 0, 3]), 1:], x[[3, 0, 3], 1:], 0)
check("scatter", jnp.zeros(5).at[jnp.array([1, 1, 4])].add(2.0), [0, 4, 0, 0, 2], 0)
check("softmax", jax.nn.softmax(x), softmax(x.astype(np.float64)), 16 * EPS)
check("bf16", jnp.asarray(x, jnp.bfloat16).astype(jnp.float32), x, 2.0**-8)
check("integers", jnp.arange(100, dtype=jnp.int32) ** 2 % 7, np.arange(100) ** 2 % 7, 0)
check("where", jnp.where(x > 0, x, -y), np.where(x > 0, x, -y), 0)

a, b = normal(70, 130), normal(130, 50)
exact = a.astype(np.float64) @ b
for precision, bound in (("highest", 130 * EPS), ("default", 130 * 2.0**-11)):
    product = jax.jit(lambda a, b, p=precision: jnp.matmul(a, b, precision=p))(a, b)
    check(f"matmul, {precision}", product, exact, bound)
half = [v.astype(jnp.bfloat16) for v in (a, b)]
exact = np.float64(half[0]) @ np.float64(half[1])
check("matmul in bf16", jnp.asarray(half[0]) @ jnp.asarray(half[1]), exact, 2.0**-8)
many = normal(6, 17, 24), normal(6, 24, 9)
product = jnp.einsum("bij,bjk->bik", *many, precision="highest")
check("batched matmul", product, many[0].astype(np.float64) @ many[1], 24 * EPS)


def mlp(weights: Any, x: Any) -> Any:
    for w, bias in weights:
        x = jnp.tanh(jnp.dot(x, w, precision="highest") + bias)
    return x


def loss(weights: Any, x: Any, y: Any) -> Any:
    return jnp.mean((mlp(weights, x) - y) ** 2)


weights = [(normal(20, 32) / 5, normal(32)), (normal(32, 4) / 6, normal(4))]
x, y = normal(16, 20), normal(16, 4)
value, gradients = jax.jit(jax.value_and_grad(loss))(weights, x, y)
h1 = np.tanh(x.astype(np.float64) @ weights[0][0] + weights[0][1])
h2 = np.tanh(h1 @ weights[1][0] + weights[1][1])
check("MLP's loss", value, ((h2 - y) ** 2).mean(), 64 * EPS)
d2 = 2 * (h2 - y) / y.size * (1 - h2**2)
d1 = d2 @ weights[1][0].T * (1 - h1**2)
expected = [(x.astype(np.float64).T @ d1, d1.sum(0)), (h1.T @ d2, d2.sum(0))]
for layer, (found, right) in enumerate(zip(gradients, expected, strict=True)):
    check(f"gradient of weights {layer}", found[0], right[0], 128 * EPS)
    check(f"gradient of bias {layer}", found[1], right[1], 128 * EPS)
step = jax.jit(lambda ws: jax.tree.map(lambda w, g: w - 0.1 * g, ws, jax.grad(loss)(ws, x, y)))
for _ in range(20):
    weights = step(weights)
assert float(loss(weights, x, y)) < float(value), "20 steps lower the loss"


@jax.jit
def attention(q: Any, k: Any, v: Any) -> Any:
    scores = jnp.einsum("hqd,hkd->hqk", q, k, precision="highest") / 32**0.5
    mask = jnp.arange(k.shape[1])[None] <= jnp.arange(q.shape[1])[:, None]
    p = jax.nn.softmax(jnp.where(mask, scores, -jnp.inf))
    return jnp.einsum("hqk,hkd->hqd", p, v, precision="highest")


q, k, v = normal(4, 40, 32), normal(4, 40, 32), normal(4, 40, 32)
scores = q.astype(np.float64) @ k.transpose(0, 2, 1) / 32**0.5
p = softmax(np.where(np.tri(40, dtype=bool), scores, -np.inf))
check("attention", attention(q, k, v), p @ v, 128 * EPS)

state, states = jax.jit(
    lambda xs: lax.scan(lambda c, x: ((0.5 * c + x), 0.5 * c + x), jnp.float32(0), xs)
)(jnp.arange(50, dtype=jnp.float32))
expected, at = [], 0.0
for item in range(50):
    at = 0.5 * at + item
    expected.append(at)
check("scan", states, expected, 4 * EPS)
check("scan's state", state, expected[-1], 4 * EPS)
check("cumsum", jnp.cumsum(jnp.arange(3000)), np.arange(3000).cumsum(), 0)
numbers = rng.permutation(5000).astype(np.int32)
check("sort", jnp.sort(numbers), np.arange(5000), 0)
check("argsort", jnp.argsort(numbers), np.argsort(numbers), 0)
values, at = lax.top_k(jnp.asarray(numbers), 7)
check("top_k", values, np.arange(4999, 4992, -1), 0)
check("top_k's places", numbers[np.asarray(at)], values, 0)
check("while", lax.while_loop(lambda n: n < 1000, lambda n: 3 * n + 1, jnp.int32(0)), 1093, 0)
draws = jax.random.uniform(jax.random.key(3), (20000,))
check("random numbers' mean", draws.mean(), 0.5, 6 / (12 * 20000) ** 0.5)
check("vmap", jax.vmap(jnp.dot)(q[0], k[0]), (q[0].astype(np.float64) * k[0]).sum(-1), 64 * EPS)
print(f"{len(failures)} failures: {failures}")
sys.exit(bool(failures))
