"""One trace leads from the command line to the rank, through every process, and reaches a collector."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from gpu_platform.tracing import start_tracing, trace_headers
from tests.support.command_line import run
from tests.support.waiting import eventually
from workers.local.cluster import ClusterConfig, LocalCluster, NodeSpec

PASSWORD = "hunter2-of-this-test"


@dataclass(frozen=True)
class Span:
    process: str
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    """Empty: the trace begins here."""
    attempt: int
    """0: it says none."""
    attributes: str


@dataclass
class Collector:
    """Takes what processes send with OTLP over HTTP."""

    url: str
    spans: list[Span] = field(default_factory=list)

    def of_trace(self, trace_id: str) -> set[tuple[str, str]]:
        return {(span.process, span.name) for span in self.spans if span.trace_id == trace_id}

    def parents(self, name: str) -> set[str]:
        return {span.parent_id for span in self.spans if span.name == name}

    def attempts(self, trace_id: str, name: str) -> set[int]:
        return {span.attempt for span in self.spans if (span.trace_id, span.name) == (trace_id, name)}

    def roots(self, trace_id: str) -> set[str]:
        """The names of the spans whose parent is not there."""
        spans = [span for span in self.spans if span.trace_id == trace_id]
        ids = {span.span_id for span in spans}
        return {span.name for span in spans if span.parent_id not in ids}


@contextmanager
def collecting() -> Iterator[Collector]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            for group in ExportTraceServiceRequest.FromString(body).resource_spans:
                names = {one.key: one.value.string_value for one in group.resource.attributes}
                for scope in group.scope_spans:
                    collector.spans += [
                        Span(
                            process=names["service.name"],
                            name=one.name,
                            trace_id=one.trace_id.hex(),
                            span_id=one.span_id.hex(),
                            parent_id=one.parent_span_id.hex(),
                            attempt=sum(
                                pair.value.int_value for pair in one.attributes if pair.key == "gpu_platform.attempt"
                            ),
                            attributes=str(one.attributes),
                        )
                        for one in scope.spans
                    ]
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    collector = Collector(f"http://127.0.0.1:{server.server_port}")
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield collector
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.long
async def test_one_trace_from_the_command_line_to_the_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with collecting() as collector:
        tracing = {"GPU_PLATFORM_TRACING__ENDPOINT": collector.url, "OTEL_BSP_SCHEDULE_DELAY": "200"}
        config = ClusterConfig(
            state_dir=tmp_path / "state", nodes=(NodeSpec("a", "dgx-h100"),), ui=False, settings=tracing
        )
        async with LocalCluster(config) as cluster:
            for name, value in tracing.items():
                monkeypatch.setenv(name, value)
            script = f"echo $TRACEPARENT > {tmp_path}/seen; test $GPU_PLATFORM_ATTEMPT = 2"
            options = ("--wait", "--gpus", "1", "--max-retries", "1", "--env", f"PASSWORD={PASSWORD}")
            ran = await run("submit", *options, "--", "sh", "-c", script, url=cluster.api_url)
            assert ran.code == 0, ran.err
            _, trace_id, _, _ = (tmp_path / "seen").read_text().strip().split("-")
            wanted = {
                ("gpu-platform-cli", "gpu-platform submit"),
                ("gpu-platform-service", "POST /v1/jobs"),
                ("gpu-platform-service", "StartWorkflow:JobWorkflow"),
                ("gpu-platform-control", "RunActivity:admit_job"),
                ("gpu-platform-node", "RunActivity:launch_ranks"),
            }
            await eventually(
                lambda: wanted <= collector.of_trace(trace_id),
                f"these spans in trace {trace_id}; there are {sorted(collector.of_trace(trace_id))}",
            )
            launched = lambda: collector.attempts(trace_id, "RunActivity:launch_ranks") == {1, 2}  # noqa: E731
            await eventually(launched, "launches of both attempts, with their numbers")
            is_tree = lambda: collector.roots(trace_id) == {"gpu-platform submit"}  # noqa: E731
            await eventually(is_tree, "one tree")
            assert not [span for span in collector.spans if PASSWORD in span.attributes]
            listed = json.loads((await run("jobs", "list", "--json", url=cluster.api_url)).out)
            job_id = listed[0]["id"]
            described = await run("jobs", "describe", job_id, url=cluster.api_url)
            assert trace_id in described.out
            log = (tmp_path / "state" / "logs" / "service.log").read_text()
            [accepted] = [json.loads(line) for line in log.splitlines() if '"job.accepted"' in line]
            assert accepted["trace_id"] == trace_id
            often = {span.name for span in collector.spans if span.name.endswith(("/heartbeat", "/report", "/readyz"))}
            assert often == set()
            ran = await run("submit", "--wait", "--gpus", "1", "--array", "0-1", "--", "true", url=cluster.api_url)
            assert ran.code == 0, ran.err
            await eventually(lambda: collector.parents("SignalWorkflow:placed"), "places of elements")
            said = "they do not hang at the step of the leader, which lasts for days"
            assert collector.parents("SignalWorkflow:placed") == {""}, said


def test_a_process_that_does_not_trace_sends_no_header() -> None:
    start_tracing("service", None)
    assert trace_headers() == {}


def test_without_the_packages_a_process_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(Exception, match=r"pip install 'gpu-platform\[tracing\]'"):
        start_tracing("service", "http://127.0.0.1:1")
