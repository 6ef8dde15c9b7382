"""The base class of the solver objects, and how a parameter ``solver`` is read."""

import difflib
from collections.abc import Mapping
from typing import Any

from sklearn.base import BaseEstimator

from sklearn_gn._reference_link import ReferenceLinkMixin


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
