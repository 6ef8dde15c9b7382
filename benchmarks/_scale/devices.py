"""Flops and bytes of a device, counted in the compiled programs, not timed.

A process with eight forced host devices compiles the functions of rows of all methods
for 1, 2, 4 and 8 of them. Flops are those of XLA's cost analysis, in which the body of
a loop counts once and decompositions by LAPACK do not count; bytes are the sizes of the
results of collective operations in the compiled program.
"""

import json
import os
import re
import subprocess
import sys

import numpy as np

from benchmarks._report import summary, target

COUNTS = (1, 2, 4, 8)
SIZES = {"n": 2048, "d": 1024, "n_classes": 500, "batch": 256}
QUICK_SIZES = {"n": 512, "d": 256, "n_classes": 100, "batch": 64}
NEAR = 0.1  # of 1 / k
BYTES = {"f64": 8, "f32": 4, "s32": 4, "u32": 4, "pred": 1}
COLLECTIVE = re.compile(
    r"= (.*?) (?:all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)"
    r"(?:-start)?\("
)
SHAPE = re.compile(r"(\w+)\[([\d,]*)\]")


def run(args):
    """Count in a process of its own, whose devices are forced."""
    sizes = QUICK_SIZES if args.quick else SIZES
    code = f"from benchmarks._scale import devices; devices.count({sizes!r})"
    flags = "--xla_force_host_platform_device_count=8"
    process = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=True,
    )
    methods = {
        name: {"settings": {}, "runs": [row], "summary": summary([row])}
        for name, row in json.loads(process.stdout.splitlines()[-1]).items()
    }
    shape = ", ".join(f"{name} = {value:,}" for name, value in sizes.items())
    return {
        "description": f"flops and bytes of a device, double precision, {shape}",
        "methods": methods,
        **{
            f"target_{figure}_{name}": target(methods, name, figure, "max", NEAR)
            for name in methods
            for figure in ("flops_off", "bytes_off")
        },
    }


def count(sizes):
    """Print the figures of every function as JSON."""
    found = {}
    for k in COUNTS:
        compiled_for_k = programs(k, **sizes) | other_programs(k)
        for name, (compiled, model) in compiled_for_k.items():
            flops = float(compiled.cost_analysis()["flops"])
            moved = collective_bytes(compiled.as_text())
            row = found.setdefault(name, {"flops_off": 0.0, "bytes_off": 0.0})
            row |= {f"flops_{k}": flops, f"bytes_{k}": moved}
            off = abs(flops * k / row["flops_1"] - 1)
            row["flops_off"] = max(row["flops_off"], off)
            if k > 1:
                row["bytes_model"] = model
                off = abs(moved / model - 1)
                row["bytes_off"] = max(row["bytes_off"], off)
    print(json.dumps(found))


def programs(k, n, d, n_classes, batch):
    """Compiled functions for k devices, and the bytes of the model."""
    from sklearn_gn.arrays import backend, devices
    from sklearn_gn.softmax_head import head as heads
    from sklearn_gn.softmax_head import minibatch, newton, whitening
    from sklearn_gn.softmax_head.minibatch import BatchData, StepSettings

    rng, one = np.random.default_rng(0), np.float64(1)
    settings = heads.HeadOptions(
        one, 1.0, 1, one, 0, batch, 0, None, mesh=devices.mesh_of(range_of(k))
    )
    rows = heads.BatchedRows(
        rng.normal(size=(n, d)),
        (np.arange(n) % n_classes).astype(np.int32),
        np.full(n, 1 / n),
        np.int32(n),
        np.int32(n // batch),
    )
    net = heads.AffineHead(np.zeros((d, n_classes)), np.zeros(n_classes))
    step = StepSettings(one, one, one, one)
    newton_settings = newton.NewtonSettings(one, 0 * one, one, np.int32(10), 0.1 * one)
    coefficients = d * n_classes
    with backend.scope("float64"):
        rows = heads.on_devices(rows, settings)
        whole = whitening.Whitened(
            rows,
            rows.x.astype(np.float32),
            np.ones((d, 1)),
            np.ones(d),
            np.ones(d),
        )
        lowered = {
            "loss and gradient": (
                _compiled(heads.evaluate).lower(net, rows, one, one, np.ones((1, 1))),
                8 * coefficients,
            ),
            "newton direction": (
                _compiled(whitening.newton_direction).lower(
                    net, net, whole, newton_settings
                ),
                # The product for the first residual is that of the loop.
                4 * coefficients,
            ),
            "fgn batch": (
                _compiled(minibatch.fgn_epoch).lower(
                    net, None, BatchData(rows, None), step, batch, False, 0, 0
                ),
                8 * (batch * (d + n_classes + batch) + coefficients),
            ),
        }
        return {
            name: (program.compile(), model)
            for name, (program, model) in lowered.items()
        }


def _compiled(function):
    """A function as it is compiled, also where it computes with NumPy for few rows."""
    return getattr(function, "compiled", function)


def other_programs(k):
    """Compiled functions of differential equations and networks, and their bytes."""
    from benchmarks._scale import row_functions

    return row_functions.programs(k)


def range_of(k):
    """Numbers of the first k devices."""
    return list(range(k))


def collective_bytes(text):
    """Bytes of the results of the collective operations of a program."""
    total = 0
    for result in COLLECTIVE.findall(text):
        for kind, shape in SHAPE.findall(result):
            sizes = [int(size) for size in shape.split(",") if size]
            total += BYTES[kind] * int(np.prod(sizes, dtype=np.int64))
    return total
