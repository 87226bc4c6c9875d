"""Tables in files: CSV and Parquet.

Files are read with pandas. Results are written one frame after another, and a file is written whole
or not at all.
"""

from __future__ import annotations

from lapace.apps.io.reading import ending_of, read_file
from lapace.apps.io.writing import csv_parts, write_frames

__all__ = ["csv_parts", "ending_of", "read_file", "write_frames"]
