"""`lapace.apps.batch` on Ray: a cluster of two nodes on this machine, and real kills.

Every run ends with the same bytes as one that was left alone, in a plain loop without Ray.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
from pathlib import Path
from unittest.mock import Mock

import pytest
from test_server import until

from lapace.apps.batch import Engine, run
from lapace.apps.batch.engines import EngineError, map_parts
from tests import worlds
from tests.apps.test_batch import ASKED, content, frame, lapace, start, wait_for, write_letters

pytestmark = pytest.mark.needs("ray")

MEMORY = 80 * 2**20  # of an object store; the least that Ray takes is 75 MiB
# Postage that takes its time while a file `slow` lies beside it, so that a run can be disturbed.
SLOW = """
import time
from pathlib import Path

from tests.worlds import postage as fast


def postage(rows):
    if Path(__file__).with_name("slow").exists():
        time.sleep(0.1)
    return fast(rows)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Letters, an explainer, and a module with a classifier."""
    folder = tmp_path_factory.mktemp("cluster")
    write_letters(folder / "in", frame())
    (folder / "slow_post.py").write_text(SLOW)
    worlds.post().explainer.save(folder / "post.lapace")
    return folder


@pytest.fixture(scope="module")
def alone(folder):
    """The bytes of a run that was left alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        out = folder / "alone"
        assert lapace("batch", *words(folder, out, "--workers", "1")).exit_code == 0
    return content(out)


@pytest.fixture(scope="module")
def cluster(folder):
    """Two nodes of one core each, on this machine."""
    from ray.cluster_utils import Cluster

    temporary = tempfile.mkdtemp(prefix="ray-", dir="/tmp")  # paths of sockets must be short
    root = Path(__file__).resolve().parents[2]
    path = os.pathsep.join([str(root / "src"), str(root), str(folder)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", path)
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        # Ray writes where its cluster is below this folder, and does not make it.
        patch.setenv("RAY_TMPDIR", temporary)
        Path(temporary, "ray").mkdir()
        node = {"num_cpus": 1, "object_store_memory": MEMORY, "include_dashboard": False}
        cluster = Cluster(True, head_node_args={**node, "temp_dir": temporary})
        cluster.add_node(num_cpus=1, object_store_memory=MEMORY)
        yield cluster
        cluster.shutdown()
    shutil.rmtree(temporary, ignore_errors=True)


@pytest.fixture
def slow(folder):
    """Slows the classifier down."""
    mark = folder / "slow"
    mark.touch()
    yield mark
    mark.unlink(missing_ok=True)


def words(folder, out, *more):
    asked = ("--target", "cheap", "--pick", "nearest,best", "--classifier", "slow_post:postage")
    return (folder / "post.lapace", folder / "in", "-o", out, *asked, *more)


def children(pid):
    """The processes that another has started, and their commands."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = stat.read_text().rpartition(")")[2].split()[1]
            command = (stat.parent / "cmdline").read_bytes().decode()
        except OSError:  # it has ended meanwhile
            continue
        if int(parent) == pid:
            yield int(stat.parent.name), command


def descendants(pid):
    """All processes below another."""
    own = [child for child, _ in children(pid)]
    return [*own, *(pid for child in own for pid in descendants(child))]


def listening(pids):
    """The addresses, in hexadecimal digits, that processes listen on."""
    sockets = set()
    for descriptor in (path for pid in pids for path in Path(f"/proc/{pid}/fd").iterdir()):
        with contextlib.suppress(OSError):  # it has been closed meanwhile
            sockets.add(str(descriptor.readlink()))
    text = "".join(Path("/proc/net", kind).read_text() for kind in ("tcp", "tcp6"))
    found = [line.split() for line in text.splitlines()]
    return [
        fields[1].partition(":")[0]
        for fields in found
        if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets
    ]


def parts(out):
    return {p.name for p in out.glob("letters*.parquet")}


def test_kills_of_a_worker_the_driver_and_a_node_change_nothing(
    folder, cluster, alone, slow, tmp_path
):
    out = tmp_path / "out"
    asked = words(folder, out, "--address", cluster.address)
    process = start(*asked, folder=folder)
    first = wait_for(lambda: parts(out), process)
    raylet = cluster.head_node.all_processes["raylet"][0].process.pid
    worker = next(pid for pid, name in children(raylet) if "RayWorker" in name)
    os.kill(worker, signal.SIGKILL)
    second = wait_for(lambda: len(parts(out)) > len(first) and parts(out), process)
    process.kill()
    process.communicate()
    assert len(second) < 6
    again = start(*asked, folder=folder)
    wait_for(lambda: len(parts(out)) > len(second), again)
    slow.unlink()
    (node,) = cluster.worker_nodes
    cluster.remove_node(node, allow_graceful=False)
    shown, said = again.communicate(timeout=240)
    assert again.returncode == 0, said
    assert "Explanation of 36 instances" in shown
    assert "parts were there already" in shown
    assert content(out) == alone


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Ray's own settings
def test_a_dataset_is_explained_by_its_own_actors(folder, cluster):
    import ray

    explainer = worlds.post().explainer

    class Nearest:
        def __call__(self, part):
            return explainer.explain(part, target="cheap").nearest().frame

    ray.init(cluster.address, log_to_driver=False)
    try:
        dataset = ray.data.from_pandas([frame()[:25], frame()[25:]])
        mapped = dataset.map_batches(Nearest, batch_format="pandas", concurrency=1).to_pandas()
    finally:
        ray.shutdown()
    nearest = explainer.explain(frame(), target="cheap").nearest().frame
    assert sorted(mapped["weight"]) == sorted(nearest["weight"])


def test_a_killed_raylet_ends_the_run_and_it_is_resumed_without_ray(
    folder, alone, slow, tmp_path, monkeypatch
):
    out = tmp_path / "out"
    process = start(*words(folder, out, "--workers", "2"), folder=folder)
    wait_for(lambda: parts(out), process)
    raylet = next(pid for pid, name in children(process.pid) if "/raylet/raylet" in name)
    os.kill(raylet, signal.SIGKILL)
    _, said = process.communicate(timeout=120)
    assert process.returncode not in (0, 2), said
    assert len(parts(out)) < 6
    slow.unlink()
    monkeypatch.syspath_prepend(folder)
    resumed = lapace("batch", *words(folder, out, "--workers", "1"))
    assert resumed.exit_code == 0, resumed.stderr
    assert "parts were there already" in resumed.stdout
    assert content(out) == alone


def test_a_terminated_run_on_ray_is_alone_on_loopback_and_leaves_nothing(folder, slow, tmp_path):
    out = tmp_path / "out"
    process = start(*words(folder, out, "--workers", "2"), folder=folder)
    wait_for(lambda: parts(out), process)
    started = descendants(process.pid)
    ports = listening([process.pid, *started])
    assert len(ports) > 5
    assert {address[-8:] for address in ports} == {"0100007F"}, "127.0.0.1, perhaps within IPv6"
    process.send_signal(signal.SIGTERM)
    shown, said = process.communicate(timeout=120)
    assert (process.returncode, shown, said) == (143, "", "")
    assert not list(out.glob(".*")), "nothing is left half-written"
    until(lambda: not any(Path(f"/proc/{pid}/exe").exists() for pid in started))


@pytest.mark.parametrize("lacking", ["loopback", "folder"])
def test_a_ray_that_cannot_start_says_how_to_do_without(lacking, folder, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(folder)
    if lacking == "folder":
        monkeypatch.setenv("RAY_TMPDIR", "/proc/nothing")
    else:
        unreachable = OSError(101, "Network is unreachable")
        monkeypatch.setattr("socket.create_connection", Mock(side_effect=unreachable))
    found = lapace("batch", *words(folder, tmp_path / "out", "--workers", "2"))
    assert found.exit_code == 2
    assert found.stderr.startswith("lapace: Ray could not be started or reached ([Errno ")
    assert found.stderr.endswith("Without it (--workers 1) parts are made one after another.\n")


def test_a_small_job_is_done_here_unless_ray_is_asked_for(monkeypatch):
    monkeypatch.setattr("lapace.apps.batch.engines._on_ray", lambda *_: ["on Ray"])
    small, large = [Mock(rows=999)] * 2, [Mock(rows=1000)] * 2
    assert list(map_parts(Engine(), lambda _: "here", small)) == ["here", "here"]
    assert list(map_parts(Engine(), lambda _: "here", large)) == ["on Ray"]
    for asked in ({"workers": 2}, {"gpus": 1}, {"address": "auto"}):
        assert list(map_parts(Engine(**asked), lambda _: "here", small)) == ["on Ray"]


def test_a_ray_that_fails_stops_the_run(folder, tmp_path, monkeypatch):
    def lost(*_):
        raise EngineError("Ray failed: no node is left")
        yield

    monkeypatch.setattr("lapace.apps.batch.running.map_parts", lost)
    summary = run(worlds.post().explainer, folder / "in", tmp_path / "out", ASKED)
    assert not summary.complete
    assert summary.stopped == "Ray failed: no node is left"


def test_a_gpu_is_asked_for_and_refused_where_there_is_none(monkeypatch):
    from lapace.apps.batch.engines import actor_options
    from lapace.errors import InputError

    class Data:
        @staticmethod
        def ActorPoolStrategy(size):
            return size

    class Ray:
        data = Data

        @staticmethod
        def cluster_resources():
            return {"CPU": 8.0, "GPU": 2.0}

    options = actor_options(Ray, Engine(gpus=0.5), 9)
    assert (options["num_gpus"], options["compute"]) == (0.5, 4)
    assert "num_gpus" not in actor_options(Ray, Engine(), 9)
    assert actor_options(Ray, Engine(), 3)["compute"] == 3
    with pytest.raises(InputError, match="Ray has 2"):
        actor_options(Ray, Engine(gpus=4), 9)
