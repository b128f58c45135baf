"""The messages between ArrayWorkflow, the leader, hosts and whoever interrupts an element."""

from __future__ import annotations

from pydantic import BaseModel

from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.jobs.array import Array, ArraySpec, OnFailure
from gpu_platform.domain.jobs.attempt import HostExits, HostPlan, Prepared, WatchRequest
from gpu_platform.domain.jobs.job import Failure, Interrupt, JobProgress
from gpu_platform.domain.jobs.placement import Placement
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.packing import pack
from gpu_platform.domain.states import JobState

STEPS_OF_A_RUN = 1000
"""After so many steps an array's workflow continues as new, so that its history stays short."""


class ArrayInput(BaseModel):
    """The argument of ArrayWorkflow. Its steps read indices and parameters in the database: they may be large."""

    array_id: str
    spec: JobSpec
    """What the elements share, as it was submitted."""
    at_once: int | None = None
    on_failure: OnFailure = OnFailure.CONTINUE
    takes_over: bool = False
    """Temporal lost the array's workflow, and this one takes over."""
    carried: CarriedElements | None = None
    """Set when the workflow continues as new."""
    packed: str | None = None
    """The :class:`ArraySpec`, packed: nothing but a database that was lost is restored from it. None: it is too large
    for Temporal, and such an array cannot be restored."""
    repeats: str | None = None

    @classmethod
    def of(cls, array: Array, whole: ArraySpec, *, takes_over: bool = False) -> ArrayInput:
        """The argument for this array. ``whole``: what was submitted of it."""
        shape = array.array
        return cls(
            array_id=array.id,
            spec=array.spec,
            at_once=shape.at_once,
            on_failure=shape.on_failure,
            takes_over=takes_over,
            packed=pack(whole.model_dump_json()),
            repeats=shape.repeats,
        )


class CarriedElements(BaseModel):
    """What an array's workflow knows, while it continues as new."""

    position: int
    """So many elements have been made."""

    waiting: list[AttemptKey] = []
    running: list[RunningElement] = []
    on_their_own: list[str] = []
    """Elements with a workflow of their own."""
    left: bool = True
    """There are elements that have not been made yet."""
    cancel: Interrupt | None = None
    kill: Interrupt | None = None
    skipped: str = ""
    """Indices of elements that were cancelled before they were made."""
    since: int = 0
    """Its elements wait for those of another array: all with smaller indices have been made."""
    ended: dict[JobState, int] = {}
    """How many elements have ended in each state."""
    progress: dict[str, JobProgress] = {}
    """Job id -> counters of an element in its second or a later attempt."""
    ended_indices: dict[JobState, str] = {}
    """Which elements have ended in each state, as far as this workflow ended them. Indices as in :class:`IndexSet`."""


class RunningElement(BaseModel):
    """An element whose ranks were launched."""

    key: AttemptKey
    placement: Placement
    ranks: list[int]
    """The ranks on its host."""


class RememberedArray(BaseModel):
    """What an array's workflow knows of its elements: the answer to its query ``remembered``."""

    carried: CarriedElements
    """``running``: those whose ranks may run."""
    places: bool = True
    """Elements are made in the order of their indices. False: each waits for one of another array."""


class ElementPlaced(BaseModel):
    """The leader's answer to one element that waits. It travels with those to others, so it says whose it is."""

    key: AttemptKey
    placement: Placement
    limit_s: int | None = None
    """For which time limit the leader decided. None: for none."""


class ElementsPlaced(BaseModel):
    """The argument of ArrayWorkflow's signal ``placed``."""

    elements: list[ElementPlaced]


class ElementsHostLost(BaseModel):
    """The argument of ArrayWorkflow's signal ``elements_host_lost``: many elements had ranks on the same lost host."""

    attempts: list[AttemptKey]
    host: str
    reason: str


class ElementInterrupt(BaseModel):
    """The argument of ArrayWorkflow's signals ``element_cancel``, ``element_kill`` and ``element_preempt``."""

    job_id: str
    interrupt: Interrupt


class ElementsInterrupt(BaseModel):
    """The argument of ArrayWorkflow's signals ``cancel_elements`` and ``kill_elements``."""

    indices: str
    """As in :class:`~gpu_platform.domain.jobs.array.ArraySpec`. Elements that have ended are left alone."""
    interrupt: Interrupt


class ElementAgain(BaseModel):
    """The argument of ArrayWorkflow's signal ``element_place_again``: the element has lost its row in the queue."""

    job_id: str


class ElementsAgain(BaseModel):
    """The argument of ArrayWorkflow's signal ``elements_place_again``: they were changed, and left the queue."""

    job_ids: list[str]


class ElementsLaunch(BaseModel):
    """The argument of the step ``launch_elements``: elements that start on one host."""

    plans: list[HostPlan]


class ElementsWatch(BaseModel):
    """The argument of the step ``watch_elements``: ranks of elements on one host."""

    watches: list[WatchRequest]


class ElementEnded(BaseModel):
    """The ranks of an element have ended, or one has failed."""

    key: AttemptKey
    exits: HostExits
    stopped: bool = False
    """No process of it is left, and none will start."""


class ElementLaunched(BaseModel):
    """What became of an element that was launched. Without ``ended`` and ``failure`` its ranks run."""

    key: AttemptKey
    ended: ElementEnded | None = None
    failure: Failure | None = None
    """Why its ranks were not started."""
    prepared: Prepared | None = None
    """Set for a later attempt: from where it goes on."""


class OwnWorkflow(BaseModel):
    """An element that goes on with a workflow of its own, as every other job: an attempt did not end it, or it needs
    several hosts. If only its host was lost, its array drives the next attempt, too."""

    job_id: str
    spec: JobSpec
    progress: JobProgress
    waits_s: float | None = None
    """Its program failed: it asks for a placement only after so many seconds."""
    takes_over: bool = False
