"""What VarProNetRegressor and VarProNetClassifier share: parameters, and the fit."""

from __future__ import annotations

import math
import time
from functools import partial
from numbers import Integral, Real
from typing import Any

import numpy as np
from sklearn.base import (
    BaseEstimator,
    ClassNamePrefixFeaturesOutMixin,
    TransformerMixin,
    is_classifier,
)
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import HasMethods, Interval, StrOptions
from sklearn.utils.validation import check_is_fitted

from sklearn_gn._typing import Array, ArrayLike
from sklearn_gn.arrays import backend, extremes
from sklearn_gn.base import GaussNewtonEstimator, cross_entropy
from sklearn_gn.bayes.laplace import Deferred
from sklearn_gn.data.chunks import check_on_one_device, first_chunk, labels_of
from sklearn_gn.data.rows import (
    canonical_rows,
    check_fits,
    check_sample_weight,
    chunks_of,
    feature_spread,
    shares,
    validate_data,
    validation_split,
)
from sklearn_gn.data.rows_source import SAMPLE_NUMBERS, CheckedRows, blockwise
from sklearn_gn.data.units import Units
from sklearn_gn.optim.solver import Rows, has_mini_batches
from sklearn_gn.runtime.fit_loop import FitRun
from sklearn_gn.varpro import committee
from sklearn_gn.varpro.members import hidden_features, mean_values

_MOST_STEPS = 100  # of one network, where max_iter is "auto"
_MOST_STEPS_BY_EVIDENCE = 3000  # the same of committees, whose steps take milliseconds
_DEEP = (64, 64)  # hidden layers where the evidence does not choose the penalties


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
        "max_iter": [
            *GaussNewtonEstimator._parameter_constraints["max_iter"],
            StrOptions({"auto"}),
        ],
        "scale": ["boolean"],
    }
    _not_of_every_fit = (
        "_degrees_of_freedom",
        "_noise_scale",
        "_error_bars",
        "_want_of_penalties",
        "coefs_",
        "estimators_",
        "intercepts_",
        "linear_coef_",
        "log_evidence_",
        "n_effective_parameters_",
        "noise_std_",
    )
    _loss: str | None = None  # of the rows: "squared" or "cross_entropy"
    # Where alpha="auto" and the evidence does not choose.
    _default_penalties: Any = None

    def _fit_rows(self, X, y, weight, data, validation, factors=None):
        """Fit to checked rows in memory: a committee, or one network.

        y has the targets, (n, n_targets), or the numbers of the classes, (n, 1);
        ``data`` is what callbacks see, X and y as given, ``validation`` X, y and
        weights that sum to one, or None, and ``factors`` multiply the odds of the
        classes.
        """
        # 1. Distinct rows, of which some may be set aside.
        began, rng = time.perf_counter(), check_random_state(self.random_state)
        of_classes = factors is not None
        if of_classes:
            weight = np.where(factors[y[:, 0]] > 0, weight, 0)
            factors = np.where(factors > 0, factors, 1)
        n_effective = float(weight.sum())
        distinct = X[:, Units.varying(X, y, weight)]
        kept, weight = canonical_rows(distinct, y.astype(np.float64), weight)
        X, y = X[kept], y[kept]
        if self.early_stopping and validation is None:
            labels = y[:, 0] if of_classes else None
            parts = validation_split(len(X), self.validation_fraction, rng, labels)
            train, val = map(np.sort, parts)
            seen = y[val, 0] if of_classes else y[val]
            validation = X[val], seen, shares(weight[val])
            X, y, weight = X[train], y[train], weight[train]
            n_effective *= float(weight.sum())
            weight = shares(weight)
        words = {"validation": validation, "data": data, "began": began}
        # 2. The default is a committee.
        if of_classes:
            y = np.eye(len(self.classes_))[y[:, 0].astype(int)]
        plan = committee.plan(self, X, y, weight)
        if plan is not None:
            self._iterations, self._feature_spread = _MOST_STEPS_BY_EVIDENCE, 1.0
            committee.fit(self, plan, X, y, weight, n_effective, factors, rng, **words)
            return
        # 3. Other settings ask for one network.
        if of_classes:
            weight, n_effective = shares(weight * (y @ factors)), len(X)
            if validation is not None:
                X_val, code, own = validation
                own = shares(own * factors[code.astype(int)])
                words["validation"] = X_val, code, own
        scaling = self._units(X, y, weight)
        # The dual of a Gauss-Newton matrix has a row for each of them.
        n_padded = backend.row_bucket(len(X), cheap=256)
        rows = scaling.x(X), scaling.y(y), weight
        rows = Rows(*(self._cast(backend.pad_rows(a, n_padded)) for a in rows))
        n_rows = np.count_nonzero(weight)
        self._fit_network(X, rows, rows, scaling, rng, n_rows, n_effective, **words)

    def _units(self, X, y, weight, each_target=False):
        """Units of the fit; the values of classes have none."""
        of_classes = self._loss == "cross_entropy"
        if not self.scale:
            return Units.none(X, y[:, :1] if of_classes else y)
        units = Units.of(X, y, weight, each_target=each_target, limited=True)
        if of_classes:
            units = units._replace(y_center=np.zeros(1), y_scale=1.0)
        return units

    def _fit_network(self, X, rows, example, scaling, rng, n_rows, n_samples, **words):
        """Fit one network to rows, X among them, in the units of a scaling."""
        from sklearn_gn.varpro.baselines import ALGORITHMS
        from sklearn_gn.varpro.problem import Model
        from sklearn_gn.varpro.training import Settings, batch_size

        solver = self._solver_object()
        if getattr(solver, "loss", None) == "huber":
            raise ValueError(
                "loss='huber' of the solver needs a committee: a regressor with network"
                "='mlp' and alpha='auto', or a number and hidden_layer_sizes='auto'. "
                f"Got alpha={self.alpha!r}, hidden_layer_sizes="
                f"{self.hidden_layer_sizes!r} and network={self.network!r} of "
                f"{type(self).__name__}."
            )
        self._iterations = _MOST_STEPS
        self._feature_spread = 1.0 if self.scale else feature_spread(X)
        network = self._network_object(example.x.shape[1])
        settings = Settings(
            model=Model(network, self._loss),
            solver=solver,
            penalties=self._penalties(),
            damping=None if self.damping is None else self._cast(self.damping),
            rank=self.rank,
            tol=self._cast(self.tol),
            max_iter=self._most_iterations(),
            n_levels=getattr(network, "n_levels", 1),
            n_rows=int(n_rows),
            seed=np.int32(rng.randint(np.iinfo(np.int32).max)),
            mesh=backend.mesh_of(self.device),
        )
        if settings.mesh is not None and has_mini_batches(solver):
            raise ValueError(
                f"device={self.device!r}: the mini-batches of solver={solver.name!r} "
                "are too small for several devices. Give one device, or solver="
                "'gnvpro'."
            )
        starts = [
            self._start(settings.model, example, scaling, rng)
            for _ in range(1 if self.n_init == "auto" else self.n_init)
        ]
        # Features, their SVD, and those of a trial; of layers inside, about as many
        # numbers as they have biases, which wait for the backward pass.
        theta, output = starts[0]
        inside = sum(a.shape[-1] for a in backend.leaves(theta) if a.ndim)
        numbers = batch_size(settings) or len(example.x)
        numbers *= 4 * sum(output.shape) + 2 * inside
        check_fits(
            settings.tol.itemsize * numbers,
            "Give dtype='float32', which halves that, or solver=GNvpro(batch_size=1024)"
            ", which computes with so many rows at a time.",
        )
        self._run_from(
            starts,
            solver.algorithm(ALGORITHMS),
            (rows, settings),
            (settings.model, scaling),
            partial(self._network_values, settings.model),
            lambda run: self._set_fitted(run, rows, settings, scaling, n_samples),
            **words,
        )

    def _run_from(self, starts, algorithm, problem, fitted, values_of, finish, **words):
        """Run an algorithm on a problem and set the fitted attributes.

        ``fitted`` is the model, None for a committee, and the scaling; ``values_of``
        maps a network and scaled rows to the values of the output layer, and ``finish``
        sets what a run has found. The words are ``validation``, ``data``, and when the
        fit ``began``.
        """
        (model, scaling), validation, val_loss = fitted, words["validation"], None
        of_classes = is_classifier(self)
        if validation is not None:
            x, y, weight = validation
            x, y = scaling.x(x), y.astype(int) if of_classes else scaling.y(y)

            def val_loss(net):
                values = values_of(net, x)
                if of_classes:
                    return cross_entropy(values, y, weight)
                return 0.5 * float(weight @ np.sum((values - y) ** 2, axis=1))

        run = FitRun(
            self,
            algorithm,
            *problem,
            starts,
            loss_scale=scaling.loss_scale,
            val_loss=val_loss,
            validation=validation,
            began=words["began"],
        )
        name = "classes_" if of_classes else "_single_target"
        self._run(
            run,
            max_steps=self._most_iterations(),
            data=words["data"],
            attributes=lambda net: {
                "_fitted": (model, net, scaling),
                name: getattr(self, name),
            },
            set_fitted=lambda: finish(run),
        )

    def _start(self, model, rows, scaling, rng):
        """A random network, or the former fit's."""
        from sklearn_gn.networks._base import initial_parameters, n_features
        from sklearn_gn.varpro.problem import Net

        n_inputs, n_values = rows.x.shape[1], rows.y.shape[1]
        if is_classifier(self) and n_values == 2:  # one value stands for two classes
            n_values = 1
        if not (self.warm_start and hasattr(self, "_fitted")):
            with backend.scope(self.dtype, self.device):
                theta = initial_parameters(model.network, rng, rows.x[:1])
                theta = backend.map_leaves(self._cast, backend.to_numpy(theta))
                width = n_features(model.network, theta, rows.x[:1])
            return Net(theta, self._cast(np.zeros((width + 1, n_values))))
        before, net, former = self._fitted
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

    # -- what the parameters ask for --------------------------------------------------

    def _most_iterations(self):
        return self._iterations if self.max_iter == "auto" else self.max_iter

    def _network_object(self, n_features):
        from sklearn_gn.networks import CNN, MLP, NeuralODE
        from sklearn_gn.networks._base import checked_network, checked_sizes

        if not isinstance(self.network, str):
            return checked_network(self.network)
        if self.network == "cnn":
            side = math.isqrt(n_features)
            if side * side != n_features:
                raise ValueError(
                    f"network='cnn' takes square images, X has {n_features} features. "
                    "Give network=CNN(image_shape) from sklearn_gn.networks."
                )
            return checked_network(CNN((side, side)))
        sizes = self.hidden_layer_sizes
        sizes = _DEEP if isinstance(sizes, str) else sizes
        sizes = checked_sizes("hidden_layer_sizes", sizes)
        if self.network == "neural_ode":
            return checked_network(NeuralODE(width=sizes[0] if sizes else 8))
        names = "tanh" if self.activation == "auto" else self.activation
        names = names if isinstance(names, str) else (*names,)
        return checked_network(MLP(sizes, names))

    def _penalties(self):
        """Penalties of the hidden layers and of the output layer."""
        from sklearn_gn.varpro.problem import Penalties

        alpha = self.alpha
        if isinstance(alpha, str) and alpha == "auto":
            alpha = self._default_penalties
        pair = (alpha, alpha) if isinstance(alpha, Real) else tuple(alpha)
        are_finite = all(isinstance(a, Real) and 0 <= a < math.inf for a in pair)
        if len(pair) == 2 and are_finite:
            return Penalties(*map(self._cast, pair))
        raise ValueError(
            "alpha must be 'auto', a finite number that is not negative, or a pair of "
            "such numbers, for the hidden layers and for the output layer; of "
            "committees, whose penalties the evidence chooses, also the "
            f"dict alpha_ of a fitted model. Got {alpha!r}."
        )

    # -- the fit of rows in chunks ----------------------------------------------------

    def _chunks_of(self, X, y, sample_weight, X_val, y_std=None):
        """Chunks of arrays on disk; None of arrays that are fitted as a whole."""
        chunks = chunks_of(X, y, sample_weight)
        if chunks is not None and not (
            y_std is not None
            or (self.early_stopping and X_val is None)
            or getattr(self, "class_weight", None) == "balanced"
            or self._takes_all_rows(self._solver_object())
            or backend.mesh_of(self.device) is not None
        ):
            return chunks
        check_fits(
            X,
            "fit_chunks reads rows piece by piece, and so does fit a dask array or "
            "a large memory-mapped one.",
        )
        return None

    @staticmethod
    def _takes_all_rows(solver):
        """Whether a solver needs all rows at once."""
        size = getattr(solver, "batch_size", "auto")
        return size is None and not has_mini_batches(solver)

    def _fit_chunks(self, chunks, classes, X_val, y_val):
        """Fit to rows in chunks: as a whole where they are few, or else in batches."""
        # 1. The chunks, and a sample of their distinct rows.
        began, solver = time.perf_counter(), self._solver_object()
        size = getattr(solver, "batch_size", 1)
        check_on_one_device(self)
        first = [array[:1] for array in first_chunk(self, chunks, X_val)[:2]]
        if is_classifier(self):
            self._check_class_weight()
            labels = labels_of(chunks) if classes is None else np.asarray(classes)
            previous = self.warm_start and hasattr(self, "_fitted")
            self._find_classes(labels, np.ones(len(labels)), previous=previous)
            self._check_data(*first, reset=True)
            chunks, n_targets = CheckedRows.of_classes(chunks, self), 1
        else:
            _, y, *_ = self._checked_rows(*first)
            n_targets = y.shape[1]
            chunks = CheckedRows(chunks, self.n_features_in_, n_targets)
        validation = self._check_validation(X_val, y_val, n_targets)
        most = SAMPLE_NUMBERS // (self.n_features_in_ + n_targets)
        found = chunks.survey(max(most, size if isinstance(size, Integral) else 1))
        _, weight, X, y, is_complete = found.sample
        # 2. Few rows are fitted as in memory.
        if is_complete:
            factors = None
            given = y[:, 0] if getattr(self, "_single_target", False) else y
            if is_classifier(self):
                y = y.astype(int)
                factors, given = self.class_weight or {}, self.classes_[y[:, 0]]
                factors = np.array([factors.get(c, 1.0) for c in self.classes_])
                # The weights of chunks hold the factors.
                weight = weight / np.where(factors > 0, factors, 1)[y[:, 0]]
            weight = check_sample_weight(weight, X)
            data = {"X": X, "y": given, "metadata": {"sample_weight": weight}}
            self._fit_rows(X, y, weight, data, validation, factors)
            checks = self._row_checks
            if checks is not None:  # it numbers the rows of the sample
                self._row_checks = checks.renumbered(found.sample.number)
            return
        # 3. Many are fitted by one network.
        if self._takes_all_rows(solver):
            raise ValueError(
                f"solver={self.solver!r} needs all rows at once, and "
                f"{found.n_rows:,} are too many. Chunks need a solver with batches, "
                "such as 'gnvpro', or a batch_size."
            )
        from sklearn_gn.varpro.training import ChunkedRows

        def targets(y):
            code = y.ravel().astype(int)
            return np.eye(len(self.classes_))[code] if is_classifier(self) else y

        def scaled(X, y):
            return scaling.x(X), scaling.y(targets(y))

        scaling = self._units(X, targets(y), weight / weight.sum())
        draw = partial(chunks.survey, len(X))
        rows = ChunkedRows(chunks, scaled, found, draw, self.dtype)
        self._fit_network(
            *(X, rows, rows.large_batch, scaling),
            check_random_state(self.random_state),
            *(found.n_rows, found.total),
            validation=validation,
            data=dict.fromkeys(("X", "y", "metadata")),
            began=began,
        )
        self._n_rows = found.n_rows

    # -- after the fit ----------------------------------------------------------------

    def _set_fitted(self, run, rows, settings, scaling, n_samples):
        """Set the fitted attributes of one network."""
        from sklearn_gn.networks._base import Network
        from sklearn_gn.varpro.training import evaluated

        model, net, state = settings.model, run.best_net, run.final_state
        self._fitted = model, net, scaling
        if isinstance(model.network, Network):
            coefs, intercepts = model.network.split(net.theta)
        else:
            coefs, intercepts = backend.leaves(net.theta), []
        self.coefs_ = [np.asarray(a, np.float64) for a in coefs]
        self.intercepts_ = [np.asarray(a, np.float64) for a in intercepts]
        output = net.output.astype(np.float64) * scaling.y_scale
        self.output_coef_ = output[:-1].T
        self.output_intercept_ = output[-1] + scaling.y_center
        self._n_features_out = len(output) - 1
        self.alpha_ = tuple(map(float, settings.penalties))
        self.alpha_method_ = "fixed"
        self.gram_spectrum_ = np.zeros(0)
        if state.spectrum is not None:
            self.gram_spectrum_ = np.array(state.spectrum)
        with backend.scope(self.dtype, self.device):
            _, loss = evaluated(net, rows, settings, False)
            self.loss_ = loss * scaling.loss_scale
            if not is_classifier(self):
                from sklearn_gn.varpro.gnvpro import ErrorBars

                z, some = None, rows
                if not isinstance(rows, Rows):  # they come in chunks
                    z, some = backend.to_numpy(rows.least_squares(model, net))
                given = some, settings.penalties, n_samples, z
                self._error_bars = Deferred(ErrorBars.of, model, net, *given)

    def _share_of_linear(self):
        network, *others = getattr(self, "estimators_", [None])
        simple = [m for m in others if not (m.coefs_ or hasattr(m, "length_scales_"))]
        return float(sum(np.mean(m.share_) for m in simple if network.coefs_))

    def _values(self, X):
        """Values of the output layer in scaled units, in float64."""
        model, net, scaling = self._fitted
        if model is None:
            with backend.one_blas_thread():  # bits do not depend on the cores
                return blockwise(partial(mean_values, net), scaling.x(X))
        values = self._network_values(model, net, scaling.x(X))
        return extremes.numbers(values, model.network)

    def _network_values(self, model, net, x):
        """Values of one network at scaled rows."""
        from sklearn_gn.varpro.problem import predict_values

        return self._in_batches(partial(predict_values, model, net), x)

    def to_sklearn(self) -> BaseEstimator:
        """Return a fitted estimator of scikit-learn, which predicts without JAX.

        A single network becomes a pipeline of a ``StandardScaler`` and an
        ``MLPRegressor`` or ``MLPClassifier``, a committee a ``VotingRegressor``, for
        each target, or a ``VotingClassifier`` of such pipelines. Predictions are the
        same to rounding errors.

        Returns
        -------
        model : Pipeline, VotingRegressor, MultiOutputRegressor or VotingClassifier
            It shares no memory with this estimator.

        Raises
        ------
        ValueError
            If scikit-learn does not have such a network: other kinds than "mlp", other
            activations than "relu", "tanh", "sigmoid" and "identity", or several.
        """
        from sklearn_gn.varpro.export import to_sklearn

        check_is_fitted(self)
        return to_sklearn(self)

    def transform(self, X: ArrayLike) -> Array:
        """Features, the inputs of the output layer.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Samples.

        Returns
        -------
        features : ndarray of shape (n_samples, n_features_out)
            Values of the last hidden layer; the features of all members side by side.
        """
        check_is_fitted(self)
        X = validate_data(self, X, reset=False, dtype=np.float64)
        model, net, scaling = self._fitted
        if model is None:
            return blockwise(partial(hidden_features, net), scaling.x(X))

        from sklearn_gn.varpro.problem import features

        of_rows = partial(features, model, net.theta)
        return self._in_batches(of_rows, scaling.x(X))[:, :-1]
