"""Runs the notebooks and keeps their outputs: `python docs/notebooks/run.py [name …]`.

The test of the notebooks runs them too, and compares.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

HERE = Path(__file__).resolve().parent
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}


def executed(path: Path) -> Any:
    """The notebook, run from start to end in an empty folder."""
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        NotebookClient(
            notebook,
            timeout=600,
            kernel_name="python3",
            record_timing=False,
            resources={"metadata": {"path": folder}},
        ).execute(env={**os.environ, "MPLBACKEND": "module://matplotlib_inline.backend_inline"})
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":  # whether a fit shows its progress depends on the clock
            cell["outputs"] = [o for o in cell["outputs"] if "training: " not in o.get("text", "")]
    return notebook


def outputs(notebook: Any) -> list[list[Any]]:
    """Of each cell of code what it printed and returned, as text; pictures as their bytes."""
    return [
        [_plain(output) for output in cell["outputs"]]
        for cell in notebook["cells"]
        if cell["cell_type"] == "code"
    ]


def _plain(output: Any) -> tuple[str, str]:
    if output["output_type"] == "stream":
        return "text", "".join(output["text"])
    data = output["data"]
    if "image/png" in data:
        return "picture", "".join(data["image/png"])
    return "text", "".join(data["text/plain"])


def main(names: list[str]) -> None:
    """Runs them, and writes each with its outputs and nothing that changes from run to run."""
    for path in sorted(HERE.glob("*.ipynb")):
        if names and path.stem not in names:
            continue
        notebook = executed(path)
        notebook["metadata"] = {"kernelspec": KERNEL}
        text = json.dumps(notebook, indent=1, ensure_ascii=False, sort_keys=True)
        path.write_text(text + "\n", encoding="utf-8")
        print(path.name)


if __name__ == "__main__":
    main(sys.argv[1:])
