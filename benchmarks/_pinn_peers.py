"""Runs the scripts of ``_peers`` in the environments where their packages are.

The package NAME is looked for in DIR/NAME, a virtual environment; DIR is ``--peers``:

    python -m venv DIR/NAME
    DIR/NAME/bin/pip install NAME       and for deepxde: torch

A script gets the points of the first iteration of our fit, and the same seconds.
"""

import json
import math
import os
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks._pinn import Scorer, problem_of
from benchmarks._report import progress

ROOT = Path(__file__).parents[1]
NOTES = (
    "Peers run with the network, points and seconds of our fit, each in a process of "
    "its own, with float64 and the coordinates mapped to [-1, 1]. Neither their "
    "compilation nor the scoring counts. Their initial weights are their own.",
    "A run is judged by the last point of its curve within the seconds, or by its "
    "first one where a step takes longer than that.",
)


class Peer(NamedTuple):
    """A method of a package."""

    package: str
    method: str


def python_of(directory, package):
    """The Python of a package's environment, or None."""
    for path in ("bin/python", "Scripts/python.exe"):
        python = Path(directory, package, path)
        if python.exists():
            return python.absolute()  # not resolved: that would leave the environment
    return None


def missing(directory, peer):
    """Why a peer cannot run, or None."""
    if python_of(directory, peer.package) is None:
        return f"{peer.package} is not installed: see benchmarks/_pinn_peers.py"
    return None


def batches_of(recorder):
    """Points of the interior and of the boundary that a fit was trained on."""
    interior, boundary = recorder.state.batches
    return np.asarray(interior.x)[:, 0], np.asarray(boundary.x)[:, 0]


def run_peer(directory, peer, solver, recorder, seed, seconds):
    """The result of a script, or None where it failed."""
    score = Scorer(problem_of(solver), ("u", "v"))
    interior, boundary = batches_of(recorder)
    with tempfile.TemporaryDirectory() as folder:
        points = Path(folder, "points.npz")
        np.savez(
            points,
            interior=interior,
            boundary=boundary,
            test=score.X,
            velocity=score.values,
        )
        task = {
            "method": peer.method,
            "hidden": list(solver.hidden_layer_sizes),
            "seed": seed,
            "seconds": seconds,
            "points": str(points),
        }
        module = f"benchmarks._peers.{peer.package}"
        process = subprocess.run(
            [python_of(directory, peer.package), "-m", module, json.dumps(task)],
            cwd=ROOT,
            env={**os.environ, "JAX_ENABLE_X64": "1", "DDE_BACKEND": "pytorch"},
            capture_output=True,
            text=True,
            check=False,
        )
    if process.returncode:
        progress(process.stderr)
        return None
    return json.loads(process.stdout)


def ended(points, seconds):
    """The last point within the seconds, or the first one."""
    within = [point for point in points if point["seconds"] <= seconds]
    point = (within or points)[-1 if within else 0]
    return {k: v if math.isfinite(v) else math.inf for k, v in point.items()}
