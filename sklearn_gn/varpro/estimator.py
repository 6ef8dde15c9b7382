"""What VarProNetRegressor and VarProNetClassifier share."""

from __future__ import annotations

import math
from functools import partial
from numbers import Integral, Real
from typing import Any

import numpy as np
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import gen_batches
from sklearn.utils._param_validation import HasMethods, Interval, StrOptions
from sklearn.utils.validation import check_is_fitted

from sklearn_gn._typing import Array, ArrayLike
from sklearn_gn.arrays import backend, extremes
from sklearn_gn.base import GaussNewtonEstimator
from sklearn_gn.data.rows import (
    feature_spread,
    shares,
    validate_data,
    validation_split,
)
from sklearn_gn.data.scaling import Scaling
from sklearn_gn.optim.solver import Rows
from sklearn_gn.runtime.fit_loop import FitRun
from sklearn_gn.runtime.memory import check_fits
from sklearn_gn.varpro import committee, committee_fit, committee_plan

_MOST_STEPS = 100  # where max_iter is "auto"
_MOST_STEPS_BY_EVIDENCE = 3000  # the same of committees, whose steps take milliseconds
_LARGEST_INT = np.iinfo(np.int32).max
_DEEP = (64, 64)  # hidden layers where the evidence does not choose the penalties
_BLOCK_ROWS = 4096  # of predictions


class _VarProNet(
    ClassNamePrefixFeaturesOutMixin, TransformerMixin, GaussNewtonEstimator
):
    """Base class of the networks that are trained by variable projection."""

    _parameter_constraints: dict[str, Any] = {
        **GaussNewtonEstimator._parameter_constraints,
        "network": [
            StrOptions({"mlp", "neural_ode", "cnn"}),
            HasMethods(["init", "apply"]),
        ],
        "hidden_layer_sizes": [
            "array-like",
            Interval(Integral, 1, None, closed="left"),
            StrOptions({"auto"}),
        ],
        "activation": [str, "array-like"],
        "n_init": [Interval(Integral, 1, None, closed="left"), StrOptions({"auto"})],
        "alpha": [
            Interval(Real, 0, None, closed="left"),
            "array-like",
            dict,
            StrOptions({"auto"}),
        ],
        "damping": [Interval(Real, 0, None, closed="left"), None],
        "scale": ["boolean"],
    }
    _not_of_every_fit = (
        "_covariances",
        "_degrees_of_freedom",
        "_noise_ratios",
        "_error_bars",
        "coefs_",
        "estimators_",
        "intercepts_",
        "linear_coef_",
        "log_evidence_",
        "n_effective_parameters_",
        "n_work_units_",
        "noise_std_",
    )
    _loss: str | None = None  # of the rows: "squared" or "cross_entropy"
    _cross_validates = False  # whether the output penalty may be "gcv"
    # Where alpha="auto" and the evidence does not choose.
    _default_penalties: Any = None

    def __init__(
        self,
        network,
        hidden_layer_sizes,
        *,
        activation,
        n_init,
        solver,
        alpha,
        damping,
        rank,
        scale,
        max_iter,
        tol,
        max_time,
        early_stopping,
        validation_fraction,
        n_iter_no_change,
        warm_start,
        dtype,
        device,
        verbose,
        random_state,
    ):
        self.network = network
        self.hidden_layer_sizes = hidden_layer_sizes
        self.activation = activation
        self.n_init = n_init
        self.solver = solver
        self.alpha = alpha
        self.damping = damping
        self.rank = rank
        self.scale = scale
        self.max_iter = max_iter
        self.tol = tol
        self.max_time = max_time
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.n_iter_no_change = n_iter_no_change
        self.warm_start = warm_start
        self.dtype = dtype
        self.device = device
        self.verbose = verbose
        self.random_state = random_state

    # -- the fit ----------------------------------------------------------------------

    def _fit(
        self, X, y, weight, *, n_samples, n_effective, validation, solver, data, rng
    ):
        """Fit to canonical rows with targets, or probabilities, y of shape (m, k)."""
        backend.mesh_of(self.device)  # a device that there is not is an error
        n_independent = 1.0
        by_width = isinstance(self.hidden_layer_sizes, str)
        if by_width and self._loss == "squared" and y.shape[1] > 1:
            n_independent = committee_plan.independent_targets(y, weight)
        plan = committee_plan.plan(self, *X.shape, self._n_values(y), n_independent)
        self._iterations = _MOST_STEPS if plan is None else _MOST_STEPS_BY_EVIDENCE
        if plan is None or self._loss != "squared":
            self._refuse_huber()
        has_units = self.scale or plan is not None
        self._feature_spread = 1.0 if has_units else feature_spread(X)
        if plan is not None:
            committee_fit.fit(
                self,
                plan,
                X,
                y,
                weight,
                n_effective=n_effective,
                validation=validation,
                data=data,
                rng=rng,
            )
            return

        scaling = self._units(X, y, weight)
        rows = self._rows(scaling.x(X), self._scaled_targets(y, scaling), weight)
        self._fit_network(
            rows,
            scaling,
            n_rows=int(np.count_nonzero(weight)),
            n_samples=n_samples,
            validation=validation,
            solver=solver,
            data=data,
            rng=rng,
        )

    def _refuse_huber(self):
        if self._is_robust():
            raise ValueError(
                "loss='huber' of the solver needs a committee: a regressor with network"
                "='mlp' and alpha='auto', or a number and hidden_layer_sizes='auto'. "
                f"Got alpha={self.alpha!r}, hidden_layer_sizes="
                f"{self.hidden_layer_sizes!r} and network={self.network!r} of "
                f"{type(self).__name__}."
            )

    def _units(self, X, y, weight):
        """Units of the fit of one network."""
        if self.scale:
            return Scaling.of(X, self._scaled_part(y), weight)
        return Scaling.none(X, self._scaled_part(y))

    def _fit_network(
        self,
        rows,
        scaling,
        *,
        example=None,
        n_rows,
        n_samples,
        validation,
        solver,
        data,
        rng,
    ):
        """Fit one network to rows in the units of a scaling.

        ``example`` has some of them in memory; if None, they all are.
        """
        from sklearn_gn.varpro.algorithms import ALGORITHMS
        from sklearn_gn.varpro.problem import Model
        from sklearn_gn.varpro.training import Settings, needed_bytes

        example = rows if example is None else example
        network = self._network_object(example.x.shape[1])
        settings = Settings(
            model=Model(network, self._loss),
            solver=solver,
            penalties=self._penalties(),
            damping=None if self.damping is None else self._cast(self.damping),
            rank=self.rank,
            tol=self._cast(self.tol),
            max_iter=self._most_iterations(),
            n_rows=n_rows,
            n_samples=self._cast(min(n_samples, float(np.finfo(self.dtype).max))),
            seed=np.int32(rng.randint(_LARGEST_INT)),
            mesh=backend.mesh_of(self.device),
        )
        self._check_devices_are_possible(solver)
        n_starts = 1 if self.n_init == "auto" else self.n_init
        starts = [
            self._start(settings.model, example, scaling, rng) for _ in range(n_starts)
        ]
        check_fits(
            needed_bytes(example, starts[0], settings),
            "Give dtype='float32', which halves that, or solver=GNvpro(batch_size=1024)"
            ", which computes with so many rows at a time.",
        )
        run = FitRun(
            self,
            solver.algorithm(ALGORITHMS),
            (rows, settings),
            starts,
            loss_scale=scaling.loss_scale,
            val_loss=self._validation_loss(validation, scaling, settings.model),
            validation=validation,
        )
        self._run(
            run,
            max_steps=self._most_iterations(),
            data=data,
            attributes=lambda net: {
                "_fitted": (settings.model, net, scaling),
                **self._prediction_attributes(),
            },
            set_fitted=lambda: self._set_fitted(run, rows, settings, scaling),
        )

    def _check_devices_are_possible(self, solver):
        mini_batches = solver.name not in ("gnvpro", "gn", "lbfgs_vpro")
        if mini_batches and backend.mesh_of(self.device) is not None:
            raise ValueError(
                f"device={self.device!r}: the mini-batches of solver={solver.name!r} "
                "are too small for several devices. Give one device, or solver="
                "'gnvpro'."
            )

    def _most_iterations(self):
        return self._iterations if self.max_iter == "auto" else self.max_iter

    def _n_linear_networks(self):
        members = [one.coefs_ for one in getattr(self, "estimators_", ())]
        linear = [coefs and not any(map(np.any, coefs)) for coefs in members]
        return int(np.sum(linear)), len(linear)

    def _default_solver(self):
        """Whether the solver is the default one, with its default settings."""
        solver = self._solver_object()
        default = type(solver)()
        given = {**solver.get_params(), "loss": "squared_error"}
        plain = given == {"loss": "squared_error", **default.get_params()}
        return solver.name == "gnvpro" and plain

    def _is_robust(self):
        """Whether the solver minimises Huber's loss."""
        return getattr(self._solver_object(), "loss", "squared_error") == "huber"

    def _network_object(self, n_features):
        from sklearn_gn.networks._base import checked_network

        network = self.network
        if isinstance(network, str):
            network = self._named_network(network, n_features)
        return checked_network(network)

    def _named_network(self, name, n_features):
        from sklearn_gn.networks import CNN, MLP, NeuralODE
        from sklearn_gn.networks._base import checked_sizes

        if name == "cnn":
            side = math.isqrt(n_features)
            if side * side != n_features:
                raise ValueError(
                    f"network='cnn' takes square images, X has {n_features} features. "
                    "Give network=CNN(image_shape) from sklearn_gn.networks."
                )
            return CNN((side, side))
        sizes = self.hidden_layer_sizes
        if isinstance(sizes, str):
            sizes = _DEEP
        sizes = checked_sizes("hidden_layer_sizes", sizes)
        if name == "neural_ode":
            return NeuralODE(width=sizes[0] if sizes else 8)
        activation = "tanh" if self.activation == "auto" else self.activation
        return MLP(sizes, activation if isinstance(activation, str) else (*activation,))

    def _penalties(self):
        """Penalties of the hidden layers and of the output layer."""
        from sklearn_gn.varpro.problem import Penalties

        alpha = self.alpha
        if isinstance(alpha, str) and alpha == "auto":
            alpha = self._default_penalties
        pair = (alpha, alpha) if isinstance(alpha, Real) else tuple(alpha)
        if len(pair) == 2 and _is_penalty(pair[0]):
            hidden, output = pair
            if self._cross_validates and isinstance(output, str) and output == "gcv":
                return Penalties(self._cast(hidden), None)
            if _is_penalty(output):
                return Penalties(self._cast(hidden), self._cast(output))
        gcv = "; the second one may be 'gcv'" if self._cross_validates else ""
        raise ValueError(
            "alpha must be 'auto', a finite number that is not negative, or a pair of "
            "such numbers, for the hidden layers and for the output layer"
            f"{gcv}; of committees, whose penalties the evidence chooses, also the "
            f"dict alpha_ of a fitted model. Got {alpha!r}."
        )

    def _rows(self, x, t, weight):
        # The dual of a Gauss-Newton matrix has a row for each of them.
        n_padded = backend.row_bucket(len(x), cheap=256)
        return Rows(
            *(self._cast(backend.pad_rows(a, n_padded)) for a in (x, t, weight))
        )

    def _start(self, model, rows, scaling, rng):
        from sklearn_gn.networks._base import initial_parameters, n_features
        from sklearn_gn.varpro.problem import Net

        network = model.network
        if self.warm_start and hasattr(self, "_fitted"):
            return self._previous(model, rows, scaling)
        with backend.scope(self.dtype, self.device):
            theta = backend.to_numpy(initial_parameters(network, rng, rows.x[:1]))
            theta = backend.map_leaves(self._cast, theta)
            width = n_features(network, theta, rows.x[:1])
        return Net(theta, self._cast(np.zeros((width + 1, self._n_values(rows.y)))))

    def _previous(self, model, rows, scaling):
        before, net, former = self._fitted
        n_inputs, n_values = rows.x.shape[1], self._n_values(rows.y)
        if before is None:
            raise ValueError(
                "warm_start=True continues with the committee of the previous fit, "
                "whose penalties were chosen; the parameters now ask for one network. "
                "Fit a new estimator."
            )
        if before.network != model.network or len(former.x_center) != n_inputs:
            raise ValueError(
                f"warm_start=True continues with {before.network!r} on "
                f"{len(former.x_center)} features, not with {model.network!r} on "
                f"{n_inputs}."
            )
        if net.output.shape[1] != n_values:  # only the features are those of before
            net = net._replace(output=np.zeros((len(net.output), n_values)))
        elif np.ndim(former.y_scale) or np.ndim(scaling.y_scale):
            # The units of single targets may be others by powers of ten.
            net = net._replace(output=net.output * (former.y_scale / scaling.y_scale))
        return backend.map_leaves(self._cast, net)

    def _split_rows(self, arrays, weight, rng, labels=None):
        """Set a random part of the distinct rows aside; and the weight of the rest."""
        train, val = map(
            np.sort,
            validation_split(len(weight), self.validation_fraction, rng, labels),
        )
        validation = *(a[val] for a in arrays), shares(weight[val])
        training = *(a[train] for a in arrays), shares(weight[train])
        return training, validation, float(weight[train].sum())

    # -- after the fit ----------------------------------------------------------------

    def _set_fitted(self, run, rows, settings, scaling):
        from sklearn_gn.networks._base import Network

        model, net = settings.model, run.best_net
        self._fitted = model, net, scaling
        network = model.network
        if isinstance(network, Network):
            coefs, intercepts = network.split(net.theta)
        else:
            coefs, intercepts = backend.leaves(net.theta), []
        self.coefs_ = [np.asarray(a, np.float64) for a in coefs]
        self.intercepts_ = [np.asarray(a, np.float64) for a in intercepts]
        output = net.output.astype(np.float64) * scaling.y_scale
        self.output_coef_ = output[:-1].T
        self.output_intercept_ = output[-1] + self._output_center(scaling)
        self._n_features_out = len(output) - 1
        penalties, loss = self._evaluated(net, rows, settings)
        self.alpha_ = float(penalties.hidden), float(penalties.output)
        self.alpha_method_ = "gcv" if settings.cross_validated else "fixed"
        self.loss_ = loss * scaling.loss_scale
        state = run.final_state
        spectrum = state.spectrum
        self.gram_spectrum_ = np.zeros(0) if spectrum is None else np.array(spectrum)
        self.n_work_units_ = float(state.work)

    def _evaluated(self, net, rows, settings):
        """Penalties and objective of the fitted network on all rows."""
        from sklearn_gn.varpro.chunked import cross_validated_penalty, objective

        model, penalties = settings.model, settings.penalties
        with backend.scope(self.dtype, self.device):
            if settings.cross_validated:
                output = cross_validated_penalty(
                    model, net.theta, rows, settings.n_samples
                )
                penalties = penalties._replace(output=self._cast(float(output)))
            return penalties, float(objective(model, net, rows, penalties))

    def _values(self, X):
        """Values of the output layer in scaled units, in float64."""
        model, net, scaling = self._fitted
        if model is None:
            with backend.one_blas_thread:  # bits do not depend on the cores
                return blockwise(partial(committee.mean_values, net), scaling.x(X))

        from sklearn_gn.varpro.problem import predict_values

        values = self._in_batches(lambda x: predict_values(model, net, x), scaling.x(X))
        return extremes.numbers(values, model.network)

    def transform(self, X: ArrayLike) -> Array:
        """Features, the inputs of the output layer.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Samples.

        Returns
        -------
        features : ndarray of shape (n_samples, n_features_out)
            Values of the last hidden layer; those of all members side by side.
        """
        check_is_fitted(self)
        X = validate_data(self, X, reset=False, dtype=np.float64)
        model, net, scaling = self._fitted
        if model is None:
            return blockwise(partial(committee.hidden_features, net), scaling.x(X))

        from sklearn_gn.varpro.problem import predict_features

        return self._in_batches(
            lambda x: predict_features(model, net.theta, x), scaling.x(X)
        )


def blockwise(function, x, block_rows=_BLOCK_ROWS):
    """A function of rows, block by block: what it needs stays small."""
    parts = [function(x[block]) for block in gen_batches(len(x), block_rows)]
    return np.concatenate(parts)


def _is_penalty(value):
    return isinstance(value, Real) and 0 <= value < math.inf
