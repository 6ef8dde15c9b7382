"""Classifier heads on features: FGNSoftmaxHead by default settings on held-out rows."""

from functools import partial

from benchmarks._gates.common import Row, held_out_labels

SHARE = 1 / 3  # of the rows that is held out

# Rows, features, classes, and distance of the means in deviations of the features.
GENERATED = {
    "classes_20": (2000, 64, 20, 0.5),
    "classes_50": (8000, 256, 50, 0.25),
    "classes_197": (4000, 128, 197, 0.5),
    "classes_1000": (4000, 64, 1000, 0.9),
}


def digits():
    from sklearn.datasets import load_digits

    X, y = load_digits(return_X_y=True)
    return X / 16, y


def clusters(n, d, n_classes, separation):
    """Features of unequal scales around a mean for each class."""
    import numpy as np

    rng = np.random.default_rng(0)
    y = rng.permutation(np.arange(n) % n_classes)
    means = separation * rng.standard_normal((n_classes, d))
    features = means[y] + rng.standard_normal((n, d))
    return features * np.arange(1, d + 1) ** -0.5, y


def few_shot():
    """50 classes of twelve rows, of which four are for training, of unit length."""
    import numpy as np

    rng = np.random.default_rng(0)
    y = np.arange(600) % 50
    X = rng.standard_normal((50, 512))[y] + 3.5 * rng.standard_normal((600, 512))
    return X / np.linalg.norm(X, axis=1, keepdims=True), y


def texts(n_languages=None, n_grams=None):
    """Which language a paragraph is in: n-grams of its characters, a sparse matrix.

    Of so many languages, and of the most frequent n-grams; None is all.
    """
    import numpy as np
    from sklearn.feature_extraction.text import TfidfVectorizer

    from sklearn_gn.datasets import load_udhr

    text, y = load_udhr(return_X_y=True)
    chosen = np.isin(y, np.unique(y)[:n_languages])
    vectorizer = TfidfVectorizer(
        analyzer="char_wb", ngram_range=(1, 3), min_df=3, max_features=n_grams
    )
    return vectorizer.fit_transform(text[chosen]), y[chosen].astype(str)


def fitted(load, held_out=SHARE):
    """Fit a head; log loss and accuracy of held-out rows, seconds."""
    from sklearn_gn import FGNSoftmaxHead

    def make(seed):
        return FGNSoftmaxHead(random_state=seed)

    return held_out_labels(make, *load(), held_out)


def rows(data):
    """All heads."""
    found = {
        "digits": Row("1,797 x 64, 10 classes", partial(fitted, digits)),
        "few_shot": Row("200 x 512, 50 classes", partial(fitted, few_shot, 2 / 3)),
        "texts": Row("n-grams, 100 languages", partial(fitted, partial(texts, 100))),
        "many_texts": Row(
            "7,245 x 20,000 n-grams, 483 languages",
            partial(fitted, partial(texts, None, 20_000)),
        ),
    }
    for name, sizes in GENERATED.items():
        n, d, n_classes, _ = sizes
        found[name] = Row(
            f"{n:,} x {d}, {n_classes} classes, a third held out",
            partial(fitted, partial(clusters, *sizes)),
        )
    return found
