"""The method ``diagnose`` of the estimators."""

from collections.abc import Callable

from sklearn.utils.validation import check_is_fitted

from sklearn_gn.core.diagnosis import Diagnosis


class DiagnoseMixin:
    """Says what limited the last fit."""

    _diagnosis: Callable[[], Diagnosis]

    def diagnose(self) -> Diagnosis:
        """Say what limited the fit, and which parameter to change.

        Returns
        -------
        diagnosis : Diagnosis
            Prints as text; ``diagnosis.findings`` is a list of ``(cause, text,
            parameter)``, the most serious first.

        Raises
        ------
        NotFittedError
            If the estimator is not fitted.
        """
        check_is_fitted(self)
        return self._diagnosis()
