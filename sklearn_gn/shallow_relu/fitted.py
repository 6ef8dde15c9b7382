"""A fitted network: predictions, attributes in the user's units, standard errors."""

import numpy as np

from sklearn_gn.arrays import backend
from sklearn_gn.bayes.laplace import spectrum
from sklearn_gn.bayes.line_ends import rows_at_ends
from sklearn_gn.data.rows_source import RowSource
from sklearn_gn.optim.solver import Rows
from sklearn_gn.shallow_relu.network import (
    active_set,
    hidden_features,
    joint_design,
    layer_design,
    mass_design,
    rescale,
)
from sklearn_gn.shallow_relu.parameters import ShallowReLU
from sklearn_gn.shallow_relu.segments import condense_rows, fitted_breakpoints
from sklearn_gn.shallow_relu.sorted_rows import SortedRows
from sklearn_gn.shallow_relu.uncertainty import posterior, prediction_deviations

_BATCH_ROWS = 65536  # of predictions, so that the hidden features stay small
_DEVIATION_ROWS = 2048  # of standard deviations, which take the tangent space


def predict_scaled(net, z):
    """Return predictions of shape (m, q), in float64 and in scaled units."""
    y = np.empty((len(z), net.coef.shape[1]))
    for start in range(0, len(z), _BATCH_ROWS):
        rows = slice(start, start + _BATCH_ROWS)
        y[rows] = hidden_features(net.hyperplanes, z[rows]) @ net.coef + net.intercept
        if hasattr(net, "slope"):  # a linear term
            y[rows] += z[rows] @ net.slope
    return y


def validation_loss(validation, scaling):
    """Return the function from a network to its loss on validation data.

    Parameters
    ----------
    validation : tuple of X, y and, if there are any, weights; or None
    scaling : Scaling

    Returns
    -------
    callable or None
    """
    if validation is None:
        return None
    X, y, *weight = validation
    weight = weight[0] if weight else np.full(len(X), 1 / len(X))
    z, t = scaling.x(X), scaling.y(y)

    def loss(net):
        error = predict_scaled(net, z) - t
        return 0.5 * float(weight @ np.sum(error**2, axis=1))

    return loss


def prediction_errors(found, net, slots, z):
    """Return standard errors of predictions of shape (m, q), in scaled units.

    Parameters
    ----------
    found : Posterior
    net : ShallowReLU
    slots : ndarray of int
        Numbers of the active neurons.
    z : ndarray of shape (m, d)
    """
    active = _active_network(net, slots)
    std = np.empty((len(z), net.coef.shape[1]))
    for start in range(0, len(z), _DEVIATION_ROWS):
        rows = slice(start, start + _DEVIATION_ROWS)
        std[rows] = prediction_deviations(found, active, z[rows])
    return std


def _mean_square(net, rows):
    """Weighted mean squares of the residuals of each target."""
    error = predict_scaled(net, rows.x) - rows.y
    return rows.weight.astype(np.float64) @ error**2


def fitted_attributes(net, data, scaling, options, *, n_effective, device):
    """Return the fitted attributes of a network, by name.

    Parameters
    ----------
    net : ShallowReLU
        As the solver left it, in scaled units.
    data : Rows, SortedRows or RowSource
        All rows, those of one feature sorted.
    scaling : Scaling
    options : FitOptions
    n_effective : float
        Sum of the sample weights.
    device : str or None
    """
    if isinstance(data, SortedRows):
        rows, mean_square = condense_rows(net, data)
        products = _Products()
    elif isinstance(data, RowSource):
        rows, products = data, _ProductsOfChunks()
        mean_square = sum(_mean_square(net, part) for part in rows)
    else:
        rows, mean_square = data, _mean_square(net, data)
        products = _CompiledProducts(net.coef.dtype, device)
    net = products.finish(net)
    size = np.linalg.norm(net.coef, axis=1)
    active = net.alive & (size > 0) & (size >= options.active_tol * size.max())
    slots = np.flatnonzero(active)
    gram, mass = products.spectra(net, rows, options.active_tol)
    penalty = float(options.alpha) * np.sum(net.coef.astype(np.float64) ** 2)
    loss = 0.5 * float(np.sum(mean_square) + penalty)
    # All slots, so that the shapes do not depend on how many are active.
    active_net = _active_network(net, slots)
    factor = products.joint_factor(active_net, rows)
    found = posterior(active_net, factor, mean_square, n_effective)
    attributes = _network_attributes(net, active, scaling) | {
        "gram_spectrum_": gram[: len(slots) * net.hyperplanes.shape[1]],
        "mass_spectrum_": mass[: 1 + len(slots)],
        # The scale may be infinite.
        "loss_": loss * scaling.loss_scale if loss > 0 else 0.0,
        "noise_std_": np.sqrt(found.variance * n_effective) * scaling.y_scale,
        "_posterior": found,
        "_degrees_of_freedom": found.degrees_of_freedom,
    }
    if len(scaling.x_scale) == 1:
        rows = Rows(*(np.asarray(a, np.float64) for a in rows))
        knots, std = fitted_breakpoints(active_net, rows, found.pooled)
        attributes |= {
            "breakpoints_": knots * scaling.x_scale[0] + scaling.x_center[0],
            "breakpoint_std_": std * scaling.x_scale[0],
            "_rows_at_ends": rows_at_ends(data, n_effective, knots),
        }
    return attributes


def _network_attributes(net, active, scaling):
    """Attributes that hold the parameters of a network, in the user's units."""
    slots = np.flatnonzero(active)
    scaled = net.hyperplanes[slots].astype(np.float64)
    hyperplanes, factor = scaling.hyperplanes_to_user(scaled)
    return {
        "_network": (net, scaling),
        "_active_slots": slots,
        "_n_features_out": len(slots),
        "alpha_method_": "fixed",
        "active_": active[net.alive],
        "hyperplanes_": hyperplanes,
        "output_coef_": (net.coef[slots] * scaling.y_scale).T * factor,
        "linear_coef_": np.zeros((net.coef.shape[1], len(scaling.x_scale))),
        "output_intercept_": net.intercept * scaling.y_scale + scaling.y_center,
    }


class _Products:
    """What the attributes need of a network and a few rows, by NumPy."""

    def finish(self, net):
        """Return the network as the user gets it, ``|w_i| = 1``."""
        return rescale(net)

    def spectra(self, net, rows, active_tol):
        """Return the eigenvalues of the layer matrix and of the mass matrix."""
        active = active_set(net, active_tol)
        designs = (
            layer_design(net, rows, active),
            mass_design(net._replace(alive=active), rows),
        )
        for design in designs:
            values = np.linalg.svd(design, compute_uv=False) ** 2
            yield np.pad(values, (0, design.shape[1] - len(values)))

    def joint_factor(self, net, rows):
        """Return the joint design itself, without the columns of the residuals."""
        return joint_design(net, rows)[:, : -rows.y.shape[1]]


class _CompiledProducts:
    """The same by compiled functions, for any number of rows."""

    def __init__(self, dtype, device):
        self._dtype, self._device = dtype, device

    def finish(self, net):
        from sklearn_gn.shallow_relu.sggn import finish

        with backend.scope(self._dtype, self._device):
            return backend.to_numpy(finish(net))

    def spectra(self, net, rows, active_tol):
        from sklearn_gn.shallow_relu.sggn import spectra

        with backend.scope(self._dtype, self._device):
            return backend.to_numpy(spectra(net, rows, active_tol))

    def joint_factor(self, net, rows):
        from sklearn_gn.shallow_relu.joint import joint_factor

        rows = Rows(*(np.asarray(a, np.float64) for a in rows))
        with backend.scope("float64", self._device):
            return backend.to_numpy(joint_factor(net, rows))


class _ProductsOfChunks(_Products):
    """The same from sums over rows that do not fit into memory."""

    def spectra(self, net, rows, active_tol):
        from sklearn_gn.shallow_relu import chunked_descent

        model = chunked_descent.model_at(net, rows)
        unit = chunked_descent.unit_coefficients(net, active_tol)
        for matrix in (model.layer * (unit @ unit.T), model.mass):
            yield spectrum(matrix)

    def joint_factor(self, net, rows):
        from sklearn_gn.shallow_relu import chunked_descent

        mass, cross, layer, *_ = chunked_descent.model_at(net, rows)
        values, vectors = np.linalg.eigh(np.block([[mass, cross], [cross.T, layer]]))
        return np.sqrt(np.maximum(values, 0))[:, None] * vectors.T


def _active_network(net, slots):
    """Return the network in float64, only its active neurons alive."""
    active = np.zeros(len(net.alive), dtype=bool)
    active[slots] = True
    coef = np.where(active[:, None], net.coef, 0).astype(np.float64)
    hyperplanes, intercept = (
        a.astype(np.float64) for a in (net.hyperplanes, net.intercept)
    )
    return ShallowReLU(hyperplanes, coef, intercept, active)
