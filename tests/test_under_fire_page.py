"""The page of attacks, load and kills: what it shows is what was measured."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from benchmarks import kills, leaks, serving, streaming, under_fire
from benchmarks.attacks import prometheus
from benchmarks.serving import Line
from lapace.server.metrics import Metrics
from tests import worlds

FOUND = {
    "load": [
        Line("", "`python -m benchmarks.serving`, 2024-12-31"),
        Line("served / library", "0.95", "0.9 or more", True),
        Line("p99 / p50", "4.00", "3 or less", False),
        Line("completed", "1,234"),
    ]
}


def test_lines_are_read_back_as_they_were_written(tmp_path):
    file = tmp_path / "under-fire.csv"
    assert under_fire.read(file) == {}
    under_fire.write(file, FOUND)
    assert under_fire.read(file) == FOUND


def test_the_page_counts_and_names_what_was_missed():
    page = under_fire.page(FOUND)
    assert "1 of 2 targets met, missed are:\n\n- p99 / p50: 4.00 (target 3 or less)" in page
    assert "| p99 / p50 | 4.00 | 3 or less: **missed** |" in page
    assert "| completed | 1,234 |  |" in page


def test_the_page_in_the_repository_is_that_of_its_figures():
    figures = under_fire.RESULTS / "under-fire.csv"
    written = figures.with_suffix(".md").read_text(encoding="utf-8")
    assert written == under_fire.page(under_fire.read(figures))


def test_kills_are_resumed_from_their_record(tmp_path):
    record = tmp_path / "kills.csv"
    assert not kills.read_outcomes(record)
    record.write_text("fit SIGTERM,whole\nserve SIGKILL,WRONG: left ['x']\nfit SIGTERM,whole\n")
    lines = kills.measure_kills(3, record=record)  # all of them are there
    assert [line.value for line in lines] == ["2", "1", "1"]
    assert lines[-1].what == "of 3 kills went wrong"
    assert lines[-1].kept is False


def test_answers_and_processor_seconds_are_compared_with_the_loop():
    total, loop = serving.Loaded(), serving.Loop(None, [], None, done=50, seconds=100.0)
    total.add((Counter({200: 80, 429: 3}), [1.0] * 79 + [9.0], 100.0, [1e8] * 5), 40.0)
    total.add((Counter({200: 20}), [1.0] * 20, 100.0, [1e8] * 4 + [2e8]), 10.0)
    loop.processor, loop.rates = 40.0, [0.4, 0.6]
    found = {line.what: line for line in serving.speed(total, loop)}
    assert found["served / library"].value == "1.00"
    assert found["processor seconds of an answer, served"].value == "0.50"
    assert found["processor seconds of one, library in a loop"].value == "0.80"
    assert found["p99 / p50"].kept
    assert serving.memory_lines(1e8, total.memory)[-1] == ("grown in the second half, MB", "100.0",
                                                           "10 or less", False)  # fmt: skip


def test_labels_that_are_another_when_asked_again_are_found():
    explainer, instances = worlds.post().explainer, worlds.post().instances[:3]
    found = explainer.explain(instances)
    asked, wrong = leaks.label_problems(explainer, found)
    assert asked > 20
    assert wrong == []
    found.predicted[0, 3] = 1 - found.predicted[0, 3]
    assert len(leaks.label_problems(explainer, found)[1]) == 1


def test_a_million_rows_are_extrapolated_from_the_slope():
    moments = [
        streaming.Moment(float(s), 5e8 + 1e3 * rows, rows)
        for s, rows in zip(range(1, 9), range(0, 8000, 1000), strict=True)
    ]
    lines = {line.what: line for line in streaming.lines_of(moments, 8000, 0)}
    assert lines["instances a second in the second half"].value == "1000.0"
    assert lines["growth in the second half, MB for 1,000 instances"].value == "1.00"
    far = lines["a million, extrapolated: MB"]
    assert far.value == "1,500"
    assert far.kept


def test_a_stream_that_wrote_nothing_is_a_target_missed():
    moments = [streaming.Moment(float(s), 5e8, 0) for s in range(1, 5)]
    first, memory = streaming.lines_of(moments, 8000, None)
    assert (first.value, first.kept) == ("none after 4", False)
    assert (memory.value, memory.kept) == ("500", True)


def test_positions_written_so_far_are_read_from_the_end(tmp_path):
    file = tmp_path / "out.csv"
    for text, wanted in {
        "": 0,
        "instance,a\n": 0,
        "instance,a\n0,x\n7,y\n": 8,
        "instance,a\n0,x\n7,y\n9": 8,
    }.items():
        file.write_text(text)
        assert streaming.instances_in(Path(file)) == wanted


@pytest.mark.parametrize(("line", "families"), [("", 8), ("lapace_unknown 1", 0), ("a b c", 0)])
def test_metrics_are_read_as_prometheus_does(line, families):
    metrics = Metrics(None, lambda: {"running": 1, "waiting": 0, "stuck": 0})
    metrics.answered("/v2/explain", 200, 0.1)
    assert prometheus(metrics.text() + line) == families
