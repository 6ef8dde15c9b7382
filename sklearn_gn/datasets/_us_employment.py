"""Monthly employment in the industries of the United States."""

from importlib.resources import files
from typing import Any


def load_us_employment() -> Any:
    """Load employment in the United States by industry, month by month (many series).

    Thousands of employees, seasonally adjusted, from January 2006 to December 2015, as
    published by the Bureau of Labor Statistics of the United States in its Current
    Employment Statistics; a work of the federal government, which is in the public
    domain. The table is that of the package ``vega-datasets`` (npm), 3.2.1.

    Returns
    -------
    pandas.DataFrame
        120 rows: ``month``, 15 industries, the sums of some of them (``nonfarm``,
        ``private``, ``goods_producing``, ``service_providing``,
        ``private_service_providing``, ``manufacturing``,
        ``trade_transportation_utilties``), and ``nonfarm_change``.

    Examples
    --------
    >>> from sklearn_gn.datasets import load_us_employment
    >>> table = load_us_employment()
    >>> table.shape
    (120, 24)
    """
    import pandas as pd

    source = files(__package__).joinpath("data", "us_employment.csv")
    with source.open(encoding="utf-8") as file:
        return pd.read_csv(file, parse_dates=["month"])
