"""R's packages segmented and strucchange for the experiment ``segmented``."""

import shutil
import subprocess

import numpy as np

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
