"""Linear model trees and linear boosting of linear-tree on a table.

    python -m benchmarks._peers.linear_tree CLASS FILE.npz

The file has X_train, y_train, X_test and y_test. Prints the R2 of the test rows and
the seconds of the fit as JSON. Neither class takes a seed: they draw no numbers.
"""

import json
import sys
import time
from importlib.metadata import version

import lineartree
import numpy as np
from sklearn.linear_model import LinearRegression


def main(name, path):
    with np.load(path) as data:
        X_train, y_train, X_test, y_test = (
            data[part] for part in ("X_train", "y_train", "X_test", "y_test")
        )
    model = getattr(lineartree, name)(LinearRegression())
    begun = time.perf_counter()
    model.fit(X_train, y_train)
    seconds = time.perf_counter() - begun
    score = float(model.score(X_test, y_test))
    packages = ("linear-tree", "scikit-learn")
    versions = {package: version(package) for package in packages}
    print(json.dumps({"score": score, "seconds": seconds, "versions": versions}))


if __name__ == "__main__":
    main(*sys.argv[1:])
