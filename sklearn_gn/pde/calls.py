"""Calls of the user's functions, with the coefficients that they name."""

import inspect

_POSITIONAL = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
)


def named_parameters(function, n_given):
    """Parameters of a function after the first ones, which are given by position.

    Returns
    -------
    names : tuple of str
    takes_all : bool
        Whether it has ``**`` and takes any name.
    """
    parameters = list(_parameters(function).values())
    positional = [p for p in parameters if p.kind in _POSITIONAL]
    given = {p.name for p in positional[:n_given]}
    kinds = (*_POSITIONAL, inspect.Parameter.KEYWORD_ONLY)
    names = tuple(p.name for p in parameters if p.kind in kinds and p.name not in given)
    return names, any(p.kind is p.VAR_KEYWORD for p in parameters)


def call(function, given, coefficients):
    """Call a function with positional arguments and the coefficients that it names."""
    names, takes_all = named_parameters(function, len(given))
    words = coefficients if takes_all else _among(coefficients, names)
    return function(*given, **words)


def _among(coefficients, names):
    return {name: value for name, value in coefficients.items() if name in names}


def check_signature(function, n_given, coefficients, what):
    """Check that a function can be called so.

    Parameters
    ----------
    function : callable
    n_given : int
        Number of positional arguments.
    coefficients : iterable of str
        Names that it may take.
    what : str
        What the function is called with, for the message.

    Raises
    ------
    ValueError
        If it has other parameters.
    """
    names, takes_all = named_parameters(function, n_given)
    words = {name: None for name in coefficients if takes_all or name in names}
    required = _required_parameters(function, n_given)
    missing = [name for name in required if name not in words]
    if missing:
        declared = ", ".join(f"{name!r}: 1.0" for name in missing)
        few = len(missing) == 1
        verb, what_for = ("is", "a coefficient") if few else ("are", "coefficients")
        has = ", ".join(repr(c) for c in coefficients if c != "normal") or "none"
        raise ValueError(
            f"its parameters must be {what} and coefficients of the problem, and "
            f"{', '.join(map(repr, missing))} {verb} not declared as {what_for}; the "
            f"problem has {has}. Declare {'it' if few else 'them'} in "
            f"coefficients={{{declared}}} of the problem, as a number or an Unknown. "
            "The coordinates are all in the point, x[0] and x[1], and several unknown "
            "functions in the field, u[0] and u[1], with outputs=('u', 'v')."
        )
    try:
        _signature(function).bind(*[None] * n_given, **words)
    except TypeError as error:
        named = ", ".join(repr(c) for c in coefficients if c != "normal")
        more = f" and those of the coefficients {named} that it names" if named else ""
        raise ValueError(f"it is called with {what}{more}: {error}.") from error


def _required_parameters(function, n_given):
    """Names of the parameters without a default after the first ones."""
    given = named_parameters(function, n_given)[0]
    parameters = _parameters(function)
    return [
        name for name in given if parameters[name].default is inspect.Parameter.empty
    ]


def _signature(function):
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):  # some functions that are not written in Python
        return inspect.signature(lambda *arguments: None)


def _parameters(function):
    return _signature(function).parameters
