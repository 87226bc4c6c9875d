"""Python in a process of its own that finds this checkout."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


def environment(**more: str) -> dict[str, str]:
    """The variables of such a process."""
    return {**os.environ, "PYTHONPATH": str(ROOT / "src"), **more}


def python(*words: Any, check: bool = False, **settings: Any) -> Any:
    """Runs Python to its end; what it prints is kept, as text unless the settings say otherwise."""
    usual = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    settings = {"env": environment(), **usual, **settings}
    return subprocess.run([sys.executable, *map(str, words)], check=check, **settings)
