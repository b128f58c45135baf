"""Why a place was chosen, in the words that the documentation quotes."""

from __future__ import annotations

import inspect

from gpu_platform.domain.jobs.placement import Placement
from tests.builders import cluster, job


def test_the_example_of_the_documentation_occurs() -> None:
    scheduler = cluster().host("dgx-a").host("dgx-b").host("dgx-c").scheduler()
    scheduler.add(job(4).row)
    ((_, placement),) = scheduler.decide(0.0).placements
    assert placement.why.startswith("4 GPUs in one NVLink ring (18 links) on one NUMA node of dgx-a; ")
    assert f"``{placement.why}``" in " ".join(inspect.getsource(Placement).split())
