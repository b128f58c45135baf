"""A copy of the snapshot, for trials that last over several decisions while the cluster goes on changing."""

from __future__ import annotations

from copy import copy

import numpy as np

from gpu_platform.scheduling.cluster.host_arrays import ChangeKind
from gpu_platform.scheduling.cluster.snapshot import Snapshot

_OWN_VERSIONS = 1 << 40
"""Who remembers something of a host remembers its version, too. No version of a trial may be one of the original."""


class SnapshotCopy(Snapshot):
    """A copy that is changed at will, and made equal to the original again with :meth:`renew`."""

    def __init__(self, original: Snapshot) -> None:
        super().__init__()
        self._original = original
        self._facts_at = self._copied_at = -1
        self._fabric_of = self._fabric
        self.version = _OWN_VERSIONS

    def renew(self) -> None:
        """Become equal to the original. The cost depends on the hosts that changed in either of them since the last
        time.
        """
        original, version = self._original, self.version
        self.windows = original.windows
        if original.facts_version == self._facts_at and original._fabric is self._fabric_of:
            changed_at = original.changed_at[ChangeKind.USE], self.changed_at[ChangeKind.USE]
            changed = (changed_at[0] > self._copied_at) | (changed_at[1] >= _OWN_VERSIONS)
            uuids = [uuid for host_index in np.flatnonzero(changed).tolist() for uuid in original._uuids[host_index]]
        else:
            for name, value in vars(original).items():
                setattr(self, name, value if value is original.windows else copy(value))
            self._arrays = {name: np.zeros_like(array) for name, array in original._arrays.items()}
            self._point(len(self.names), self._fabric.levels)
            self.version, self._facts_at, self._fabric_of = version, original.facts_version, original._fabric
            uuids = list(original._gpus)
        for name, array in original._arrays.items():
            np.copyto(self._arrays[name], array)
        self.shared.become(original.shared)
        self._gpus.update((uuid, original._gpus[uuid].copy()) for uuid in uuids)
        self._copied_at = original.version
