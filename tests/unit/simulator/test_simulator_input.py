"""Traces, clusters, failures and policies as people write them, and what they get wrong."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from gpu_platform.domain.errors import InvalidRequest, NotFound
from gpu_platform.domain.jobs.resources import ResourceRequest
from gpu_platform.scheduling.simulator.inputs.cluster_file import ClusterFile, HostGroup
from gpu_platform.scheduling.simulator.inputs.failures import Outage, random_outages, read_failures
from gpu_platform.scheduling.simulator.inputs.files import load_cluster, load_failures, load_policy, load_trace
from gpu_platform.scheduling.simulator.inputs.readers import read_trace
from gpu_platform.scheduling.simulator.inputs.trace import gang
from tests.support.simulations import hosts

OPENB = """\
name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time
p0,12000,16384,8,1000,,LS,Running,0,500,100
p1,6000,12288,1,460,V100M16|V100M32,BE,Running,50,90,
p2,6000,12288,0,0,,BE,Running,60,90,60
"""
PHILLY = """\
timestamp,duration,num_gpus,gpu_time,cluster
2017-10-09 07:01:55,66.0,1,66.0,11cb48
2017-10-09 07:01:00,2951.5,12,1,6214e9
"""
KALOS = """\
job_id,arrival_time,num_iteration,iteration_computing_time,iteration_networking_time,gpu_workers,ps,gpu_per_worker
7,313.0,156,0.5,0.25,63,0,8.0
"""


def test_openb_tells_tasks_with_their_share_of_a_gpu() -> None:
    trace = read_trace("openb.csv", OPENB.splitlines(keepends=True))
    whole, part = trace.jobs
    assert (whole.gpus.gpus_per_host, whole.submit_s, whole.duration_s, whole.namespace) == (8, 0, 400, "LS")
    assert (part.gpus.model, part.duration_s) == ("V100M16", 40)
    assert part.gpus.share is not None
    assert part.gpus.share.percent == 46
    assert (part.gpus.cpus_per_host, part.gpus.ram_mib_per_host, whole.gpus.share) == (6, 12288, None)
    assert [note.split()[0] for note in trace.notes] == ["1", "1", "1"]


def test_philly_begins_with_its_first_submission_and_splits_what_one_host_cannot_hold() -> None:
    first, second = read_trace("philly", PHILLY.splitlines(keepends=True)).jobs
    assert (first.submit_s, first.duration_s, first.namespace) == (0, 2951.5, "6214e9")
    assert (first.gpus.hosts, first.gpus.gpus_per_host) == (2, 6)
    assert second.submit_s == 55


def test_kalos_tells_workers_and_iterations() -> None:
    (job,) = read_trace("kalos", KALOS.splitlines(keepends=True)).jobs
    assert (job.gpus.hosts, job.gpus.gpus_per_host, job.duration_s) == (63, 8, 117)


@pytest.mark.parametrize(("gpus", "shape"), [(1, (1, 1)), (8, (1, 8)), (12, (2, 6)), (24, (3, 8)), (128, (16, 8))])
def test_gangs_take_few_hosts_with_equal_shares(gpus: int, shape: tuple[int, int]) -> None:
    request = gang(gpus, 8)
    assert (request.hosts, request.gpus_per_host) == shape


def test_our_own_format_is_json_lines_in_any_order() -> None:
    lines = [
        '{"id": "b", "submit_s": 5, "duration_s": 1, "gpus": {"hosts": 2, "gpus_per_host": 8, "model": "H100"}}\n',
        "\n",
        '{"id": "a", "submit_s": 1, "duration_s": 1, "priority": 3}\n',
    ]
    first, second = read_trace("own.jsonl", lines).jobs
    assert (first.id, first.priority, first.gpus) == ("a", 3, ResourceRequest(gpus_per_host=1))
    assert (second.id, second.gpus.model) == ("b", "H100")


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (["a,b,c\n", "1,2,3\n"], "no trace that can be read: its first line is 'a,b,c'"),
        ([], "no trace that can be read"),
        (['{"id": "a"}\n'], "line 1 of t: submit_s: Field required"),
        (['{"id": "a", "submit_s": 0, "duration_s": 1, "gpuz": 1}\n'], "line 1 of t: gpuz"),
        ([*PHILLY.splitlines(keepends=True), "2017-10-09 07:01:00,x,1,1,c\n"], "line 4 of t: could not convert"),
        (["num_gpus,timestamp\n", "1,2017-10-09 07:01:00\n"], "line 2 of t: column 'duration' is missing"),
    ],
)
def test_what_cannot_be_read_is_named_with_its_line(lines: list[str], says: str) -> None:
    with pytest.raises(InvalidRequest, match=says):
        read_trace("t", lines)


def test_a_cluster_file_names_machines_and_plain_hosts(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(
        "leaf_size: 2\nleaves_per_spine: 1\nhosts:\n- {count: 3, machine: dgx-h100}\n- {count: 1, gpus: 2, model: T4}\n"
    )
    rows = load_cluster(file)
    assert [row.name for row in rows] == ["dgx-h100-0000", "dgx-h100-0001", "dgx-h100-0002", "t4-0000"]
    assert [(row.leaf, row.spine) for row in rows] == [("leaf-0", "spine-0")] * 2 + [("leaf-1", "spine-1")] * 2
    assert [len(row.inventory.gpus) for row in rows] == [8, 8, 8, 2]
    assert rows[0].inventory.nvlinks
    assert rows[3].inventory.gpus[0].model == "T4"


OWN_MACHINE = """\
id: two-a30
name: Two A30 with a bridge
numa_nodes: [{id: 0, socket: 0, cpus: '0-15'}, {id: 1, socket: 1, cpus: '16-31'}]
gpu: {model: NVIDIA A30, memory_mib: 24576, compute_capability: '8.0', mig_capable: true}
gpus:
- {index: 0, pci_bus_id: '0000:17:00.0', numa_node: 0, pcie_switch: null}
- {index: 1, pci_bus_id: '0000:31:00.0', numa_node: 1, pcie_switch: null}
nvlink_generation: 3
nvlink: [[0, 1, 4]]
sources: [measured]
"""


def test_a_machine_of_ones_own_is_a_file_beside_the_cluster_file(tmp_path: Path) -> None:
    (tmp_path / "my.yaml").write_text(OWN_MACHINE)
    (tmp_path / "c.yaml").write_text("hosts: [{count: 2, machine: my.yaml, cpus: 32}]")
    first, second = load_cluster(tmp_path / "c.yaml")
    assert [first.name, second.name] == ["two-a30-0000", "two-a30-0001"]
    assert [gpu.numa_node for gpu in first.inventory.gpus] == [0, 1]
    assert (first.inventory.nvlinks[0].links, first.inventory.cpus) == (4, 32)
    assert first.inventory.gpus[0].uuid != second.inventory.gpus[0].uuid


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("id: x\n", "my.yaml describes no machine: name: Field required"),
        (
            OWN_MACHINE.replace("numa_node: 1", "numa_node: 7"),
            "no machine: GPU 1 is on NUMA node 7, but numa_nodes has 0, 1",
        ),
        (OWN_MACHINE.replace("[[0, 1, 4]]", "[[0, 2, 4]]"), "names GPU 2, which is not in gpus"),
        (OWN_MACHINE.replace("[[0, 1, 4]]", "[[0, 1, 4], [1, 0, 4]]"), "must join two GPUs, once"),
        (OWN_MACHINE.replace("nvlink_generation: 3", "nvlink_generation: null"), "nvlink_generation is missing"),
        (OWN_MACHINE.replace("index: 1", "index: 0").replace("[[0, 1, 4]]", "[]"), "gpus has 0 twice"),
        ("- 1\n", "my.yaml must be a mapping"),
        ("a: [\n", "my.yaml is not YAML"),
        (
            OWN_MACHINE.replace("[[0, 1, 4]]", "{nvlink: 4}"),
            "no machine: nvlink is .nvswitch: links of each GPU",
        ),
        (None, "no file .*my.yaml"),
    ],
)
def test_a_wrong_machine_file_is_refused(tmp_path: Path, content: str | None, says: str) -> None:
    if content is not None:
        (tmp_path / "my.yaml").write_text(content)
    (tmp_path / "c.yaml").write_text("hosts: [{count: 2, machine: my.yaml}]")
    with pytest.raises((InvalidRequest, NotFound), match=says):
        load_cluster(tmp_path / "c.yaml")


def test_openb_nodes_are_a_cluster_too(tmp_path: Path) -> None:
    file = tmp_path / "nodes.csv.gz"
    file.write_bytes(gzip.compress(b"sn,cpu_milli,memory_mib,gpu,model\nn0,1,1,2,P100\nn1,1,1,0,\n"))
    (row,) = load_cluster(file)
    assert (row.name, [gpu.model for gpu in row.inventory.gpus]) == ("n0", ["P100", "P100"])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("hosts: []", "hosts: List should have at least 1 item"),
        ("hosts: [{count: 1}]", "say either machine, or gpus"),
        ("- 1", "must be a mapping"),
        ("a: [", "is not YAML"),
    ],
)
def test_a_wrong_cluster_file_is_refused(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(text)
    with pytest.raises(InvalidRequest, match=says):
        load_cluster(file)


def test_an_unknown_machine_and_a_missing_file_are_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="dgx-h100"):
        ClusterFile(hosts=[HostGroup(count=1, machine="dgx-9")]).rows()
    with pytest.raises(NotFound, match="no file"):
        load_cluster(tmp_path / "none.yaml")


def test_a_trace_that_is_not_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "t.csv.gz").write_bytes(b"plain")
    for name in ("t.csv", "t.csv.gz"):
        with pytest.raises(InvalidRequest, match="is not text"):
            load_trace(tmp_path / name)


def test_failures_of_a_rate_are_the_same_for_the_same_seed() -> None:
    def first(seed: int) -> list[Outage]:
        failures = random_outages(hosts(2), gpu_mtbf_s=1600.0, down_s=5.0, seed=seed)
        return [next(failures) for _ in range(400)]

    assert first(1) == first(1) != first(2)
    # 16 GPUs, each every 1600 s: one every 100 s.
    assert first(1)[-1].at_s / 400 == pytest.approx(100, rel=0.2)


def test_failures_from_our_file_and_from_a_fault_trace(tmp_path: Path) -> None:
    file = tmp_path / "f.jsonl"
    file.write_text(
        '{"at_s": 9, "host": "gpu-0001", "down_s": 5}\n{"at_s": 1, "host": "gpu-0000", "gpu": 3, "down_s": 5}\n'
    )
    assert [failure.gpu for failure in load_failures(file, hosts(2))] == [3, None]

    def event(node: str, day: float, kind: str) -> dict[str, object]:
        return {"node_id": node, "event_time": day, "event_type": kind, "fault_type": {"Class": "GPU"}}

    events = [event("x", 1, "fault_start"), event("y", 1.5, "fault_start"), event("x", 2, "fault_end")]
    (failure,) = read_failures("faults", [json.dumps(events)], hosts(1))
    assert (failure.host, failure.at_s, failure.down_s) == ("gpu-0000", 86400, 86400)


@pytest.mark.parametrize("line", ['{"at_s": 1, "host": "nowhere", "down_s": 5}', '{"at_s": 1}', "[{}]", "[1", "x"])
def test_wrong_failures_are_refused(line: str) -> None:
    with pytest.raises(InvalidRequest):
        read_failures("f", [line], hosts(1))


def test_a_failure_of_a_gpu_that_does_not_exist_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="gpu-0000 has no GPU 8"):
        read_failures("f", ['{"at_s": 1, "host": "gpu-0000", "gpu": 8, "down_s": 5}'], hosts(1))


def test_a_policy_is_a_file_or_the_name_of_an_order_with_overrides(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("order: fcfs\nweights: {topology: 3}\n")
    label, policy = load_policy(str(file), ["weights.strategy=7", "proposal_timeout_s=4"])
    assert (label, policy.order, policy.proposal_timeout_s) == ("mine", "fcfs", 4)
    assert policy.weights == {"topology": 3, "strategy": 7}
    assert load_policy("fcfs")[1].order == "fcfs"
    assert load_policy("default")[1] == type(policy)()


@pytest.mark.parametrize(
    ("name", "overrides", "says"),
    [
        ("nonsense", [], "no queue order 'nonsense'.*there is no file nonsense"),
        ("fcfs", ["weights.beauty=1"], "no score is called beauty"),
        ("fcfs", ["colour=red"], "has no 'colour'; there is: order"),
        ("fcfs", ["weights"], "write key=value"),
        ("fcfs", ["weights.topology=high"], "weights.topology: Input should be a valid number"),
        ("fcfs", ["order.x=1"], "order is a value"),
    ],
)
def test_a_wrong_policy_is_refused(name: str, overrides: list[str], says: str) -> None:
    with pytest.raises(InvalidRequest, match=says):
        load_policy(name, overrides)


SPOT_NODES = "gpu_model,gpu_capacity_num,cpu_num,node_name\nGPU-series-1,4,192,0\nA10,1,128,17\nA10,0,64,18\n"


def test_published_tables_of_hosts_are_clusters(tmp_path: Path) -> None:
    path = tmp_path / "alibaba_v2026_spot_node_info_df.csv.gz"
    path.write_bytes(gzip.compress(SPOT_NODES.encode()))
    first, second = load_cluster(path)
    assert (first.name, len(first.inventory.gpus), first.inventory.cpus) == ("node-00000", 4, 192)
    assert (second.name, second.inventory.gpus[0].model) == ("node-00017", "A10")
    path.write_bytes(gzip.compress(b"a,b\n1,2\n"))
    with pytest.raises(InvalidRequest, match="no table of hosts that can be read"):
        load_cluster(path)
    path.write_bytes(gzip.compress(SPOT_NODES.replace("A10,1,", "A10,x,").encode()))
    with pytest.raises(InvalidRequest, match="line 3 of"):
        load_cluster(path)
