"""What is made before a fit begins: the untrained network, models, sampler, batches.

This module and ``iteration``, ``posterior`` and ``solution`` are what the estimator
sees of the JAX side.
"""

import numpy as np

from sklearn_gn.arrays import backend
from sklearn_gn.networks._base import (
    activation_function,
    checked_network,
    checked_sizes,
    initial_parameters,
    n_features,
)
from sklearn_gn.pde import Box, Problem
from sklearn_gn.pde.residual_classes import traced_class
from sklearn_gn.pinn.model import (
    ClassModel,
    Features,
    Model,
    n_waves,
    start_parameters,
)
from sklearn_gn.pinn.needed_rows import rows_and_sizes
from sklearn_gn.pinn.points import batch_of
from sklearn_gn.pinn.residuals import Observed
from sklearn_gn.pinn.taylor import DerivativeRows
from sklearn_gn.pinn.units import in_units, size_of_observations

# --- the network ---------------------------------------------------------------------


def untrained_network(problem, network, hidden_layer_sizes, rng, dtype, device):
    """Parameters to start from, and the Features of a network of the user's or None."""

    def cast(tree):
        return backend.map_leaves(lambda a: np.asarray(a, dtype), tree)

    unknown, n_outputs = problem.unknown.values(), problem.n_network_outputs
    if network is None:
        waves = n_waves(problem)
        sizes = problem.n_inputs - waves, *_widths(hidden_layer_sizes), n_outputs
        return cast(start_parameters(rng, sizes, unknown, waves)), None
    network = checked_network(network)
    with backend.scope(dtype, device):
        x = np.zeros((1, problem.n_inputs), dtype)
        params = cast(backend.to_numpy(initial_parameters(network, rng, x)))
        width = n_features(network, params, x)
    output = cast(start_parameters(rng, (width, n_outputs), unknown))
    layers = (*backend.leaves(params), *output.layers)
    return output._replace(layers=layers), Features(network, backend.structure(params))


def activations(activation, hidden_layer_sizes):
    """Return the names of the hidden layers' activations, one each."""
    sizes = _widths(hidden_layer_sizes)
    single = isinstance(activation, str)
    names = (activation,) * len(sizes) if single else tuple(activation)
    if len(names) != len(sizes):
        raise ValueError(
            f"activation names {len(names)} activations for {len(sizes)} hidden layers."
        )
    for name in names:
        activation_function(name)
    return names


def _widths(hidden_layer_sizes):
    return checked_sizes("hidden_layer_sizes", hidden_layer_sizes)


# --- problems and their models -------------------------------------------------------


def regression_problem(n_features, n_targets):
    """Return the frame of plain regression: no equation, axes in standard units."""
    return Problem(
        _no_residual,
        Box(**{f"x{k}": (-1.0, 1.0) for k in range(n_features)}),
        outputs=tuple(f"y{k}" for k in range(n_targets)),
    )


def _no_residual(u, x):
    return u(x) - u(x)


def models(
    problems, names, features, extra, *, equation, observed, device, of_one_size=False
):
    """Return what is compiled, for each problem of a sequence.

    The residuals of problems count if ``equation``; ``observed`` holds numbers of
    outputs, and functions of the field and a point, or is None. With ``of_one_size``
    all residuals of a class have one size.
    """
    frame = () if features else names
    return tuple(
        Model(
            problem,
            frame,
            _class_models(
                problem, features, extra, equation, observed, device, of_one_size
            ),
            features,
        )
        for problem in problems
    )


def _class_models(problem, features, extra, equation, observed, device, each):
    classes, kind = (), None
    if observed is not None:
        kind = traced_class(problem, "data", Observed(observed), 1, len(observed))
    probed = kind if any(map(callable, observed or ())) else None
    if equation:
        axes = problem._draw_directions(np.random.RandomState(0))
        with backend.scope("float64", device):
            rows, sizes = rows_and_sizes(problem, extra, axes, probed)
        kinds = (*problem.residual_classes(), *([probed] if probed else []))
        n_stated = len(kinds) - bool(probed)
        pairs = [in_units(*one, each) for one in zip(kinds, sizes, strict=True)]
        pairs = pairs[:n_stated]
        pairs += [(probed, size_of_observations(problem, observed))] if probed else []
        kinds, sizes = zip(*pairs, strict=True)
        classes = tuple(map(ClassModel, kinds, rows, sizes))
    if kind is not None and probed is None:
        size = size_of_observations(problem, observed)
        classes = (*classes, ClassModel(kind, DerivativeRows(), size))  # values alone
    if features is not None:
        classes = tuple(known._replace(rows=None) for known in classes)
    return classes


# --- observations --------------------------------------------------------------------


def observation_batch(problem, X, y, weight, total_weight, scaling, dtype):
    """Return observations, padded by their last row with weight zero.

    The weights of the rows have the sum one; y is NaN where nothing was observed.
    """
    if scaling is not None:
        X, y = scaling.x(X), (y - scaling.y_center) / scaling.y_scale
        limits = np.finfo(dtype)  # rows of hardly any weight may be very far
        y = np.clip(y, limits.min, limits.max)
    n = backend.row_bucket(len(X))
    # Zeros may lie outside of a domain.
    rows = np.minimum(np.arange(n), len(X) - 1)
    weight = n * total_weight * backend.pad_rows(weight, n)
    there = ~np.isnan(y)
    if not there.all():  # the mean square is that of the numbers that are there
        weight = weight * weight.sum() / (weight[: len(y)] @ there.mean(axis=1))
    return batch_of(problem._all_points(X[rows, None]), y[rows], weight, dtype)
