"""Heads whose rows are divided among several devices, and several processes."""

import json

import numpy as np
import pytest

from sklearn_gn import FGNSoftmaxHead, PINNSolver
from tests.processes import output, outputs_of_two, start

# Differences from one device, by number of devices: of the functions of rows, of one
# step of every solver, and of the final loss of fits.
EIGHT = """
import json, warnings
import numpy as np
from sklearn.base import clone
from sklearn_gn import FGNSoftmaxHead
from sklearn_gn.arrays import backend
from sklearn_gn.arrays import devices
from sklearn_gn.softmax_head import head as heads
from sklearn_gn.solvers import FGN, SGN, Adam

warnings.simplefilter("ignore")
rng = np.random.RandomState(0)
n, d, C = 200, 6, 5
y = rng.randint(C, size=n)
X = rng.normal(size=(n, d))
X[np.arange(n), y] += 2
weight = rng.randint(1, 3, n) / n
net = heads.AffineHead(rng.normal(size=(d, C)), rng.normal(size=C))
solvers = {
    "fgn": FGNSoftmaxHead(FGN(batch_size=64), max_iter=1),
    "fgn_rank": FGNSoftmaxHead(FGN(batch_size=64), rank=3, max_iter=1),
    "sgn": FGNSoftmaxHead(SGN(batch_size=64), max_iter=1),
    "adam": FGNSoftmaxHead(Adam(), max_iter=1),
}
fits = {
    "newton": FGNSoftmaxHead(tol=1e-7),
}


def kernels(mesh):
    rows, size = heads.batched_rows(
        X, y, np.arange(n), weight, np.inf, np.random.RandomState(0), "float64", 8
    )
    options = heads.HeadOptions(1.0, 0.0, 1, 1.0, 0, size, 0, None, mesh=mesh)
    with backend.scope("float64"):
        rows = heads.on_devices(rows, options)
        found = heads.evaluate(net, rows, np.full((1, 1), 0.1), np.float64(1))
        return backend.to_numpy(found)


def difference(a, b):
    leaves = zip(backend.leaves(a), backend.leaves(b), strict=True)
    return max(float(np.max(np.abs(np.asarray(p) * 1.0 - q))) for p, q in leaves)


def fit(model, device):
    return clone(model).set_params(random_state=0, device=device).fit(X, y, weight)


answer = {}
one = kernels(None), {k: fit(m, [0]).coef_ for k, m in solvers.items()}
losses = {name: fit(model, None).loss_ for name, model in fits.items()}
for count in (1, 2, 4, 8):
    device = list(range(count))
    found = {"kernels": difference(kernels(devices.mesh_of(device)), one[0])}
    for name, model in solvers.items():
        found[name] = difference(fit(model, device).coef_, one[1][name])
    found |= {
        "loss of " + name: abs(fit(model, device).loss_ - losses[name])
        for name, model in fits.items()
    }
    answer[count] = found
print(json.dumps(answer))
"""

TWO = """
import sys, warnings
import jax

jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(sys.argv[1], 2, int(sys.argv[2]))
import numpy as np
from sklearn_gn import FGNSoftmaxHead

warnings.simplefilter("ignore")
rng = np.random.RandomState(0)
y = rng.randint(5, size=100)
X = rng.normal(size=(100, 6))
X[np.arange(100), y] += 2
several = FGNSoftmaxHead(tol=1e-9, device=[0, 1], random_state=0).fit(X, y)
print(repr(several.loss_), several.score(X, y))
"""


@pytest.mark.slow
def test_any_number_of_devices_gives_the_same():
    flags = "--xla_force_host_platform_device_count=8"
    answer = json.loads(output(start(EIGHT, flags=flags)))
    for count, found in answer.items():
        for name, difference in found.items():
            allowed = 1e-8 if name.startswith("loss") else 1e-10
            assert difference <= allowed, (count, name, difference)


@pytest.mark.cluster
def test_two_processes_give_what_one_gives():
    lines = outputs_of_two(TWO)
    assert lines[0] == lines[1]
    rng = np.random.RandomState(0)
    y = rng.randint(5, size=100)
    X = rng.normal(size=(100, 6))
    X[np.arange(100), y] += 2
    one = FGNSoftmaxHead(tol=1e-9, random_state=0).fit(X, y)
    loss, score = map(float, lines[0].split())
    assert loss == pytest.approx(one.loss_, abs=1e-8)
    assert score == one.score(X, y)


@pytest.mark.parametrize("device", [[], [0, 0], [99], 3.5, ["cpu"]])
def test_devices_that_are_none_are_named(device):
    X, y = np.eye(4), [0, 1, 0, 1]
    with pytest.raises(ValueError, match="device="):
        FGNSoftmaxHead(device=device).fit(X, y)
    with pytest.raises(ValueError, match="device"):
        PINNSolver(device=device).fit(X, y)
