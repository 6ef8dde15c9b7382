"""Worker processes: the trees that they measure, their cores, and their answers."""

import compileall
import io
import json
import os
import subprocess
import sys
import tarfile
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PATIENCE = 120  # seconds after which a row is given up
CACHES = ("JAX_COMPILATION_CACHE_DIR", "SKLEARN_GN_COMPILATION_CACHE", "XLA_FLAGS")


class Answer(NamedTuple):
    """What a worker has printed: figures, or else the reason why there are none."""

    figures: dict | None
    reason: str = ""


@contextmanager
def working_folder(reference=None):
    """A folder in which workers measure a git reference, or else the working tree.

    Its rows are always those of the working tree.
    """
    with TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "benchmarks").symlink_to(ROOT / "benchmarks")
        if reference is None:
            (folder / "sklearn_gn").symlink_to(ROOT / "sklearn_gn")
        else:
            command = ["git", "archive", "--format=tar", reference, "sklearn_gn"]
            packed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
            with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
                archive.extractall(folder, filter="data")
        # Else the first process that imports a module would compile it.
        compileall.compile_dir(folder / "sklearn_gn", quiet=2)
        yield folder


def two_cores():
    """Two cores of which each has a worker, or None twice where none can be chosen."""
    if not hasattr(os, "sched_getaffinity"):
        return None, None
    cores = sorted(os.sched_getaffinity(0))
    return cores[0], cores[-1]


def ask(row, folder, core=None, data=None, without=None, seconds=PATIENCE):
    """The answer of a worker to a row."""
    command = [sys.executable, "-m", "benchmarks._gates.worker", row]
    options = {"--data": data and Path(data).resolve(), "--core": core}
    options["--without"] = without
    for option, value in options.items():
        command += [] if value is None else [option, str(value)]
    try:
        process = subprocess.run(
            command,
            cwd=folder,
            env={k: v for k, v in os.environ.items() if k not in CACHES},
            capture_output=True,
            text=True,
            timeout=seconds,
        )
    except subprocess.TimeoutExpired:
        return Answer(None, f"takes more than {seconds} seconds")
    if process.returncode:
        lines = process.stderr.strip().splitlines()
        return Answer(None, lines[-1] if lines else f"ended by {process.returncode}")
    return Answer(json.loads(process.stdout.splitlines()[-1]))
