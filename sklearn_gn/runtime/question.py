"""The question that a fit answers: all that its result depends on.

A checkpoint belongs to one question, and is resumed by the same one only.
"""

from numbers import Integral

from sklearn_gn.runtime.fingerprint import digest
from sklearn_gn.runtime.versions import versions

_BUDGETS, _OTHERS = ("max_iter", "max_time"), ("verbose",)  # parameters that may change


def digests_of_question(estimator, given, *, validation, stopping, start):
    """Return digests of all that the result of a fit depends on, by name.

    Parameters
    ----------
    estimator : estimator
        Of which all parameters but the budgets count.
    given : dict
        ``X``, ``y`` and ``metadata`` of the fit.
    validation : object
        The validation data.
    stopping : list
        What is monitored, and the rules that may end the fit early.
    start : list or None
        The networks of a former fit to go on with.

    Raises
    ------
    ValueError
        If one of these holds something whose value cannot be told.
    """
    influences = {
        "the estimator": type(estimator).__name__,
        "the version of sklearn_gn": versions()["sklearn_gn"].split(".")[:2],
        **_parameters(estimator),
        "the training data": (given.get("X"), given.get("y")),
        "the sample weights": given.get("metadata"),
        "the validation data": validation,
        "the rules of early stopping": stopping,
        "the network to start from (warm_start=True)": start,
    }
    return {name: _digest_of(name, value) for name, value in influences.items()}


def budgets_of(estimator):
    """Return the values of the parameters that say how long a fit may take."""
    return [getattr(estimator, name) for name in _BUDGETS]


def _parameters(estimator):
    parameters = estimator.get_params(deep=False)
    parameters["solver"] = estimator._solver_object()
    # Only a number names the same draws again; the others are in the snapshot.
    if not isinstance(parameters["random_state"], Integral):
        parameters["random_state"] = None
    names = sorted(set(parameters) - {*_BUDGETS, *_OTHERS})
    return {f"the parameter {name!r}": parameters[name] for name in names}


def _digest_of(name, value):
    try:
        return digest(value)
    except TypeError as error:
        raise ValueError(
            f"A checkpoint belongs to the values that a fit depends on, and {name} "
            f"holds something whose value is not known: {error}. Give it in another "
            "form, or fit without the checkpoint."
        ) from error
