"""Which hosts and GPUs a new window gets: those that it names, or as many as it asks for."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import replace

from gpu_platform.domain.errors import InvalidRequest
from gpu_platform.domain.hosts.gpu import GpuInfo, HostInventory
from gpu_platform.domain.jobs.host_choice import matches_any
from gpu_platform.domain.jobs.resources import models_of
from gpu_platform.domain.placing.window import WindowPlace, WindowRow, conflict
from gpu_platform.domain.windows import WindowRequest

InTheWay = Callable[[WindowRow], Mapping[WindowPlace, int]]
"""Returns how many jobs at each place of a window may still hold something there when it begins."""


def choose(
    window: WindowRow,
    request: WindowRequest,
    hosts: Mapping[str, HostInventory],
    ready: Container[str],
    others: Sequence[WindowRow],
    in_the_way: InTheWay,
) -> WindowRow:
    """Return the window with what it keeps.

    Hosts that are free for it come first: in service, kept by no other window, and without jobs that may still run when
    it begins. Raises :class:`InvalidRequest` if there are too few.
    """
    if request.hosts:
        return replace(window, places=tuple(WindowPlace(name) for name in named_hosts(request, hosts)))
    usable = {name: [gpu for gpu in one.gpus if _matches(gpu, request)] for name, one in hosts.items()}
    if request.host_count is not None:
        whole = [name for name, gpus in usable.items() if gpus or request.gpu_model is None]
        ranked = _ranked(window, [WindowPlace(name) for name in whole], others, ready, in_the_way)
        if len(ranked) < request.host_count:
            raise _too_few(f"{request.host_count} hosts", len(ranked), request)
        chosen = sorted(ranked[: request.host_count], key=lambda place: place.host)
        return replace(window, places=tuple(chosen))
    wanted = request.gpu_count or 0
    single = [WindowPlace(name, (gpu.uuid,)) for name, gpus in sorted(usable.items()) for gpu in gpus]
    ranked = _ranked(window, single, others, ready, in_the_way)
    if len(ranked) < wanted:
        raise _too_few(f"{wanted} GPUs", len(ranked), request)
    return replace(window, places=tuple(_together(ranked, wanted)))


def named_hosts(request: WindowRequest, known: Iterable[str]) -> list[str]:
    """Return the hosts that a window names. Raises :class:`InvalidRequest` if one of its names fits none."""
    known = list(known)
    names = [name for name in sorted(known) if matches_any(request.hosts, name)]
    if not names:
        raise InvalidRequest(
            f"no host has a name like {', '.join(request.hosts)}; there are: {', '.join(sorted(known)[:20]) or 'none'}"
        )
    for pattern in request.hosts:
        if not any(matches_any((pattern,), name) for name in names):
            raise InvalidRequest(f"no host has a name like {pattern}: leave it out, or correct it")
    return names


def _matches(gpu: GpuInfo, request: WindowRequest) -> bool:
    if request.gpu_model is None:
        return True
    return any(part in gpu.model.casefold() for part in models_of(request.gpu_model))


def _ranked(
    window: WindowRow,
    places: Sequence[WindowPlace],
    others: Sequence[WindowRow],
    ready: Container[str],
    in_the_way: InTheWay,
) -> list[WindowPlace]:
    """The places that no other window keeps at that time, those that are free for it first."""
    free = [place for place in places if conflict(replace(window, places=(place,)), others) is None]
    jobs = in_the_way(replace(window, places=tuple(free)))
    return sorted(free, key=lambda place: (place.host not in ready, jobs.get(place, 0)))


def _together(ranked: Sequence[WindowPlace], wanted: int) -> list[WindowPlace]:
    """Return so many of these GPUs, on few hosts; of hosts with as many of them, the first ones."""
    by_host: dict[str, list[str]] = {}
    for place in ranked:
        by_host.setdefault(place.host, []).extend(place.gpu_uuids or ())
    chosen: list[WindowPlace] = []
    left = wanted
    order = list(by_host)
    for name in sorted(order, key=lambda name: (-min(len(by_host[name]), left), order.index(name))):
        if left <= 0:
            break
        uuids = tuple(by_host[name][:left])
        chosen.append(WindowPlace(name, uuids))
        left -= len(uuids)
    return sorted(chosen, key=lambda place: place.host)


def _too_few(asked: str, there: int, request: WindowRequest) -> InvalidRequest:
    of_model = f" with {request.gpu_model}" if request.gpu_model else ""
    return InvalidRequest(
        f"asked for {asked}{of_model}; {there} are not kept by another window then: ask for fewer, or for another time"
    )
