"""TLS for servers of gRPC, always with the newest certificate. Imported only by processes that serve gRPC."""

from __future__ import annotations

from typing import Any

import grpc

from gpu_platform.identity.certificates import CertificateFiles
from gpu_platform.observability import get_logger

log = get_logger(__name__)


def server_credentials(files: CertificateFiles, *, clients_need_certificates: bool) -> grpc.ServerCredentials:
    """TLS with the newest files: they are read again at each handshake. Raises OSError if they are not there.

    ``clients_need_certificates``: mutual TLS. Otherwise clients show none.
    """

    def read() -> grpc.ServerCertificateConfiguration:
        own = (files.key.read_bytes(), files.certificate.read_bytes())
        trusted = files.trusted.read_bytes() if clients_need_certificates else None
        return grpc.ssl_server_certificate_configuration([own], trusted)

    def newest() -> grpc.ServerCertificateConfiguration | None:
        try:
            return read()
        except OSError as error:
            log.error("grpc.files_not_read", error=str(error))
            return None  # gRPC goes on with the files that it read before

    fetch: Any = newest  # gRPC accepts None here, but its type hints do not
    return grpc.dynamic_ssl_server_credentials(read(), fetch, require_client_authentication=clients_need_certificates)
