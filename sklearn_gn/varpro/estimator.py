"""VarProNetRegressor and VarProNetClassifier: networks by variable projection."""

import math
from numbers import Integral, Real

import numpy as np
from sklearn.base import (
    ClassNamePrefixFeaturesOutMixin,
    MultiOutputMixin,
    RegressorMixin,
    TransformerMixin,
    _fit_context,
)
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import HasMethods, Interval, StrOptions
from sklearn.utils.validation import check_is_fitted, validate_data

from sklearn_gn.core import backend
from sklearn_gn.core.classifier import SoftmaxClassifier, cross_entropy
from sklearn_gn.core.data import canonical_rows, check_sample_weight, validation_split
from sklearn_gn.core.estimator import GaussNewtonEstimator
from sklearn_gn.core.fit_loop import FitRun
from sklearn_gn.core.scaling import Scaling
from sklearn_gn.core.solver import Rows
from sklearn_gn.networks import CNN, MLP, NeuralODE
from sklearn_gn.networks._base import (
    Network,
    checked_network,
    initial_parameters,
    n_features,
)
from sklearn_gn.solvers import NETWORK_CLASSIFIER_SOLVERS, NETWORK_REGRESSOR_SOLVERS
from sklearn_gn.varpro.algorithms import ALGORITHMS
from sklearn_gn.varpro.inner import cross_validated_penalty
from sklearn_gn.varpro.posterior import posterior, predictive_variance
from sklearn_gn.varpro.problem import (
    Model,
    Net,
    Penalties,
    objective,
    predict_features,
    predict_values,
)
from sklearn_gn.varpro.training import Settings

_JOINT_WEIGHTS = 1200  # weights up to which the error bars take all of them
_JACOBIAN_FLOATS = 2**27
_FEW_ROWS = 8192  # up to which "auto" batches are all rows
_BATCH_ROWS = 2048
_LEARNING_RATES = {"adam": 1e-3, "sgd": 1e-2, "fgn": 0.1}
_LARGEST_INT = np.iinfo(np.int32).max


class _VarProNet(
    ClassNamePrefixFeaturesOutMixin, TransformerMixin, GaussNewtonEstimator
):
    """What regressor and classifier share."""

    _parameter_constraints = {
        **GaussNewtonEstimator._parameter_constraints,
        "network": [
            StrOptions({"mlp", "neural_ode", "cnn"}),
            HasMethods(["init", "apply"]),
        ],
        "hidden_layer_sizes": [
            "array-like",
            Interval(Integral, 1, None, closed="left"),
        ],
        "activation": [str, "array-like"],
        "curvature_solver": [StrOptions({"auto", "krylov", "dense"})],
        "rank": [Interval(Integral, 1, None, closed="left")],
        "damping": [Interval(Real, 0, None, closed="left"), None],
        "alpha": [Interval(Real, 0, None, closed="left")],
        "alpha_output": [Interval(Real, 0, None, closed="left")],
        "batch_size": [
            StrOptions({"auto"}),
            Interval(Integral, 1, None, closed="left"),
            None,
        ],
        "iterations_per_batch": [Interval(Integral, 1, None, closed="left")],
        "learning_rate": [Interval(Real, 0, None, closed="neither"), None],
        "scale": ["boolean"],
    }

    def __init__(
        self,
        network,
        hidden_layer_sizes,
        *,
        activation,
        solver,
        curvature_solver,
        rank,
        damping,
        alpha,
        alpha_output,
        batch_size,
        iterations_per_batch,
        learning_rate,
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
        self.solver = solver
        self.curvature_solver = curvature_solver
        self.rank = rank
        self.damping = damping
        self.alpha = alpha
        self.alpha_output = alpha_output
        self.batch_size = batch_size
        self.iterations_per_batch = iterations_per_batch
        self.learning_rate = learning_rate
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

    def _fit(self, X, y, weight, *, n_samples, validation, solver, data, rng):
        """Fit to canonical rows with targets, or probabilities, y of shape (m, k)."""
        network = self._network_object(X.shape[1])
        scaling = (
            Scaling.of(X, self._scaled_part(y), weight)
            if self.scale
            else Scaling.none(X, self._scaled_part(y))
        )
        t = self._scaled_targets(y, scaling)
        rows = self._rows(scaling.x(X), t, weight)
        settings = self._settings(network, np.count_nonzero(weight), n_samples, rng)
        start = self._start(settings.model, rows, rng)
        run = FitRun(
            self,
            solver,
            (rows, settings),
            [start],
            loss_scale=scaling.loss_scale,
            val_loss=self._validation_loss(validation, scaling, settings.model),
        )
        self._run(
            run,
            max_steps=self.max_iter,
            data=data,
            attributes=lambda net: {
                "_fitted": (settings.model, net, scaling),
                **self._prediction_attributes(),
            },
        )
        self._set_fitted(run, rows, settings, scaling)

    def _network_object(self, n_features):
        network = self.network
        if isinstance(network, str):
            network = self._named_network(network, n_features)
        return checked_network(network)

    def _named_network(self, name, n_features):
        if name == "mlp":
            return MLP(_as_tuple(self.hidden_layer_sizes), _as_tuple(self.activation))
        if name == "neural_ode":
            sizes = np.atleast_1d(self.hidden_layer_sizes)
            return NeuralODE(width=int(sizes[0]) if len(sizes) else 8)
        side = math.isqrt(n_features)
        if side * side != n_features:
            raise ValueError(
                f"network='cnn' takes square images, X has {n_features} features. Give "
                "network=CNN(image_shape) from sklearn_gn.networks."
            )
        return CNN((side, side))

    def _rows(self, x, t, weight):
        n_padded = backend.row_bucket(len(x))
        return Rows(
            *(self._cast(backend.pad_rows(a, n_padded)) for a in (x, t, weight))
        )

    def _batch_rows(self, n_rows):
        """Rows of a batch; 0: as many as the solver takes by itself."""
        if self.batch_size != "auto":
            return self.batch_size or 0
        by_itself = n_rows <= _FEW_ROWS or self.solver not in ("gnvpro", "gn")
        return 0 if by_itself else _BATCH_ROWS

    def _settings(self, network, n_rows, n_samples, rng):
        gcv = isinstance(self.alpha_output, str)
        rate = self.learning_rate or _LEARNING_RATES.get(self.solver, 1.0)
        return Settings(
            model=Model(network, self._loss),
            curvature_solver=self.curvature_solver,
            alpha=self._cast(self.alpha),
            alpha_output=self._cast(0 if gcv else self.alpha_output),
            gcv=gcv,
            n_samples=self._cast(n_samples),
            damping=None if self.damping is None else self._cast(self.damping),
            rank=np.int32(min(self.rank, _LARGEST_INT)),
            tol=self._cast(self.tol),
            max_iter=np.int32(min(self.max_iter, _LARGEST_INT)),
            learning_rate=self._cast(rate),
            batch_size=np.int32(self._batch_rows(n_rows)),
            iterations_per_batch=np.int32(self.iterations_per_batch),
            seed=np.int32(rng.randint(_LARGEST_INT)),
        )

    def _start(self, model, rows, rng):
        network, n_inputs = model.network, rows.x.shape[1]
        if self.warm_start and hasattr(self, "_fitted"):
            return self._previous(model, n_inputs)
        with backend.scope(self.dtype, self.device):
            theta = backend.to_numpy(initial_parameters(network, rng, rows.x[:1]))
            theta = backend.map_leaves(self._cast, theta)
            width = n_features(network, theta, rows.x[:1])
        return Net(theta, self._cast(np.zeros((width + 1, self._n_values(rows)))))

    def _previous(self, model, n_inputs):
        before, net, scaling = self._fitted
        if before.network != model.network or len(scaling.x_center) != n_inputs:
            raise ValueError(
                f"warm_start=True continues with {before.network!r} on "
                f"{len(scaling.x_center)} features, not with {model.network!r} on "
                f"{n_inputs}."
            )
        return backend.map_leaves(self._cast, net)

    def _split_rows(self, arrays, weight, rng, labels=None):
        """Set a random part of the distinct rows aside for validation."""
        train, val = map(
            np.sort,
            validation_split(len(weight), self.validation_fraction, rng, labels),
        )
        validation = *(a[val] for a in arrays), weight[val] / weight[val].sum()
        training = *(a[train] for a in arrays), weight[train] / weight[train].sum()
        return training, validation

    # -- after the fit ----------------------------------------------------------------

    def _set_fitted(self, run, rows, settings, scaling):
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
        with backend.scope(self.dtype, self.device):
            alpha_output = settings.alpha_output
            if settings.gcv:
                alpha_output = cross_validated_penalty(
                    model, net.theta, rows, settings.n_samples
                )
        self.alpha_output_ = float(alpha_output)
        penalties = Penalties(settings.alpha, self._cast(self.alpha_output_))
        with backend.scope(self.dtype, self.device):
            loss = float(objective(model, net, rows, penalties))
        self.loss_ = loss * scaling.loss_scale
        state = run.final_state
        spectrum = state.spectrum
        self.gram_spectrum_ = np.zeros(0) if spectrum is None else np.array(spectrum)
        self.n_work_units_ = float(state.work)

    def _values(self, X):
        """Values of the output layer in scaled units, in float64."""
        model, net, scaling = self._fitted
        return self._in_batches(lambda x: predict_values(model, net, x), scaling.x(X))

    def transform(self, X):
        """Features, the inputs of the output layer.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Samples.

        Returns
        -------
        features : ndarray of shape (n_samples, n_features_out)
            Values of the last hidden layer.
        """
        check_is_fitted(self)
        X = validate_data(self, X, reset=False, dtype=np.float64)
        model, net, scaling = self._fitted
        return self._in_batches(
            lambda x: predict_features(model, net.theta, x), scaling.x(X)
        )


def _as_tuple(value):
    return value if isinstance(value, str | Integral) else tuple(value)


class VarProNetRegressor(MultiOutputMixin, RegressorMixin, _VarProNet):
    r"""Deep network regression by variable projection.

    The network ends in an affine layer W, which is a linear least-squares problem. It
    is solved for every choice of the other weights :math:`\theta`, and what is left,

    .. math::
        \Phi(\theta) = \min_W \frac{1}{2 \sum_i v_i} \sum_i v_i
        |W z(x_i; \theta) - y_i|^2 + \frac{\alpha_{out}}{2} |W|^2
        + \frac{\alpha}{2} |B \theta|^2,

    is minimised by a Gauss-Newton trust-region method (GNvpro) [1]_: a handful of
    iterations, and no learning rate. Made for surrogate models: smooth functions of up
    to hundreds of inputs, with many outputs, known at hundreds or thousands of points.

    Parameters
    ----------
    network : {"mlp", "neural_ode", "cnn"} or object, default="mlp"
        - "mlp": fully connected layers of ``hidden_layer_sizes``.
        - "neural_ode": an antisymmetric neural ODE as wide as the first of these.
        - "cnn": a convolutional network; rows of X are square images.
        - any object with ``init(key, x)`` and ``apply(parameters, x)``, such as those
          of :mod:`sklearn_gn.networks` or a Flax module: what ``apply`` returns are the
          features.

    hidden_layer_sizes : tuple of int, default=(64, 64)
        Widths of the hidden layers; without any, the features are the inputs.

    activation : str or tuple of str, default="tanh"
        Of the hidden layers, one for all or one each: "tanh", "relu", "sigmoid",
        "softplus", "silu", "gelu", "sin" or "identity".

    solver : {"gnvpro", "lbfgs_vpro", "gn", "adam", "sgd"}, default="gnvpro"
        All minimise the same objective from the same weights, with the output layer
        that is optimal at first: for all rows, for the first batch, or for 2048 rows
        where mini-batches are taken.

        - "gnvpro": Gauss-Newton variable projection.
        - "lbfgs_vpro": L-BFGS on the reduced objective.
        - "gn": Gauss-Newton in all weights, in a Krylov space.
        - "adam", "sgd": mini-batches; SGD has Nesterov's momentum 0.9.

    curvature_solver : {"auto", "krylov", "dense"}, default="auto"
        How "gnvpro" meets the Gauss-Newton matrix.

        - "krylov": through ``rank`` products with it.
        - "dense": formed and diagonalised, or its dual where there are fewer rows than
          parameters.
        - "auto": dense while it is small.

    rank : int, default=20
        Dimension of the Krylov space.

    damping : float or None, default=None
        Shift added to the Gauss-Newton matrix. None: as the trust region says.

    alpha : float, default=0.01
        Penalty of the hidden weights, in scaled units. The default is for measured
        data; for simulations without noise take 1e-8 or so.

    alpha_output : float or "gcv", default=0.0001
        Penalty of the output layer, in scaled units; "gcv" takes the one of least
        generalised cross-validation score in every iteration.

    batch_size : int, "auto" or None, default="auto"
        Rows of a batch. None: all, and 64 for "adam" and "sgd". "auto" is the same, but
        2048 for "gnvpro" and "gn" where more than 8192 different rows are fitted.

    iterations_per_batch : int, default=3
        Iterations for which "gnvpro", "gn" and "lbfgs_vpro" keep a batch. The output
        layer that they return, and the loss in the log, are those of all rows, which
        judge when 20 work units are spent, at first more often, and at the end.

    learning_rate : float or None, default=None
        Of the mini-batch solvers; None is 1e-3 for "adam" and 1e-2 for "sgd".

    scale : bool, default=True
        Whether to bring features to mean 0 and variance 1, and targets to mean 0 and a
        common size, during the fit.

    max_iter : int, default=100
        Most iterations, shared by the levels of the network; epochs of the mini-batch
        solvers.

    tol : float, default=0.001
        A fit ends when in three iterations in a row, with batches in a whole pass over
        the rows, the loss has not fallen by more than ``tol`` times its size; with
        mini-batches, when in ten epochs in a row it has not fallen that much below its
        lowest. 0: not for this reason.

    max_time : float or None, default=None
        Seconds after which the fit stops, compilation included.

    early_stopping : bool, default=False
        Stop when the loss on validation data no longer falls, and return the iterate
        with the lowest. The data are ``X_val`` and ``y_val`` of ``fit``, or else a
        random part of the training data.

    validation_fraction : float, default=0.1
        Share of the rows set aside where ``early_stopping`` has no ``X_val``.

    n_iter_no_change : int, default=10
        Iterations without improvement that ``early_stopping`` waits for; with batches,
        those after which all rows judged.

    warm_start : bool, default=False
        Start from the network of the previous fit.

    dtype : {"float64", "float32"}, default="float64"
        Precision of the fit.

    device : str or None, default=None
        Where to compute: "cpu", "gpu", or None for JAX's default.

    verbose : int, default=0
        1 prints a line a second, 2 one an iteration.

    random_state : int, RandomState instance or None, default=None
        Seed of weights, batches and validation split. The draws depend on the weighted
        data set, not on the order or the multiplicity of its rows.

    Attributes
    ----------
    coefs_ : list of ndarray
        Weights of the hidden layers, for scaled features.

    intercepts_ : list of ndarray
        Biases of the hidden layers.

    output_coef_ : ndarray of shape (n_targets, n_features_out)
        Weights of the output layer, in units of y.

    output_intercept_ : ndarray of shape (n_targets,)
        Constants of the output layer, in units of y.

    alpha_output_ : float
        The penalty of the output layer at the end.

    gram_spectrum_ : ndarray
        Eigenvalues of the reduced Gauss-Newton matrix of the last iteration,
        descending; Ritz values where it was not formed. Empty for "lbfgs_vpro" and the
        mini-batch solvers.

    n_work_units_ : float
        Passes over all rows, forward or backward; a product with the Jacobian or its
        transpose is one.

    convergence_log_ : dict of ndarrays of shape (`n_iter_`,)
        ``iteration``, ``time`` (seconds), ``loss``, ``val_loss``, ``grad_norm``,
        ``step_size``, ``damping``, ``gain_ratio``, ``inner_iterations``,
        ``work_units`` so far, ``level``, and ``judged``: False where ``loss`` and
        ``val_loss`` are those of an earlier row. One row an iteration. A column that
        means nothing to the solver is NaN.

    loss_ : float
        Objective of the returned network in the units of y.

    n_iter_ : int
        Iterations of this fit.

    converged_ : bool
        Whether the fit ended by ``tol``, or with the loss at rounding level.

    stop_reason_ : str
        "tol", "rounding", "max_iter", "max_time", "early_stopping", "callback",
        "interrupted", "line_search" or "non_finite".

    n_features_in_ : int
        Number of features.

    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the features, where all are strings.

    See Also
    --------
    ShallowReLURegressor : One layer, with breakpoints that can be read.

    References
    ----------
    .. [1] E. Newman, L. Ruthotto, J. Hart and B. van Bloemen Waanders, "Train like a
       (Var)Pro: efficient training of neural networks with variable projection", SIAM
       Journal on Mathematics of Data Science.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn_gn import VarProNetRegressor
    >>> X = np.random.RandomState(0).uniform(-1, 1, (200, 2))
    >>> y = np.sin(3 * X[:, 0]) * X[:, 1]
    >>> model = VarProNetRegressor(
    ...     hidden_layer_sizes=(10,), alpha=1e-6, alpha_output=1e-6, random_state=0
    ... )
    >>> model.fit(X[:150], y[:150]).score(X[150:], y[150:]) > 0.999
    True
    """

    _short_forms = NETWORK_REGRESSOR_SOLVERS
    _parameter_constraints = {
        **_VarProNet._parameter_constraints,
        "alpha_output": [Interval(Real, 0, None, closed="left"), StrOptions({"gcv"})],
    }
    _loss = "squared"

    def __init__(
        self,
        network="mlp",
        hidden_layer_sizes=(64, 64),
        *,
        activation="tanh",
        solver="gnvpro",
        curvature_solver="auto",
        rank=20,
        damping=None,
        alpha=1e-2,
        alpha_output=1e-4,
        batch_size="auto",
        iterations_per_batch=3,
        learning_rate=None,
        scale=True,
        max_iter=100,
        tol=1e-3,
        max_time=None,
        early_stopping=False,
        validation_fraction=0.1,
        n_iter_no_change=10,
        warm_start=False,
        dtype="float64",
        device=None,
        verbose=0,
        random_state=None,
    ):
        super().__init__(
            network,
            hidden_layer_sizes,
            activation=activation,
            solver=solver,
            curvature_solver=curvature_solver,
            rank=rank,
            damping=damping,
            alpha=alpha,
            alpha_output=alpha_output,
            batch_size=batch_size,
            iterations_per_batch=iterations_per_batch,
            learning_rate=learning_rate,
            scale=scale,
            max_iter=max_iter,
            tol=tol,
            max_time=max_time,
            early_stopping=early_stopping,
            validation_fraction=validation_fraction,
            n_iter_no_change=n_iter_no_change,
            warm_start=warm_start,
            dtype=dtype,
            device=device,
            verbose=verbose,
            random_state=random_state,
        )

    @_fit_context(prefer_skip_nested_validation=False)
    def fit(self, X, y, sample_weight=None, *, X_val=None, y_val=None):
        """Fit the network to the data.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Training samples.

        y : array-like of shape (n_samples,) or (n_samples, n_targets)
            Target values.

        sample_weight : array-like of shape (n_samples,), default=None
            Non-negative weights; all equal where not given. ``alpha_output="gcv"`` and
            standard deviations count rows by them: weight 2 is a row that is there
            twice.

        X_val : array-like of shape (n_val_samples, n_features), default=None
            Validation samples. Their loss goes to ``convergence_log_["val_loss"]``,
            and decides where ``early_stopping`` is set.

        y_val : array-like of shape (n_val_samples,) or (n_val_samples, n_targets), \
                default=None
            Validation targets.

        Returns
        -------
        self : VarProNetRegressor
            The fitted estimator.

        Raises
        ------
        ValueError
            If a parameter is out of its range, if the data hold NaN or infinity or do
            not fit together, or if all weights are zero.
        """
        solver = self._solver_object().algorithm(ALGORITHMS)
        X, y = validate_data(
            self, X, y, multi_output=True, y_numeric=True, dtype=np.float64
        )
        weight = check_sample_weight(sample_weight, X)
        n_targets = 1 if y.ndim == 1 else y.shape[1]
        validation = self._check_validation_data(X_val, y_val, n_targets)
        if validation is not None:
            X_val, y_val = validation
            validation = X_val, y_val, np.full(len(X_val), 1 / len(X_val))
        metadata = None if sample_weight is None else {"sample_weight": weight}
        data = {"X": X, "y": y, "metadata": metadata}
        self._single_target = y.ndim == 1
        rng = check_random_state(self.random_state)
        n_samples = float(np.sum(weight)) if np.isfinite(np.sum(weight)) else len(X)
        y = y.reshape(len(y), -1).astype(np.float64)
        kept, weight = canonical_rows(X, y, weight)
        X, y = X[kept], y[kept]
        if self.early_stopping and validation is None:
            (X, y, weight), validation = self._split_rows((X, y), weight, rng)
            n_samples *= 1 - self.validation_fraction
        self._fit(
            X,
            y,
            weight,
            n_samples=n_samples,
            validation=validation,
            solver=solver,
            data=data,
            rng=rng,
        )
        return self

    def _scaled_part(self, y):
        return y

    def _scaled_targets(self, y, scaling):
        return (y - scaling.y_center) / scaling.y_scale

    def _output_center(self, scaling):
        return scaling.y_center

    def _n_values(self, rows):
        return rows.y.shape[1]

    def _prediction_attributes(self):
        return {"_single_target": self._single_target}

    def _validation_loss(self, validation, scaling, model):
        if validation is None:
            return None
        X, y, weight = validation
        x, t = scaling.x(X), self._scaled_targets(y, scaling)

        def loss(net):
            values = self._in_batches(lambda x: predict_values(model, net, x), x)
            return 0.5 * float(weight @ np.sum((values - t) ** 2, axis=1))

        return loss

    def _set_fitted(self, run, rows, settings, scaling):
        super()._set_fitted(run, rows, settings, scaling)
        model, net = settings.model, run.best_net
        n_weights = net.output.size + sum(
            leaf.size for leaf in backend.leaves(net.theta)
        )
        size = rows.y.size * n_weights
        whole = n_weights <= _JOINT_WEIGHTS and size <= _JACOBIAN_FLOATS
        penalties = Penalties(settings.alpha, self._cast(self.alpha_output_))
        with backend.scope(self.dtype, self.device):
            found = backend.to_numpy(posterior(model, net, rows, penalties, whole))
            values = backend.to_numpy(predict_values(model, net, rows.x))
        error = (values - rows.y).astype(np.float64)
        square = rows.weight.astype(np.float64) @ error**2
        n = float(settings.n_samples)
        q = rows.y.shape[1] if whole else 1
        left = max(n - float(found.freedom) / q, 1.0)
        # In the covariance of the weights, one over n for the mean in the loss.
        self._posterior = found.root, whole, square * n / left, n

    def predict(self, X, return_std=False):
        """Predict targets.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Samples.

        return_std : bool, default=False
            Whether to return standard deviations of the predicted means too, from the
            Gauss-Newton matrix: of all weights in a small network, of the output layer
            alone in one of more than 1200.

        Returns
        -------
        y : ndarray of shape (n_samples,) or (n_samples, n_targets)
            Predicted values.

        std : ndarray of the same shape
            Their standard deviations, noise of single targets not included. Only with
            ``return_std``.
        """
        check_is_fitted(self)
        X = validate_data(self, X, reset=False, dtype=np.float64)
        model, net, scaling = self._fitted
        y = self._values(X) * scaling.y_scale + scaling.y_center
        y = y[:, 0] if self._single_target else y
        if not return_std:
            return y
        root, whole, noise, n = self._posterior
        variance = self._in_batches(
            lambda x: predictive_variance(model, net, root, x, whole),
            scaling.x(X),
            max(32, _JACOBIAN_FLOATS // (16 * net.output.shape[1] * len(root))),
        )
        std = np.sqrt(variance * noise / n) * scaling.y_scale
        return y, std[:, 0] if self._single_target else std


class VarProNetClassifier(SoftmaxClassifier, _VarProNet):
    r"""Deep network classification by variable projection.

    The network ends in an affine layer W, which is a multinomial logistic regression on
    the features z. It is solved for every choice of the other weights :math:`\theta`,
    and what is left,

    .. math::
        \Phi(\theta) = \min_W \frac{1}{\sum_i v_i} \sum_i v_i
        \big({-\log} \, \mathrm{softmax}(W z(x_i; \theta))_{t_i}\big)
        + \frac{\alpha_{out}}{2} |W|^2 + \frac{\alpha}{2} |B \theta|^2,

    is minimised by a Gauss-Newton trust-region method (GNvpro) [1]_.

    Parameters
    ----------
    network : {"mlp", "neural_ode", "cnn"} or object, default="mlp"
        - "mlp": fully connected layers of ``hidden_layer_sizes``.
        - "neural_ode": an antisymmetric neural ODE as wide as the first of these.
        - "cnn": a convolutional network; rows of X are square images.
        - any object with ``init(key, x)`` and ``apply(parameters, x)``, such as those
          of :mod:`sklearn_gn.networks` or a Flax module: what ``apply`` returns are the
          features.

    hidden_layer_sizes : tuple of int, default=(64, 64)
        Widths of the hidden layers; without any, the features are the inputs.

    activation : str or tuple of str, default="tanh"
        Of the hidden layers, one for all or one each: "tanh", "relu", "sigmoid",
        "softplus", "silu", "gelu", "sin" or "identity".

    solver : {"gnvpro", "lbfgs_vpro", "gn", "fgn", "adam", "sgd"}, default="gnvpro"
        All minimise the same objective from the same weights, with the output layer
        that is optimal at first: for all rows, for the first batch, or for 2048 rows
        where mini-batches are taken.

        - "gnvpro": Gauss-Newton variable projection.
        - "lbfgs_vpro": L-BFGS on the reduced objective.
        - "gn": Gauss-Newton in all weights, in a Krylov space.
        - "fgn": fast Gauss-Newton in all weights, on mini-batches.
        - "adam", "sgd": mini-batches; SGD has Nesterov's momentum 0.9.

    curvature_solver : {"auto", "krylov", "dense"}, default="auto"
        How "gnvpro" meets the Gauss-Newton matrix.

        - "krylov": through ``rank`` products with it.
        - "dense": formed and diagonalised, or its dual where there are fewer rows than
          parameters.
        - "auto": dense while it is small.

    rank : int, default=20
        Dimension of the Krylov space.

    damping : float or None, default=None
        Shift added to the Gauss-Newton matrix. None: as the trust region says; 1 for
        "fgn".

    alpha : float, default=0.001
        Penalty of the hidden weights, in scaled units.

    alpha_output : float, default=0.001
        Penalty of the output layer, in scaled units.

    class_weight : dict, "balanced" or None, default=None
        Factors of the sample weights by class; "balanced" makes all classes count
        alike.

    batch_size : int, "auto" or None, default="auto"
        Rows of a batch. None: all, and 64 for the mini-batch solvers. "auto" is the
        same, but 2048 for "gnvpro" and "gn" where more than 8192 different rows are
        fitted.

    iterations_per_batch : int, default=3
        Iterations for which "gnvpro", "gn" and "lbfgs_vpro" keep a batch. The output
        layer that they return, and the loss in the log, are those of all rows, which
        judge when 20 work units are spent, at first more often, and at the end.

    learning_rate : float or None, default=None
        Of the mini-batch solvers; None is 1e-3 for "adam", 1e-2 for "sgd" and 0.1 for
        "fgn".

    scale : bool, default=True
        Whether to bring features to mean 0 and variance 1 during the fit.

    max_iter : int, default=100
        Most iterations, shared by the levels of the network; epochs of the mini-batch
        solvers.

    tol : float, default=0.001
        A fit ends when in three iterations in a row, with batches in a whole pass over
        the rows, the loss has not fallen by more than ``tol`` times its size; with
        mini-batches, when in ten epochs in a row it has not fallen that much below its
        lowest. 0: not for this reason.

    max_time : float or None, default=None
        Seconds after which the fit stops, compilation included.

    early_stopping : bool, default=False
        Stop when the cross-entropy on validation data no longer falls, and return the
        iterate with the lowest. The data are ``X_val`` and ``y_val`` of ``fit``, or
        else a random part of the training data, stratified where that is possible.

    validation_fraction : float, default=0.1
        Share of the rows set aside where ``early_stopping`` has no ``X_val``.

    n_iter_no_change : int, default=10
        Iterations without improvement that ``early_stopping`` waits for; with batches,
        those after which all rows judged.

    warm_start : bool, default=False
        Start from the network of the previous fit, which must have had the same
        classes.

    dtype : {"float64", "float32"}, default="float64"
        Precision of the fit.

    device : str or None, default=None
        Where to compute: "cpu", "gpu", or None for JAX's default.

    verbose : int, default=0
        1 prints a line a second, 2 one an iteration.

    random_state : int, RandomState instance or None, default=None
        Seed of weights, batches and validation split. The draws depend on the weighted
        data set, not on the order or the multiplicity of its rows.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Labels of the classes that have weight.

    coefs_ : list of ndarray
        Weights of the hidden layers, for scaled features.

    intercepts_ : list of ndarray
        Biases of the hidden layers.

    output_coef_ : ndarray of shape (1, n_features_out) or (n_classes, n_features_out)
        Weights of the output layer; one row for two classes.

    output_intercept_ : ndarray of shape (1,) or (n_classes,)
        Constants of the output layer.

    alpha_output_ : float
        The penalty of the output layer.

    gram_spectrum_ : ndarray
        Eigenvalues of the reduced Gauss-Newton matrix of the last iteration,
        descending; Ritz values where it was not formed. Empty for "lbfgs_vpro" and the
        mini-batch solvers.

    n_work_units_ : float
        Passes over all rows, forward or backward; a product with the Jacobian or its
        transpose is one.

    convergence_log_ : dict of ndarrays of shape (`n_iter_`,)
        ``iteration``, ``time`` (seconds), ``loss``, ``val_loss``, ``grad_norm``,
        ``step_size``, ``damping``, ``gain_ratio``, ``inner_iterations``,
        ``work_units`` so far, ``level``, and ``judged``: False where ``loss`` and
        ``val_loss`` are those of an earlier row. One row an iteration. A column that
        means nothing to the solver is NaN.

    loss_ : float
        Objective of the returned network.

    n_iter_ : int
        Iterations of this fit.

    converged_ : bool
        Whether the fit ended by ``tol``, or with the loss at rounding level.

    stop_reason_ : str
        "tol", "rounding", "max_iter", "max_time", "early_stopping", "callback",
        "interrupted", "line_search" or "non_finite".

    n_features_in_ : int
        Number of features.

    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the features, where all are strings.

    See Also
    --------
    FGNSoftmaxHead : The last layer alone, for many classes.

    References
    ----------
    .. [1] E. Newman, L. Ruthotto, J. Hart and B. van Bloemen Waanders, "Train like a
       (Var)Pro: efficient training of neural networks with variable projection", SIAM
       Journal on Mathematics of Data Science.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> from sklearn_gn import VarProNetClassifier
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> model = VarProNetClassifier(hidden_layer_sizes=(8,), tol=0.05, random_state=0)
    >>> model.fit(X[:400], y[:400]).score(X[400:], y[400:]) > 0.95
    True
    """

    _short_forms = NETWORK_CLASSIFIER_SOLVERS
    _parameter_constraints = {
        **_VarProNet._parameter_constraints,
        "class_weight": [dict, StrOptions({"balanced"}), None],
    }
    _loss = "cross_entropy"

    def __init__(
        self,
        network="mlp",
        hidden_layer_sizes=(64, 64),
        *,
        activation="tanh",
        solver="gnvpro",
        curvature_solver="auto",
        rank=20,
        damping=None,
        alpha=1e-3,
        alpha_output=1e-3,
        class_weight=None,
        batch_size="auto",
        iterations_per_batch=3,
        learning_rate=None,
        scale=True,
        max_iter=100,
        tol=1e-3,
        max_time=None,
        early_stopping=False,
        validation_fraction=0.1,
        n_iter_no_change=10,
        warm_start=False,
        dtype="float64",
        device=None,
        verbose=0,
        random_state=None,
    ):
        super().__init__(
            network,
            hidden_layer_sizes,
            activation=activation,
            solver=solver,
            curvature_solver=curvature_solver,
            rank=rank,
            damping=damping,
            alpha=alpha,
            alpha_output=alpha_output,
            batch_size=batch_size,
            iterations_per_batch=iterations_per_batch,
            learning_rate=learning_rate,
            scale=scale,
            max_iter=max_iter,
            tol=tol,
            max_time=max_time,
            early_stopping=early_stopping,
            validation_fraction=validation_fraction,
            n_iter_no_change=n_iter_no_change,
            warm_start=warm_start,
            dtype=dtype,
            device=device,
            verbose=verbose,
            random_state=random_state,
        )
        self.class_weight = class_weight

    @_fit_context(prefer_skip_nested_validation=False)
    def fit(self, X, y, sample_weight=None, *, X_val=None, y_val=None):
        """Fit the network to the data.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Training samples.

        y : array-like of shape (n_samples,)
            Labels of any kind.

        sample_weight : array-like of shape (n_samples,), default=None
            Non-negative weights; all equal where not given.

        X_val : array-like of shape (n_val_samples, n_features), default=None
            Validation samples. Their cross-entropy goes to
            ``convergence_log_["val_loss"]``, and decides where ``early_stopping`` is
            set.

        y_val : array-like of shape (n_val_samples,), default=None
            Validation labels, all of them among those of y.

        Returns
        -------
        self : VarProNetClassifier
            The fitted estimator.

        Raises
        ------
        ValueError
            If a parameter is out of its range, if the data hold NaN or infinity or do
            not fit together, or if fewer than two classes have weight.
        """
        solver = self._solver_object().algorithm(ALGORITHMS)
        X, y = self._check_data(X, y, reset=True)
        weight = check_sample_weight(sample_weight, X)
        metadata = None if sample_weight is None else {"sample_weight": weight}
        data = {"X": X, "y": y, "metadata": metadata}
        previous = self.warm_start and hasattr(self, "_fitted")
        self._find_classes(y, weight, previous=previous)
        validation = self._check_validation(X_val, y_val)
        rng = check_random_state(self.random_state)
        X, code, weight = self._encode_weighted(X, y, weight)
        kept, weight = canonical_rows(X, code[:, None].astype(np.float64), weight)
        X, code = X[kept], code[kept]
        if self.early_stopping and validation is None:
            (X, code, weight), validation = self._split_rows(
                (X, code), weight, rng, code
            )
        self._fit(
            X,
            np.eye(len(self.classes_))[code],
            weight,
            n_samples=len(X),
            validation=validation,
            solver=solver,
            data=data,
            rng=rng,
        )
        return self

    def _scaled_part(self, y):
        return np.zeros((len(y), 1 if y.shape[1] == 2 else y.shape[1]))

    def _scaled_targets(self, y, scaling):
        return y

    def _output_center(self, scaling):
        return 0.0

    def _n_values(self, rows):
        return 1 if rows.y.shape[1] == 2 else rows.y.shape[1]

    def _prediction_attributes(self):
        return {"classes_": self.classes_}

    def _validation_loss(self, validation, scaling, model):
        if validation is None:
            return None
        X, code, weight = validation
        x = scaling.x(X)

        def loss(net):
            values = self._in_batches(lambda x: predict_values(model, net, x), x)
            return cross_entropy(values, code, weight)

        return loss

    def decision_function(self, X):
        """Logits.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Samples.

        Returns
        -------
        logits : ndarray of shape (n_samples,) or (n_samples, n_classes)
            One column a class. For two classes the logit of the second alone.
        """
        check_is_fitted(self)
        X = validate_data(self, X, reset=False, dtype=np.float64)
        values = self._values(X)
        return values[:, 0] if values.shape[1] == 1 else values
