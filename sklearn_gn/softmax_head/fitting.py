"""What FGNSoftmaxHead does before and after the run of a solver."""

import numpy as np
from scipy import sparse

from sklearn_gn.arrays import backend
from sklearn_gn.base import GaussNewtonEstimator, SoftmaxClassifier, cross_entropy
from sklearn_gn.data.rows import canonical_rows, shares, validation_split
from sklearn_gn.runtime.fit_loop import FitRun
from sklearn_gn.solvers import FGN, FGNNewton

_BATCH_SIZE = 256  # where a solver does not say
_ALPHA = 1e-3  # of mini-batches, which have no evidence
_LEAST_TOTAL = 1e-100  # of the weights: products with it neither under- nor overflow
_SPECTRUM_ROWS = 1024  # at most
_ROWS_OF_NEWTON = 128  # whose spectrum it tells, as many as in a batch of its start
_DENSE_BYTES = 2**32  # a sparse X larger than this stays sparse or is refused
_DENSE_NUMBERS = 2**22  # a sparse X no larger than this is made dense
_DENSE_SHARE = 0.1  # nor is one with more than this share of entries kept sparse
_ROOM = 1e12  # for the path of penalties, between its start and the ends of the range
_LARGEST_LOGIT = np.finfo(np.float64).max / 4  # so that differences stay finite
_LARGEST_INT = np.iinfo(np.int32).max


class _HeadFit(SoftmaxClassifier, GaussNewtonEstimator):
    """Base class of the softmax head, with the steps around the run of a solver."""

    _not_of_every_fit = ("evidence_path_", "log_evidence_", "n_effective_parameters_")

    def _class_logits(self, X):
        logits = super()._class_logits(X)
        size = np.max(np.abs(logits), axis=1, keepdims=True)
        return logits / np.maximum(self.temperature_, size / _LARGEST_LOGIT)

    # -- before the run ---------------------------------------------------------------

    def _limits_of_steps(self):
        # The other solvers replace None by a number, which may limit steps more.
        newton = isinstance(self._solver_object(), FGNNewton)
        return super()._limits_of_steps() if newton else ()

    @property
    def _input_dtypes(self):
        single = self.dtype == "float32"
        return [np.float64, np.float32] if single else np.float64

    def _check_classes(self, classes, first):
        if first:
            if classes is None:
                raise ValueError("classes must be given to the first partial_fit.")
            self.classes_ = np.unique(classes)
            if len(self.classes_) < 2:
                raise ValueError(
                    f"classes must hold at least two, got {self.classes_.tolist()}."
                )
        elif classes is not None and not np.array_equal(
            np.unique(classes), self.classes_
        ):
            raise ValueError(
                f"classes={np.unique(classes).tolist()} differ from those of the first "
                f"call, {self.classes_.tolist()}."
            )

    def _canonical(self, solver, X, y, weight):
        """Features, class numbers, the distinct rows, their weights, their sum.

        The weights are divided by the sum. Features that stay sparse have all rows.
        """
        X, code, weight = self._encode_weighted(X, y, weight)
        with np.errstate(over="ignore"):
            total = np.clip(weight.sum(), _LEAST_TOTAL, 1 / _LEAST_TOTAL)
        if self._stays_sparse(X, solver):
            kept = np.flatnonzero(weight > 0)
            # Divided by a power of two first, so that the sum does not overflow.
            weight = np.ldexp(weight[kept], -np.frexp(weight.max())[1])
            return X, code, kept, weight / weight.sum(), total
        X = _dense(X)
        kept, weight = canonical_rows(X, code[:, None].astype(np.float64), weight)
        return X, code, kept, weight, total

    def _stays_sparse(self, X, solver):
        """Whether the fit computes with a sparse matrix as it is."""
        if not sparse.issparse(X) or type(solver) is not FGNNewton:
            return False
        numbers = X.shape[0] * X.shape[1]
        return numbers > _DENSE_NUMBERS and X.nnz <= _DENSE_SHARE * numbers

    def _split(self, X, label, kept, weight, rng):
        """Set a random part of the distinct rows aside for validation."""
        train, val = validation_split(
            len(kept), self.validation_fraction, rng, label[kept]
        )
        validation = X[kept[val]], label[kept[val]], shares(weight[val])
        return kept[train], weight[train], validation

    def _problem(self, solver, X, label, kept, weight, total, rng):
        """What an algorithm gets: the rows in batches, and the options."""
        from sklearn_gn.softmax_head.batches import batched_rows
        from sklearn_gn.softmax_head.row_space import sparse_rows

        size = getattr(solver, "batch_size", np.inf) or _BATCH_SIZE
        mesh, small = backend.mesh_of(self.device), self._is_small(solver, X, kept)
        if mesh is not None:
            self._check_devices_are_possible(solver, X)
        if sparse.issparse(X):
            X, label = X[kept], label[kept]
            kind = self._n_columns(), self.fit_intercept, np.dtype(self.dtype)
            rows = sparse_rows(X, label, weight, *kind)
        else:
            n_devices = 1 if mesh is None else mesh.size
            data = X, label, kept, weight, size, rng, self.dtype
            copied = small or not self._starts_in_place(solver, X, kept)
            rows, size = batched_rows(*data, n_devices, not small, copied)
        options = self._options(solver, size, rng)._replace(compiled=not small)
        if self.alpha == "auto" and isinstance(solver, FGNNewton):
            # Of the training part; every row counts as one at least.
            n_effective = max(float(total * weight.sum()), float(len(kept)))
            if sparse.issparse(X):
                options = self._with_penalty(options, X, label, weight, n_effective)
            else:
                options = self._with_first_penalty(
                    options, X[kept], weight, n_effective
                )
        return rows, options

    def _with_penalty(self, options, X, label, weight, n_effective):
        """The options with the penalty and the factor of the logits of sparse rows."""
        from sklearn_gn.softmax_head.held_out import held_out_penalty

        share, dtype = weight / weight.sum(), np.dtype(self.dtype)
        alpha, factor = held_out_penalty(X, label, share, n_effective, options, dtype)
        return options._replace(alpha=self._cast(alpha), factor=factor)

    def _with_first_penalty(self, options, X, weight, n_effective):
        """The options with the first of the penalties that the fit is to try."""
        from sklearn_gn.softmax_head.evidence import first_alpha

        alpha = first_alpha(X, weight, n_effective, self.fit_intercept)
        kind = np.finfo(self.dtype)
        alpha = np.clip(alpha, kind.tiny * _ROOM, kind.max / _ROOM)
        return options._replace(alpha=self._cast(alpha), n_effective=n_effective)

    def _is_small(self, solver, X, kept):
        """Whether NumPy computes, which the shapes decide where no device is given."""
        from sklearn_gn.softmax_head.newton import is_small

        shape = len(kept), X.shape[1], self._n_columns()
        possible = isinstance(solver, FGNNewton) and self.device is None
        return possible and is_small(*shape)

    def _starts_in_place(self, solver, X, kept):
        """Whether NumPy makes the first pass over the rows where they are."""
        from sklearn_gn.softmax_head import start

        shape = len(kept), X.shape[1], self._n_columns()
        as_computed = X.flags.c_contiguous and X.dtype == np.dtype(self.dtype)
        possible = as_computed and isinstance(solver, FGNNewton)
        single = possible and backend.mesh_of(self.device) is None
        return single and start.copies_nothing(*shape) and backend.is_cpu(self.device)

    def _algorithms(self, X, options):
        """The algorithms of sparse, of few, and of all other rows, by name."""
        if sparse.issparse(X):
            from sklearn_gn.softmax_head.sparse_newton import SPARSE_ALGORITHMS

            return SPARSE_ALGORITHMS
        if not options.compiled:
            from sklearn_gn.softmax_head.newton import SMALL_ALGORITHMS

            return SMALL_ALGORITHMS
        from sklearn_gn.softmax_head.algorithms import ALGORITHMS

        return ALGORITHMS

    def _scope(self, options):
        """The context of what is computed besides the run of a solver."""
        if not options.compiled:
            return backend.one_blas_thread
        return backend.scope(self.dtype, self.device)

    def _options(self, solver, batch_size, rng):
        """What an algorithm gets besides the rows."""
        from sklearn_gn.softmax_head.head import HeadOptions

        return HeadOptions(
            alpha=self._cast(_ALPHA if self.alpha == "auto" else self.alpha),
            n_effective=None,
            damping=self.damping,
            rank=self.rank,
            intercept=self._cast(self.fit_intercept),
            tol=self._cast(self.tol),
            batch_size=batch_size,
            seed=np.int32(rng.randint(_LARGEST_INT)),
            solver=solver,
            mesh=backend.mesh_of(self.device),
        )

    def _check_devices_are_possible(self, solver, X):
        if sparse.issparse(X):
            raise ValueError(
                f"device={self.device!r}: sparse features that are not made dense are "
                "fitted on the CPU. Give device=None."
            )
        if getattr(solver, "shuffle", False):
            raise ValueError(
                f"device={self.device!r}: batches of several devices are drawn once. "
                "Give shuffle=False."
            )

    def _n_columns(self):
        return 1 if len(self.classes_) == 2 else len(self.classes_)

    def _zero_head(self):
        from sklearn_gn.softmax_head.head import AffineHead

        n_columns = self._n_columns()
        return AffineHead(
            self._cast(np.zeros((self.n_features_in_, n_columns))),
            self._cast(np.zeros(n_columns)),
        )

    def _previous_head(self):
        from sklearn_gn.softmax_head.head import AffineHead

        if not hasattr(self, "coef_"):
            return None
        if self.coef_.shape[1] != self.n_features_in_:
            raise ValueError(
                f"warm_start=True continues from {self.coef_.shape[1]} features, X has "
                f"{self.n_features_in_}."
            )
        intercept = self.intercept_ if self.fit_intercept else 0 * self.intercept_
        return AffineHead(self._cast(self.coef_.T), self._cast(intercept))

    def _validation_loss(self, validation, rows):
        if validation is None:
            return None
        X, label, weight = validation

        def loss(net):
            net = self._affine(net, rows)
            return cross_entropy(logits_of(X, net.weight.T, net.bias), label, weight)

        return loss

    # -- the run ----------------------------------------------------------------------

    def _run_algorithm(self, algorithm, rows, options, start, validation, data):
        """Run an algorithm from a head and set the fitted attributes."""
        run = FitRun(
            self,
            algorithm,
            (rows, options),
            [start],
            loss_scale=1.0,
            val_loss=self._validation_loss(validation, rows),
            validation=validation,
        )
        self._run(
            run,
            max_steps=self.max_iter,
            data=data,
            attributes=lambda net: {
                "classes_": self.classes_,
                **self._coefficients(self._affine(net, rows)),
            },
            set_fitted=lambda: self._set_fitted_by(run),
        )
        self._carried = None, None

    def _one_epoch(self, solver, rows, options, net):
        """Return the head after one epoch, which goes on from the last one's memory."""
        from sklearn_gn.softmax_head.algorithms import ALGORITHMS

        algorithm = solver.algorithm(ALGORITHMS)
        with backend.scope(self.dtype, self.device):
            data = algorithm.prepare(rows, options)
            state = algorithm.init(data, net, options)
            name, memory = getattr(self, "_carried", (None, None))
            if name == solver.name:
                state = state._replace(memory=memory)
            state, report = algorithm.step(data, state, options)
            net, memory = backend.to_numpy((state.net, state.memory))
        if not np.isfinite(report.loss):
            raise ValueError(
                "The loss is not a finite number. Check the scale of X, raise damping "
                f"(damping={self.damping!r}), or lower the learning rate of "
                f"solver={self.solver!r}."
            )
        self._carried = solver.name, memory
        return net

    # -- after the run ----------------------------------------------------------------

    def _affine(self, net, rows):
        """Return a head by its coefficients, which one of sparse rows does not have."""
        from sklearn_gn.softmax_head.row_space import RowHead, expand

        return expand(net, rows) if isinstance(net, RowHead) else net

    def _coefficients(self, net, copy=True):
        return {
            "coef_": net.weight.T.astype(np.float64, copy=copy),
            "intercept_": net.bias.astype(np.float64),
            "temperature_": 1.0,  # until rows that are left out say otherwise
        }

    def _set_fitted_by(self, run):
        """Set the fitted attributes, and those of the evidence where it chose."""
        self._set_results_of(run)
        self._spectrum = self.gram_spectrum_  # and no rows any more

    def _set_results_of(self, run):
        net, options = run.best_net, run.options
        if options.n_effective is None:
            self._set_fitted(net, run.rows, options, run.best_row)
            return
        from sklearn_gn.softmax_head.evidence import log_evidence
        from sklearn_gn.softmax_head.newton import (
            at_penalty,
            newton_settings,
            penalty_of_best,
            whitened,
        )

        state, log = run.final_state, run.log
        alpha = penalty_of_best(state)
        if log and run.monitor != "loss":  # an earlier head may have been the best
            alpha = min(log, key=lambda row: row["val_loss"])["alpha"]
        options = at_penalty(options, alpha)
        self._set_fitted(net, run.rows, options)
        with self._scope(options):
            self.log_evidence_, self.n_effective_parameters_ = log_evidence(
                whitened(run.data),
                net,
                self.loss_,
                newton_settings(options),
                options.n_effective,
            )
        self._set_path(state.path, run.data)

    def _set_path(self, path, data):
        """Set what was said of the penalties that were tried, and by which method."""
        left_out = bool(path) and path[0][2] is not None
        if not path or not (left_out or data.part):  # else it is not known of this one
            path = {*path, (self.alpha_, self.log_evidence_, None, 1.0)}
        alphas, values, predictive, factors = map(
            np.array, zip(*sorted(path), strict=True)
        )
        factor = np.interp(np.log(self.alpha_), np.log(alphas), np.log(factors))
        self.temperature_ = float(np.exp(-factor))
        data = data.part or data
        method = "evidence"
        if left_out:
            method = "leave-one-out" if data.test is None else "held-out"
        self.alpha_method_ = method
        self.evidence_path_ = {"alpha": alphas}
        if method != "held-out":
            self.evidence_path_["log_evidence"] = values
        if left_out:
            count = data.options.n_effective if data.test is None else data.n_test
            self.evidence_path_[method.replace("-", "_")] = -predictive / count

    def _set_fitted(self, net, rows, options, evaluated=None):
        """Set the fitted attributes; ``evaluated`` is the row of the log, if known."""
        from sklearn_gn.softmax_head.batches import ChunkedRows
        from sklearn_gn.softmax_head.head import objective, on_devices
        from sklearn_gn.softmax_head.row_space import SparseRows

        head = self._affine(net, rows)
        vars(self).update(self._coefficients(head, copy=head is net))
        self.alpha_, self.alpha_method_ = float(options.alpha), "fixed"
        if isinstance(rows, SparseRows):
            self._set_fitted_to_sparse(head, rows, options)
            return
        if isinstance(rows, ChunkedRows):
            from sklearn_gn.softmax_head.chunked import evaluate_chunks, first_chunk

            with backend.scope(self.dtype, self.device):
                self._set_curvature(evaluate_chunks(net, rows, options))
                rows = first_chunk(rows, options)
        elif evaluated is not None:
            self._set_curvature_of_log(evaluated)
        else:
            with self._scope(options):
                found = objective(net, on_devices(rows, options), options)
            self._set_curvature(found)
        self._spectrum = self._rows_of_spectrum(rows, options)

    def _set_fitted_to_sparse(self, head, rows, options):
        from sklearn_gn.softmax_head.sparse_newton import evaluation_and_spectrum

        if self.alpha == "auto":
            self.alpha_method_ = "held-out"
        self.temperature_ = 1 / options.factor
        found, self._spectrum = evaluation_and_spectrum(
            head, rows, options, _ROWS_OF_NEWTON
        )
        self._set_curvature(found)

    def _rows_of_spectrum(self, rows, options):
        """What the eigenvalues of the matrix of some rows are computed from."""
        from sklearn_gn.softmax_head.direction import n_competitors_of

        competitors = 0
        if isinstance(options.solver, FGN):
            competitors = n_competitors_of(options.rank, len(self.classes_))
        n_examples = min(
            getattr(options.solver, "batch_size", _ROWS_OF_NEWTON) or _BATCH_SIZE,
            max(1, _SPECTRUM_ROWS // (1 + competitors)),
            len(rows.weight),
        )
        some = (rows.x, rows.label, rows.weight)
        x, label, weight = (np.array(array[:n_examples]) for array in some)
        return {
            "x": x,
            "label": label,
            "weight": weight,
            "intercept": np.array(options.intercept),
            "n_competitors": competitors,
            "size": min(n_examples, int(rows.n_rows)) * (1 + competitors),
        }

    @property
    def gram_spectrum_(self) -> np.ndarray:
        """Eigenvalues of the Gauss-Newton matrix of some rows, descending.

        After ``partial_fit``, they are computed at the first access.
        """
        found = vars(self).get("_spectrum")
        if found is None:
            raise AttributeError(f"This {type(self).__name__} is not fitted yet.")
        if isinstance(found, dict):
            found = self._spectrum = self._computed_spectrum(**found)
        return found

    def _computed_spectrum(self, x, label, weight, intercept, n_competitors, size):
        from sklearn_gn.softmax_head.direction import row_spectrum
        from sklearn_gn.softmax_head.head import AffineHead, BatchedRows

        head = AffineHead(self.coef_.T.astype(x.dtype), self.intercept_.astype(x.dtype))
        counts = np.int32(len(x)), np.int32(1)
        rows = BatchedRows(x, label, weight, *counts)
        with backend.one_blas_thread:
            spectrum = row_spectrum(head, rows, intercept[()], len(x), n_competitors)
        return np.maximum(spectrum[:size], 0)

    def _set_curvature(self, found):
        self.loss_ = float(found.loss)
        self.competitor_dispersion_ = float(found.dispersion)
        self.retained_trace_ = float(found.retained)
        self.dropped_trace_ = float(found.dropped)

    def _set_curvature_of_log(self, row):
        self.loss_ = row["loss"]
        self.competitor_dispersion_ = row["competitor_dispersion"]
        self.retained_trace_ = row["retained_trace"]
        self.dropped_trace_ = row["dropped_trace"]


def _dense(X):
    """A dense copy of a sparse matrix, if it can be held."""
    if not sparse.issparse(X):
        return X
    size = X.shape[0] * X.shape[1] * 8
    if size > _DENSE_BYTES:
        raise ValueError(
            f"X is sparse and would take {size / 2**30:.1f} GiB as a dense array; the "
            f"limit is {_DENSE_BYTES / 2**30:.0f}. solver='fgn_newton' leaves it "
            "sparse if at most a tenth of its entries are stored. Or give it in chunks "
            "to fit_chunks, or reduce the features with TruncatedSVD."
        )
    return X.toarray()


def logits_of(X, coef, intercept):
    """``X coef^T + intercept`` in float64, finite for finite X."""
    with np.errstate(over="ignore", invalid="ignore"):
        logits = X @ coef.T + intercept
        if not np.isfinite(logits).all():
            largest = abs(X).max(axis=1)
            if sparse.issparse(X):
                largest = largest.toarray().ravel()
            size = np.maximum(largest, 1)[:, None]
            small = X.multiply(1 / size).tocsr() if sparse.issparse(X) else X / size
            logits = (small @ coef.T) * size + intercept
    return np.clip(logits, -_LARGEST_LOGIT, _LARGEST_LOGIT)
