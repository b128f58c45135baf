"""The names that users give: of jobs, namespaces, users, reservations, groups and secrets."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, WithJsonSchema

from gpu_platform.domain.texts import NAME, check_name

Name = Annotated[str, AfterValidator(check_name), WithJsonSchema({"type": "string", "pattern": f"^{NAME.pattern}$"})]
"""A valid name. The description of the API shows its form."""
