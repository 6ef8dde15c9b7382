"""Find what the package offers, so that tests forget nothing."""

import importlib
import inspect
import pkgutil

from sklearn.base import BaseEstimator

import sklearn_gn


def all_estimators():
    """Return the public estimator classes of the package, by name.

    They are those that the modules of the method folders define. The folder of a method
    has a module ``estimator``, or ``algorithms``.

    Returns
    -------
    list of (str, type)
        Sorted by name.
    """
    found = {}
    for folder in pkgutil.iter_modules(sklearn_gn.__path__, "sklearn_gn."):
        if not folder.ispkg:
            continue
        package = importlib.import_module(folder.name)
        names = [module.name for module in pkgutil.iter_modules(package.__path__)]
        of_method = {"algorithms", "estimator"} & set(names)
        if not of_method or folder.name == "sklearn_gn.core":
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
