"""The columns of a table: their kinds, their encoding for the network, and the distance of rows.

`Schema` is what other modules use. `features` describes one column, `inference` says what each
column of a training table is, `columns` reads its cells, `notation` the text in them; `ranks` and
`coding` make the matrix that the network sees, `distance` compares rows, `expressions` and
`derived` compute columns that follow from others, `summary` shows how a table was read.
"""

from lapace.schema.features import Feature, Override
from lapace.schema.ranks import Knots
from lapace.schema.schema import Reading, Schema
from lapace.schema.summary import column_lines, read_overrides, remarks

__all__ = [
    "Feature",
    "Knots",
    "Override",
    "Reading",
    "Schema",
    "column_lines",
    "read_overrides",
    "remarks",
]
