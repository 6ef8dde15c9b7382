"""The base class of the solver objects.

Estimators and solvers also share the links to their pages in the reference.
"""

from collections.abc import Mapping
from typing import Any

from sklearn.base import BaseEstimator

# Placeholder until the documentation has its place; RELEASING.md says what to fill in.
DOCUMENTATION = "https://example.org/sklearn_gn/doc"


class ReferenceLinkMixin:
    """Tell the HTML representation of scikit-learn where the page of a class is.

    Classes that users derive outside of this package have no page, and get no link.
    """

    _doc_link_module = "sklearn_gn"
    _doc_link_template = DOCUMENTATION + "/generated/{module}.{name}.html"

    def _doc_link_url_param_generator(self) -> dict[str, str]:
        cls = type(self)
        of_solver = cls.__module__.startswith("sklearn_gn.solvers.")
        module = "sklearn_gn.solvers" if of_solver else "sklearn_gn"
        return {"module": module, "name": cls.__name__}


class Solver(ReferenceLinkMixin, BaseEstimator):
    """Base class of the solver objects.

    A solver of your own derives from it, holds its settings as constructor parameters,
    and overrides :meth:`algorithm`.

    Attributes
    ----------
    name : str
        Short form of the solver, and the key of its algorithm.
    """

    name: str | None = None
    _parameter_constraints: dict[str, Any] = {}

    def algorithm(self, algorithms: Mapping[str, Any]) -> Any:
        """Return the functions that carry out the iteration.

        Parameters
        ----------
        algorithms : dict of str to Algorithm
            The algorithms of the estimator that is being fitted, by name.

        Returns
        -------
        Algorithm
            The one with the name of the solver.
        """
        return algorithms[str(self.name)]
