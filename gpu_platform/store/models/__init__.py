"""The tables. Every write goes through the functions of this package, never through these classes alone.

Whole pydantic messages (specification, placement, inventory, …) are stored as JSON text: they are read and written
as one, and text keeps what PostgreSQL's ``jsonb`` refuses (an escaped NUL). What is searched or checked is a column.
"""

from __future__ import annotations

from sqlalchemy.orm import configure_mappers

from gpu_platform.store.models.access import ApiTokenRecord, ExecSessionRecord
from gpu_platform.store.models.archives import ArchivedJobRecord, ArchiveRecord, EventCutRecord
from gpu_platform.store.models.audit import AuditCutRecord, AuditRecord
from gpu_platform.store.models.columns import Record as Record
from gpu_platform.store.models.columns import table_of
from gpu_platform.store.models.events import EventRecord, NoticeFeedRecord
from gpu_platform.store.models.hosts import FaultRecord, FlappingRecord, GpuRecord, HostRecord, RepairRecord
from gpu_platform.store.models.identities import JoinTokenRecord, MachineIdentityRecord
from gpu_platform.store.models.jobs import (
    CheckpointRecord,
    DependencyRecord,
    IdempotencyRecord,
    JobArrayRecord,
    JobRecord,
    PromiseRecord,
    QueueEntryRecord,
    WaitingReasonRecord,
)
from gpu_platform.store.models.leadership import LeaderRecord, LeaderSignRecord, MembershipRecord
from gpu_platform.store.models.pipelines import PipelineJobRecord, PipelineRecord
from gpu_platform.store.models.poison import PoisonRecord
from gpu_platform.store.models.reservations import AllocationRecord, ReservationRecord, UsageRecord
from gpu_platform.store.models.schedules import JobWatchRecord, ScheduleRecord, ScheduleRunRecord
from gpu_platform.store.models.secrets import JobTokenRecord, SecretRecord
from gpu_platform.store.models.uploads import UploadChunkRecord, UploadRecord
from gpu_platform.store.models.windows import TimeWindowRecord

configure_mappers()  # now, because ``read_records`` makes records before any object is loaded

job = table_of(JobRecord)
job_array = table_of(JobArrayRecord)
idempotency = table_of(IdempotencyRecord)
queue_entry = table_of(QueueEntryRecord)
dependency = table_of(DependencyRecord)
waiting_reason = table_of(WaitingReasonRecord)
promise = table_of(PromiseRecord)
host = table_of(HostRecord)
gpu = table_of(GpuRecord)
reservation = table_of(ReservationRecord)
allocation = table_of(AllocationRecord)
checkpoint = table_of(CheckpointRecord)
usage = table_of(UsageRecord)
event = table_of(EventRecord)
event_cut = table_of(EventCutRecord)
notice_feed = table_of(NoticeFeedRecord)
archive = table_of(ArchiveRecord)
archived_job = table_of(ArchivedJobRecord)
audit = table_of(AuditRecord)
audit_cut = table_of(AuditCutRecord)
fault = table_of(FaultRecord)
repair = table_of(RepairRecord)
flapping = table_of(FlappingRecord)
leader = table_of(LeaderRecord)
leader_sign = table_of(LeaderSignRecord)
membership = table_of(MembershipRecord)
api_token = table_of(ApiTokenRecord)
exec_session = table_of(ExecSessionRecord)
machine_identity = table_of(MachineIdentityRecord)
join_token = table_of(JoinTokenRecord)
secret = table_of(SecretRecord)
job_token = table_of(JobTokenRecord)
schedule = table_of(ScheduleRecord)
schedule_run = table_of(ScheduleRunRecord)
job_watch = table_of(JobWatchRecord)
pipeline = table_of(PipelineRecord)
pipeline_job = table_of(PipelineJobRecord)
poison = table_of(PoisonRecord)
upload = table_of(UploadRecord)
upload_chunk = table_of(UploadChunkRecord)
time_window = table_of(TimeWindowRecord)
