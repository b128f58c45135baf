"""Where a MIG instance may stand, and where it leaves most room: against brute force."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_platform.domain.hosts.share import ShareMode
from gpu_platform.topology.mig import MigModel, MigProfile, mig_model, mig_models, state_of
from tests.support.examples import few

MODELS = {model.models[0]: model for model in mig_models()}
A100 = "NVIDIA A100-SXM4-40GB"

Instance = tuple[MigProfile, int]


def is_legal(model: MigModel, instances: list[Instance]) -> bool:
    """By the rules as NVIDIA words them, slice by slice."""
    slices = [s for profile, start in instances for s in range(start, start + profile.memory_slices)]
    return (
        len(set(slices)) == len(slices)
        and all(0 <= s < model.memory_slices for s in slices)
        and all(start in profile.starts for profile, start in instances)
        and sum(profile.compute_slices for profile, _ in instances) <= model.compute_slices
        and sum(profile.name.endswith("+me") for profile, _ in instances) <= 1
    )


def most(model: MigModel, profile: MigProfile, instances: tuple[Instance, ...]) -> int:
    """How many more of ``profile`` fit at most, by trying every order of places."""

    @cache
    def more(chosen: tuple[int, ...]) -> int:
        tries = [
            (*chosen, start)
            for start in profile.starts
            if is_legal(model, [*instances, *((profile, s) for s in (*chosen, start))])
        ]
        return max((1 + more(tuple(sorted(attempt))) for attempt in tries), default=0)

    return more(())


def state(instances: list[Instance]) -> int:
    return state_of((p.mask(start), p.compute_slices, p.media_extensions) for p, start in instances)


@pytest.mark.parametrize("name", MODELS)
@given(data=st.data())
@settings(max_examples=few(40), deadline=None)
def test_every_instance_is_legal_and_leaves_the_most_room(name: str, data: st.DataObject) -> None:
    model, instances = MODELS[name], list[Instance]()
    for profile in data.draw(st.lists(st.sampled_from(model.profiles), min_size=1, max_size=8)):
        legal = [start for start in range(8) if is_legal(model, [*instances, (profile, start)])]
        start = model.best_start(profile.name, state(instances))
        assert (start is None) == (not legal), "refused exactly what cannot stand anywhere"
        if start is None:
            continue
        assert start in legal

        def room(at: int, profile: MigProfile = profile) -> int:
            then = (*instances, (profile, at))
            plain = [p for p in model.profiles if not p.media_extensions]
            return sum(p.memory_slices * most(model, p, then) for p in plain)

        assert room(start) == max(map(room, legal))
        instances.append((profile, start))
        if instances and data.draw(st.integers(0, 3)) == 0:
            instances.pop(data.draw(st.integers(0, len(instances) - 1)))


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_an_empty_gpu_takes_as_many_as_nvidia_says(model: MigModel) -> None:
    for profile in model.profiles:
        count, now = 0, 0
        while (start := model.best_start(profile.name, now)) is not None:
            now = state_of([(profile.mask(start), profile.compute_slices, profile.media_extensions)], now)
            count += 1
        assert count == profile.max_instances, profile.name


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_grants_never_add_up_to_more_than_the_gpu_has(model: MigModel) -> None:
    memory_mib = model.memory_slices * 1000
    for profile in model.profiles:
        grant = model.grant(profile, profile.starts[0], memory_mib)
        assert grant.mode is ShareMode.MIG
        assert grant.mig_mask == profile.mask(profile.starts[0])
        assert grant.memory_mib * model.memory_slices <= memory_mib * profile.memory_slices
        assert grant.percent * model.compute_slices <= 100 * profile.compute_slices


def test_small_instances_keep_out_of_the_way_of_large_ones() -> None:
    """The last slice serves nothing but 1g: there it goes first, and 3g goes where 4g cannot."""
    model = mig_model(A100)
    assert model is not None
    assert model.best_start("1g.5gb", 0) == 6
    assert model.best_start("3g.20gb", 0) == 4
    assert model.best_start("4g.20gb", state([(model.profiles[4], 4)])) == 0


def test_profiles_are_known_by_the_name_of_nvml() -> None:
    assert mig_model("Tesla V100-SXM2-32GB") is None
    for model in mig_models():
        assert len({profile.profile_id for profile in model.profiles}) == len(model.profiles)
        assert all(mig_model(name) is model for name in model.models)
