"""The base class of the solver objects, and how a parameter ``solver`` is read.

Estimators and solvers also share the links to their pages in the reference.
"""

import difflib
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

    def validate(self) -> None:
        """Raise a ValueError that names a parameter out of its range."""
        self._validate_params()


def resolve(solver, short_forms, estimator_name):
    """Return the solver object that a constructor parameter stands for.

    Parameters
    ----------
    solver : str or Solver
        What the user gave.
    short_forms : dict of str to Solver
        The solvers of the estimator.
    estimator_name : str
        Its name, for messages.

    Raises
    ------
    ValueError
        If there is no such solver, if it belongs to another estimator, or if one of its
        parameters is out of range.
    """
    if isinstance(solver, str):
        if solver in short_forms:
            return short_forms[solver]
        near = difflib.get_close_matches(solver, list(short_forms), n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ValueError(
            f"solver={solver!r} is unknown; the solvers are {sorted(short_forms)}."
            + hint
        )
    own = type(solver).algorithm is not Solver.algorithm
    if not own and type(solver) not in {type(s) for s in short_forms.values()}:
        names = sorted({type(s).__name__ for s in short_forms.values()})
        raise ValueError(
            f"solver={solver!r} does not fit {estimator_name}; it takes one of {names}."
        )
    solver.validate()
    return solver
