"""From a new table to an explanation over HTTP, in real processes.

Only the command and what the README and its help show are used: fit, report, explain, serve.
"""

from __future__ import annotations

import csv
import json
import os
import random
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import jsonschema
import pytest

from lapace.cli.commands import EXAMPLES
from lapace.result import json_schema

ROOT = Path(__file__).resolve().parent.parent

COLUMNS = [
    "customer no.",
    "monthly fee ($)",
    "Plan Type",
    "Has App?",
    "support calls (90 d)",
    "satisfaction",
    "age",
    "left us?",
]
LEVELS = ("bad", "fair", "good")


def customers(path: Path, count: int, seed: int) -> None:
    """Columns with odd names: missing values, numbers, categories, an order, booleans, an id."""
    rng = random.Random(seed)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for number in range(count):
            fee = round(rng.gammavariate(4, 9), 2)
            plan = rng.choice(["flat", "pre-paid", "Family & Co", "pre-paid"])
            calls = rng.choice([0, 0, 0, 1, 2, 3, 5, 8])
            level = rng.randrange(3)
            left = fee + 9 * calls - 14 * level - 12 * (plan == "flat") + rng.gauss(0, 4) > 26
            row = [number + 1000, fee, plan, rng.random() < 0.6, calls, LEVELS[level]]
            row += [rng.randint(18, 90), "yes" if left else "no"]
            for gap in (1, 4, 5):
                if rng.random() < 0.06:
                    row[gap] = ""
            writer.writerow(row)


class Shell:
    """Runs the command in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def start(self, *arguments: object) -> subprocess.Popen:
        return subprocess.Popen(
            [sys.executable, "-m", "lapace.cli", *map(str, arguments)],
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "PYTHONIOENCODING": "utf-8"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
        )

    def run(self, *arguments: object, code: int = 0) -> tuple[str, str]:
        with self.start(*arguments) as process:
            out, err = process.communicate(timeout=600)
        assert process.returncode == code, err
        assert "Traceback" not in err
        return out, err

    def post(self, address: str, query: dict) -> tuple[int, dict]:
        """Status and JSON of a response."""
        body = json.dumps(query).encode()
        request = urllib.request.Request(address, body, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=120) as response:
                return response.status, json.load(response)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)


@pytest.fixture
def shell(tmp_path):
    customers(tmp_path / "customers 2024.csv", 420, seed=1)
    customers(tmp_path / "this week.csv", 12, seed=2)
    return Shell(tmp_path)


def test_from_a_new_table_to_an_explanation_response(shell):
    table, week = "customers 2024.csv", "this week.csv"
    fit = ["fit", table, "--classifier", "mlp", "--label", "left us?", "-o", "churn.lapace"]

    # The first command is refused, and the message says what to do.
    _, err = shell.run(*fit, code=2)
    assert err == (
        "lapace: Column 'customer no.' only numbers the rows. If it identifies the rows: --id "
        "'customer no.'. Else drop it (--drop 'customer no.'), or say it is 'number' (--kind "
        "'customer no.=number', schema={'customer no.': 'number'}).\n"
        "Of the others:\n"
        "  'satisfaction' looks ordered: --kind 'satisfaction=ordinal:bad<fair<good'\n"
    )
    assert not list(shell.folder.glob("churn*"))

    out, err = shell.run(
        *fit, "--id", "customer no.", "--kind", "satisfaction=ordinal:bad<fair<good",
        "--n-prototypes", 2, "--rule", "age == original",
    )  # fmt: skip
    assert out.startswith("Report on the explanations:")
    assert "Wrote 'churn.lapace' and its classifier 'churn.skops'." in err

    out, _ = shell.run("report", "churn.lapace", "--format", "json")
    assert json.loads(out)["verdict"] in ("passes", "unsure")

    constraints = [
        "`monthly fee ($)` >= 0.5 * original",
        "`Has App?` == original",
        "satisfaction >= original",
    ]
    flags = [word for text in constraints for word in ("--constraint", text)]
    query = ["explain", "churn.lapace", week, "--target", "no", *flags]
    out, err = shell.run(*query, "--format", "json")
    explanation = json.loads(out)
    jsonschema.validate(explanation, json_schema())
    statuses = {instance["status"] for instance in explanation["instances"]}
    assert len(explanation["instances"]) == 12
    assert "answered" in statuses
    assert statuses <= {"answered", "already_target", "none_found", "infeasible"}
    assert re.match(r"Explanation of 12 instances: \d+ answered", err)
    check_constraints(explanation)

    # The example of the help, with this table's name and any free port.
    own = {"loans.lapace": "churn.lapace", "instances.csv": week, "8000": "0"}
    example = [own.get(word, word) for word in EXAMPLES["serve"].split()[1:]]
    with shell.start(*example) as server:
        try:
            address = listening(server)
            instance = first_answered(shell.folder / week, explanation)
            query = {"instances": [instance], "target": "no", "constraints": constraints}
            status, response = shell.post(f"{address}/v2/explain", query)
            assert status == 200
            jsonschema.validate(response, json_schema())
            assert response["instances"][0]["status"] == "answered"
            check_constraints(response)
            wrong = {**query, "constraints": ["`monthly fe ($)` >= 1"]}
            status, refusal = shell.post(f"{address}/v2/explain", wrong)
            assert status == 422
            assert "Did you mean 'monthly fee ($)'" in refusal["error"]
        finally:
            server.send_signal(signal.SIGINT)
            out, err = server.communicate(timeout=60)
    assert server.returncode in (0, 130)
    assert out == ""
    assert "Traceback" not in err


def check_constraints(explanation):
    """Every feasible first row satisfies the constraints, computed here once more."""
    names = [feature["name"] for feature in explanation["schema"]["features"]]
    checked = 0
    for instance in explanation["instances"]:
        original = dict(zip(names, instance["row"], strict=True))
        for path in instance["paths"]:
            first = path["steps"][path["picks"]["first"]]
            if not (first["valid"] and first["feasible"]):
                continue
            row = dict(zip(names, first["row"], strict=True))
            assert row["age"] == original["age"]
            assert row["Has App?"] == original["Has App?"]
            if original["monthly fee ($)"] is not None:
                assert row["monthly fee ($)"] >= 0.5 * original["monthly fee ($)"]
            if original["satisfaction"] is not None:
                assert LEVELS.index(row["satisfaction"]) >= LEVELS.index(original["satisfaction"])
            checked += 1
    assert checked


def first_answered(path, explanation):
    """The first instance with a counterfactual, as plain values of the file."""
    instance = [one["status"] for one in explanation["instances"]].index("answered")
    with path.open(encoding="utf-8", newline="") as file:
        row = list(csv.DictReader(file))[instance]
    row = {name: value or None for name, value in row.items() if name != "left us?"}
    for name in ("monthly fee ($)", "support calls (90 d)", "age"):
        row[name] = None if row[name] is None else float(row[name])
    return {**row, "Has App?": row["Has App?"] == "True"}


def listening(server):
    """The address, once the server has printed it."""
    for line in server.stderr:
        if found := re.search(r"Listening at (http://\S+?);", line):
            return found[1]
    raise AssertionError(f"the server never listened: {server.poll()}")
