"""The cluster's defaults: what a job says always wins, and what it does not say is filled in once."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.jobs.work_kind import WorkKind
from gpu_platform.service_settings import (
    BatchDefaults,
    InferenceDefaults,
    InteractiveDefaults,
    JobDefaults,
    KindDefaults,
    KindsOfWork,
    ServiceSettings,
    TrainingDefaults,
)
from gpu_platform.settings import Settings
from service.operations.job_defaults import with_defaults

STRATEGIES = st.sampled_from(["pack", "spread"])
PRIORITIES = st.integers(-1000, 1000)
KINDS = st.sampled_from([*WorkKind])


def some(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Any of the fields, or none."""
    return st.fixed_dictionaries({}, optional=fields)


REQUESTS = some(gpus_per_host=st.integers(1, 8), strategy=STRATEGIES)
COMMON = some(
    kind=KINDS,
    priority=PRIORITIES,
    max_retries=st.integers(0, 3),
    retry_wait_s=st.integers(1, 3).map(float),
    checkpoint=some(every_s=st.integers(1, 5), keep=st.integers(1, 5)),
    fencing=st.sampled_from(["lease", "strict", "relaxed"]),
    time_limit_s=st.integers(1, 3) | st.none(),
    deadline_at=st.just("2031-01-01T00:00:00Z"),
    warn_before_s=st.just(0),
)
SHAPES = st.one_of(
    REQUESTS.map(lambda request: {"gpus": request}),
    st.lists(REQUESTS, min_size=1, max_size=3).map(
        lambda found: {"groups": [{"name": f"g{number}", "gpus": one} for number, one in enumerate(found)]}
    ),
    st.just({}),
)
SPECS = st.builds(lambda common, shape: {"command": ["true"], **common, **shape}, COMMON, SHAPES)


def of_kind(model: type[KindDefaults]) -> st.SearchStrategy[Any]:
    levels = PRIORITIES | st.sampled_from(["low", "normal", "high"]) | st.none()
    return some(strategy=STRATEGIES | st.none(), priority=levels).map(model.model_validate)


DEFAULTS = st.builds(
    JobDefaults,
    kind=KINDS | st.none(),
    kinds=st.builds(
        KindsOfWork,
        training=of_kind(TrainingDefaults),
        inference=of_kind(InferenceDefaults),
        batch=of_kind(BatchDefaults),
        interactive=of_kind(InteractiveDefaults),
    ),
    max_retries=st.integers(0, 3) | st.none(),
    retry_wait_s=st.integers(1, 3).map(float) | st.none(),
    checkpoint_every_s=st.integers(1, 5) | st.none(),
    priority=PRIORITIES | st.sampled_from(["low", "normal", "high"]) | st.none(),
    time_limit_s=st.integers(1, 9) | st.none(),
)


def settings_with(defaults: JobDefaults) -> Settings:
    return Settings(service=ServiceSettings(job_defaults=defaults))


def assert_holds(said: Any, found: Any) -> None:
    """All that was said is in what was found."""
    if isinstance(said, dict):
        for name, value in said.items():
            assert_holds(value, found[name])
    elif isinstance(said, list):
        assert len(said) == len(found)
        for one, other in zip(said, found, strict=True):
            assert_holds(one, other)
    else:
        assert said == found


@given(fields=SPECS, defaults=DEFAULTS, highest=PRIORITIES)
def test_what_was_said_always_wins(fields: dict[str, Any], defaults: JobDefaults, highest: int) -> None:
    found = with_defaults(JobSpec.model_validate(fields), settings_with(defaults), highest)
    assert_holds(fields, found.model_dump(mode="json"))
    assert JobSpec.model_validate_json(found.model_dump_json()) == found, "Temporal can read it again"


@given(fields=SPECS, defaults=DEFAULTS, highest=PRIORITIES)
def test_what_was_not_said_is_that_of_its_kind_but_never_above_what_its_user_may_give(
    fields: dict[str, Any], defaults: JobDefaults, highest: int
) -> None:
    settings = settings_with(defaults)
    spec = JobSpec.model_validate(fields)
    found = with_defaults(spec, settings, highest)
    kind = spec.kind or defaults.kind
    assert found.kind is kind
    of = KindDefaults() if kind is None else defaults.kinds.of(kind)
    if "priority" not in fields:
        level = defaults.priority if of.priority is None else of.priority
        assert found.priority == (0 if level is None else min(settings.access.level(level), highest))
    for request, before in zip(found.requests, spec.requests, strict=True):
        if "strategy" not in before.model_fields_set:
            assert request.strategy == (of.strategy or "pack")


@given(fields=SPECS, defaults=DEFAULTS, longest_s=st.integers(1, 9) | st.none())
def test_a_time_limit_that_was_not_said_is_the_clusters_but_never_above_what_the_namespace_allows(
    fields: dict[str, Any], defaults: JobDefaults, longest_s: int | None
) -> None:
    found = with_defaults(JobSpec.model_validate(fields), settings_with(defaults), 0, longest_s)
    if "time_limit_s" in fields:
        assert found.time_limit_s == fields["time_limit_s"], "null is no limit"
    elif "deadline_at" in fields or defaults.time_limit_s is None:
        assert found.time_limit_s is None
    else:
        assert found.time_limit_s == min(defaults.time_limit_s, longest_s or 9)


@given(fields=SPECS, defaults=DEFAULTS, highest=PRIORITIES)
def test_filling_in_twice_changes_nothing(fields: dict[str, Any], defaults: JobDefaults, highest: int) -> None:
    """A job whose defaults were filled in says all of them, so a changed configuration does not reach it."""
    found = with_defaults(JobSpec.model_validate(fields), settings_with(defaults), highest)
    of_kind = found.kind is not None and defaults.kinds.of(found.kind)
    if of_kind and of_kind.priority is not None and of_kind.strategy is not None:
        assert with_defaults(found, Settings(), 1000).model_dump() == found.model_dump()


@given(fields=SPECS.filter(lambda fields: "kind" not in fields), highest=PRIORITIES)
def test_a_job_of_no_kind_is_as_it_was(fields: dict[str, Any], highest: int) -> None:
    spec = JobSpec.model_validate(fields)
    found = with_defaults(spec, Settings(), highest)
    assert found == spec
