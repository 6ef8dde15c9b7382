"""Find what the package offers, so that tests forget nothing."""

import importlib
import inspect
import pkgutil
from collections.abc import Callable
from typing import Any

from sklearn.base import BaseEstimator

import sklearn_gn

PUBLIC_MODULES = [
    "sklearn_gn",
    "sklearn_gn.callbacks",
    "sklearn_gn.datasets",
    "sklearn_gn.networks",
    "sklearn_gn.pde",
    "sklearn_gn.pde.problems",
    "sklearn_gn.plotting",
    "sklearn_gn.quadrature",
    "sklearn_gn.solvers",
]


def all_estimators() -> list[tuple[str, type]]:
    """Return the public estimator classes of the package, by name.

    They are those that the modules of the method folders define. The folder of a method
    has a module ``estimator``, or ``algorithms``.

    Returns
    -------
    list of (str, type)
        Sorted by name.
    """
    found: dict[str, Any] = {}
    for folder in pkgutil.iter_modules(sklearn_gn.__path__, "sklearn_gn."):
        if not folder.ispkg:
            continue
        package = importlib.import_module(folder.name)
        names = [module.name for module in pkgutil.iter_modules(package.__path__)]
        of_method = {"algorithms", "estimator"} & set(names)
        if not of_method:
            continue
        for name in names:
            module = importlib.import_module(f"{folder.name}.{name}")
            for member_name, member in inspect.getmembers(module, inspect.isclass):
                if (
                    issubclass(member, BaseEstimator)
                    and member.__module__ == module.__name__
                    and not member_name.startswith("_")
                ):
                    found[member_name] = member
    return sorted(found.items())


def public_objects() -> dict[str, Any]:
    """Return the public classes and functions, by their full names.

    Returns
    -------
    dict of str to object
    """
    return {
        f"{module}.{name}": getattr(importlib.import_module(module), name)
        for module in PUBLIC_MODULES
        for name in importlib.import_module(module).__all__
        if not name.startswith("__")
    }


def public_functions(public: Any) -> dict[str, Callable[..., Any]]:
    """Return the functions of a public object that a user calls.

    Parameters
    ----------
    public : object
        A function, or a class.

    Returns
    -------
    dict of str to function
        For a function itself, by the name "". For a class: the constructor and the
        public methods and properties that are not of another package, by name.
    """
    if not inspect.isclass(public):
        return {"": public}
    found: dict[str, Any] = {}
    for name in dir(public):
        if name.startswith("_") and name not in ("__init__", "__call__"):
            continue
        member = inspect.getattr_static(public, name)
        for attribute in ("fget", "func", "__func__"):
            member = getattr(member, attribute, member)
        module = getattr(member, "__module__", None) or ""
        if inspect.isfunction(member) and module.startswith("sklearn_gn"):
            found[name] = member
    return found
