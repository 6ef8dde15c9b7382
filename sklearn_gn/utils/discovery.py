"""Find what the package offers, so that tests forget nothing."""

import importlib
import inspect
import pkgutil

from sklearn.base import BaseEstimator

import sklearn_gn.estimators


def all_estimators():
    """Return the public estimator classes of the package, by name.

    Returns
    -------
    list of (str, type)
        Sorted by name.
    """
    found = {}
    package = sklearn_gn.estimators
    for module in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
        if module.name.rpartition(".")[2].startswith("_"):
            continue
        for name, member in inspect.getmembers(importlib.import_module(module.name)):
            if (
                inspect.isclass(member)
                and issubclass(member, BaseEstimator)
                and member.__module__ == module.name
                and not name.startswith("_")
            ):
                found[name] = member
    return sorted(found.items())
