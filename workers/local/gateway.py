"""The node gateway of a local cluster, and the certificates of its hosts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gpu_platform.identity import names
from gpu_platform.identity.ca import CertificateAuthority
from gpu_platform.identity.certificates import CertificateFiles, make_key_and_request
from gpu_platform.node.system.ports import free_port


class LocalGateway:
    """Where the gateway listens, and how its hosts reach it. ``directory``: for a CA of this cluster alone."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._trusted = directory / "ca.pem"
        self.port = free_port()

    @property
    def env(self) -> dict[str, str]:
        """The variables of the gateway."""
        return {
            "GPU_PLATFORM_GATEWAY__PORT": str(self.port),
            "GPU_PLATFORM_TLS__CERTIFICATE": str(self._pem(names.GATEWAY)),
            "GPU_PLATFORM_TLS__CA": str(self._trusted),
        }

    def env_of(self, host: str) -> dict[str, str]:
        """The variables with which a node worker reaches the gateway."""
        prefix = "GPU_PLATFORM_TEMPORAL__"
        return {
            f"{prefix}ADDRESS": f"127.0.0.1:{self.port}",
            f"{prefix}TLS": "true",
            f"{prefix}TLS_CA": str(self._trusted),
            f"{prefix}TLS_CERT": str(self._pem(names.node(host))),
            f"{prefix}TLS_SERVER_NAME": names.dns_name(names.GATEWAY, names.DEFAULT_DOMAIN),
        }

    def make_certificates(self, hosts: Sequence[str]) -> None:
        """Make new certificates of the gateway and of all hosts. They are valid for a day."""
        directory = self._directory / "ca"
        known = CertificateAuthority.is_in(directory)
        authority = CertificateAuthority.load(directory) if known else CertificateAuthority.init(directory)
        for path in [names.GATEWAY, *map(names.node, hosts)]:
            key, request = make_key_and_request()
            files = CertificateFiles(certificate=self._pem(path), key=self._pem(path), trusted=self._trusted)
            files.write(key, authority.sign(request, path), authority.bundle())

    def _pem(self, path: str) -> Path:
        return self._directory / f"{path.replace('/', '-')}.pem"
