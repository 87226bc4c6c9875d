"""Tables in files: CSV and Parquet, read and written at once or in chunks.

Files are read with pandas, Parquet also with pyarrow. Tables larger than memory are read and
written in chunks. A file is written whole or not at all.
"""

from __future__ import annotations

from lapace.apps.io.reading import TableFile, read_file
from lapace.apps.io.sources import ending_of
from lapace.apps.io.writing import csv_parts, write_frames

__all__ = ["TableFile", "csv_parts", "ending_of", "read_file", "write_frames"]
