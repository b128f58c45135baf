"""Filters, scores, order factors and binders of other packages, found by entry point.

See ``examples/plugin-quiet-hosts`` and ``examples/plugin-whole-hosts``.

Any exception of such a plugin, when it is loaded or called, becomes a :class:`PluginFault` that names it, also one that
ends a process (``sys.exit``). The scheduler goes on without the plugin and reports it. Two packages that announce one
name are a fault as well: nobody could say which of them decides.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from gpu_platform.domain.errors import PluginFailed
from gpu_platform.domain.jobs.placement import ReasonCode
from gpu_platform.domain.jobs.resources import ResourceRequest
from gpu_platform.domain.placing.placement_request import PlacementRequest
from gpu_platform.domain.plugin import DOES_NOT_RETURN, PluginFault, PluginKind
from gpu_platform.domain.texts import one_line
from gpu_platform.scheduling.cluster.snapshot import ChangeKind, GpuSets, HostIndices, Snapshot
from gpu_platform.scheduling.placing.domains import domains_of
from gpu_platform.scheduling.placing.framework import ChooseHosts, FilterText, HostQuery, Offers, Score
from gpu_platform.scheduling.queueing.queue_order import OrderFactor

SCORES = "gpu_platform.plugins"
FILTERS = "gpu_platform.filters"
ORDER_FACTORS = "gpu_platform.orders"
BINDERS = "gpu_platform.binders"
_T = TypeVar("_T")
PluginCalls = list[tuple[PluginKind, str]]
"""The calls of plugins that have not returned, the innermost last. Each is another object."""
_at_work: PluginCalls = []
_watched: ContextVar[PluginCalls | None] = ContextVar("plugin_calls", default=None)
_LONGEST = 200
"""Characters of an exception's text that are kept."""


class FilterPlugin(Protocol):
    """A filter that a package announces under ``gpu_platform.filters``: a class without required arguments."""

    name: str
    """The name of the entry point."""
    can_change_by: ChangeKind
    """The kind of change after which the filter may let more GPUs through."""
    text: FilterText

    def applies_to(self, query: HostQuery) -> bool:
        """False: the filter would let everything through for this request, so it is not called."""
        ...

    def __call__(self, query: HostQuery, snapshot: Snapshot, hosts: HostIndices) -> GpuSets:
        """Return for each host the GPUs that may serve, as a set of bits (``uint64``)."""
        ...


class SiteFilter:
    """A filter of another package. Raises PluginFailed for any error in it."""

    code = ReasonCode.FILTER
    is_screened = False

    def __init__(self, name: str, plugin: FilterPlugin) -> None:
        """Raises TypeError if ``plugin`` is no filter."""
        if not isinstance(plugin.can_change_by, ChangeKind) or not isinstance(plugin.text, FilterText):
            raise TypeError("a filter has can_change_by (a ChangeKind) and text (a FilterText)")
        self.name, self.can_change_by, self.text = name, plugin.can_change_by, plugin.text
        self._plugin = plugin

    def applies_to(self, query: HostQuery) -> bool:
        """Return the plugin's answer. Raises PluginFailed for any error in it."""
        with _named("filter", self.name):
            return bool(self._plugin.applies_to(query))

    def __call__(self, query: HostQuery, snapshot: Snapshot, hosts: HostIndices) -> GpuSets:
        """Return for each of ``hosts`` the GPUs that may serve, as a set of bits."""
        with _named("filter", self.name):
            return _checked(self._plugin(query, snapshot, hosts), np.uint64, hosts)


class SiteScore:
    """A score of another package. Raises PluginFailed for any error in it."""

    def __init__(self, name: str, plugin: Score) -> None:
        self.name = name
        self._plugin = plugin

    def __call__(
        self, request: ResourceRequest, snapshot: Snapshot, hosts: HostIndices, offers: Offers
    ) -> NDArray[np.float64]:
        """Return the score of each offer, 0 to 1."""
        with _named("score", self.name):
            values = _checked(self._plugin(request, snapshot, hosts, offers), np.float64, hosts)
            if not np.isfinite(values).all():
                raise ValueError("a score is a finite number, 0 to 1")
            return values


class SiteBinder:
    """A binder of another package: it chooses the hosts of a job among those that have an offer.

    Raises PluginFailed for any error in it, and for a choice that the job does not allow.
    """

    def __init__(self, name: str, plugin: ChooseHosts) -> None:
        self.name = name
        self._plugin = plugin

    def __call__(
        self, request: ResourceRequest, snapshot: Snapshot, offers: Offers, hosts: HostIndices
    ) -> HostIndices | None:
        """Return the host indices in rank order. None: the platform shall choose."""
        with _named("binder", self.name):
            chosen = self._plugin(request, snapshot, offers, hosts)
            if chosen is None:
                return None
            chosen = np.asarray(chosen, np.intp)
            if chosen.shape != (request.hosts,) or len(np.unique(chosen)) != request.hosts:
                raise ValueError(f"the answer is {request.hosts} different hosts, not {chosen.tolist()}")
            if not np.isin(chosen, hosts).all():
                raise ValueError("it chose a host that has no offer")
            if len(np.unique(domains_of(request, snapshot, chosen))) != 1:
                raise ValueError(f"it chose hosts of several domains, but the job requires one {request.gang_level}")
            return chosen


class SiteOrderFactor:
    """An order factor of another package. Raises PluginFailed for any error in it."""

    def __init__(self, name: str, plugin: OrderFactor) -> None:
        self.name = name
        self._plugin = plugin

    def __call__(self, row: PlacementRequest) -> float:
        """Return how much the job goes ahead of its arrival."""
        with _named("order", self.name):
            value = float(self._plugin(row))
            if not math.isfinite(value):
                raise ValueError("an order factor returns a finite number")
            return value


def plugin_at_work() -> PluginFault | None:
    """The fault of the plugin that is called at this moment, if the call does not return. None: none is called."""
    return no_return(*_at_work[-1]) if _at_work else None


def watch_calls() -> PluginCalls:
    """The calls that are made in this context (:mod:`contextvars`) from now on, for who watches it."""
    calls: PluginCalls = []
    _watched.set(calls)
    return calls


def no_return(kind: PluginKind, name: str) -> PluginFault:
    """The fault of a plugin whose call does not return."""
    return PluginFault(kind=kind, name=name, error=DOES_NOT_RETURN)


def failed(fault: PluginFault) -> PluginFailed:
    """The error that says so."""
    return PluginFailed(fault.message, **fault.model_dump())


def load_scores(names: Collection[str]) -> tuple[dict[str, Score], list[PluginFault]]:
    """Return the scores ``names`` of installed packages, and the faults of those that cannot be loaded."""
    return _load("score", SCORES, names, SiteScore)


def load_filters(names: Collection[str]) -> tuple[dict[str, SiteFilter], list[PluginFault]]:
    """Return the filters ``names``, and the faults of those that are not installed or cannot be loaded."""
    found, faults = _load("filter", FILTERS, names, SiteFilter)
    known = ", ".join(sorted(entry.name for entry in entry_points(group=FILTERS))) or "none"
    missing = set(names) - set(found) - {fault.name for fault in faults}
    faults += [
        PluginFault(kind="filter", name=name, error=f"not installed; there are: {known}", installed=False)
        for name in sorted(missing)
    ]
    return {name: found[name] for name in names if name in found}, faults


def load_order_factors(names: Collection[str]) -> tuple[dict[str, SiteOrderFactor], list[PluginFault]]:
    """Return the order factors ``names`` of installed packages, and the faults of those that cannot be loaded."""
    return _load("order", ORDER_FACTORS, names, SiteOrderFactor)


def load_binder(name: str) -> tuple[SiteBinder | None, list[PluginFault]]:
    """Return the binder ``name``, and the fault if it is not installed or cannot be loaded. Empty name: none."""
    if not name:
        return None, []
    found, faults = _load("binder", BINDERS, [name], SiteBinder)
    if not found and not faults:
        known = ", ".join(sorted(entry.name for entry in entry_points(group=BINDERS))) or "none"
        faults = [PluginFault(kind="binder", name=name, error=f"not installed; there are: {known}", installed=False)]
    return found.get(name), faults


def _load(
    kind: PluginKind, group: str, names: Collection[str], wrap: Callable[[str, Any], _T]
) -> tuple[dict[str, _T], list[PluginFault]]:
    found: dict[str, _T] = {}
    faults: list[PluginFault] = []
    announced: dict[str, set[EntryPoint]] = {}
    for entry in sorted(entry_points(group=group), key=lambda entry: entry.name):
        if entry.name in names:
            announced.setdefault(entry.name, set()).add(entry)
    for name, entries in announced.items():
        try:
            if len(entries) > 1:
                raise ValueError(f"several packages announce it: {', '.join(sorted(one.value for one in entries))}")
            found[name] = wrap(name, _made(entries.pop()))
        except BaseException as error:
            faults.append(_fault(kind, name, error))
    return found, faults


def _made(entry: EntryPoint) -> Any:
    plugin = entry.load()()
    if getattr(plugin, "name", None) != entry.name or not callable(plugin):
        raise TypeError(f"{entry.value} must be a class whose objects can be called and have name = {entry.name!r}")
    return plugin


@contextmanager
def _named(kind: PluginKind, name: str) -> Iterator[None]:
    """Raise PluginFailed instead of any exception that is raised inside the block."""
    watched = _watched.get()
    calls = _at_work if watched is None else watched
    calls.append((kind, name))
    try:
        yield
    except BaseException as error:
        raise failed(_fault(kind, name, error)) from error
    finally:
        calls.pop()


def _fault(kind: PluginKind, name: str, error: BaseException) -> PluginFault:
    """The fault of a plugin that raised ``error``, whose text is the plugin's, too. Ctrl-C is raised again: it is none
    of the plugin."""
    if isinstance(error, KeyboardInterrupt):
        raise error
    try:
        text = one_line(str(error))
    except Exception:
        text = "its text cannot be read"
    return PluginFault(kind=kind, name=name, error=f"{type(error).__name__}: {text}"[:_LONGEST])


def _checked(answer: Any, dtype: type[np.generic], hosts: HostIndices) -> NDArray[Any]:
    if not isinstance(answer, np.ndarray) or answer.dtype != dtype or answer.shape != hosts.shape:
        what = f"{answer.dtype}{list(answer.shape)}" if isinstance(answer, np.ndarray) else type(answer).__name__
        raise TypeError(f"the answer is an array of {dtype.__name__}, one for each of {len(hosts)} hosts, not {what}")
    return answer
