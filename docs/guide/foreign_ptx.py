"""Compiles Triton kernels to PTX without a GPU, runs them through `bakewell emulate`, and compares with NumPy.

    foreign_ptx.py compile DIR [NAME ...]
    foreign_ptx.py run DIR [--bakewell PATH] [--seeds N] [NAME ...]
"""

import argparse
import json
import pathlib
import subprocess
import sys

import numpy as np

CAPABILITIES = (90, 100, 103)
# Kernels whose instructions only some have.
ONLY = {name: (100, 103) for name in ("matmul_mxfp8", "matmul_mxfp4", "matmul_nvfp4")}
# Bytes of the two scratch buffers that Triton appends to the parameters.
SCRATCH = 1 << 16


def kernels():
    """Name to (function, signature, constants)."""
    import triton_kernels as t

    half, single, i32 = "*fp16", "*fp32", "i32"
    tile = {"BM": 128, "BN": 128, "BK": 64}
    matrices = {"M": i32, "N": i32, "K": i32}
    return {
        "add": (t.add, {"x": single, "y": single, "z": single, "n": i32}, {"B": 1024}),
        "softmax": (t.softmax, {"x": single, "z": single, "stride": i32, "n": i32}, {"B": 1024}),
        "matmul": (t.matmul, {"a": half, "b": half, "c": single, **matrices}, tile),
        "matmul_tma": (t.matmul_tma, {"a": half, "b": half, "c": half, **matrices}, tile),
        "attention": (
            t.attention,
            {"q": half, "k": half, "v": half, "o": single, "scale": "fp32", "length": i32},
            {"BM": 128, "BN": 64, "D": 64},
        ),
        "matmul_ws": (t.persistent, {"a": half, "b": half, "c": half, **matrices}, {**tile, "P": 3}),
        "attention_ws": (
            t.attention_ws,
            {"q": half, "k": half, "v": half, "o": half, "scale": "fp32", "length": i32},
            {"BM": 128, "BN": 64, "D": 64},
        ),
        **{
            f"matmul_{name}": (
                t.scaled,
                {"a": element, "sa": scale, "b": element, "sb": scale, "c": single, **matrices},
                {"BM": 128, "BN": 128, "BK": 128, "F": word, "V": group, "PACK": pack},
            )
            for name, element, scale, word, group, pack in (
                ("mxfp8", "*fp8e4nv", "*u8", "e4m3", 32, 1),
                ("mxfp4", "*u8", "*u8", "e2m1", 32, 2),
                ("nvfp4", "*u8", "*fp8e4nv", "e2m1", 16, 2),
            )
        },
        **{
            f"matmul_{name}": (
                t.matmul_nt,
                {"a": element, "b": element, "c": out, **matrices},
                {**tile, "ACC": acc, "PRECISION": precision},
            )
            for name, element, out, acc, precision in (
                ("fp8", "*fp8e4nv", single, t.tl.float32, "tf32"),
                ("int8", "*i8", "*i32", t.tl.int32, "tf32"),
                ("tf32", single, single, t.tl.float32, "tf32"),
                ("tf32x3", single, single, t.tl.float32, "tf32x3"),
            )
        },
        "grouped": (t.grouped, {"a": half, "b": half, "c": half, "starts": "*i32", "G": i32, "N": i32, "K": i32}, tile),
        "layer_norm": (
            t.layer_norm,
            {"x": half, "w": single, "b": single, "z": half, "n": i32, "eps": "fp32"},
            {"B": 1024},
        ),
        "scan": (t.scan, {"decay": single, "x": single, "z": single, "n": i32}, {"B": 1024}),
        "sort": (t.sort, {"x": single, "z": single, "n": i32}, {"B": 256}),
        "histogram": (t.histogram, {"x": "*i32", "z": "*i32", "n": i32}, {"B": 512, "BINS": 64}),
        "dropout": (t.dropout, {"x": single, "z": single, "seed": i32, "p": "fp32", "n": i32}, {"B": 1024}),
        "attention_backward": (
            t.attention_backward,
            {**{name: half for name in ("q", "k", "v", "do")}, "lse": single, "delta": single, "o": single, "scale": "fp32", "length": i32},
            {"BM": 64, "D": 64},
        ),
    }


def compile_all(folder, only):
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    for name, (function, signature, constants) in kernels().items():
        if only and name not in only:
            continue
        for capability in ONLY.get(name, CAPABILITIES):
            signature_all = {**signature, **{key: "constexpr" for key in constants}}
            source = ASTSource(fn=function, signature=signature_all, constexprs=constants)
            compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": 4})
            stem = folder / f"{name}_{capability}"
            stem.with_suffix(".ptx").write_text(compiled.asm["ptx"])
            facts = {"shared": compiled.metadata.shared, "warps": compiled.metadata.num_warps, "kernel": function.__name__}
            stem.with_suffix(".json").write_text(json.dumps(facts))
            print(f"{stem.name}: {facts}")


def cases():
    """Name to (grid, inputs, parameters, output, expected in float64, largest error allowed)."""
    rng = np.random.default_rng(1)

    def normal(*shape, dtype=np.float16):
        return rng.standard_normal(shape).astype(dtype)

    def out(name, dtype, *shape):
        return {"tensor": name, "poison": dtype, "shape": list(shape), "out": True}

    n = 3000
    x, y = normal(n, dtype=np.float32), normal(n, dtype=np.float32)
    tensors = lambda *names: [{"tensor": name} for name in names]
    yield "add", [3], {"x": x, "y": y}, tensors("x", "y") + [out("z", "f32", n), {"i32": n}], "z", x.astype(float) + y, 1e-6

    rows, n = 4, 781
    x = normal(rows, n, dtype=np.float32)
    e = np.exp(x - x.max(1, keepdims=True).astype(float))
    parameters = tensors("x") + [out("z", "f32", rows, n), {"i32": n}, {"i32": n}]
    yield "softmax", [rows], {"x": x}, parameters, "z", e / e.sum(1, keepdims=True), 1e-7

    m, n, k = 256, 128, 192
    a, b = normal(m, k), normal(k, n)
    product = a.astype(float) @ b.astype(float)
    sizes = [{"i32": m}, {"i32": n}, {"i32": k}]
    # f16 products are exact in f32; the sum of 192 of them errs by a few units of 2^-23 of its largest part.
    yield "matmul", [m // 128, n // 128], {"a": a, "b": b}, tensors("a", "b") + [out("c", "f32", m, n)] + sizes, "c", product, 1e-3
    # Rounded to f16: half a unit of 2^-10 below 64.
    yield "matmul_tma", [m // 128, n // 128], {"a": a, "b": b}, tensors("a", "b") + [out("c", "f16", m, n)] + sizes, "c", product, 2**-5

    length, d = 256, 64
    q, k, v = normal(length, d), normal(length, d), normal(length, d)
    s = q.astype(float) @ k.astype(float).T * 0.125
    p = np.exp(s - s.max(1, keepdims=True))
    parameters = tensors("q", "k", "v") + [out("o", "f32", length, d), {"f32": 0.125}, {"i32": length}]
    # P is rounded to f16 before the second product: 2^-11 relative.
    expected = p / p.sum(1, keepdims=True) @ v.astype(float)
    yield "attention", [length // 128], {"q": q, "k": k, "v": v}, parameters, "o", expected, 2e-3

    # The same with exponents to the base 2, stored in f16: half a unit of 2^-10 below 4, and P as above.
    p = 2.0 ** ((s - s.max(1, keepdims=True)) / 0.125 * 0.18)
    parameters = tensors("q", "k", "v") + [out("o", "f16", length, d), {"f32": 0.18}, {"i32": length}]
    expected = p / p.sum(1, keepdims=True) @ v.astype(float)
    yield "attention_ws", [length // 128], {"q": q, "k": k, "v": v}, parameters, "o", expected, 2e-3 + 2**-10

    m, n, k = 384, 256, 192
    a, b = normal(m, k), normal(n, k)
    sizes = [{"i32": m}, {"i32": n}, {"i32": k}]
    parameters = tensors("a", "b") + [out("c", "f16", m, n)] + sizes
    yield "matmul_ws", [3], {"a": a, "b": b}, parameters, "c", a.astype(float) @ b.astype(float).T, 2**-5

    # Multiples of 1/2 with scales that are powers of two or small e4m3 values: every sum is exact in f32.
    m, n, k = 256, 128, 256
    sizes = [{"i32": m}, {"i32": n}, {"i32": k}]
    half_steps = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    e2m1 = np.concatenate([half_steps, -half_steps])
    e4m3 = np.array([(1 + (b & 7) / 8) * 2.0 ** ((b >> 3 & 15) - 7) * (-1 if b & 128 else 1) for b in range(256)])
    for name, group, table, codes, scale_codes, scales in (
        ("mxfp8", 32, e4m3, np.array([0x38, 0x40, 0xB8, 0xC4]), np.arange(126, 129), 2.0 ** (np.arange(256) - 127.0)),
        ("mxfp4", 32, e2m1, np.arange(16), np.arange(126, 129), 2.0 ** (np.arange(256) - 127.0)),
        ("nvfp4", 16, e2m1, np.arange(16), np.array([0x30, 0x38, 0x3C, 0x40]), e4m3),
    ):
        codes_of = lambda rows: rng.choice(codes, (rows, k)).astype(np.uint8)
        scales_of = lambda rows: rng.choice(scale_codes, (rows, k // group)).astype(np.uint8)
        pack = (lambda x: x) if name == "mxfp8" else (lambda x: np.ascontiguousarray(x[:, ::2] | x[:, 1::2] << 4))
        a, b, sa, sb = codes_of(m), codes_of(n), scales_of(m), scales_of(n)
        value = lambda x, s: table[x] * np.repeat(scales[s], group, axis=1)
        parameters = tensors("a", "sa", "b", "sb") + [out("c", "f32", m, n)] + sizes
        inputs = {"a": pack(a), "sa": sa, "b": pack(b), "sb": sb}
        yield f"matmul_{name}", [m // 128, n // 128], inputs, parameters, "c", value(a, sa) @ value(b, sb).T, 1e-6

    # The same product of small integers in every type: exact.
    m, n, k = 256, 128, 192
    sizes = [{"i32": m}, {"i32": n}, {"i32": k}]
    integers = rng.integers(-3, 4, (m, k)), rng.integers(-3, 4, (n, k))
    product = (integers[0] @ integers[1].T).astype(float)
    parameters = lambda dtype: tensors("a", "b") + [out("c", dtype, m, n)] + sizes
    codes = np.array([0xC4, 0xC0, 0xB8, 0x00, 0x38, 0x40, 0x44], np.uint8)
    of_type = lambda convert: dict(zip("ab", map(convert, integers)))
    yield "matmul_fp8", [m // 128, n // 128], of_type(lambda x: codes[x + 3]), parameters("f32"), "c", product, 0
    yield "matmul_int8", [m // 128, n // 128], of_type(lambda x: x.astype(np.int8)), parameters("i32"), "c", product, 0
    yield "matmul_tf32", [m // 128, n // 128], of_type(lambda x: x.astype(np.float32)), parameters("f32"), "c", product, 0
    # Three products of tf32 parts: what is left out is 2^-22 relative, and the sums err like those of f16.
    a, b = normal(m, k, dtype=np.float32), normal(n, k, dtype=np.float32)
    product = a.astype(float) @ b.astype(float).T
    yield "matmul_tf32x3", [m // 128, n // 128], {"a": a, "b": b}, parameters("f32"), "c", product, 1e-3

    starts, n, k = np.array([0, 128, 384, 512], np.int32), 128, 128
    a, b = normal(starts[-1], k), normal(3, n, k)
    product = np.concatenate([a[i:j].astype(float) @ w.astype(float).T for i, j, w in zip(starts, starts[1:], b)])
    sizes = [{"i32": 3}, {"i32": n}, {"i32": k}]
    parameters = tensors("a", "b") + [out("c", "f16", len(a), n), {"tensor": "starts"}] + sizes
    yield "grouped", [2], {"a": a, "b": b, "starts": starts}, parameters, "c", product, 2**-5

    rows, n = 4, 781
    x, w, b = normal(rows, n), normal(n, dtype=np.float32), normal(n, dtype=np.float32)
    long = x.astype(float)
    expected = (long - long.mean(1, keepdims=True)) / np.sqrt(long.var(1, keepdims=True) + 1e-5) * w + b
    parameters = tensors("x", "w", "b") + [out("z", "f16", rows, n), {"i32": n}, {"f32": 1e-5}]
    # Half a unit of 2^-10 below 16.
    yield "layer_norm", [rows], {"x": x, "w": w, "b": b}, parameters, "z", expected, 2**-7

    decay, x = rng.uniform(0.5, 1, (rows, n)).astype(np.float32), normal(rows, n, dtype=np.float32)
    states = np.zeros((rows, n))
    for i in range(n):
        states[:, i] = (states[:, i - 1] if i else 0) * decay[:, i].astype(float) + x[:, i]
    expected = np.stack([np.cumsum(x.astype(float), 1), states], 1)
    yield "scan", [rows], {"decay": decay, "x": x}, tensors("decay", "x") + [out("z", "f32", rows, 2, n), {"i32": n}], "z", expected, 1e-4

    rows, n = 3, 200
    x = normal(rows, n, dtype=np.float32)
    yield "sort", [rows], {"x": x}, tensors("x") + [out("z", "f32", rows, n), {"i32": n}], "z", np.sort(x, 1), 0

    n = 1400
    x = rng.integers(0, 64, n).astype(np.int32)
    expected = np.append(np.bincount(x, minlength=64), x.max())
    zeros = {"tensor": "z", "zeros": "i32", "shape": [65], "out": True}
    yield "histogram", [3], {"x": x}, tensors("x") + [zeros, {"i32": n}], "z", expected, 0

    x = normal(n, dtype=np.float32)
    keep = philox(7, np.arange(n)) > 0.5
    parameters = tensors("x") + [out("z", "f32", n), {"i32": 7}, {"f32": 0.5}, {"i32": n}]
    yield "dropout", [2], {"x": x}, parameters, "z", np.where(keep, 2 * x.astype(float), 0), 0

    length, d = 128, 64
    q, k, v, do = (normal(length, d) for _ in range(4))
    s = q.astype(float) @ k.astype(float).T * 0.125
    lse = np.log(np.exp(s).sum(1))
    p = np.exp(s - lse[:, None])
    delta = (do * (p @ v.astype(float))).sum(1)
    ds = p * (do.astype(float) @ v.astype(float).T - delta[:, None]) * 0.125
    expected = np.stack([ds @ k.astype(float), ds.T @ q.astype(float), p.T @ do.astype(float)])
    inputs = {"q": q, "k": k, "v": v, "do": do, "lse": lse.astype(np.float32), "delta": delta.astype(np.float32)}
    parameters = tensors("q", "k", "v", "do", "lse", "delta") + [out("o", "f32", 3, length, d), {"f32": 0.125}, {"i32": length}]
    # P and dS are rounded to f16 before the second products.
    yield "attention_backward", [length // 64], inputs, parameters, "o", expected, 4e-3


def philox(seed, counters):
    """Philox 4x32 of ten rounds, key (seed, 0), counter (i, 0, 0, 0): the first word as a number below 1, as `tl.rand` has it."""
    mask = np.uint64(0xFFFFFFFF)
    c = [counters.astype(np.uint64)] + [np.zeros(len(counters), np.uint64)] * 3
    k0, k1 = np.uint64(seed), np.uint64(0)
    for _ in range(10):
        a, b = np.uint64(0xD2511F53) * c[0], np.uint64(0xCD9E8D57) * c[2]
        c = [b >> np.uint64(32) ^ c[1] ^ k0, b & mask, a >> np.uint64(32) ^ c[3] ^ k1, a & mask]
        k0, k1 = k0 + np.uint64(0x9E3779B9) & mask, k1 + np.uint64(0xBB67AE85) & mask
    signed = c[0].astype(np.uint32).view(np.int32)
    return np.where(signed < 0, -signed.astype(float) - 1, signed) * 4.6566127342e-10


def run_all(folder, bakewell, seeds, only):
    from safetensors.numpy import load_file, save_file

    failures = 0
    for name, grid, inputs, parameters, output, expected, allowed in cases():
        for capability in ONLY.get(name, CAPABILITIES):
            if only and name not in only:
                continue
            stem = folder / f"{name}_{capability}"
            facts = json.loads(stem.with_suffix(".json").read_text())
            scratch = [{"tensor": f"scratch{i}", "zeros": "u8", "shape": [SCRATCH]} for i in range(2)]
            launch = {
                "grid": grid,
                "block": [32 * facts["warps"]],
                "dynamic_shared": facts["shared"],
                "params": parameters + scratch,
            }
            paths = {end: stem.with_suffix(f".{end}") for end in ("ptx", "launch", "input", "output")}
            paths["launch"].write_text(json.dumps(launch))
            save_file(inputs, paths["input"])
            command = [bakewell, "emulate", "--seeds", str(seeds), "--kernel", facts["kernel"]]
            command += [word for end in paths for word in (f"--{end}", str(paths[end]))]
            result = subprocess.run(command, capture_output=True, text=True)
            if result.returncode != 0:
                failures += 1
                print(f"FAILED {stem.name}: {(result.stdout + result.stderr).strip()}")
                continue
            error = np.abs(load_file(paths["output"])[output].astype(float) - expected).max()
            verdict = "passed" if error <= allowed else "FAILED"
            failures += verdict == "FAILED"
            print(f"{verdict} {stem.name}: largest error {error:.2e} of {allowed:.2e}; {result.stdout.splitlines()[-2]}")
    return failures


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("compile", "run"))
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("only", nargs="*")
    parser.add_argument("--bakewell", default="bakewell")
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_intermixed_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    if arguments.what == "compile":
        compile_all(arguments.folder, arguments.only)
        return 0
    return min(1, run_all(arguments.folder, arguments.bakewell, arguments.seeds, arguments.only))


if __name__ == "__main__":
    sys.exit(main())
