"""From a new table to an explanation over HTTP, in real processes.

Only the command and what the README and its help show are used: fit, report, explain, serve.
"""

from __future__ import annotations

import csv
import json
import random
import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import jsonschema

from lapace.apps.cli.commands import EXAMPLES
from lapace.result import json_schema
from tests.processes import environment

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


def start(*arguments: object) -> subprocess.Popen:
    """Starts the command in the current folder."""
    return subprocess.Popen(
        [sys.executable, "-m", "lapace.apps.cli", *map(str, arguments)],
        env=environment(PYTHONIOENCODING="utf-8"),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
    )


def run(*arguments: object, code: int = 0) -> tuple[str, str]:
    """Runs the command to its end; returns what it wrote on standard output and error."""
    with start(*arguments) as process:
        out, err = process.communicate(timeout=600)
    assert process.returncode == code, err
    assert "Traceback" not in err
    return out, err


def test_from_a_new_table_to_an_explanation_response(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    table, week = "customers 2024.csv", "this week.csv"
    customers(Path(table), 420, seed=1)
    customers(Path(week), 12, seed=2)
    fit = ["fit", table, "--classifier", "mlp", "--label", "left us?", "-o", "churn.lapace"]

    # The first command is refused, and the message says what to do.
    _, err = run(*fit, code=2)
    assert err == (
        "lapace: Column 'customer no.' only counts the rows. Drop it (--drop 'customer no.'), let "
        "it identify the rows (--id 'customer no.'), or say it is 'number' (--kind "
        "'customer no.=number').\n"
    )
    assert not list(tmp_path.glob("churn*"))

    out, _ = run(
        *fit, "--id", "customer no.", "--kind", "satisfaction=ordinal:bad<fair<good",
        "--n-prototypes", 2, "--rule", "age == original",
    )  # fmt: skip
    assert out.startswith("Report on the explanations:")
    assert "Wrote 'churn.lapace' and its classifier 'churn-" in out

    out, _ = run("report", "churn.lapace", "--format", "json")
    assert json.loads(out)["verdict"] in ("passes", "unsure")

    constraints = [
        "`monthly fee ($)` >= 0.5 * original",
        "`Has App?` == original",
        "satisfaction >= original",
    ]
    flags = [word for text in constraints for word in ("--constraint", text)]
    query = ["explain", "churn.lapace", week, "--target", "no", *flags]
    out, err = run(*query, "--format", "json")
    explanation = json.loads(out)
    jsonschema.validate(explanation, json_schema())
    statuses = {instance["status"] for instance in explanation["instances"]}
    assert len(explanation["instances"]) == 12
    assert "answered" in statuses
    assert statuses <= {"answered", "already_target", "none_found", "infeasible"}
    assert re.match(r"Explanation of 12 instances: .*\d+ answered", err)
    check_constraints(explanation)

    # The example of the help, with this table's name and any free port.
    own = {"loans.lapace": "churn.lapace", "instances.csv": week, "8000": "0"}
    example = [own.get(word, word) for word in EXAMPLES["serve"].split()[1:]]
    with start(*example) as server:
        try:
            address = listening(server)
            instance = first_answered(Path(week), explanation)
            query = {"instances": [instance], "target": "no", "constraints": constraints}
            response = httpx.post(f"{address}/v3/explain", json=query, timeout=120)
            assert response.status_code == 200
            jsonschema.validate(response.json(), json_schema())
            assert response.json()["instances"][0]["status"] == "answered"
            check_constraints(response.json())
            query["constraints"] = ["`monthly fe ($)` >= 1"]
            refusal = httpx.post(f"{address}/v3/explain", json=query, timeout=120)
            assert refusal.status_code == 422
            assert "Did you mean 'monthly fee ($)'" in refusal.json()["error"]
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
