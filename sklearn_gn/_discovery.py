"""Find what the package offers, so that tests forget nothing."""

import importlib.util
import inspect
import pkgutil

from sklearn.base import BaseEstimator

import sklearn_gn


def all_estimators():
    """Return the public estimator classes of the package, by name.

    Every folder of a method has them in its module ``estimator``.

    Returns
    -------
    list of (str, type)
        Sorted by name.
    """
    found = {}
    for folder in pkgutil.iter_modules(sklearn_gn.__path__, "sklearn_gn."):
        name = f"{folder.name}.estimator"
        if not folder.ispkg or folder.name == "sklearn_gn.core":
            continue
        if importlib.util.find_spec(name) is None:
            continue
        for member_name, member in inspect.getmembers(importlib.import_module(name)):
            if (
                inspect.isclass(member)
                and issubclass(member, BaseEstimator)
                and member.__module__ == name
                and not member_name.startswith("_")
            ):
                found[member_name] = member
    return sorted(found.items())
