"""The command line: in this process where that is enough, else in processes of its own."""

from __future__ import annotations

import contextlib
import inspect
import io
import json
import math
import os
import re
import shlex
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import jsonschema
import numpy as np
import pandas as pd
import pytest
import typer
from typer.testing import CliRunner

import lapace
from docs import pages
from lapace import Explainer
from lapace.apps.cli import rendering
from lapace.apps.cli.commands import EXAMPLES, app
from lapace.apps.cli.fitting import save_pair
from lapace.apps.cli.outputs import progress, quiet, show
from lapace.apps.server import create_app
from lapace.explainer import Search, storage
from lapace.explainer.problem import MAX_QUERIES
from lapace.result import PICKS, Explanation, json_schema, why_not_to_json
from tests import worlds
from tests.processes import ROOT, environment, python
from tests.worlds import once

PAGE = ROOT / "docs" / "reference" / "cli.md"
DENIED = "denied.csv"
PARQUET = "instances.parquet"


def run(*arguments, **more):
    """Runs one command in this process; `arguments` as a shell splits them, or one line."""
    words = shlex.split(arguments[0]) if len(arguments) == 1 else [*map(str, arguments)]
    return CliRunner().invoke(app, words, prog_name="lapace", **more)


def done(*arguments, **more):
    """Runs one command that must succeed."""
    result = run(*arguments, **more)
    assert result.exit_code == 0, result.stderr
    return result


def start(*arguments, **more):
    """Starts one command as a process of its own.

    A process started in the background of a script inherits SIGINT ignored, and so would this one:
    it gets the default back.
    """
    return subprocess.Popen(
        [sys.executable, "-m", "lapace.apps.cli", *map(str, arguments)],
        env=environment(**more.pop("env", {})),
        **{
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
            "preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            **more,
        },
    )


@once
def made():
    """A small table and explainer, by the names of files that the examples use."""
    loans = lapace.datasets.load("loans", rows=400)
    columns = ["age", "income", "credit_score", "housing"]
    train = loans.train[columns].assign(label=loans.train_labels).head(250)
    with TemporaryDirectory() as folder, contextlib.chdir(folder):
        train.to_csv("train.csv", index=False)
        loans.test[columns].assign(label=loans.test_labels).to_csv("instances.csv", index=False)
        Path("loans.toml").write_text('version = 2\nconstraints = ["age == original"]\n')
        # Of the three classifiers the one that loads fastest.
        fitted = done(example("fit").replace("forest", "mlp"))
        lines = fitted.stdout.splitlines()
        assert [line.partition(":")[0] for line in lines[2:4]] == [
            "Free to change",
            "Odd in the table",
        ]
        assert lines[0].startswith("Report on the explanations: ")
        assert re.match(r"The mlp is right on [\d.]+% of rows held out; always saying '", lines[1])
        assert lines[2] == (
            "Free to change: income, credit_score, housing. To keep a column as it is: "
            "--rule 'fixed income'"
        )
        assert re.match(
            r"Wrote 'loans.lapace' and its classifier 'loans-\w{8}.skops'. The ", lines[4]
        )
        assert lines[5] == (
            "Next: lapace explain loans.lapace TABLE.csv --target LABEL (LABEL: approved, denied)"
        )
        assert len(lines) == 6
        assert fitted.stderr == ""
        assert len(list(Path().glob("*.skops"))) == 1
        labels = Explainer.load("loans.lapace").classifier.predict(loans.test[columns])
        denied = loans.test[columns][labels == "denied"].head(6)
        assert len(denied) == 6
        denied.to_csv(DENIED, index=False)
        denied.to_parquet(PARQUET)
        return {path.name: path.read_bytes() for path in Path().iterdir()}


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with these files as the working directory."""
    for name, content in made().items():
        (tmp_path / name).write_bytes(content)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def denied(here):
    """Six instances that the classifier denies; `denied.csv` holds them too."""
    return pd.read_csv(DENIED)


def refused_lines(result):
    """A message of several lines about wrong input."""
    assert result.exit_code == 2, (result.exit_code, result.stdout, result.stderr)
    return result.stderr


def refused(result):
    """The one sentence about wrong input."""
    assert result.exit_code == 2, (result.exit_code, result.stdout, result.stderr)
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    assert "Value error" not in result.stderr
    *before, line = result.stderr.splitlines()  # perhaps after a remark
    assert line.startswith("lapace: ")
    assert not any(other.startswith("lapace: ") for other in before)
    return line.removeprefix("lapace: ")


# --- commands and help -----------------------------------------------------------------------


def leaves():
    """Every command by its full name."""
    found = {}

    def look(command, name):
        for own, inner in getattr(command, "commands", {}).items():
            look(inner, f"{name} {own}".strip())
        if not getattr(command, "commands", {}):
            found[name] = command

    look(typer.main.get_command(app), "")
    return found


def test_every_command_has_an_example_and_the_defaults_of_the_library():
    names = ["fit", "schema", "explain", "report", "plot", "why-not", "demo", "serve", "batch"]
    assert set(leaves()) == {*names, "cohort", "data list", "data fetch"} == set(EXAMPLES)
    ours = {name: {p.name: p.default for p in c.params} for name, c in leaves().items()}
    for name in ("n_prototypes", "random_state", "device"):
        assert ours["fit"][name] == inspect.signature(Explainer).parameters[name].default, name
    assert ours["why-not"]["max_queries"] == MAX_QUERIES
    for name in ("token", "max_instances", "queue", "timeout"):
        assert ours["serve"][name] == inspect.signature(create_app).parameters[name].default, name


def test_help_and_version_import_nothing_slow():
    code = """
import sys
from lapace.apps.cli import main
for word in ("--help", "--version"):
    try:
        main([word])
    except SystemExit as end:
        assert not end.code
print("SLOW:", *({"torch", "numpy", "pandas", "sklearn", "lapace.explainer"} & set(sys.modules)))
"""
    shown = python("-c", code, check=True).stdout
    assert shown.splitlines()[-1].split() == ["SLOW:"]
    assert f"lapace {lapace.__version__}" in shown
    assert "explain" in shown
    assert "why-not" in run().stdout, "without a command the help is shown"


def example(name):
    """The example at the end of a command's help."""
    shown = " ".join(done(*name.split(), "--help").stdout.split())
    found = re.search(r"Example: lapace (.+)$", shown)
    assert found, f"`lapace {name} --help` has no example"
    assert found[1].startswith(name)
    return found[1]


@pytest.mark.parametrize("name", sorted(set(EXAMPLES) - {"fit", "serve", "demo"}))
def test_the_example_in_the_help_runs(name, here):
    line = example(name)
    before = set(here.iterdir())
    result = done(line)
    written = re.search(r"-o (\S+)", line)
    if written:
        assert (here / written[1]).stat().st_size > 100
    else:
        assert len(result.stdout) > 100
        assert set(here.iterdir()) == before


@pytest.mark.full
def test_the_demo_shows_the_answer_first_and_keeps_its_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shown = done(example("demo")).stdout
    (classifier,) = (tmp_path / "demo").glob("*.skops")
    kept = {path.name for path in (tmp_path / "demo").iterdir()} - {classifier.name}
    tables = {"train.csv", "instances.csv", "counterfactuals.csv"}
    assert kept == {*tables, "loans.toml", "columns.toml", "loans.lapace", "answer.png"}
    assert "The picture of its path: demo/answer.png" in shown
    assert set(tmp_path.iterdir()) == {tmp_path / "demo"}
    pattern = r"Application (\d+) is denied. It would be approved with\n(  \w+: .+ → .+\n)+and all"
    (number, _) = re.match(pattern, shown).groups()
    lines = re.findall(r"^  lapace (.+)$", shown, flags=re.MULTILINE)
    commands = [line.split()[0] for line in lines]
    assert commands == ["data", "data", "fit", "explain", "plot", "explain"]
    monkeypatch.chdir(tmp_path / "demo")
    assert f"Instance {number}: denied → approved  answered" in done(lines[-1]).stdout
    assert "is not empty. Name another one." in refused(run("demo -o ."))


# --- fit -------------------------------------------------------------------------------------


def test_the_command_writes_an_explainer_of_the_library(here, denied):
    explainer = Explainer.load("loans.lapace")
    assert explainer.classes_.tolist() == ["approved", "denied"]
    assert "label" not in explainer.schema_.names
    assert explainer.report_.accuracy is None, "on rows it was trained on it says nothing"
    assert any("age" in str(rule) for rule in explainer.rules)
    explanation = explainer.explain(denied, target="approved")
    done("explain loans.lapace denied.csv --target approved -o counterfactuals.csv")
    ours = explanation.best().frame.reset_index(drop=True)
    theirs = pd.read_csv("counterfactuals.csv")
    before = [f"{name}_before" for name in explanation.schema.names]
    names = list(explanation.schema.names)
    assert list(theirs) == [*names, *before, *ours.columns.drop(names)]
    original = explanation.schema.frame(explanation.instances[ours["instance"]])
    assert (theirs[before].to_numpy() == original.to_numpy()).all() or original.isna().any().any()
    for name in ours:
        for a, b in zip(ours[name], theirs[name], strict=True):
            missing = a == "" or pd.isna(a)
            assert (missing and pd.isna(b)) or a == b or abs(a - b) < 1e-9 * max(1, abs(a)), name


MODULE = """
import numpy as np

def decide(frame):
    return np.where(frame["income"] > 2000, "rich", "poor")
"""


@pytest.mark.usefixtures("quick_fits")
def test_a_classifier_of_a_module_is_named_in_every_command(here, denied):
    (here / "bank.py").write_text(MODULE)
    small = pd.read_csv("train.csv").head(200)[["label", "age", "income", "housing"]]
    small["class"] = (small["income"] > 1800).map({True: "rich", False: "poor"})
    small.to_csv("small.csv", index=False)
    fit = "fit small.csv --classifier bank:decide --drop label --kind age=continuous -o own.lapace"
    said = done(f"{fit} --n-prototypes 1 --random-state 3 --rule 'age == original' -q")
    assert said.stdout == ""
    (warning,) = [line for line in said.stderr.splitlines() if "Column 'class'" in line]
    assert warning.startswith("lapace: Warning: Column 'class' has exactly the classifier's labels")
    assert not list(here.glob("own*.skops"))
    lines = done(f"{fit} --n-prototypes 1 --drop class").stdout.splitlines()
    assert (
        lines[1]
        == "It is not known how often the classifier is right: --label COLUMN would show it."
    )
    assert "--target LABEL --classifier bank:decide (LABEL: poor, rich)" in lines[5]
    assert "--classifier" in refused(run("explain own.lapace denied.csv"))
    line = "explain own.lapace denied.csv --classifier bank:decide --target rich --format json"
    assert json.loads(done(line).stdout)["labels"] == ["poor", "rich"]


def test_wrong_input_of_fit(here, denied):
    train = pd.read_csv("train.csv")
    train.head(0).to_csv("empty.csv", index=False)
    (here / "nothing.csv").write_text("")
    (here / "folder").mkdir()
    (here / "twice.csv").write_text("age,label,age\n31,yes,31\n44,no,44\n")
    train.assign(label="same").to_csv("same.csv", index=False)
    train.assign(label=None).to_csv("gaps.csv", index=False)
    train.assign(number=range(len(train))).to_csv("numbered.csv", index=False)
    before = set(here.iterdir())
    tables = {
        "same": "one label only",
        "gaps": "rows have no label in column 'label'",
        "empty": "no rows",
        "nothing": "is empty",
        "nowhere": "There is no file 'nowhere.csv'",
        "numbered": "only counts the rows. Drop it (--drop number), let it identify",
        "twice": "column 'age' is in the table twice",
    }
    options = {
        "--label lable": "Did you mean 'label'",
        "--label income": "different values: that is an amount, not a label",
        "--classifier fores": "names no classifier. Did you mean 'forest'",
        "--classifier x": "also train one: forest, mlp, boosting",
        "--classifier gone.skops": "no file 'gone.skops'",
        "--kind 'housing=ordinal:rnt<family<mortgage<own'": "holds 'rent', which is not among",
        "--kind age": "--kind 'age' is not understood",
        "--kind age=text": "'text' is not a kind of column",
        "--rule 'incme > 3'": "Did you mean 'income'",
        "--rule 'housing >= original'": "has no order",
        "--sample 0": "--sample 0 is not a number of rows",
        "--rules gone.toml": "no constraint file 'gone.toml'",
        "--n-prototypes 0": "n_prototypes is 0",
        "--id numbr": "Column 'numbr' is not in the table",
        "--drop gone": "Column 'gone' is not in the table",
        "--device abacus": "abacus",
        "-o train.csv": "must end in .lapace",
        "-o gone/a.lapace": "no folder 'gone'",
        "--n-prototype 3": "--n-prototype (Possible options: --n-prototypes)",
    }
    fit = "fit {} --classifier forest --label label -o new.lapace"
    lines = {fit.format(f"{name}.csv"): says for name, says in tables.items()}
    for more, says in options.items():  # each in place of the one that it is about
        name = more.split()[0]
        rest = re.sub(rf" {name} \S+", "", fit.format("train.csv"))
        lines[f"{rest} {more}"] = says
    lines |= {
        fit.format("folder"): "is a folder",
        f"{fit.format('empty.csv')} --sample 10": "no rows",
        fit.format("loans.toml"): "files end in .csv, .tsv",
        "fit train.csv --classifier forest -o new.lapace": "--label COLUMN",
        "fit train.csv --classifier forest --label label": "--output",
    }
    for line, says in lines.items():
        sentence = refused(run(line))
        assert says in sentence, f"{line}\n{sentence}"
        assert set(here.iterdir()) == before, line
    train.assign(label=train["label"].where(train.index > 3)).to_csv("gaps.csv", index=False)
    found = done("schema gaps.csv --label label -o gaps.toml")
    assert "4 of 250 rows have no label in 'label' and are left out." in found.stderr


# --- explain ---------------------------------------------------------------------------------


def test_the_table_shows_what_changes(here, denied, monkeypatch):
    result = done("explain loans.lapace denied.csv --target approved -c 'changes <= 6'")
    found = re.findall(r"^Instance \d+: denied → approved  (\w+)$", result.stdout, re.MULTILINE)
    assert len(found) == len(denied)
    assert re.search(r"^  approved, probability 0.\d\d, effort \d", result.stdout, re.MULTILINE)
    assert re.search(r"^    \w+ +[\w,.]+ +→ +[\w,.]+ … [\w,.]+$", result.stdout, re.MULTILINE)
    assert result.stderr.startswith(
        f"Explanation of 6 instances: {found.count('answered')} answered"
    )
    assert "need not cause" in result.stderr
    assert "\x1b" not in result.stdout + result.stderr
    assert max(map(len, result.stdout.splitlines())) <= 100
    assert done("explain loans.lapace denied.csv --target approved -q").stderr == ""
    taken = "Without --target the other of the two labels is the target"
    assert taken not in result.stderr
    assert taken in done("explain loans.lapace denied.csv --ids 0").stderr
    printed = done("explain loans.lapace denied.csv --target any-other --ids 0").stdout
    assert printed.startswith("Instance 0: denied → any-other  answered\n  approved, probability ")
    monkeypatch.setattr("lapace.apps.cli.rendering.INSTANCES", 2)
    printed = done("explain loans.lapace denied.csv --target approved").stdout
    assert printed.count("Instance ") == 2
    assert "… and 4 more; -o OUT.csv or -o OUT.json has all." in printed


def test_a_way_shows_both_its_ends(here, denied):
    line = "explain loans.lapace denied.csv --target approved"
    printed = done(line).stdout
    lines = [" ".join(text.split()) for text in printed.splitlines()]
    done(f"{line} -o out.json")
    seen = set()
    for one in Explanation.from_json("out.json"):
        for rank in range(len(one.best()) if one.status == "answered" else 0):
            for change in one.changes(rank=rank).to_dict("records"):
                both = dict.fromkeys((change["enough"], change["safe"]))
                said = f"{change['feature']} {change['before']} → {' … '.join(both)}"
                assert said in lines
                seen.add(len(both))
    assert seen == {1, 2}
    assert printed.count("the first just turns the decision, the second keeps a margin.") == 1
    plain = done(f"{line} --pick nearest").stdout
    assert " … " not in plain
    assert "keeps a margin" not in plain
    csv = pd.read_csv(io.BytesIO(done(f"{line} --format csv").stdout_bytes))
    safe = Explanation.from_json("out.json").best()
    np.testing.assert_allclose(csv["effort"], safe.effort)
    np.testing.assert_allclose(csv["income"], safe.rows["income"])


def test_of_labels_alone_the_edge_is_mentioned_once(capsys):
    explanation = worlds.explained(worlds.post(), "dear")
    assert {mark.split(",")[0] for mark in explanation.best().mark} == {"edge"}
    show(*rendering.explanation_parts([explanation, explanation], "best"))
    printed = capsys.readouterr().out
    assert printed.count("to the decision boundary is not known") == 1
    assert not re.search(r"edge|\bnan\b|probability|…  ", printed)


@pytest.mark.parametrize("pick", [*PICKS, "path"])
def test_every_pick_comes_in_every_format(pick, here, denied):
    line = f"explain loans.lapace denied.csv --target approved --pick {pick}"
    csv = pd.read_csv(io.BytesIO(done(f"{line} --format csv").stdout_bytes))
    done(f"{line} -o out.parquet")
    parquet = pd.read_parquet("out.parquet")
    assert list(csv) == list(parquet)
    assert len(csv) == len(parquet) > 0
    assert set(csv["instance"]) <= set(range(len(denied)))
    per_instance = csv.groupby("instance").size()
    assert (per_instance == 1).all() if pick == "nearest" else (per_instance >= 1).all()
    assert (csv["rank"] > 0).any() == (pick == "best")
    if pick == "path":
        steps = csv.groupby(["instance", "prototype"], dropna=False)["tau"]
        assert (steps.min() == 0).all()
        assert steps.is_monotonic_increasing.all()
    if pick == "path":
        assert "Every step of every path is a long table" in refused(run(line))
    else:
        assert "Instance 0" in done(line).stdout
    explanation = json.loads(done(f"{line} --format json").stdout)
    jsonschema.validate(explanation, json_schema())
    one = explanation["instances"][0]
    assert set(one["paths"][0]["picks"]) | ({"best", "nearest"} & set(one)) == set(PICKS)


def test_formats_go_to_files_and_streams_alike(here, denied):
    line = "explain loans.lapace denied.csv --target approved"
    for name, format_ in (("a.csv", "csv"), ("a.json", "json")):
        done(f"{line} -o {name}")
        streamed = done(f"{line} --format {format_} -o -")
        assert streamed.stdout_bytes.strip() == (here / name).read_bytes().strip()
    assert "Parquet is written to a file" in refused(run(f"{line} --format parquet"))
    assert len(Explanation.from_json("a.json")) == len(denied)
    for content in (Path("denied.csv").read_bytes(), denied.to_parquet(index=False)):
        piped = done(f"{line.replace('denied.csv', '-')} --format csv", input=content)
        assert piped.stdout_bytes == Path("a.csv").read_bytes()


def test_a_csv_file_has_no_formulas_and_whole_numbers_stay_whole(here, denied):
    formula = "=cmd|' /C calc'!A0"
    denied.assign(housing=formula, age=[*denied["age"][:5], None]).to_csv("odd.csv", index=False)
    line = "explain loans.lapace odd.csv --target approved --free income,credit_score"
    for options, mark in {"-o a.csv": "'", "-o a.csv --no-safe-csv": "", "-o a.csv.gz": "",
                          "-o a.csv.gz --safe-csv": "'"}.items():  # fmt: skip
        done(f"{line} {options}")
        table = pd.read_csv(options.split()[1], dtype=str)
        assert set(table["housing"]) == {mark + formula}
        ages = set(table["age"].dropna()) | set(table["age_before"].dropna())
        assert ages <= {str(age) for age in denied["age"]}
    printed = done(f"{line} --format csv").stdout  # for another program
    assert set(pd.read_csv(io.StringIO(printed))["housing"]) == {formula}


def test_options_reach_the_library(here, denied, monkeypatch):
    (here / "more.toml").write_text('version = 2\nconstraints = ["income >= original"]\n')
    asked = {}

    def explain(_self, _table, **options):
        asked.update(options)
        raise lapace.InputError("It was asked.")

    monkeypatch.setattr(Explainer, "explain", explain)
    line = (
        "explain loans.lapace denied.csv --target approved --constraints more.toml "
        "--constraint 'changes <= 2' --free income,housing --cost housing=impossible "
        "--cost income=3 --confidence 0.55 --plausibility 0.3"
    )
    assert refused(run(line)) == "It was asked."
    assert asked.pop("search") == Search(picks=("best",)), "what is not shown is not searched"
    constraints = ["income >= original", "changes <= 2", "fixed age, credit_score"]
    assert [*map(str, asked.pop("constraints"))] == constraints
    assert asked.pop("costs") == {"housing": math.inf, "income": 3.0}
    assert asked.pop("progress") is None
    assert asked == {"target": "approved", "confidence": 0.55, "plausibility": 0.3}


def test_instances_without_a_counterfactual_are_counted_not_failed(here, denied):
    result = done("explain loans.lapace denied.csv --target approved -c 'changes <= 0'")
    assert re.match(r"Explanation of 6 instances: 6 (none found|infeasible)\.", result.stderr)
    reasons = r"^Instance \d: denied → approved  (none_found|infeasible)\n  \S+"
    assert len(re.findall(reasons, result.stdout, re.MULTILINE)) == 6
    some = r"lapace why-not loans\.lapace denied\.csv --ids 0,1,2,3,4, with the same options"
    assert re.search(some, result.stderr)
    gaps = denied.assign(housing="a boat", income=["much", *denied["income"][1:]], age=None)
    gaps.to_csv("odd.csv", index=False)
    result = done("explain loans.lapace odd.csv --target approved --ids 0,1 -q")
    warning = "lapace: Warning: 1 instance could not be read: 0. --format json has the reasons."
    assert warning in result.stderr
    assert re.search(r"Instance 0: .*malformed\n  .*'?income'?.*much", result.stdout)
    denied.head(0).to_csv("empty.csv", index=False)
    result = done("explain loans.lapace empty.csv --target approved --format csv")
    assert len(result.stdout.splitlines()) == 1
    assert "0 instances" in result.stderr


def test_wrong_input_of_explain(here, denied):
    explain = "explain loans.lapace denied.csv --target approved"
    denied.drop(columns="income").rename(columns={"age": "Age "}).to_csv("lacks.csv", index=False)
    (here / "foreign.lapace").write_text("this is no zip")
    (here / "bad.toml").write_text("version = 2\nconstraints = 3\n")
    (here / "words.toml").write_text("[labels]\nmaybe = 'perhaps'\n")
    lines = Path(DENIED).read_text().splitlines()
    (here / "short.csv").write_text("\n".join([*lines[:2], "31,2000"]))
    (here / "folder").mkdir()
    before = set(here.iterdir())
    for line, says in {
        "explain loans.lapace lacks.csv": "lacks column 'age'. Is it the one called 'Age '",
        "explain loans.lapace gone.csv": "There is no file 'gone.csv'",
        "explain loans.lapace folder": "is a folder",
        "explain gone.lapace denied.csv": "There is no file 'gone.lapace'",
        "explain folder denied.csv": "'folder' is a folder",
        "explain loans.lapace short.csv": "line 3 has 2 fields, and the first line names 4",
        "explain foreign.lapace denied.csv": "foreign.lapace",
        "explain denied.csv loans.lapace": "'denied.csv' is not .* looks like a table.*M.lapace",
        "explain loans.lapace denied.csv --target aproved": "Did you mean 'approved'|approved",
        f"{explain} --constraint 'incme > 3'": "Did you mean 'income'",
        f"{explain} -c 'income >= 2000' -c 'income < 2000'": "can never hold together",
        f"{explain} --constraints gone.toml": "no constraint file",
        f"{explain} --constraints bad.toml": "must list its constraints",
        f"{explain} --cost income": "The cost 'income' is not understood",
        f"{explain} --cost 'Internet, service=2'": "Internet, service",
        f"{explain} --pick neerest": "is not one of 'best', 'nearest'",
        f"{explain} --free incme": "Did you mean 'income'",
        f"{explain} --free age,income,credit_score,housing": "names every column",
        f"{explain} --confidence 2": "confidence is 2",
        f"{explain} --words words.toml": "--words is about letters",
        f"{explain} --annex": "--annex is about letters",
        f"{explain} --letters new --words words.toml": "maybe",
        f"{explain} -o gone/a.csv": "no folder 'gone'",
        f"{explain} -o a.xlsx": "a result ends in .csv, .csv.gz, .parquet or .json",
        f"{explain} -o denied.csv": "'denied.csv' is an input",
        f"{explain} --format csv -o a.json": "'a.json' cannot be written as csv",
        f"{explain} -o a.csv -o b.csv": "--output is given 2 times. Give it once.",
        f"{explain} --pick best --pick last": "--pick is given 2 times",
        f"{explain} --letters loans.toml": "'loans.toml' is a file",
        f"{explain} --classifier forest": "forest",
        f"{explain} --classifier gone.onnx": "gone.onnx",
        "explain loans.lapace": "Missing argument 'INSTANCES'",
        f"{explain} --confidence abc": "'--confidence': Input should be a valid num",
        f"{explain} --instance 3": "No such option: --instance",
        "explan loans.lapace denied.csv": r"Did you mean 'explain'\?\. See lapace --help\.",
    }.items():
        sentence = refused(run(line))
        assert re.search(says, sentence), f"{line}\n{sentence}"
        assert set(here.iterdir()) == before, line
    assert "Standard input" in refused(run("explain loans.lapace -", input=b""))
    assert "Standard input" in refused(run("explain loans.lapace -", input=b"PAR1 rubbish"))


# --- report, plot, why-not -------------------------------------------------------------------


def test_the_report_as_text_and_as_json(here):
    report = Explainer.load("loans.lapace").report_
    shown = done("report loans.lapace").stdout
    assert shown.split() == str(report).split()
    assert json.loads(done("report loans.lapace --format json").stdout) == report.to_json()
    done("report loans.lapace -o report.json")
    assert json.loads(Path("report.json").read_text()) == report.to_json()
    assert "not written as csv" in refused(run("report loans.lapace -o report.csv"))
    (classifier,) = here.glob("*.skops")
    classifier.unlink()
    assert done("report loans.lapace").stdout == shown
    assert classifier.name in refused(run("explain loans.lapace denied.csv"))


def test_a_failing_report_is_exit_code_one_and_a_warning_before_every_answer(here, denied):
    import torch

    fitted, report, settings = storage.load("loans.lapace", torch.device("cpu"))[:3]

    def worst(checks):
        return tuple(replace(c, value=0.0, low=0.0, high=0.0) for c in checks[:1]) + checks[1:]

    reference = storage.read_reference("loans.lapace")
    approved, other = report.explained
    one = replace(report, explained=(approved, replace(other, checks=worst(other.checks))))
    storage.save("loans.lapace", fitted, one, settings, reference)
    assert "fails for 'denied'" in done("report loans.lapace").stdout
    asked = "explain loans.lapace denied.csv -q --ids 0 --target"
    assert "report" not in done(f"{asked} approved").stderr
    assert "fails for 'denied': do not rely on" in done(f"{asked} denied").stderr
    explained = tuple(replace(x, checks=worst(x.checks)) for x in report.explained)
    failing = replace(report, checks=worst(report.checks), explained=explained)
    storage.save("loans.lapace", fitted, failing, settings, reference)
    result = run("report loans.lapace")
    assert result.exit_code == 1
    assert re.search(r"fails. (\d+) of \d+ checks pass.", result.stdout)
    assert "do not rely" in result.stderr
    assert run("report loans.lapace --format json").exit_code == 1
    result = done("explain loans.lapace denied.csv -q --ids 0")
    assert result.stderr.startswith("lapace: Warning: The report of 'loans.lapace' fails")


def test_a_table_and_a_classifier_that_disagree_say_so(here, denied):
    table = pd.read_csv("denied.csv").head(4)
    table["decision"], table["remark"] = ["approved", "denied", "approved", "denied"], "denied?"
    table.to_csv("decided.csv", index=False)
    said = done("explain loans.lapace decided.csv --target approved").stderr
    assert "Column 'decision' has another label than the classifier predicts for instance" in said
    assert said.count("(approved, predicted denied)") == 2
    assert "remark" not in said
    table.assign(decision="denied").to_csv("decided.csv", index=False)
    assert "decision" not in done("explain loans.lapace decided.csv --target approved").stderr


@pytest.mark.parametrize("kind", ["path", "latent", "prototypes"])
def test_every_kind_of_plot(kind, here, denied):
    table = "denied.csv --target approved --ids 1" if kind == "path" else ""
    result = done(f"plot loans.lapace {table} --kind {kind}")
    assert result.stderr.endswith(f"Wrote '{kind}.png'.\n")
    assert (here / f"{kind}.png").read_bytes().startswith(b"\x89PNG")
    done(f"plot loans.lapace {table} --kind {kind} -o own.svg")
    assert "<svg" in (here / "own.svg").read_text()


def test_plots_that_cannot_be_drawn(here, denied):
    assert "name a table of INSTANCES" in refused(run("plot loans.lapace"))
    assert "end in .png, .svg or .pdf" in refused(run("plot loans.lapace -o a.txt --kind latent"))
    assert "No instance has the id '9'" in refused(run("plot loans.lapace denied.csv --ids 9"))
    already = "plot loans.lapace denied.csv --target denied"
    assert "None of the instances has a path" in refused(run(already))
    assert "already predicts 'denied'" in refused(run(f"{already} --ids 1"))
    assert not list(here.glob("*.png"))


def test_the_page_lists_rows_for_advisers_only(here, denied):
    sentence = refused(run("serve loans.lapace --instances denied.csv"))
    assert "add --advisers" in sentence
    assert "say --page" in sentence
    assert "--page or --advisers" in refused(run("serve loans.lapace --target approved"))
    assert "--instances" in refused(run("serve loans.lapace --advisers --id age"))
    assert "one process" in refused(run("serve loans.lapace --page --workers 2"))


def test_explain_names_the_instances_that_have_the_target(here, denied):
    said = done("explain loans.lapace denied.csv --target denied").stderr
    assert "Already predicted as the target: 0, 1, 2, 3, 4 and 1 more." in said


def test_why_not_in_json_is_that_of_the_library(here, denied):
    explainer = Explainer.load("loans.lapace")
    explanation = explainer.explain(denied, target="approved", constraints=["changes <= 0"])
    line = "why-not loans.lapace denied.csv --target approved -c 'changes <= 0' --format json"
    for max_queries in (None, 0):
        budget = {} if max_queries is None else {"max_queries": max_queries}
        expected = why_not_to_json(explainer.why_not(explanation, **budget))
        option = "" if max_queries is None else f" --max-queries {max_queries}"
        assert json.loads(done(line + option).stdout) == json.loads(json.dumps(expected))
    assert "max_queries is -1" in refused(run(f"{line} --max-queries -1"))


def test_why_not_where_every_instance_has_a_counterfactual(here, denied):
    printed = done("why-not loans.lapace denied.csv").stdout
    assert printed == "Every instance has a counterfactual, or has the target already.\n"
    denied.head(0).to_csv("empty.csv", index=False)
    printed = done("why-not loans.lapace empty.csv --target approved").stdout
    assert printed == "The table has no rows: there is nothing to explain.\n"
    Path("odd.csv").write_text("age,income,credit_score,housing\n30,1,600,rent\nold,1,600,rent\n")
    printed = done("why-not loans.lapace odd.csv --target approved --ids 1").stdout
    assert re.match(r"Instance 1: \? → \S+  malformed\n  .*'old' in row 1", printed)


def test_letters_are_written_beside_the_answers(here, denied):
    line = "explain loans.lapace denied.csv --target approved --letters out/letters"
    result = done(f"{line} --annex --format csv")
    pages = sorted((here / "out" / "letters").glob("letter-*.html"))
    assert len(pages) == len(list((here / "out" / "letters").glob("*.txt"))) == len(denied)
    assert f"Wrote {len(pages)} letters" in result.stderr
    annexes = sorted((here / "out" / "letters").glob("annex-*.html"))
    assert len(annexes) == len(pages)
    text = annexes[0].read_text(encoding="utf-8")
    assert re.search(r"Decided with</dt><dd>loans-\w{8}\.skops, sha256 [0-9a-f]{64}", text)
    assert re.search(r"Explained with</dt><dd>loans\.lapace, sha256 [0-9a-f]{64}", text)
    (here / "words.toml").write_text('predicted = "A loan"\n')
    done(f"{line} --words words.toml --ids 0 -q")
    assert "A loan: the computer" in (here / "out" / "letters" / "letter-0.txt").read_text(
        encoding="utf-8"
    )


def test_groups_of_instances_are_compared(here, denied):
    everyone = pd.read_csv("instances.csv")
    everyone.assign(area=["north", "south"] * (len(everyone) // 2)).to_csv("areas.csv", index=False)
    line = "cohort loans.lapace areas.csv --target approved"
    for by in ("area", "age"):
        printed = done(f"{line} --by {by}").stdout
        assert re.search(rf"differs? by {by}", printed)
        costs, features = printed.split("\n\n")[1:3]
        assert re.match(f"Who has .*\n{by} +instances +answered +share +cost +changes *\n", costs)
        assert re.match(f"What changes *\nfeature +{by} +changed +share", features)
    done(f"{line} --by area -o cohort.html")
    assert "What changes" in (here / "cohort.html").read_text(encoding="utf-8")
    assert "Did you mean 'area'" in refused(run(f"{line} --by aera"))
    assert "must end in .html" in refused(run(f"{line} -o cohort.txt"))


@pytest.mark.usefixtures("quick_fits")
def test_an_explainer_remembers_what_identifies_its_rows(tmp_path, monkeypatch):
    """Its labels are truth values, which may be written as Python or as JSON writes them."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"patient": np.arange(100, 300), "age": rng.integers(20, 80, 200)})
    frame["gift"] = rng.choice(["yes", "no"], 200)
    frame["sick"] = frame["age"] + rng.integers(-3, 4, 200) > 50
    frame["note"] = [f"seen on day {k}" for k in range(200)]
    frame.to_csv("patients.csv", index=False)
    done("schema patients.csv --label sick --id patient --drop note -o columns.toml")
    fit = "fit patients.csv --classifier boosting --label sick --n-prototypes 1 -o p.lapace"
    assert "--drop patient --drop note" in refused_lines(run(fit))
    fitted = done(f"{fit} --schema columns.toml").stdout  # it has what --id and --drop said
    assert "Free to change: age, gift. To keep a column" in fitted
    frame = frame.drop(columns="note")

    line = "explain p.lapace patients.csv --target"
    old = frame["age"].idxmax()
    for word in ("False", "false"):
        shown = done(f"{line} {word} --ids {100 + old}").stdout
        assert f"Instance {100 + old}: True → False" in shown
        assert f"age  {frame['age'][old]}  →" in shown
    explanation = json.loads(done(f"{line} false --format json").stdout)
    assert {instance["target"] for instance in explanation["instances"]} == {False}
    assert "perhaps" in refused(run(f"{line} perhaps"))
    frame.drop(columns="patient").to_csv("nameless.csv", index=False)
    message = refused(run("explain p.lapace nameless.csv --target false --ids 3"))
    assert "were identified by 'patient'" in message
    done(f"{line} false --free age -o some.csv")
    some = pd.read_csv("some.csv")
    assert set(some["id"]) <= set(frame["patient"])
    assert (some["gift"] == some["gift_before"]).all()


def test_a_messy_table_is_read_as_meant_with_the_lines_that_messages_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [
        {"Client No": 7000 + 7 * k, "Post code": f"{k % 6 * 1100:05}",
         "Age": 20 + k % 60 if k % 9 else -999, "Debt": f"{k}k" if k % 2 else str(37 * k),
         "Home town": ["London", "london ", "York"][k % 3],
         "Since": f"{k % 28 + 1:02}/{k % 12 + 1:02}/2019", "Fee": f"£{1000 + 7 * k:,}",
         "Built": 1950 + k % 70, "Decision": "yes" if k % 2 else "no"}
        for k in range(120)
    ]  # fmt: skip
    pd.DataFrame(rows).to_csv("messy.csv", index=False)
    line = "schema messy.csv --label Decision"
    asked = refused_lines(run(line))
    options = re.findall(r"\((--(?:id|kind) .*?)\)[,.]", asked)
    chosen = [o for o in options if o.startswith("--id") or ":" in o]
    assert chosen == ["--id 'Client No'", "--kind Debt=number:1.23456k"]
    shown = done(f"{line} {' '.join(chosen)} -o columns.toml").stdout
    text = Path("columns.toml").read_text()
    mends = re.findall(r"in columns.toml: (\w+ = \S+) under (\[.*?\])\n", shown)
    assert [mend for mend, _ in mends] == ["missing_values = [-999]", "ignore_case = true"]
    for mend, section in mends:
        text = text.replace(f"{section}\n", f"{section}\n{mend}\n")
    Path("columns.toml").write_text(text + "\n".join(mends[0][::-1]))
    assert "A header, and a setting" in refused(run(f"{line} --schema columns.toml"))
    Path("columns.toml").write_text(text)
    read = done(f"{line} --schema columns.toml").stdout
    assert "columns.toml" not in read
    for said in ("00000, 01100, 02200", "20 to 79", "London, York", "0 to 119k", "£1,000 to £1,833",
                 "01/01/2019 to 28/12/2019", "1950 to 2019"):  # fmt: skip
        assert said in read, said


@pytest.mark.usefixtures("quick_fits")
def test_columns_that_follow_from_others_are_shown_as_such(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"amount": rng.integers(10, 90, 200) * 100, "months": 12})
    home = rng.integers(0, 2, 200)
    frame = frame.assign(monthly=frame["amount"] / 4, home_own=home, home_rent=1 - home)
    frame["label"] = np.where(frame["amount"] < 4000, "yes", "no")
    frame.to_csv("t.csv", index=False)
    (tmp_path / "s.toml").write_text(
        'version = 1\n[columns.monthly]\nderived = "amount / 4"\n[columns.amount]\ntolerance = 0\n'
    )
    fitted = done("fit t.csv --classifier forest --label label --schema s.toml --n-prototypes 1"
                  " --drop months -o t.lapace")  # fmt: skip
    lines = fitted.stdout.splitlines()
    assert lines[2].startswith(
        "Free to change: amount; nearly free, limited only by other columns: home_own, home_rent."
    )
    kept = "Learned rules that every row and every answer keeps (1): home_own + home_rent == 1"
    assert lines[3] == f"Odd in the table: nothing. {kept}"
    again = "fit t.csv --classifier forest --label label --n-prototypes 1 --drop months -o u.lapace"
    off = "home_own + home_rent == 1"
    for option in (("--no-learned-rules",), ("--without-rule", off, "--schema", "s.toml")):
        lines = done(*shlex.split(again), *option).stdout.splitlines()
        assert lines[3] == "Odd in the table: nothing."
    wrong = run(*shlex.split(again), "--without-rule", "home_own + home_rnt == 1")
    assert f"no learned rule 'home_own + home_rnt == 1'. Did you mean '{off}'?" in refused(wrong)
    ids = ",".join(map(str, np.flatnonzero(frame["label"] == "no")[:2]))
    printed = done(f"explain t.lapace t.csv --target yes --ids {ids} --pick nearest").stdout
    changed = re.findall(r"^ +amount +\S+ +→ +(\S+)$", printed, flags=re.MULTILINE)
    follows = re.findall(r"^ +so monthly +\S+ +→ +(\S+)$", printed, flags=re.MULTILINE)
    number = [float(text.replace(",", "")) for text in changed]
    assert number
    assert [float(text.replace(",", "")) * 4 for text in follows] == number


# --- identifiers -----------------------------------------------------------------------------


@pytest.fixture
def customers(denied):
    """The six instances, with ids in a column `customer`."""
    table = denied.assign(customer=["A7", "B8", "C9", "D10", "E11", "F,12"])
    table.to_csv("customers.csv", index=False)
    return table


def test_a_column_identifies_the_instances(customers):
    line = "explain loans.lapace customers.csv --id customer --target approved"
    printed = done(line).stdout
    names = re.findall(r"^Instance (\S+): ", printed, re.MULTILINE)
    assert names == customers["customer"].tolist()
    csv = pd.read_csv(io.StringIO(done(f"{line} --pick nearest --format csv").stdout))
    assert csv["id"].tolist() == names
    assert "customer" not in csv
    found = json.loads(done(f"{line} --format json").stdout)
    assert [instance["id"] for instance in found["instances"]] == names
    customers.rename(columns={"customer": "id"}).to_csv("named.csv", index=False)
    named = done("explain loans.lapace named.csv --target approved").stdout
    assert named == printed, "a column `id` needs no option"


def test_instances_are_chosen_by_id_or_else_by_position(customers):
    line = "explain loans.lapace customers.csv --target approved --format csv --pick nearest"
    whole = pd.read_csv(io.StringIO(done(line).stdout))
    for words, rows in {
        "--id customer --ids D10 --ids 'A7, B8' --ids A7": [3, 0, 1],
        "--id customer --ids F,12": [5],
        "--ids 4,1": [4, 1],
    }.items():
        csv = pd.read_csv(io.StringIO(done(f"{line} {words}").stdout))
        ids = customers["customer"][rows].tolist() if "customer" in words.split() else rows
        assert csv["id"].tolist() == ids
        assert csv["instance"].tolist() == list(range(len(rows)))
        assert csv["age"].tolist() == whole["age"][rows].tolist()
    line = "loans.lapace denied.csv --target approved --ids 4"
    why = json.loads(done(f"why-not {line} -c 'changes <= 0' --format json").stdout)
    assert [(one["instance"], one["id"]) for one in why["instances"]] == [(0, 4)]


def test_wrong_ids(customers):
    line = "explain loans.lapace customers.csv"
    customers.assign(customer=["A7", "A7", "A7", "A7", "E", None]).to_csv("odd.csv", index=False)
    for words, expected in {
        f"{line} --id custmer": "Column 'custmer' is not in the table. Did you mean 'customer'?",
        f"{line} --id customer --ids B88": "No instance has the id 'B88'. Did you mean 'B8'?",
        f"{line} --id customer --ids A7,zzz": "No instance has the id 'zzz'.",
        f"{line} --ids -1": "No instance has the id '-1'.",
        f"{line} --ids A7": "Is another column meant? Name it with --id.",
        "explain loans.lapace odd.csv --id customer": "1 row has no id in column 'customer'",
    }.items():
        assert expected in refused(run(words)), words
    customers.assign(customer=["A7", "A7", "A7", "A7", "E", "F"]).to_csv("odd.csv", index=False)
    odd = "explain loans.lapace odd.csv --id customer --target approved"
    assert refused(run(f"{odd} --ids E,A7")) == (
        "The id 'A7' is ambiguous: 4 rows have it. Make it unique, or name another column with "
        "--id."
    )
    assert done(odd).stdout.count("Instance A7: ") == 4


def test_ids_of_a_frame_with_an_index_and_a_column_called_id(customers):
    customers.set_index("customer").assign(id=range(6)).to_parquet("indexed.parquet")
    line = "explain loans.lapace indexed.parquet --target approved --format csv --pick nearest"
    by_index = pd.read_csv(io.StringIO(done(f"{line} --id customer --ids B8").stdout))
    assert by_index["customer"].tolist() == ["B8"]
    by_column = pd.read_csv(io.StringIO(done(f"{line} --id id --ids 1").stdout))
    assert by_column["id"].tolist() == [1]
    assert by_column["age"].tolist() == by_index["age"].tolist()


# --- data ------------------------------------------------------------------------------------


def test_a_data_set_is_written_as_a_table(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    loans = lapace.datasets.load("loans", rows=200)
    done("data fetch loans --rows 200 -o all.parquet --rules own.toml")
    written = pd.read_parquet("all.parquet")
    assert len(written) == 200
    assert written["label"].tolist() == [*loans.train_labels, *loans.test_labels]
    both = pd.concat([loans.train, loans.test], ignore_index=True)
    pd.testing.assert_frame_equal(written.drop(columns="label"), both, check_dtype=False)
    assert len(lapace.constraints.read_file("own.toml")) == len(loans.rules)
    streamed = done("data fetch loans --rows 200 --part test -o -")
    assert len(pd.read_csv(io.StringIO(streamed.stdout))) == 40
    assert done("data fetch loans --rows 200").stdout == ""
    shown = done("data list").stdout
    for name in lapace.datasets.names():
        assert re.search(rf"^{name} ", shown, flags=re.MULTILINE)
    before = set(tmp_path.iterdir())
    assert "Did you mean 'loans'" in refused(run("data fetch loan"))
    assert "rows is -3; it must be a whole number" in refused(run("data fetch loans --rows -3"))
    assert "but as csv or parquet" in refused(run("data fetch loans --rows 200 -o a.json"))
    assert "end in .toml" in refused(run("data fetch loans --rows 200 --rules a.csv"))
    assert "no folder" in refused(run("data fetch loans --rows 200 -o gone/a.csv"))
    assert set(tmp_path.iterdir()) == before


# --- errors, streams and signals -------------------------------------------------------------


def test_an_unexpected_error_is_one_sentence_and_a_hint(here, monkeypatch):
    def broken(*_, **__):
        raise RuntimeError("a screw\nis loose")

    monkeypatch.setattr(storage, "load", broken)
    result = run("report loans.lapace")
    assert result.exit_code == 1
    assert len(result.stderr.splitlines()) == 1
    assert "a screw is loose" in result.stderr
    assert "LAPACE_TRACEBACK=1" in result.stderr
    assert "Traceback" in run("report loans.lapace", env={"LAPACE_TRACEBACK": "1"}).stderr


@pytest.mark.parametrize("line", ["data fetch loans --rows 200 -o -", "--help"])
def test_a_closed_standard_output_is_no_error(line):
    with start(*line.split()) as process:
        process.stdout.close()  # long before anything is written
        err = process.stderr.read().decode()
    assert process.returncode == (1 if line == "--help" else 141)  # typer's own code for its help
    assert "rror" not in err
    assert "Traceback" not in err


def read_terminal(ours, until=b"\0"):
    """What a process prints on a terminal, up to a word or to its end."""
    seen = b""
    with contextlib.suppress(OSError):  # how Linux signals that the other side is closed
        while until not in seen and (more := os.read(ours, 65536)):
            seen += more
    return seen


@pytest.fixture
def sigint_ignored():
    """As a shell script leaves it for what it starts in the background."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("sigint_ignored")
def test_interrupted_nothing_is_left_half_written(here):
    pty = pytest.importorskip("pty")
    before = {path: path.read_bytes() for path in here.iterdir()}
    line = "fit train.csv --classifier forest --label label --n-prototypes 30 -o loans.lapace"
    ours, theirs = pty.openpty()
    with start(*line.split(), stderr=theirs) as process:
        os.close(theirs)
        seen = read_terminal(ours, until=b"training")  # its progress bar: the fit is under way
        process.send_signal(signal.SIGINT)
        seen += read_terminal(ours)
        out = process.stdout.read()
    os.close(ours)
    assert process.returncode == 130, seen
    assert b"training" in seen
    assert out == b""
    assert b"Traceback" not in seen
    assert {path: path.read_bytes() for path in here.iterdir()} == before


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_terminated_it_cleans_up_first(number, code, here, monkeypatch):
    def terminate(*_, **__):
        os.kill(os.getpid(), number)

    before = set(here.iterdir())
    monkeypatch.setattr(Explainer, "fit", terminate)
    line = "fit train.csv --classifier mlp --label label -o loans.lapace"
    handler = signal.signal(number, signal.SIG_DFL)  # tests started with `nohup` ignore SIGHUP
    try:
        assert run(line).exit_code == code
    finally:
        signal.signal(number, handler)
    assert set(here.iterdir()) == before


def test_a_command_whose_hangup_is_ignored_goes_on(here, monkeypatch):
    """`nohup` ignores SIGHUP for the command it starts."""
    load = Explainer.load

    def hung_up(*words, **more):
        os.kill(os.getpid(), signal.SIGHUP)
        return load(*words, **more)

    monkeypatch.setattr(Explainer, "load", hung_up)
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert run("report loans.lapace").exit_code == 0
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("moment", ["never", "before", "after"])
def test_a_classifier_and_its_explainer_are_both_replaced_or_neither(moment, here, monkeypatch):
    """Interrupted before or after the explainer is saved."""
    explainer, save = Explainer.load("loans.lapace"), Explainer.save
    (old,) = here.glob("*.skops")
    saved, files = Path("loans.lapace").read_bytes(), set(here.iterdir())

    def interrupted(*words, **more):
        if moment == "after":
            save(*words, **more)
        raise KeyboardInterrupt

    if moment != "never":
        monkeypatch.setattr(Explainer, "save", interrupted)
    with contextlib.suppress(KeyboardInterrupt):
        save_pair(explainer, here / "loans.lapace", None)
    (new,) = here.glob("*.skops")
    assert (new == old) == (moment == "before")
    assert (Path("loans.lapace").read_bytes() == saved) == (moment == "before")
    assert set(here.iterdir()) - {new} == files - {old}
    assert Explainer.load("loans.lapace").classifier is not None


def test_a_quiet_command_shows_no_progress(monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    for is_quiet in (True, False):
        token = quiet.set(is_quiet)
        with progress() as bar:
            assert callable(bar) != is_quiet
        quiet.reset(token)


# --- the page --------------------------------------------------------------------------------


def option_rows(command):
    """A command's options as the page lists them: arguments, then options, those to load last."""
    rows = []
    for parameter in command.params:
        names = ", ".join(f"`{name}`" for name in parameter.opts + parameter.secondary_opts)
        is_option = names.startswith("`-")
        if not is_option:
            names = f"`{parameter.metavar.strip('[]')}`"
        default = parameter.default
        plain = isinstance(default, str | float | int) and not isinstance(default, bool)
        value = f" Default: {default}." if plain else ""
        text = (parameter.help or "").replace("|", "\\|").replace("<", "&lt;")
        panel = getattr(parameter, "rich_help_panel", None) or ""
        rows.append((is_option, panel, f"| {names} | {text}{value} |"))
    rows.sort(key=lambda row: row[:2])  # stable: otherwise as in the help
    return [row[-1] for row in rows]


def shared_rows():
    """Options that at least three commands have alike, each with the commands that have it."""
    users = {}
    for name in EXAMPLES:
        for row in option_rows(leaves()[name]):
            users.setdefault(row, []).append(name)
    return {row: names for row, names in users.items() if len(names) >= 3}


def section_of(title):
    page = PAGE.read_text(encoding="utf-8")
    section = re.search(rf"^## {title}$(.*?)(?=^## |\Z)", page, flags=re.MULTILINE | re.DOTALL)
    assert section, f"docs/reference/cli.md has no section '## {title}'"
    return section[1]


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_every_command_and_every_option_is_documented(name):
    shared = shared_rows()
    own = [row for row in option_rows(leaves()[name]) if row not in shared]
    table = "\n".join(["| option | meaning |", "| --- | --- |", *own])
    section = section_of(f"lapace {name}")
    assert f"lapace {name}" in section
    assert not own or table in section, table


def test_options_of_several_commands_are_documented_once():
    rows = [f"{row} {', '.join(f'`{n}`' for n in names)} |" for row, names in shared_rows().items()]
    head = ["| option | meaning | commands |", "| --- | --- | --- |"]
    table = "\n".join([*head, *rows])
    assert table in section_of("Options of several commands"), table


def test_the_page_names_no_option_that_does_not_exist():
    known = {name for c in leaves().values() for p in c.params for name in p.opts}
    known |= {name for c in leaves().values() for p in c.params for name in p.secondary_opts}
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", PAGE.read_text(encoding="utf-8")))
    assert named - known == {"--help", "--version"}


def shell(page):
    """The `lapace …` and `cat …` lines of a page's shell blocks, the output below the last."""
    for code, shown in re.findall(
        r"```sh\n(.*?)```(?:\s*```text\n(.*?)```)?", page, flags=re.DOTALL
    ):
        lines = code.replace("\\\n", " ").splitlines()
        lines = [line.partition("   #")[0] for line in lines]
        ours = [line for line in lines if re.match(r"(.+\| )?lapace |cat ", line)]
        for line in ours:
            yield line, shown if line == ours[-1] else ""


def run_line(line):
    """Runs a line of the page, in a shell where it needs one; its exit code and all output."""
    words = shlex.split(line)
    if words[0] == "lapace" and not {"|", ">"} & set(words):
        result = run(*words[1:])
        return result.exit_code, result.stdout + result.stderr
    command = Path("lapace-in-a-shell")
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m lapace.apps.cli "$@"\n')
    command.chmod(0o755)
    result = subprocess.run(
        ["sh", "-c", re.sub(r"(?<![\w.])lapace (?=\w)", "./lapace-in-a-shell ", line)],
        env=environment(),
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    command.unlink()
    return result.returncode, result.stdout + result.stderr


@pytest.mark.parametrize("name", ["README.md", "docs/reference/cli.md", "docs/start/tutorial.md"])
def test_the_page_shows_what_happens(name, tmp_path, monkeypatch, missing):
    if name == "docs/start/tutorial.md":
        try:
            lapace.datasets.load("adult-full")
        except lapace.LapaceError as error:
            missing("data", f"adult could not be fetched: {error}")
    monkeypatch.chdir(tmp_path)
    page = (ROOT / name).read_text(encoding="utf-8")
    for file, content in re.findall(r'```toml title="(.+?)"\n(.*?)```', page, flags=re.DOTALL):
        Path(file).write_text(content, encoding="utf-8")
    lines = shell(page)
    record = [
        (line, shown, *run_line(line))
        for line, shown in lines
        if not re.search(r"lapace (serve|demo)", line)  # tested by themselves
    ]
    assert len(record) >= 3
    if ROOT / name == PAGE:
        for command in set(EXAMPLES) - {"serve", "demo"}:
            assert any(f"lapace {command}" in line for line, *_ in record), command
    for line, shown, code, printed in record:
        expected = 2 if shown.startswith("lapace: ") else 0
        assert code == expected, f"{line}\n{printed}"
        lost = pages.differences(shown, printed)
        assert not lost, f"{line}\nshows {lost}, but printed:\n{printed}"
    if "--letters letters" in " ".join(line for line, *_ in record):
        assert list((tmp_path / "letters").glob("*.html"))
