"""ShallowReLURegressor: piecewise-linear regression by Gauss-Newton methods."""
