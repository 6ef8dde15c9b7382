"""Peers of the experiment ``segmented``: packages of R, and of Python."""

import contextlib
import importlib.util
import shutil
import subprocess
import tempfile
from pathlib import Path

import numpy as np

from benchmarks._timing import timed

MOST_KINKS = 8  # of the series whose kinks are counted

# Estimates, standard errors and sums of squares of the series of a file, with as many
# kinks as its last column says.
R_SEGMENTED = """
suppressMessages(library(segmented)); set.seed(1)
d <- read.csv("data.csv"); seconds <- 0
for (k in unique(d$series)) {
  e <- d[d$series == k, ]
  seconds <- seconds + system.time(tryCatch({
    s <- segmented(lm(y ~ x, data = e), seg.Z = ~x, npsi = e$kinks[1])
    cat("fit", k, sprintf("%.12g", c(s$psi[, 2], s$psi[, 3], sum(resid(s)^2))), "\\n")
  }, error = function(e) NULL))[["elapsed"]]
}
cat("seconds", seconds, "\\n")
"""
R_SELGMENTED = """
suppressMessages(library(segmented)); set.seed(1)
d <- read.csv("data.csv"); seconds <- 0
for (k in unique(d$series)) {
  e <- d[d$series == k, ]; n <- -1
  seconds <- seconds + system.time(tryCatch({
    s <- selgmented(lm(y ~ x, data = e), Kmax = 12, type = "bic", msg = FALSE)
    n <- if (is.null(s$psi)) 0 else nrow(s$psi)
  }, error = function(e) NULL))[["elapsed"]]
  cat("fit", k, n, "\\n")
}
cat("seconds", seconds, "\\n")
"""
R_DAVIES = """
suppressMessages(library(segmented))
d <- read.csv("data.csv")
for (k in unique(d$series)) {
  e <- d[d$series == k, ]
  cat("p", k, davies.test(lm(y ~ x, data = e), ~x)$p.value, "\\n")
}
"""
R_STRUCCHANGE = """
suppressMessages(library(strucchange))
for (name in c("Nile", "nottem", "UKDriverDeaths")) {
  y <- get(name); if (name == "UKDriverDeaths") y <- log10(y)
  write.csv(data.frame(t = as.numeric(time(y)), y = as.numeric(y)),
            paste0(name, ".csv"), row.names = FALSE)
  seconds <- system.time(found <- breakpoints(y ~ 1, h = 0.15))[["elapsed"]]
  cat("seconds", name, seconds, "\\n")
  for (m in 1:3) cat(name, m, breakpoints(found, breaks = m)$breakpoints, "\\n")
}
"""
# The linear models among the examples of segmented's help pages, and its data sets.
R_EXAMPLES = """
suppressMessages(library(segmented)); set.seed(12)
x <- 1:100; z <- runif(100)
y <- 2 + 1.5 * pmax(x - 35, 0) - 1.5 * pmax(x - 70, 0) +
  15 * pmax(z - .5, 0) + rnorm(100, 0, 2)
data(stagnant); data(plant)
sets <- list(one = list(data.frame(x, y), 1), two = list(data.frame(x, y), 2),
  linear = list(data.frame(x, y, z), 2), stagnant = list(stagnant[c("x", "y")], 1))
for (g in levels(plant$group)) {
  d <- plant[plant$group == g, ]
  sets[[g]] <- list(data.frame(x = d$time, y = d$y), 1)
}
for (name in names(sets)) {
  d <- sets[[name]][[1]]; write.csv(d, paste0(name, ".csv"), row.names = FALSE)
  f <- if ("z" %in% names(d)) y ~ x + z else y ~ x
  s <- segmented(lm(f, data = d), seg.Z = ~x, npsi = sets[[name]][[2]])
  figures <- c(s$psi[, 2], s$psi[, 3], slope(s)$x[, 1:2], sum(resid(s)^2))
  cat(name, sprintf("%.12g", figures), "\\n")
}
"""


def run_r(script, folder):
    """Words of the lines that a script prints; None without R."""
    if shutil.which("Rscript") is None:
        return None
    done = subprocess.run(
        ["Rscript", "-e", script], cwd=folder, capture_output=True, text=True
    )
    if done.returncode:
        return None
    return [line.split() for line in done.stdout.splitlines()]


def write_series(path, samples, kinks=None):
    """A file with the columns series, x, y and the number of kinks."""
    kinks = [1] * len(samples) if kinks is None else kinks
    rows = [
        (k, x, y, n)
        for k, (each, n) in enumerate(zip(samples, kinks, strict=True))
        for x, y in zip(*each, strict=True)
    ]
    header = "series,x,y,kinks"
    np.savetxt(path, rows, delimiter=",", header=header, comments="", fmt="%.17g")


def fits_of_r(samples, kinks):
    """Figures of R's segmented by the number of the series, and seconds; or None."""
    with tempfile.TemporaryDirectory() as folder:
        write_series(Path(folder) / "data.csv", samples, kinks)
        lines = run_r(R_SEGMENTED, folder)
    if lines is None:
        return None
    fits = {int(w[1]): np.array(w[2:], float) for w in lines if w[0] == "fit"}
    return fits, float(lines[-1][1])


def count_by_r(samples):
    """Numbers of kinks that R's selgmented chooses by BIC, and seconds; or None."""
    with tempfile.TemporaryDirectory() as folder:
        write_series(Path(folder) / "data.csv", samples)
        lines = run_r(R_SELGMENTED, folder)
    if lines is None:
        return None
    return np.array([int(w[2]) for w in lines[:-1]]), float(lines[-1][1])


def count_by_python(samples):
    """Numbers of kinks that piecewise-regression chooses by BIC, and seconds."""
    if importlib.util.find_spec("piecewise_regression") is None:
        return None
    import piecewise_regression

    def count(x, y):
        with contextlib.redirect_stdout(None):
            chosen = piecewise_regression.ModelSelection(
                x, y, max_breakpoints=MOST_KINKS + 2, n_boot=20, verbose=False
            )
        tried = [m for m in chosen.model_summaries if m["bic"] is not None]
        return min(tried, key=lambda m: m["bic"])["n_breakpoints"]

    np.random.seed(0)  # noqa: NPY002  it draws from this
    numbers, seconds = timed(lambda: [count(x, y) for x, y in samples])
    return np.array(numbers), seconds


def share_of_r(samples):
    """Share of p-values of davies.test up to 0.05."""
    with tempfile.TemporaryDirectory() as folder:
        write_series(Path(folder) / "data.csv", samples)
        lines = run_r(R_DAVIES, folder)
    if lines is None:
        return None
    return float(np.mean([float(words[2]) <= 0.05 for words in lines]))


def fit_pwlf(x, y, n_kinks):
    import pwlf

    pwlf.PiecewiseLinFit(x, y).fitfast(n_kinks + 1)


def fit_piecewise(x, y, n_kinks):
    import piecewise_regression

    if n_kinks:
        piecewise_regression.Fit(x, y, n_breakpoints=n_kinks)
