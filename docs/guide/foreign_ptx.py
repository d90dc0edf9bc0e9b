"""Compiles Triton kernels to PTX without a GPU, runs them through `bakewell emulate`, and compares with NumPy.

    foreign_ptx.py compile DIR
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
    }


def compile_all(folder):
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    for name, (function, signature, constants) in kernels().items():
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
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    if arguments.what == "compile":
        compile_all(arguments.folder)
        return 0
    return min(1, run_all(arguments.folder, arguments.bakewell, arguments.seeds, arguments.only))


if __name__ == "__main__":
    sys.exit(main())
