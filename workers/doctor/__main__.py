"""``gpu-platform doctor``: checks the deployment from this machine, and says what to do."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict

from gpu_platform.domain.errors import CannotStart
from gpu_platform.domain.texts import printable
from gpu_platform.observability import configure_logging
from gpu_platform.settings import ClusterSettings, settings_file
from gpu_platform.settings.reading import misspelt_variables, open_secrets, read_settings
from workers.doctor import certificates, database, grpc_port, host, service, temporal
from workers.doctor.results import Outcome, Part, Result
from workers.doctor.roles import ROLES, Roles


def checks(chosen: Sequence[str]) -> Iterator[Result]:
    """The results of all checks. ``chosen``: roles of this machine; empty: find them out."""
    part = Part("settings")
    try:
        settings = read_settings()
    except CannotStart as error:
        yield part.failed("values", error.message, "mend them; docs/reference/configuration.md has all settings")
        return
    yield from _settings(part)
    roles = Roles.of(settings, chosen)
    yield part.ok("role of this machine", roles.description)
    for check in (service.checks, grpc_port.checks, database.checks, temporal.checks, host.checks, certificates.checks):
        yield from check(settings, roles)


def _settings(part: Part) -> Iterator[Result]:
    file = settings_file()
    shown = str(file.resolve()) if file.exists() else "no file"
    yield part.ok("values", f"{shown}, and variables GPU_PLATFORM_…")
    if secrets := open_secrets():
        advice = f"give them as variables (EnvironmentFile, mode 0600), or let only the processes' account read {shown}"
        yield part.warning("secrets", f"other accounts may read {', '.join(secrets)} in {shown}", advice)
    for variable, near in misspelt_variables():
        yield part.warning("variable", f"no setting has the name {variable}", f"did you mean {near}?")


def show(results: Sequence[Result]) -> None:
    """Print the results for people, with what to do below each that is not well."""
    for result in results:
        print(printable(f"{result.outcome.upper():<15} {result.part + ': ' + result.name:<32} {result.found}"))
        if result.advice:
            print(printable(f"{'':<15} -> {result.advice}"))
    counts = {outcome: sum(1 for one in results if one.outcome is outcome) for outcome in Outcome}
    print("\n" + ", ".join(f"{count} {outcome}" for outcome, count in counts.items() if count))


def main(arguments: Sequence[str]) -> int:
    """Run the checks and print the results. Returns 1 if one failed."""
    parser = argparse.ArgumentParser(prog="gpu-platform doctor", allow_abbrev=False)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--role", action="append", choices=ROLES, default=[])
    options = parser.parse_args(arguments)
    configure_logging("doctor", cluster=ClusterSettings().name, level="ERROR", json=False)
    results: list[Result] = []
    for result in checks(options.role):
        results.append(result)
    failed = any(result.outcome is Outcome.FAILED for result in results)
    if options.json:
        print(json.dumps({"ok": not failed, "checks": [asdict(result) for result in results]}, indent=2))
    else:
        show(results)
    return 1 if failed else 0


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    # Temporal's client has threads that may still connect: at an ordinary end they crash the process.
    os._exit(code)
