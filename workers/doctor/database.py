"""Checks of the database: whether it answers, what it is, its schema, and the room on its disk."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator

from gpu_platform.clock_difference import compare
from gpu_platform.domain.errors import PlatformError
from gpu_platform.domain.leader_silence import SIGN_EVERY_S, SILENT_AFTER_S, LeaderLoop, LeaderSilence, SignWatch
from gpu_platform.settings import Settings
from gpu_platform.store import Store
from gpu_platform.store.leadership import signs
from gpu_platform.store.migrate import is_newer, newest_revision
from gpu_platform.store.poison import read_poison
from workers.doctor.clocks import judge
from workers.doctor.results import Part, Result
from workers.doctor.roles import Roles, sqlite_file

_MOST_STEPS = 5
_LEAST_FREE = 0.05
"""Below this part of the disk there is a warning."""


def checks(settings: Settings, roles: Roles) -> Iterator[Result]:
    """The checks of this part."""
    part = Part("database")
    if roles.no_database:
        yield part.skipped("all", roles.no_database)
        return
    yield from part.guarded(_checks(part, settings))


def _checks(part: Part, settings: Settings) -> Iterator[Result]:
    file = sqlite_file(settings)
    if file is not None and not file.exists():
        yield part.failed("reachable", f"there is no {file}", "start the service, which makes it, or set database_url")
        return
    store = Store(settings.store_url)
    shown = store.shown_url
    try:
        try:
            schema, version = store.schema(), store.server_version()
        except PlatformError as error:
            advice = "start the database, or mend database_url and the account in it"
            yield part.failed("reachable", f"{shown}: {error.message}", advice)
            return
        yield part.ok("reachable", shown)
        yield part.ok("version", version)
        yield _schema(part, schema)
        yield _leader(part, store)
        if schema == newest_revision():
            yield _set_aside(part, store)
        if store.clock() is None:
            yield part.skipped("clock", "the database is a file of this machine")
        else:
            yield judge(part, compare(lambda: store.clock() or 0.0), "the database's")
    finally:
        store.close()
    if file is not None:
        yield _room(part, settings, str(file.parent))


def _leader(part: Part, store: Store) -> Result:
    """By two looks: clocks of machines differ."""
    watch, began = SignWatch(), time.time()
    try:
        first = signs.read_signs(store)
        shown = f"{first.holder.split('/')[0]}, epoch {first.epoch}"
        old = {loop: began - first.at.get(loop, 0.0) for loop in LeaderLoop}
        if all(old[loop] < after_s for loop, after_s in SILENT_AFTER_S.items()):
            return part.ok("leader", shown)
        watch.observe(first, 0.0)
        time.sleep(2 * SIGN_EVERY_S)
        watch.observe(signs.read_signs(store), 2 * SIGN_EVERY_S)
    except PlatformError as error:
        return part.skipped("leader", error.message)
    silent = [loop for loop, age_s in watch.ages_s(2 * SIGN_EVERY_S).items() if age_s > 0 and old[loop] > 0]
    silent = [loop for loop in silent if old[loop] >= SILENT_AFTER_S[loop]]
    if not silent:
        return part.ok("leader", shown)
    longest = max(old[loop] for loop in silent)
    silence = LeaderSilence(loops=silent, silent_s=longest, epoch=first.epoch, holder=first.holder)
    return part.failed("leader", silence.message, "docs/how-to/runbooks.md#noleader")


def _set_aside(part: Part, store: Store) -> Result:
    name, told = "steps set aside", list[str]()
    for step, known in sorted(read_poison(store).items()):
        if (until := known.set_aside_until) is not None:
            what = f"{step.workflow_id} {step.name}".strip()
            told.append(f"{what} killed {known.deaths} control workers, and is tried again at {until:%H:%M:%S} UTC")
    if not told:
        return part.ok(name, "none")
    more = f"; {len(told) - _MOST_STEPS} more" if len(told) > _MOST_STEPS else ""
    return part.warning(name, "; ".join(told[:_MOST_STEPS]) + more, "docs/how-to/runbooks.md#stepssetaside")


def _schema(part: Part, schema: str | None) -> Result:
    newest = newest_revision()
    if schema is None:
        return part.failed("schema", "there are no tables", "start the service: it makes them")
    if is_newer(schema):
        return part.failed(
            "schema",
            f"{schema}, of a newer release: this one knows up to {newest}",
            "install the newer release here, too; while an upgrade rolls, newer_schema: accept",
        )
    if schema != newest:
        return part.warning(
            "schema", f"{schema}, this release has {newest}", "restart a process of the control plane: it migrates"
        )
    return part.ok("schema", schema)


def _room(part: Part, settings: Settings, directory: str) -> Result:
    usage = shutil.disk_usage(directory)
    found = f"{usage.free >> 20} MiB of {usage.total >> 20} MiB are free in {directory}"
    if usage.free < _LEAST_FREE * usage.total:
        return part.warning("room", found, "make room: with a full disk nothing can be submitted, and leases end")
    return part.ok("room", found)
