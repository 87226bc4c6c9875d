"""Dataframes in and out.

Every table that comes in, pandas, polars, pyarrow, a numpy array or a list of records, becomes a
`Table` of plain numpy columns, and its `Template` records what it was, so that rows can leave as
the same kind of frame with the same columns, order and dtypes. No other module depends on which
dataframe library a user has.
"""

from lapace.table.frames import Coded, Level, Template, as_coded, plain_frame, spelling
from lapace.table.reading import Column, Table, read

__all__ = [
    "Coded",
    "Column",
    "Level",
    "Table",
    "Template",
    "as_coded",
    "plain_frame",
    "read",
    "spelling",
]
