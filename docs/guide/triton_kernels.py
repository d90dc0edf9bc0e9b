"""Kernels of foreign_ptx.py, in Triton."""

import triton
import triton.language as tl


@triton.jit
def add(x, y, z, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    m = i < n
    tl.store(z + i, tl.load(x + i, mask=m) + tl.load(y + i, mask=m), mask=m)


@triton.jit
def softmax(x, z, stride, n, B: tl.constexpr):
    r = tl.program_id(0)
    i = tl.arange(0, B)
    v = tl.load(x + r * stride + i, mask=i < n, other=-float('inf'))
    v = v - tl.max(v, 0)
    e = tl.exp(v)
    tl.store(z + r * stride + i, e / tl.sum(e, 0), mask=i < n)


@triton.jit
def matmul(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    pm = tl.program_id(0); pn = tl.program_id(1)
    rm = pm * BM + tl.arange(0, BM); rn = pn * BN + tl.arange(0, BN); rk = tl.arange(0, BK)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        x = tl.load(a + rm[:, None] * K + (k + rk)[None, :])
        y = tl.load(b + (k + rk)[:, None] * N + rn[None, :])
        acc = tl.dot(x, y, acc)
    tl.store(c + rm[:, None] * N + rn[None, :], acc)


@triton.jit
def matmul_tma(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    pm = tl.program_id(0); pn = tl.program_id(1)
    da = tl.make_tensor_descriptor(a, [M, K], [K, 1], [BM, BK])
    db = tl.make_tensor_descriptor(b, [K, N], [N, 1], [BK, BN])
    dc = tl.make_tensor_descriptor(c, [M, N], [N, 1], [BM, BN])
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        acc = tl.dot(da.load([pm * BM, k]), db.load([k, pn * BN]), acc)
    dc.store([pm * BM, pn * BN], acc.to(tl.float16))


@triton.jit
def attention(q, k, v, o, scale, length, BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr):
    pm = tl.program_id(0)
    rm = pm * BM + tl.arange(0, BM); rd = tl.arange(0, D)
    x = tl.load(q + rm[:, None] * D + rd[None, :])
    m = tl.full((BM,), -float('inf'), tl.float32); l = tl.zeros((BM,), tl.float32)
    acc = tl.zeros((BM, D), tl.float32)
    for n in range(0, length, BN):
        rn = n + tl.arange(0, BN)
        y = tl.load(k + rn[:, None] * D + rd[None, :])
        s = tl.dot(x, tl.trans(y)) * scale
        mn = tl.maximum(m, tl.max(s, 1))
        p = tl.exp(s - mn[:, None])
        al = tl.exp(m - mn)
        l = l * al + tl.sum(p, 1)
        z = tl.load(v + rn[:, None] * D + rd[None, :])
        acc = acc * al[:, None] + tl.dot(p.to(tl.float16), z)
        m = mn
    tl.store(o + rm[:, None] * D + rd[None, :], acc / l[:, None])


@triton.jit
def persistent(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, P: tl.constexpr):
    da = tl.make_tensor_descriptor(a, [M, K], [K, 1], [BM, BK])
    db = tl.make_tensor_descriptor(b, [N, K], [K, 1], [BN, BK])
    dc = tl.make_tensor_descriptor(c, [M, N], [N, 1], [BM, BN])
    rows = tl.cdiv(M, BM)
    for tile in tl.range(tl.program_id(0), rows * tl.cdiv(N, BN), P, flatten=True, warp_specialize=True):
        i = tile % rows * BM; j = tile // rows * BN
        acc = tl.zeros((BM, BN), tl.float32)
        for k in range(0, K, BK):
            acc = tl.dot(da.load([i, k]), db.load([j, k]).T, acc)
        dc.store([i, j], acc.to(tl.float16))


@triton.jit
def scaled(a, sa, b, sb, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, F: tl.constexpr, V: tl.constexpr, PACK: tl.constexpr):
    rm = tl.program_id(0) * BM + tl.arange(0, BM); rn = tl.program_id(1) * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        rk = k // PACK + tl.arange(0, BK // PACK); rs = k // V + tl.arange(0, BK // V)
        x = tl.load(a + rm[:, None] * (K // PACK) + rk[None, :])
        y = tl.load(b + rn[None, :] * (K // PACK) + rk[:, None])
        xs = tl.load(sa + rm[:, None] * (K // V) + rs[None, :])
        ys = tl.load(sb + rn[:, None] * (K // V) + rs[None, :])
        acc = tl.dot_scaled(x, xs, F, y, ys, F, acc)
    tl.store(c + rm[:, None] * N + rn[None, :], acc)


@triton.jit
def attention_ws(q, k, v, o, scale, length, BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr):
    dq = tl.make_tensor_descriptor(q, [length, D], [D, 1], [BM, D])
    dk = tl.make_tensor_descriptor(k, [length, D], [D, 1], [BN, D])
    dv = tl.make_tensor_descriptor(v, [length, D], [D, 1], [BN, D])
    do = tl.make_tensor_descriptor(o, [length, D], [D, 1], [BM, D])
    i = tl.program_id(0) * BM
    x = dq.load([i, 0])
    m = tl.full((BM,), -float('inf'), tl.float32); l = tl.zeros((BM,), tl.float32)
    acc = tl.zeros((BM, D), tl.float32)
    for n in tl.range(0, length, BN, warp_specialize=True):
        s = tl.dot(x, dk.load([n, 0]).T) * scale
        mn = tl.maximum(m, tl.max(s, 1))
        p = tl.exp2(s - mn[:, None])
        al = tl.exp2(m - mn)
        l = l * al + tl.sum(p, 1)
        acc = tl.dot(p.to(tl.float16), dv.load([n, 0]), acc * al[:, None])
        m = mn
    do.store([i, 0], (acc / l[:, None]).to(tl.float16))
