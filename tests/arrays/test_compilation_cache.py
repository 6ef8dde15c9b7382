"""The cache of compiled functions on disk, in processes of their own."""

import os
import subprocess
import sys

import pytest

from sklearn_gn.arrays import programs

FIT = """
import numpy as np

X = np.arange(12.0).reshape(6, 2)
head = sklearn_gn.FGNSoftmaxHead(max_iter=1, alpha=10.0, tol=10.0, solver="fgn")
head.fit(X, [0, 1] * 3)
import jax

assert not jax.config.jax_enable_x64
"""
CALL_AFTER_A_COMPILATION = """
import jax
import sklearn_gn

jax.jit(lambda x: 2 * x)(1.0)  # without a cache
folder = sklearn_gn.enable_compilation_cache()
"""
CALL_BEFORE_JAX = """
import sys
import sklearn_gn

assert "jax" not in sys.modules
"""


def run(code, home, **variables):
    environment = {k: v for k, v in os.environ.items() if not k.startswith("JAX_")}
    environment |= {"XDG_CACHE_HOME": str(home), "HOME": str(home), **variables}
    result = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert result.returncode == 0, result.stderr
    return sorted(home.rglob("*-cache"))


@pytest.mark.slow
def test_a_later_process_compiles_nothing(tmp_path):
    kept = run(CALL_AFTER_A_COMPILATION + FIT, tmp_path)
    (folder,) = {path.parent for path in kept}
    assert folder.parent.name == "sklearn_gn"
    assert folder.stat().st_mode & 0o077 == 0
    times = [path.stat().st_mtime_ns for path in kept]
    again = run(CALL_BEFORE_JAX + FIT, tmp_path, SKLEARN_GN_COMPILATION_CACHE="1")
    assert again == kept
    assert [path.stat().st_mtime_ns for path in again] == times


@pytest.mark.parametrize(
    ("value", "folder"), [("0", None), ("", None), ("1", "default"), ("/at", "/at")]
)
def test_the_variable_is_a_path_or_a_switch(value, folder, monkeypatch):
    asked = []

    def enable(path):
        asked.append("default" if path is None else path)

    monkeypatch.setattr(programs, "enable_compilation_cache", enable)
    monkeypatch.setenv(programs.VARIABLE, value)
    programs.enable_if_asked()
    assert asked == ([] if folder is None else [folder])
