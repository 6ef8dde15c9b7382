"""What ShallowReLURegressor does before and after the run of a solver."""

import numpy as np

from sklearn_gn.base import GaussNewtonEstimator
from sklearn_gn.bayes.evidence_gn import EvidenceOptions
from sklearn_gn.data.rows import check_sample_weight, validate_data
from sklearn_gn.runtime.fit_loop import FitRun
from sklearn_gn.shallow_relu import evidence_fitted
from sklearn_gn.shallow_relu.evidence_gn import ROBUST_GN
from sklearn_gn.shallow_relu.fitted import fitted_attributes, validation_loss
from sklearn_gn.shallow_relu.setup import problem_of


class _NetworkFit(GaussNewtonEstimator):
    """Base class of the regressor, with the steps around the run of a solver."""

    _not_of_every_fit = (
        "alpha_",
        "breakpoint_std_",
        "breakpoints_",
        "log_evidence_",
        "n_effective_parameters_",
        "selection_path_",
    )

    def _n_linear_networks(self):
        by_evidence = self.alpha_method_ != "fixed"
        return int(by_evidence and len(self.hyperplanes_) == 0), 1

    def _check_data(self, X, y, sample_weight):
        self._solver_object()
        X, y = validate_data(
            self, X, y, multi_output=True, y_numeric=True, dtype=np.float64
        )
        self._single_target = y.ndim == 1
        return X, y, check_sample_weight(sample_weight, X)

    def _fit(self, X, y, weight, validation, data, extended=None):
        problem = problem_of(self, self._solver_object(), X, y, weight, validation)
        if extended is not None:  # to rows that are not in memory
            problem = extended(problem)
        run = FitRun(
            self,
            problem.solver,
            (problem.rows, problem.options),
            problem.starts,
            loss_scale=problem.scaling.loss_scale,
            val_loss=validation_loss(problem.validation, problem.scaling),
            validation=problem.validation,
        )
        self._run(
            run,
            max_steps=len(problem.starts) * (self.max_iter + problem.n_rounds),
            data=data,
            attributes=lambda net: {
                "_network": (net, problem.scaling),
                "_single_target": self._single_target,
            },
            set_fitted=lambda: self._set_fitted(run.best_net, problem, run.data),
        )

    def _set_fitted(self, net, problem, data):
        """Fitted attributes of a network; ``data`` is what the solver prepared."""
        if isinstance(problem.options, EvidenceOptions):
            attributes = evidence_fitted.fitted_attributes(
                net,
                problem.rows,
                problem.scaling,
                problem.options,
                robust=problem.solver is ROBUST_GN,
            )
        else:
            attributes = fitted_attributes(
                net,
                data.rows if problem.segmented else problem.rows,
                problem.scaling,
                problem.options,
                n_effective=problem.n_effective,
                device=self.device,
            )
        if self._single_target:
            attributes["output_coef_"] = attributes["output_coef_"][0]
            attributes["output_intercept_"] = float(attributes["output_intercept_"][0])
            attributes["linear_coef_"] = attributes["linear_coef_"][0]
            attributes["noise_std_"] = float(np.ravel(attributes["noise_std_"])[0])
        if problem.selection_path is not None:
            self.selection_path_ = problem.selection_path
        for name, value in attributes.items():
            setattr(self, name, value)
