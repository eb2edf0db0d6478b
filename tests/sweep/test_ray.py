"""Sweeps in a Ray cluster: the same table as without, and one line where there is none."""

import subprocess
import sys
import time

import pytest
from sweeps import contents, scenario

from kvsim.errors import KvsimError
from kvsim.sweep import ray_pool

ray = pytest.importorskip("ray", reason="ray is not installed (pip install 'kvsim[ray]')")

AXES = {"engine.block_size": [16, 32], "engine.num_gpu_blocks_override": [3, 40, 60, 400], "seed": [1, 2]}


@pytest.fixture(scope="module")
def two_nodes():
    """The address of a cluster of two nodes on this machine, one core each."""
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    cluster.add_node(num_cpus=1)
    yield cluster.address
    cluster.shutdown()


def test_two_nodes_give_the_same_bytes(two_nodes, tmp_path):
    tiny = scenario(tmp_path)
    tiny.sweep(AXES, workers=1, progress=False, out=tmp_path / "here")
    tiny.sweep(AXES, ray=two_nodes, progress=False, out=tmp_path / "there")
    assert contents(tmp_path / "here") == contents(tmp_path / "there")
    assert not ray.is_initialized()


def test_both_nodes_work(two_nodes, tmp_path):
    pool = ray_pool.RayPool(two_nodes)
    try:
        assert pool.slots == 4
        pool.warm_up(scenario(tmp_path))
        nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"]]
        assert len(nodes) == 2

        @ray.remote(scheduling_strategy="SPREAD")
        def where() -> str:
            time.sleep(0.3)
            return ray.get_runtime_context().get_node_id()

        assert set(ray.get([where.remote() for _ in range(4)])) == set(nodes)
    finally:
        pool.close()


def test_a_search_there(two_nodes, tmp_path):
    tiny = scenario(tmp_path)
    words = {"find": "max:workload.rate", "subject_to": "ttft_p99<=200ms", "progress": False}
    tiny.sweep({"engine.max_num_seqs": [2, 8]}, workers=1, out=tmp_path / "here", **words)
    tiny.sweep({"engine.max_num_seqs": [2, 8]}, ray=two_nodes, out=tmp_path / "there", **words)
    assert contents(tmp_path / "here") == contents(tmp_path / "there")


def test_another_kvsim_on_a_node_is_refused(two_nodes, tmp_path, monkeypatch):
    monkeypatch.setattr(ray_pool, "kvsim_version", lambda: "9.9.9+000000000000")
    with pytest.raises(KvsimError, match=r"node .* has kvsim .*, this is 9\.9\.9.*; install the same"):
        scenario(tmp_path).sweep(AXES, ray=two_nodes, progress=False)


def test_a_cluster_made_for_the_sweep(tmp_path):
    """In a process of its own: a process has one cluster at a time."""
    code = (
        "import kvsim; r = kvsim.load_scenario('tiny.yaml').sweep("
        f"{AXES!r}, ray='local', workers=2, progress=False, out='there'); print(len(r.frame))"
    )
    tiny = scenario(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout == "16\n"
    tiny.sweep(AXES, workers=1, progress=False, out=tmp_path / "here")
    assert contents(tmp_path / "here") == contents(tmp_path / "there")


@pytest.mark.parametrize("address", ["127.0.0.1:1", "no-such-host.invalid:6379", "nonsense"])
def test_an_address_without_a_cluster_is_one_line_within_seconds(tmp_path, address):
    began = time.monotonic()
    with pytest.raises(KvsimError) as error:
        scenario(tmp_path).sweep(AXES, ray=address, progress=False, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert time.monotonic() - began < 15
    assert str(error.value).startswith(f"--ray {address}: no")
    assert "\n" not in str(error.value)


def test_without_ray_it_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(KvsimError, match=r"ray is not installed; pip install 'kvsim\[ray\]'"):
        scenario(tmp_path).sweep(AXES, ray="local", progress=False)
