"""Filters, scores, order factors and binders of other packages: how the platform reports one that fails."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

DOES_NOT_RETURN = "a call of it does not return"
PluginKind = Literal["filter", "score", "order", "binder"]


class PluginFault(BaseModel):
    """A filter, score, order factor or binder that the policy names and that is switched off because it failed."""

    model_config = ConfigDict(frozen=True)

    kind: PluginKind
    name: str
    error: str
    installed: bool = True
    """False: no installed package has it."""

    @property
    def hangs(self) -> bool:
        """A call of it did not return, so its leader had to end. The next leaders do not try it again by themselves."""
        return self.error == DOES_NOT_RETURN

    @property
    def brief(self) -> str:
        """The fault in a few words, as a part of another sentence."""
        return f"the {self.kind} plugin {self.name} is switched off ({self.error})"

    @property
    def message(self) -> str:
        """The fault as a sentence that says what to do."""
        mend = "Mend the package, restart the scheduler" + (" and send it SIGHUP" if self.hangs else "")
        return (
            f"{self.brief}: jobs are placed without it. {mend}, "
            f"or take {self.name} out of scheduler.policy and send the scheduler SIGHUP"
        )
