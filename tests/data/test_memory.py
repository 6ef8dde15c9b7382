"""Memory that a fit needs, compared with what there is before it starts."""

import numpy as np
import pytest

from sklearn_gn import (
    PINNSolver,
    SegmentedRegressor,
    ShallowReLURegressor,
    VarProNetClassifier,
    VarProNetRegressor,
)
from sklearn_gn.arrays import memory
from sklearn_gn.data import tables
from sklearn_gn.pde import Box, Dirichlet, Problem, d

X = np.arange(40.0).reshape(20, 2)


def string(u, x):
    return d(u, "x", "x")(x) + 1


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """A function that writes the files of a system, and says what they leave free.

    Small fits are looked at, too.
    """
    monkeypatch.setattr(memory, "_PROC", tmp_path / "proc")
    monkeypatch.setattr(memory, "_CGROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(tables, "CHUNK_BYTES", 0)

    def write(**files):
        files["proc/meminfo"] = "MemTotal: 16384 kB\nMemAvailable: 8192 kB\n"
        for name, text in files.items():
            file = tmp_path / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"{text}\n")
        return memory.available_bytes()

    return write


def limited(machine, free):
    """Leave so many bytes free."""
    files = {"max": free, "current": 0, "stat": "inactive_file 0"}
    files = {f"cgroup/memory.{name}": text for name, text in files.items()}
    machine(**{"proc/self/cgroup": "0::/"}, **files)


@pytest.mark.parametrize(
    ("model", "n_features", "needed", "advice"),
    [
        (SegmentedRegressor(), 1, 8 * 20 * 31, "fit_chunks"),
        (ShallowReLURegressor(), 2, 8 * 20 * 37, "fit_chunks"),
        (ShallowReLURegressor(loss="huber"), 2, 8 * 20 * 37, "sample"),
        (VarProNetRegressor(), 2, 8 * 20 * 37, "fit_chunks"),
        (VarProNetClassifier(), 2, 8 * 20 * 37, "fit_chunks"),
    ],
)
def test_tables(machine, model, n_features, needed, advice):
    limited(machine, needed - 1)
    with pytest.raises(ValueError, match=rf"GiB are available.*{advice}"):
        model.fit(X[:, :n_features], X[:, 0] > 20)


def test_values_of_neurons(machine):
    # 32 padded rows, 7 features with the constant, 1 target, 6 biases.
    needed = 8 * 32 * (4 * (7 + 1) + 2 * 12)
    model = VarProNetRegressor(hidden_layer_sizes=(6,), solver="gnvpro", alpha=1e-3)
    limited(machine, needed - 1)
    with pytest.raises(ValueError, match=r"GiB are available.*batch_size"):
        model.fit(X, X[:, 0])


@pytest.mark.parametrize(
    ("solver", "needed"),
    # 34 residuals, 10 weights of the first layer, 16 in all.
    [("dngd", 8 * (34 * 10 + 3 * 16**2)), ("ssbroyden", 8 * 3 * 16**2)],
)
def test_matrices_of_a_step(machine, solver, needed):
    problem = Problem(string, Box(x=(0, 1)), [Dirichlet(0.0)])
    model = PINNSolver(problem, hidden_layer_sizes=(5,), solver=solver)
    model.set_params(n_interior=30, n_boundary=4, max_iter=1, random_state=0)
    limited(machine, needed - 1)
    with pytest.raises(ValueError, match=r"GiB are available.*n_interior"):
        model.fit()


def test_available_of_a_machine(machine):
    assert machine() == 2**23


@pytest.mark.parametrize("path", ["/", "/jobs/mine", "/docker/of_the_host"])
def test_available_in_a_container(machine, path):
    folder = "cgroup/jobs" if path == "/jobs/mine" else "cgroup"
    found = machine(
        **{
            "proc/self/cgroup": f"0::{path}",
            "cgroup/jobs/mine/memory.max": "max",
            "cgroup/jobs/mine/memory.current": "500",
            f"{folder}/memory.max": "5000",
            f"{folder}/memory.current": "3000",
            f"{folder}/memory.stat": "anon 2000\ninactive_file 700\nactive_file 300",
        }
    )
    assert found == 2700


@pytest.mark.parametrize(("limit", "available"), [(5000, 0), (2**63 - 4096, 2**23)])
def test_available_in_control_groups_of_version_1(machine, limit, available):
    found = machine(
        **{
            "proc/self/cgroup": "12:cpu,cpuacct:/a\n4:memory:/a\n0::/a",
            "cgroup/memory/a/memory.limit_in_bytes": limit,
            "cgroup/memory/a/memory.usage_in_bytes": 7000,
            "cgroup/memory/a/memory.stat": "inactive_file 1\ntotal_inactive_file 900",
        }
    )
    assert found == available
