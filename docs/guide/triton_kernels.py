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


@triton.jit
def layer_norm(x, w, b, z, n, eps, B: tl.constexpr):
    r = tl.program_id(0)
    i = tl.arange(0, B)
    v = tl.load(x + r * n + i, mask=i < n, other=0.0).to(tl.float32)
    mean = tl.sum(v, 0) / n
    centred = tl.where(i < n, v - mean, 0.0)
    rstd = 1 / tl.sqrt(tl.sum(centred * centred, 0) / n + eps)
    y = centred * rstd * tl.load(w + i, mask=i < n) + tl.load(b + i, mask=i < n)
    tl.store(z + r * n + i, y.to(tl.float16), mask=i < n)


@triton.jit
def matmul_nt(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, ACC: tl.constexpr, PRECISION: tl.constexpr):
    rm = tl.program_id(0) * BM + tl.arange(0, BM); rn = tl.program_id(1) * BN + tl.arange(0, BN)
    rk = tl.arange(0, BK)
    acc = tl.zeros((BM, BN), ACC)
    for k in range(0, K, BK):
        x = tl.load(a + rm[:, None] * K + (k + rk)[None, :])
        y = tl.load(b + rn[None, :] * K + (k + rk)[:, None])
        acc = tl.dot(x, y, acc, input_precision=PRECISION, out_dtype=ACC)
    tl.store(c + rm[:, None] * N + rn[None, :], acc)


@triton.jit
def grouped(a, b, c, starts, G, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    db = tl.make_tensor_descriptor(b, [G * N, K], [K, 1], [BN, BK])
    for group in range(G):
        first = tl.load(starts + group); last = tl.load(starts + group + 1)
        da = tl.make_tensor_descriptor(a, [last, K], [K, 1], [BM, BK])
        dc = tl.make_tensor_descriptor(c, [last, N], [N, 1], [BM, BN])
        columns = tl.cdiv(N, BN)
        for tile in range(tl.program_id(0), tl.cdiv(last - first, BM) * columns, tl.num_programs(0)):
            i = first + tile // columns * BM; j = tile % columns * BN
            acc = tl.zeros((BM, BN), tl.float32)
            for k in range(0, K, BK):
                acc = tl.dot(da.load([i, k]), db.load([group * N + j, k]).T, acc)
            dc.store([i, j], acc.to(tl.float16))


@triton.jit
def combine(a, x, b, y):
    return a * b, x * b + y


@triton.jit
def scan(decay, x, z, n, B: tl.constexpr):
    """Inclusive sums, then a linear recurrence, of each row."""
    r = tl.program_id(0)
    i = tl.arange(0, B)
    a = tl.load(decay + r * n + i, mask=i < n, other=1.0)
    v = tl.load(x + r * n + i, mask=i < n, other=0.0)
    tl.store(z + 2 * r * n + i, tl.cumsum(v, 0), mask=i < n)
    _, state = tl.associative_scan((a, v), 0, combine)
    tl.store(z + (2 * r + 1) * n + i, state, mask=i < n)


@triton.jit
def sort(x, z, n, B: tl.constexpr):
    r = tl.program_id(0)
    i = tl.arange(0, B)
    v = tl.load(x + r * n + i, mask=i < n, other=float('inf'))
    tl.store(z + r * n + i, tl.sort(v), mask=i < n)


@triton.jit
def histogram(x, z, n, B: tl.constexpr, BINS: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    counts = tl.histogram(tl.load(x + i, mask=i < n), BINS, mask=i < n)
    tl.atomic_add(z + tl.arange(0, BINS), counts)
    largest = tl.max(tl.load(x + i, mask=i < n, other=0), 0)
    tl.atomic_max(z + BINS, largest)


@triton.jit
def dropout(x, z, seed, p, n, B: tl.constexpr):
    """Kept elements doubled where p is 1/2; the generator is Philox."""
    i = tl.program_id(0) * B + tl.arange(0, B)
    keep = tl.rand(seed, i) > p
    v = tl.load(x + i, mask=i < n)
    tl.store(z + i, tl.where(keep, v / (1 - p), 0.0), mask=i < n)


@triton.jit
def attention_backward(q, k, v, do, lse, delta, o, scale, length, BM: tl.constexpr, D: tl.constexpr):
    """dQ, dK and dV of one block of rows."""
    own = tl.program_id(0) * BM + tl.arange(0, BM); rd = tl.arange(0, D)
    at = own[:, None] * D + rd[None, :]
    kb = tl.load(k + at); vb = tl.load(v + at)
    dk = tl.zeros((BM, D), tl.float32); dv = tl.zeros((BM, D), tl.float32)
    for n in range(0, length, BM):
        rn = n + tl.arange(0, BM)
        x = tl.load(q + rn[:, None] * D + rd[None, :]); g = tl.load(do + rn[:, None] * D + rd[None, :])
        p = tl.exp(tl.dot(kb, tl.trans(x)) * scale - tl.load(lse + rn)[None, :])
        dv = tl.dot(p.to(tl.float16), g, dv)
        dp = tl.dot(vb, tl.trans(g))
        ds = p * (dp - tl.load(delta + rn)[None, :]) * scale
        dk = tl.dot(ds.to(tl.float16), x, dk)
    tl.store(o + length * D + at, dk); tl.store(o + 2 * length * D + at, dv)
    qb = tl.load(q + at); gb = tl.load(do + at)
    l = tl.load(lse + own)[:, None]; d = tl.load(delta + own)[:, None]
    dq = tl.zeros((BM, D), tl.float32)
    for n in range(0, length, BM):
        rn = n + tl.arange(0, BM)
        y = tl.load(k + rn[:, None] * D + rd[None, :]); z = tl.load(v + rn[:, None] * D + rd[None, :])
        p = tl.exp(tl.dot(qb, tl.trans(y)) * scale - l)
        ds = p * (tl.dot(gb, tl.trans(z)) - d) * scale
        dq = tl.dot(ds.to(tl.float16), y, dq)
    tl.store(o + at, dq)
