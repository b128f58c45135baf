import datetime

from google.protobuf import struct_pb2 as _struct_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from gpu_platform.v1 import options_pb2 as _options_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ArrayState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ARRAY_STATE_UNSPECIFIED: _ClassVar[ArrayState]
    ARRAY_STATE_PENDING: _ClassVar[ArrayState]
    ARRAY_STATE_RUNNING: _ClassVar[ArrayState]
    ARRAY_STATE_COMPLETED: _ClassVar[ArrayState]
    ARRAY_STATE_FAILED: _ClassVar[ArrayState]
    ARRAY_STATE_CANCELLED: _ClassVar[ArrayState]

class CheckpointPolicySignal(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CHECKPOINT_POLICY_SIGNAL_UNSPECIFIED: _ClassVar[CheckpointPolicySignal]
    CHECKPOINT_POLICY_SIGNAL_USR1: _ClassVar[CheckpointPolicySignal]
    CHECKPOINT_POLICY_SIGNAL_USR2: _ClassVar[CheckpointPolicySignal]
    CHECKPOINT_POLICY_SIGNAL_HUP: _ClassVar[CheckpointPolicySignal]
    CHECKPOINT_POLICY_SIGNAL_NONE: _ClassVar[CheckpointPolicySignal]

class ClockKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CLOCK_KIND_UNSPECIFIED: _ClassVar[ClockKind]
    CLOCK_KIND_DATABASE: _ClassVar[ClockKind]
    CLOCK_KIND_HOST: _ClassVar[ClockKind]

class DependencyKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DEPENDENCY_KIND_UNSPECIFIED: _ClassVar[DependencyKind]
    DEPENDENCY_KIND_OK: _ClassVar[DependencyKind]
    DEPENDENCY_KIND_ANY: _ClassVar[DependencyKind]
    DEPENDENCY_KIND_FAIL: _ClassVar[DependencyKind]
    DEPENDENCY_KIND_EACH: _ClassVar[DependencyKind]

class EstimateBasis(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ESTIMATE_BASIS_UNSPECIFIED: _ClassVar[EstimateBasis]
    ESTIMATE_BASIS_PROMISED: _ClassVar[EstimateBasis]
    ESTIMATE_BASIS_TIME_LIMITS: _ClassVar[EstimateBasis]
    ESTIMATE_BASIS_RUN_TIMES: _ClassVar[EstimateBasis]
    ESTIMATE_BASIS_NO_TIME_LIMIT: _ClassVar[EstimateBasis]
    ESTIMATE_BASIS_REPAIR: _ClassVar[EstimateBasis]
    ESTIMATE_BASIS_QUOTA: _ClassVar[EstimateBasis]
    ESTIMATE_BASIS_WINDOW: _ClassVar[EstimateBasis]
    ESTIMATE_BASIS_ALONE: _ClassVar[EstimateBasis]
    ESTIMATE_BASIS_PARTS: _ClassVar[EstimateBasis]
    ESTIMATE_BASIS_MAKING_ROOM: _ClassVar[EstimateBasis]
    ESTIMATE_BASIS_TOO_FAR: _ClassVar[EstimateBasis]

class ExecChunkStream(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    EXEC_CHUNK_STREAM_UNSPECIFIED: _ClassVar[ExecChunkStream]
    EXEC_CHUNK_STREAM_STDOUT: _ClassVar[ExecChunkStream]
    EXEC_CHUNK_STREAM_STDERR: _ClassVar[ExecChunkStream]
    EXEC_CHUNK_STREAM_EXIT: _ClassVar[ExecChunkStream]
    EXEC_CHUNK_STREAM_EOF: _ClassVar[ExecChunkStream]
    EXEC_CHUNK_STREAM_DETACHED: _ClassVar[ExecChunkStream]

class FailureKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FAILURE_KIND_UNSPECIFIED: _ClassVar[FailureKind]
    FAILURE_KIND_USER: _ClassVar[FailureKind]
    FAILURE_KIND_HARDWARE: _ClassVar[FailureKind]
    FAILURE_KIND_TIME_LIMIT: _ClassVar[FailureKind]
    FAILURE_KIND_DEADLINE: _ClassVar[FailureKind]
    FAILURE_KIND_REJECTED: _ClassVar[FailureKind]

class Fencing(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FENCING_UNSPECIFIED: _ClassVar[Fencing]
    FENCING_LEASE: _ClassVar[Fencing]
    FENCING_STRICT: _ClassVar[Fencing]
    FENCING_RELAXED: _ClassVar[Fencing]

class GpuState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    GPU_STATE_UNSPECIFIED: _ClassVar[GpuState]
    GPU_STATE_AVAILABLE: _ClassVar[GpuState]
    GPU_STATE_ALLOCATED: _ClassVar[GpuState]
    GPU_STATE_IN_USE: _ClassVar[GpuState]
    GPU_STATE_DRAINING: _ClassVar[GpuState]
    GPU_STATE_DRAINED: _ClassVar[GpuState]
    GPU_STATE_DEGRADED: _ClassVar[GpuState]
    GPU_STATE_RESETTING: _ClassVar[GpuState]
    GPU_STATE_OFFLINE: _ClassVar[GpuState]

class HostState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    HOST_STATE_UNSPECIFIED: _ClassVar[HostState]
    HOST_STATE_READY: _ClassVar[HostState]
    HOST_STATE_DRAINING: _ClassVar[HostState]
    HOST_STATE_DRAINED: _ClassVar[HostState]
    HOST_STATE_LOST: _ClassVar[HostState]

class IfUnmet(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    IF_UNMET_UNSPECIFIED: _ClassVar[IfUnmet]
    IF_UNMET_CANCEL: _ClassVar[IfUnmet]
    IF_UNMET_HOLD: _ClassVar[IfUnmet]

class JobState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    JOB_STATE_UNSPECIFIED: _ClassVar[JobState]
    JOB_STATE_PENDING: _ClassVar[JobState]
    JOB_STATE_QUEUED: _ClassVar[JobState]
    JOB_STATE_ALLOCATED: _ClassVar[JobState]
    JOB_STATE_STARTING: _ClassVar[JobState]
    JOB_STATE_RUNNING: _ClassVar[JobState]
    JOB_STATE_COMPLETED: _ClassVar[JobState]
    JOB_STATE_FAILED: _ClassVar[JobState]
    JOB_STATE_CANCELLED: _ClassVar[JobState]
    JOB_STATE_PREEMPTED: _ClassVar[JobState]

class Launcher(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    LAUNCHER_UNSPECIFIED: _ClassVar[Launcher]
    LAUNCHER_PLAIN: _ClassVar[Launcher]
    LAUNCHER_TORCHRUN: _ClassVar[Launcher]
    LAUNCHER_MPI: _ClassVar[Launcher]

class NicKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    NIC_KIND_UNSPECIFIED: _ClassVar[NicKind]
    NIC_KIND_INFINIBAND: _ClassVar[NicKind]
    NIC_KIND_ETHERNET: _ClassVar[NicKind]

class NotifyOn(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    NOTIFY_ON_UNSPECIFIED: _ClassVar[NotifyOn]
    NOTIFY_ON_START: _ClassVar[NotifyOn]
    NOTIFY_ON_END: _ClassVar[NotifyOn]
    NOTIFY_ON_FAIL: _ClassVar[NotifyOn]
    NOTIFY_ON_REQUEUE: _ClassVar[NotifyOn]
    NOTIFY_ON_LIMIT: _ClassVar[NotifyOn]
    NOTIFY_ON_PROMISE: _ClassVar[NotifyOn]

class OnFailure(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ON_FAILURE_UNSPECIFIED: _ClassVar[OnFailure]
    ON_FAILURE_CONTINUE: _ClassVar[OnFailure]
    ON_FAILURE_STOP: _ClassVar[OnFailure]
    ON_FAILURE_NO_MORE: _ClassVar[OnFailure]

class Overlap(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OVERLAP_UNSPECIFIED: _ClassVar[Overlap]
    OVERLAP_SKIP: _ClassVar[Overlap]
    OVERLAP_BUFFER_ONE: _ClassVar[Overlap]
    OVERLAP_BUFFER_ALL: _ClassVar[Overlap]
    OVERLAP_CANCEL_OTHER: _ClassVar[Overlap]
    OVERLAP_ALLOW: _ClassVar[Overlap]

class Permission(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PERMISSION_UNSPECIFIED: _ClassVar[Permission]
    PERMISSION_JOBS_READ: _ClassVar[Permission]
    PERMISSION_JOBS_SUBMIT: _ClassVar[Permission]
    PERMISSION_JOBS_STOP: _ClassVar[Permission]
    PERMISSION_JOBS_LOGS: _ClassVar[Permission]
    PERMISSION_JOBS_EXEC: _ClassVar[Permission]
    PERMISSION_JOBS_CHECKPOINT: _ClassVar[Permission]
    PERMISSION_HOSTS_READ: _ClassVar[Permission]
    PERMISSION_HOSTS_OPERATE: _ClassVar[Permission]
    PERMISSION_HOSTS_REPORT: _ClassVar[Permission]
    PERMISSION_CLUSTER_READ: _ClassVar[Permission]
    PERMISSION_METRICS_READ: _ClassVar[Permission]
    PERMISSION_ALERTS_SEND: _ClassVar[Permission]
    PERMISSION_AUDIT_READ: _ClassVar[Permission]
    PERMISSION_PAYLOADS_READ: _ClassVar[Permission]
    PERMISSION_TOKENS_MANAGE: _ClassVar[Permission]
    PERMISSION_SECRETS_MANAGE: _ClassVar[Permission]
    PERMISSION_SECRETS_RECEIVE: _ClassVar[Permission]
    PERMISSION_UPLOADS_RECEIVE: _ClassVar[Permission]
    PERMISSION_SELF_READ: _ClassVar[Permission]

class PipelineState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PIPELINE_STATE_UNSPECIFIED: _ClassVar[PipelineState]
    PIPELINE_STATE_RUNNING: _ClassVar[PipelineState]
    PIPELINE_STATE_COMPLETED: _ClassVar[PipelineState]
    PIPELINE_STATE_FAILED: _ClassVar[PipelineState]
    PIPELINE_STATE_CANCELLED: _ClassVar[PipelineState]

class PrincipalKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PRINCIPAL_KIND_UNSPECIFIED: _ClassVar[PrincipalKind]
    PRINCIPAL_KIND_PERSON: _ClassVar[PrincipalKind]
    PRINCIPAL_KIND_JOB: _ClassVar[PrincipalKind]
    PRINCIPAL_KIND_NODE: _ClassVar[PrincipalKind]
    PRINCIPAL_KIND_PROCESS: _ClassVar[PrincipalKind]

class RankPer(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RANK_PER_UNSPECIFIED: _ClassVar[RankPer]
    RANK_PER_HOST: _ClassVar[RankPer]
    RANK_PER_GPU: _ClassVar[RankPer]

class ReadableBy(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    READABLE_BY_UNSPECIFIED: _ClassVar[ReadableBy]
    READABLE_BY_USER: _ClassVar[ReadableBy]
    READABLE_BY_NAMESPACE: _ClassVar[ReadableBy]

class ReasonCode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    REASON_CODE_UNSPECIFIED: _ClassVar[ReasonCode]
    REASON_CODE_HOST_NOT_READY: _ClassVar[ReasonCode]
    REASON_CODE_EXCLUDED: _ClassVar[ReasonCode]
    REASON_CODE_HOST_NAME: _ClassVar[ReasonCode]
    REASON_CODE_RESERVATION: _ClassVar[ReasonCode]
    REASON_CODE_LABEL: _ClassVar[ReasonCode]
    REASON_CODE_OTHER_MODEL: _ClassVar[ReasonCode]
    REASON_CODE_TOO_LITTLE_MEMORY: _ClassVar[ReasonCode]
    REASON_CODE_COMPUTE_CAPABILITY: _ClassVar[ReasonCode]
    REASON_CODE_NO_CUDA: _ClassVar[ReasonCode]
    REASON_CODE_NOT_ISOLATED: _ClassVar[ReasonCode]
    REASON_CODE_SHARING_UNSUPPORTED: _ClassVar[ReasonCode]
    REASON_CODE_TOO_FEW_GPUS: _ClassVar[ReasonCode]
    REASON_CODE_CPUS: _ClassVar[ReasonCode]
    REASON_CODE_RAM: _ClassVar[ReasonCode]
    REASON_CODE_UNHEALTHY: _ClassVar[ReasonCode]
    REASON_CODE_TOO_HOT: _ClassVar[ReasonCode]
    REASON_CODE_WINDOW: _ClassVar[ReasonCode]
    REASON_CODE_BUSY: _ClassVar[ReasonCode]
    REASON_CODE_SHARED_BY_ANOTHER: _ClassVar[ReasonCode]
    REASON_CODE_TOO_LITTLE_SHARE: _ClassVar[ReasonCode]
    REASON_CODE_TOPOLOGY: _ClassVar[ReasonCode]
    REASON_CODE_KEPT: _ClassVar[ReasonCode]
    REASON_CODE_FILTER: _ClassVar[ReasonCode]

class RepairStep(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    REPAIR_STEP_UNSPECIFIED: _ClassVar[RepairStep]
    REPAIR_STEP_HOST_RESET: _ClassVar[RepairStep]
    REPAIR_STEP_REBOOT: _ClassVar[RepairStep]

class Repeat(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    REPEAT_UNSPECIFIED: _ClassVar[Repeat]
    REPEAT_DAILY: _ClassVar[Repeat]
    REPEAT_WEEKLY: _ClassVar[Repeat]

class Role(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ROLE_UNSPECIFIED: _ClassVar[Role]
    ROLE_VIEWER: _ClassVar[Role]
    ROLE_USER: _ClassVar[Role]
    ROLE_OPERATOR: _ClassVar[Role]
    ROLE_ADMIN: _ClassVar[Role]

class SecretValueEncoding(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SECRET_VALUE_ENCODING_UNSPECIFIED: _ClassVar[SecretValueEncoding]
    SECRET_VALUE_ENCODING_TEXT: _ClassVar[SecretValueEncoding]
    SECRET_VALUE_ENCODING_BASE64: _ClassVar[SecretValueEncoding]

class ShareMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SHARE_MODE_UNSPECIFIED: _ClassVar[ShareMode]
    SHARE_MODE_MIG: _ClassVar[ShareMode]
    SHARE_MODE_MPS: _ClassVar[ShareMode]
    SHARE_MODE_TIME_SLICE: _ClassVar[ShareMode]

class StepState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    STEP_STATE_UNSPECIFIED: _ClassVar[StepState]
    STEP_STATE_WAITING: _ClassVar[StepState]
    STEP_STATE_RUNNING: _ClassVar[StepState]
    STEP_STATE_COMPLETED: _ClassVar[StepState]
    STEP_STATE_FAILED: _ClassVar[StepState]
    STEP_STATE_SKIPPED: _ClassVar[StepState]
    STEP_STATE_CANCELLED: _ClassVar[StepState]

class StoppedByVerb(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    STOPPED_BY_VERB_UNSPECIFIED: _ClassVar[StoppedByVerb]
    STOPPED_BY_VERB_CANCEL: _ClassVar[StoppedByVerb]
    STOPPED_BY_VERB_KILL: _ClassVar[StoppedByVerb]
    STOPPED_BY_VERB_PREEMPT: _ClassVar[StoppedByVerb]

class Strategy(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    STRATEGY_UNSPECIFIED: _ClassVar[Strategy]
    STRATEGY_PACK: _ClassVar[Strategy]
    STRATEGY_SPREAD: _ClassVar[Strategy]

class TopologyLevel(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TOPOLOGY_LEVEL_UNSPECIFIED: _ClassVar[TopologyLevel]
    TOPOLOGY_LEVEL_NVLINK_NUMA: _ClassVar[TopologyLevel]
    TOPOLOGY_LEVEL_NVLINK: _ClassVar[TopologyLevel]
    TOPOLOGY_LEVEL_NUMA: _ClassVar[TopologyLevel]
    TOPOLOGY_LEVEL_SOCKET: _ClassVar[TopologyLevel]
    TOPOLOGY_LEVEL_HOST: _ClassVar[TopologyLevel]
    TOPOLOGY_LEVEL_NVLINK_DOMAIN: _ClassVar[TopologyLevel]
    TOPOLOGY_LEVEL_LEAF: _ClassVar[TopologyLevel]
    TOPOLOGY_LEVEL_SPINE: _ClassVar[TopologyLevel]
    TOPOLOGY_LEVEL_ANY: _ClassVar[TopologyLevel]

class Verified(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    VERIFIED_UNSPECIFIED: _ClassVar[Verified]
    VERIFIED_HASHES: _ClassVar[Verified]
    VERIFIED_SIZES: _ClassVar[Verified]
    VERIFIED_MARKER: _ClassVar[Verified]

class WaitCode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    WAIT_CODE_UNSPECIFIED: _ClassVar[WaitCode]
    WAIT_CODE_WAITING_FOR_GPUS: _ClassVar[WaitCode]
    WAIT_CODE_BEHIND_HIGHER_PRIORITY: _ClassVar[WaitCode]
    WAIT_CODE_NO_HOSTS: _ClassVar[WaitCode]
    WAIT_CODE_NEVER_FITS: _ClassVar[WaitCode]
    WAIT_CODE_OVER_QUOTA: _ClassVar[WaitCode]
    WAIT_CODE_WINDOW: _ClassVar[WaitCode]
    WAIT_CODE_DEPENDENCY: _ClassVar[WaitCode]
    WAIT_CODE_HELD: _ClassVar[WaitCode]

class WorkKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    WORK_KIND_UNSPECIFIED: _ClassVar[WorkKind]
    WORK_KIND_TRAINING: _ClassVar[WorkKind]
    WORK_KIND_INFERENCE: _ClassVar[WorkKind]
    WORK_KIND_BATCH: _ClassVar[WorkKind]
    WORK_KIND_INTERACTIVE: _ClassVar[WorkKind]
ARRAY_STATE_UNSPECIFIED: ArrayState
ARRAY_STATE_PENDING: ArrayState
ARRAY_STATE_RUNNING: ArrayState
ARRAY_STATE_COMPLETED: ArrayState
ARRAY_STATE_FAILED: ArrayState
ARRAY_STATE_CANCELLED: ArrayState
CHECKPOINT_POLICY_SIGNAL_UNSPECIFIED: CheckpointPolicySignal
CHECKPOINT_POLICY_SIGNAL_USR1: CheckpointPolicySignal
CHECKPOINT_POLICY_SIGNAL_USR2: CheckpointPolicySignal
CHECKPOINT_POLICY_SIGNAL_HUP: CheckpointPolicySignal
CHECKPOINT_POLICY_SIGNAL_NONE: CheckpointPolicySignal
CLOCK_KIND_UNSPECIFIED: ClockKind
CLOCK_KIND_DATABASE: ClockKind
CLOCK_KIND_HOST: ClockKind
DEPENDENCY_KIND_UNSPECIFIED: DependencyKind
DEPENDENCY_KIND_OK: DependencyKind
DEPENDENCY_KIND_ANY: DependencyKind
DEPENDENCY_KIND_FAIL: DependencyKind
DEPENDENCY_KIND_EACH: DependencyKind
ESTIMATE_BASIS_UNSPECIFIED: EstimateBasis
ESTIMATE_BASIS_PROMISED: EstimateBasis
ESTIMATE_BASIS_TIME_LIMITS: EstimateBasis
ESTIMATE_BASIS_RUN_TIMES: EstimateBasis
ESTIMATE_BASIS_NO_TIME_LIMIT: EstimateBasis
ESTIMATE_BASIS_REPAIR: EstimateBasis
ESTIMATE_BASIS_QUOTA: EstimateBasis
ESTIMATE_BASIS_WINDOW: EstimateBasis
ESTIMATE_BASIS_ALONE: EstimateBasis
ESTIMATE_BASIS_PARTS: EstimateBasis
ESTIMATE_BASIS_MAKING_ROOM: EstimateBasis
ESTIMATE_BASIS_TOO_FAR: EstimateBasis
EXEC_CHUNK_STREAM_UNSPECIFIED: ExecChunkStream
EXEC_CHUNK_STREAM_STDOUT: ExecChunkStream
EXEC_CHUNK_STREAM_STDERR: ExecChunkStream
EXEC_CHUNK_STREAM_EXIT: ExecChunkStream
EXEC_CHUNK_STREAM_EOF: ExecChunkStream
EXEC_CHUNK_STREAM_DETACHED: ExecChunkStream
FAILURE_KIND_UNSPECIFIED: FailureKind
FAILURE_KIND_USER: FailureKind
FAILURE_KIND_HARDWARE: FailureKind
FAILURE_KIND_TIME_LIMIT: FailureKind
FAILURE_KIND_DEADLINE: FailureKind
FAILURE_KIND_REJECTED: FailureKind
FENCING_UNSPECIFIED: Fencing
FENCING_LEASE: Fencing
FENCING_STRICT: Fencing
FENCING_RELAXED: Fencing
GPU_STATE_UNSPECIFIED: GpuState
GPU_STATE_AVAILABLE: GpuState
GPU_STATE_ALLOCATED: GpuState
GPU_STATE_IN_USE: GpuState
GPU_STATE_DRAINING: GpuState
GPU_STATE_DRAINED: GpuState
GPU_STATE_DEGRADED: GpuState
GPU_STATE_RESETTING: GpuState
GPU_STATE_OFFLINE: GpuState
HOST_STATE_UNSPECIFIED: HostState
HOST_STATE_READY: HostState
HOST_STATE_DRAINING: HostState
HOST_STATE_DRAINED: HostState
HOST_STATE_LOST: HostState
IF_UNMET_UNSPECIFIED: IfUnmet
IF_UNMET_CANCEL: IfUnmet
IF_UNMET_HOLD: IfUnmet
JOB_STATE_UNSPECIFIED: JobState
JOB_STATE_PENDING: JobState
JOB_STATE_QUEUED: JobState
JOB_STATE_ALLOCATED: JobState
JOB_STATE_STARTING: JobState
JOB_STATE_RUNNING: JobState
JOB_STATE_COMPLETED: JobState
JOB_STATE_FAILED: JobState
JOB_STATE_CANCELLED: JobState
JOB_STATE_PREEMPTED: JobState
LAUNCHER_UNSPECIFIED: Launcher
LAUNCHER_PLAIN: Launcher
LAUNCHER_TORCHRUN: Launcher
LAUNCHER_MPI: Launcher
NIC_KIND_UNSPECIFIED: NicKind
NIC_KIND_INFINIBAND: NicKind
NIC_KIND_ETHERNET: NicKind
NOTIFY_ON_UNSPECIFIED: NotifyOn
NOTIFY_ON_START: NotifyOn
NOTIFY_ON_END: NotifyOn
NOTIFY_ON_FAIL: NotifyOn
NOTIFY_ON_REQUEUE: NotifyOn
NOTIFY_ON_LIMIT: NotifyOn
NOTIFY_ON_PROMISE: NotifyOn
ON_FAILURE_UNSPECIFIED: OnFailure
ON_FAILURE_CONTINUE: OnFailure
ON_FAILURE_STOP: OnFailure
ON_FAILURE_NO_MORE: OnFailure
OVERLAP_UNSPECIFIED: Overlap
OVERLAP_SKIP: Overlap
OVERLAP_BUFFER_ONE: Overlap
OVERLAP_BUFFER_ALL: Overlap
OVERLAP_CANCEL_OTHER: Overlap
OVERLAP_ALLOW: Overlap
PERMISSION_UNSPECIFIED: Permission
PERMISSION_JOBS_READ: Permission
PERMISSION_JOBS_SUBMIT: Permission
PERMISSION_JOBS_STOP: Permission
PERMISSION_JOBS_LOGS: Permission
PERMISSION_JOBS_EXEC: Permission
PERMISSION_JOBS_CHECKPOINT: Permission
PERMISSION_HOSTS_READ: Permission
PERMISSION_HOSTS_OPERATE: Permission
PERMISSION_HOSTS_REPORT: Permission
PERMISSION_CLUSTER_READ: Permission
PERMISSION_METRICS_READ: Permission
PERMISSION_ALERTS_SEND: Permission
PERMISSION_AUDIT_READ: Permission
PERMISSION_PAYLOADS_READ: Permission
PERMISSION_TOKENS_MANAGE: Permission
PERMISSION_SECRETS_MANAGE: Permission
PERMISSION_SECRETS_RECEIVE: Permission
PERMISSION_UPLOADS_RECEIVE: Permission
PERMISSION_SELF_READ: Permission
PIPELINE_STATE_UNSPECIFIED: PipelineState
PIPELINE_STATE_RUNNING: PipelineState
PIPELINE_STATE_COMPLETED: PipelineState
PIPELINE_STATE_FAILED: PipelineState
PIPELINE_STATE_CANCELLED: PipelineState
PRINCIPAL_KIND_UNSPECIFIED: PrincipalKind
PRINCIPAL_KIND_PERSON: PrincipalKind
PRINCIPAL_KIND_JOB: PrincipalKind
PRINCIPAL_KIND_NODE: PrincipalKind
PRINCIPAL_KIND_PROCESS: PrincipalKind
RANK_PER_UNSPECIFIED: RankPer
RANK_PER_HOST: RankPer
RANK_PER_GPU: RankPer
READABLE_BY_UNSPECIFIED: ReadableBy
READABLE_BY_USER: ReadableBy
READABLE_BY_NAMESPACE: ReadableBy
REASON_CODE_UNSPECIFIED: ReasonCode
REASON_CODE_HOST_NOT_READY: ReasonCode
REASON_CODE_EXCLUDED: ReasonCode
REASON_CODE_HOST_NAME: ReasonCode
REASON_CODE_RESERVATION: ReasonCode
REASON_CODE_LABEL: ReasonCode
REASON_CODE_OTHER_MODEL: ReasonCode
REASON_CODE_TOO_LITTLE_MEMORY: ReasonCode
REASON_CODE_COMPUTE_CAPABILITY: ReasonCode
REASON_CODE_NO_CUDA: ReasonCode
REASON_CODE_NOT_ISOLATED: ReasonCode
REASON_CODE_SHARING_UNSUPPORTED: ReasonCode
REASON_CODE_TOO_FEW_GPUS: ReasonCode
REASON_CODE_CPUS: ReasonCode
REASON_CODE_RAM: ReasonCode
REASON_CODE_UNHEALTHY: ReasonCode
REASON_CODE_TOO_HOT: ReasonCode
REASON_CODE_WINDOW: ReasonCode
REASON_CODE_BUSY: ReasonCode
REASON_CODE_SHARED_BY_ANOTHER: ReasonCode
REASON_CODE_TOO_LITTLE_SHARE: ReasonCode
REASON_CODE_TOPOLOGY: ReasonCode
REASON_CODE_KEPT: ReasonCode
REASON_CODE_FILTER: ReasonCode
REPAIR_STEP_UNSPECIFIED: RepairStep
REPAIR_STEP_HOST_RESET: RepairStep
REPAIR_STEP_REBOOT: RepairStep
REPEAT_UNSPECIFIED: Repeat
REPEAT_DAILY: Repeat
REPEAT_WEEKLY: Repeat
ROLE_UNSPECIFIED: Role
ROLE_VIEWER: Role
ROLE_USER: Role
ROLE_OPERATOR: Role
ROLE_ADMIN: Role
SECRET_VALUE_ENCODING_UNSPECIFIED: SecretValueEncoding
SECRET_VALUE_ENCODING_TEXT: SecretValueEncoding
SECRET_VALUE_ENCODING_BASE64: SecretValueEncoding
SHARE_MODE_UNSPECIFIED: ShareMode
SHARE_MODE_MIG: ShareMode
SHARE_MODE_MPS: ShareMode
SHARE_MODE_TIME_SLICE: ShareMode
STEP_STATE_UNSPECIFIED: StepState
STEP_STATE_WAITING: StepState
STEP_STATE_RUNNING: StepState
STEP_STATE_COMPLETED: StepState
STEP_STATE_FAILED: StepState
STEP_STATE_SKIPPED: StepState
STEP_STATE_CANCELLED: StepState
STOPPED_BY_VERB_UNSPECIFIED: StoppedByVerb
STOPPED_BY_VERB_CANCEL: StoppedByVerb
STOPPED_BY_VERB_KILL: StoppedByVerb
STOPPED_BY_VERB_PREEMPT: StoppedByVerb
STRATEGY_UNSPECIFIED: Strategy
STRATEGY_PACK: Strategy
STRATEGY_SPREAD: Strategy
TOPOLOGY_LEVEL_UNSPECIFIED: TopologyLevel
TOPOLOGY_LEVEL_NVLINK_NUMA: TopologyLevel
TOPOLOGY_LEVEL_NVLINK: TopologyLevel
TOPOLOGY_LEVEL_NUMA: TopologyLevel
TOPOLOGY_LEVEL_SOCKET: TopologyLevel
TOPOLOGY_LEVEL_HOST: TopologyLevel
TOPOLOGY_LEVEL_NVLINK_DOMAIN: TopologyLevel
TOPOLOGY_LEVEL_LEAF: TopologyLevel
TOPOLOGY_LEVEL_SPINE: TopologyLevel
TOPOLOGY_LEVEL_ANY: TopologyLevel
VERIFIED_UNSPECIFIED: Verified
VERIFIED_HASHES: Verified
VERIFIED_SIZES: Verified
VERIFIED_MARKER: Verified
WAIT_CODE_UNSPECIFIED: WaitCode
WAIT_CODE_WAITING_FOR_GPUS: WaitCode
WAIT_CODE_BEHIND_HIGHER_PRIORITY: WaitCode
WAIT_CODE_NO_HOSTS: WaitCode
WAIT_CODE_NEVER_FITS: WaitCode
WAIT_CODE_OVER_QUOTA: WaitCode
WAIT_CODE_WINDOW: WaitCode
WAIT_CODE_DEPENDENCY: WaitCode
WAIT_CODE_HELD: WaitCode
WORK_KIND_UNSPECIFIED: WorkKind
WORK_KIND_TRAINING: WorkKind
WORK_KIND_INFERENCE: WorkKind
WORK_KIND_BATCH: WorkKind
WORK_KIND_INTERACTIVE: WorkKind

class AddedHosts(_message.Message):
    __slots__ = ("count", "like", "machine", "null_fields")
    COUNT_FIELD_NUMBER: _ClassVar[int]
    LIKE_FIELD_NUMBER: _ClassVar[int]
    MACHINE_FIELD_NUMBER: _ClassVar[int]
    NULL_FIELDS_FIELD_NUMBER: _ClassVar[int]
    count: int
    like: str
    machine: str
    null_fields: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, count: _Optional[int] = ..., like: _Optional[str] = ..., machine: _Optional[str] = ..., null_fields: _Optional[_Iterable[str]] = ...) -> None: ...

class Array(_message.Message):
    __slots__ = ("id", "spec", "array", "state", "size", "counts", "stopped_by", "created_at", "finished_at", "reason", "workflow_url")
    class CountsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    ID_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    ARRAY_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    STOPPED_BY_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    FINISHED_AT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    WORKFLOW_URL_FIELD_NUMBER: _ClassVar[int]
    id: str
    spec: JobSpec
    array: ArrayShape
    state: ArrayState
    size: int
    counts: _containers.ScalarMap[str, int]
    stopped_by: StoppedBy
    created_at: _timestamp_pb2.Timestamp
    finished_at: _timestamp_pb2.Timestamp
    reason: Reason
    workflow_url: str
    def __init__(self, id: _Optional[str] = ..., spec: _Optional[_Union[JobSpec, _Mapping]] = ..., array: _Optional[_Union[ArrayShape, _Mapping]] = ..., state: _Optional[_Union[ArrayState, str]] = ..., size: _Optional[int] = ..., counts: _Optional[_Mapping[str, int]] = ..., stopped_by: _Optional[_Union[StoppedBy, _Mapping]] = ..., created_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., finished_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., reason: _Optional[_Union[Reason, _Mapping]] = ..., workflow_url: _Optional[str] = ...) -> None: ...

class ArrayChanged(_message.Message):
    __slots__ = ("array", "changed", "same", "unchanged")
    ARRAY_FIELD_NUMBER: _ClassVar[int]
    CHANGED_FIELD_NUMBER: _ClassVar[int]
    SAME_FIELD_NUMBER: _ClassVar[int]
    UNCHANGED_FIELD_NUMBER: _ClassVar[int]
    array: Array
    changed: int
    same: int
    unchanged: _containers.RepeatedCompositeFieldContainer[UnchangedElements]
    def __init__(self, array: _Optional[_Union[Array, _Mapping]] = ..., changed: _Optional[int] = ..., same: _Optional[int] = ..., unchanged: _Optional[_Iterable[_Union[UnchangedElements, _Mapping]]] = ...) -> None: ...

class ArrayChanges(_message.Message):
    __slots__ = ("priority", "time_limit_s", "after", "reservation", "elements", "null_fields")
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    TIME_LIMIT_S_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    RESERVATION_FIELD_NUMBER: _ClassVar[int]
    ELEMENTS_FIELD_NUMBER: _ClassVar[int]
    NULL_FIELDS_FIELD_NUMBER: _ClassVar[int]
    priority: int
    time_limit_s: int
    after: DependencyList
    reservation: str
    elements: str
    null_fields: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, priority: _Optional[int] = ..., time_limit_s: _Optional[int] = ..., after: _Optional[_Union[DependencyList, _Mapping]] = ..., reservation: _Optional[str] = ..., elements: _Optional[str] = ..., null_fields: _Optional[_Iterable[str]] = ...) -> None: ...

class ArrayPage(_message.Message):
    __slots__ = ("items", "next_cursor")
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    NEXT_CURSOR_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedCompositeFieldContainer[Array]
    next_cursor: str
    def __init__(self, items: _Optional[_Iterable[_Union[Array, _Mapping]]] = ..., next_cursor: _Optional[str] = ...) -> None: ...

class ArrayShape(_message.Message):
    __slots__ = ("indices", "at_once", "on_failure", "parameters", "repeats")
    INDICES_FIELD_NUMBER: _ClassVar[int]
    AT_ONCE_FIELD_NUMBER: _ClassVar[int]
    ON_FAILURE_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    REPEATS_FIELD_NUMBER: _ClassVar[int]
    indices: str
    at_once: int
    on_failure: OnFailure
    parameters: _containers.RepeatedScalarFieldContainer[str]
    repeats: str
    def __init__(self, indices: _Optional[str] = ..., at_once: _Optional[int] = ..., on_failure: _Optional[_Union[OnFailure, str]] = ..., parameters: _Optional[_Iterable[str]] = ..., repeats: _Optional[str] = ...) -> None: ...

class ArraySpec(_message.Message):
    __slots__ = ("indices", "at_once", "on_failure", "parameters", "matrix", "count", "null_fields")
    class MatrixEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: StringList
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[StringList, _Mapping]] = ...) -> None: ...
    INDICES_FIELD_NUMBER: _ClassVar[int]
    AT_ONCE_FIELD_NUMBER: _ClassVar[int]
    ON_FAILURE_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    MATRIX_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    NULL_FIELDS_FIELD_NUMBER: _ClassVar[int]
    indices: str
    at_once: int
    on_failure: OnFailure
    parameters: ParameterTable
    matrix: _containers.MessageMap[str, StringList]
    count: int
    null_fields: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, indices: _Optional[str] = ..., at_once: _Optional[int] = ..., on_failure: _Optional[_Union[OnFailure, str]] = ..., parameters: _Optional[_Union[ParameterTable, _Mapping]] = ..., matrix: _Optional[_Mapping[str, StringList]] = ..., count: _Optional[int] = ..., null_fields: _Optional[_Iterable[str]] = ...) -> None: ...

class ArraySubmission(_message.Message):
    __slots__ = ("job", "array")
    JOB_FIELD_NUMBER: _ClassVar[int]
    ARRAY_FIELD_NUMBER: _ClassVar[int]
    job: JobSpec
    array: ArraySpec
    def __init__(self, job: _Optional[_Union[JobSpec, _Mapping]] = ..., array: _Optional[_Union[ArraySpec, _Mapping]] = ...) -> None: ...

class Artifacts(_message.Message):
    __slots__ = ("output", "inputs")
    class InputsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: StringList
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[StringList, _Mapping]] = ...) -> None: ...
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    output: str
    inputs: _containers.MessageMap[str, StringList]
    def __init__(self, output: _Optional[str] = ..., inputs: _Optional[_Mapping[str, StringList]] = ...) -> None: ...

class AttemptUsage(_message.Message):
    __slots__ = ("job_id", "attempt", "namespace", "user", "gpus", "ended_at", "gpu_seconds", "mean_utilization_percent", "peak_gpu_memory_mib", "energy_j", "cpu_s", "peak_memory_mib", "ecc_errors", "throttled_s", "unmeasured_hosts", "ranks")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    ENDED_AT_FIELD_NUMBER: _ClassVar[int]
    GPU_SECONDS_FIELD_NUMBER: _ClassVar[int]
    MEAN_UTILIZATION_PERCENT_FIELD_NUMBER: _ClassVar[int]
    PEAK_GPU_MEMORY_MIB_FIELD_NUMBER: _ClassVar[int]
    ENERGY_J_FIELD_NUMBER: _ClassVar[int]
    CPU_S_FIELD_NUMBER: _ClassVar[int]
    PEAK_MEMORY_MIB_FIELD_NUMBER: _ClassVar[int]
    ECC_ERRORS_FIELD_NUMBER: _ClassVar[int]
    THROTTLED_S_FIELD_NUMBER: _ClassVar[int]
    UNMEASURED_HOSTS_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    attempt: int
    namespace: str
    user: str
    gpus: int
    ended_at: _timestamp_pb2.Timestamp
    gpu_seconds: float
    mean_utilization_percent: float
    peak_gpu_memory_mib: int
    energy_j: float
    cpu_s: float
    peak_memory_mib: int
    ecc_errors: int
    throttled_s: float
    unmeasured_hosts: _containers.RepeatedScalarFieldContainer[str]
    ranks: _containers.RepeatedCompositeFieldContainer[RankUsage]
    def __init__(self, job_id: _Optional[str] = ..., attempt: _Optional[int] = ..., namespace: _Optional[str] = ..., user: _Optional[str] = ..., gpus: _Optional[int] = ..., ended_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., gpu_seconds: _Optional[float] = ..., mean_utilization_percent: _Optional[float] = ..., peak_gpu_memory_mib: _Optional[int] = ..., energy_j: _Optional[float] = ..., cpu_s: _Optional[float] = ..., peak_memory_mib: _Optional[int] = ..., ecc_errors: _Optional[int] = ..., throttled_s: _Optional[float] = ..., unmeasured_hosts: _Optional[_Iterable[str]] = ..., ranks: _Optional[_Iterable[_Union[RankUsage, _Mapping]]] = ...) -> None: ...

class AuditRecord(_message.Message):
    __slots__ = ("seq", "entry", "hash")
    SEQ_FIELD_NUMBER: _ClassVar[int]
    ENTRY_FIELD_NUMBER: _ClassVar[int]
    HASH_FIELD_NUMBER: _ClassVar[int]
    seq: int
    entry: str
    hash: str
    def __init__(self, seq: _Optional[int] = ..., entry: _Optional[str] = ..., hash: _Optional[str] = ...) -> None: ...

class AuditRecordPage(_message.Message):
    __slots__ = ("items", "next_cursor")
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    NEXT_CURSOR_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedCompositeFieldContainer[AuditRecord]
    next_cursor: str
    def __init__(self, items: _Optional[_Iterable[_Union[AuditRecord, _Mapping]]] = ..., next_cursor: _Optional[str] = ...) -> None: ...

class Backfill(_message.Message):
    __slots__ = ("start_at", "end_at", "overlap")
    START_AT_FIELD_NUMBER: _ClassVar[int]
    END_AT_FIELD_NUMBER: _ClassVar[int]
    OVERLAP_FIELD_NUMBER: _ClassVar[int]
    start_at: _timestamp_pb2.Timestamp
    end_at: _timestamp_pb2.Timestamp
    overlap: Overlap
    def __init__(self, start_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., end_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., overlap: _Optional[_Union[Overlap, str]] = ...) -> None: ...

class BlockingJob(_message.Message):
    __slots__ = ("job_id", "attempt", "gpus", "hosts", "ends_by")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    HOSTS_FIELD_NUMBER: _ClassVar[int]
    ENDS_BY_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    attempt: int
    gpus: int
    hosts: _containers.RepeatedScalarFieldContainer[str]
    ends_by: float
    def __init__(self, job_id: _Optional[str] = ..., attempt: _Optional[int] = ..., gpus: _Optional[int] = ..., hosts: _Optional[_Iterable[str]] = ..., ends_by: _Optional[float] = ...) -> None: ...

class CheckpointAsked(_message.Message):
    __slots__ = ("signalled",)
    SIGNALLED_FIELD_NUMBER: _ClassVar[int]
    signalled: int
    def __init__(self, signalled: _Optional[int] = ...) -> None: ...

class CheckpointInfo(_message.Message):
    __slots__ = ("job_id", "attempt", "name", "step", "written_at", "size_bytes", "verified", "problem", "kept", "path", "hosts")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    WRITTEN_AT_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    VERIFIED_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    KEPT_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    HOSTS_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    attempt: int
    name: str
    step: int
    written_at: float
    size_bytes: int
    verified: Verified
    problem: str
    kept: bool
    path: str
    hosts: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, job_id: _Optional[str] = ..., attempt: _Optional[int] = ..., name: _Optional[str] = ..., step: _Optional[int] = ..., written_at: _Optional[float] = ..., size_bytes: _Optional[int] = ..., verified: _Optional[_Union[Verified, str]] = ..., problem: _Optional[str] = ..., kept: _Optional[bool] = ..., path: _Optional[str] = ..., hosts: _Optional[_Iterable[str]] = ...) -> None: ...

class CheckpointInfoPage(_message.Message):
    __slots__ = ("items", "next_cursor")
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    NEXT_CURSOR_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedCompositeFieldContainer[CheckpointInfo]
    next_cursor: str
    def __init__(self, items: _Optional[_Iterable[_Union[CheckpointInfo, _Mapping]]] = ..., next_cursor: _Optional[str] = ...) -> None: ...

class CheckpointPolicy(_message.Message):
    __slots__ = ("every_s", "keep", "signal", "resume_from", "null_fields")
    EVERY_S_FIELD_NUMBER: _ClassVar[int]
    KEEP_FIELD_NUMBER: _ClassVar[int]
    SIGNAL_FIELD_NUMBER: _ClassVar[int]
    RESUME_FROM_FIELD_NUMBER: _ClassVar[int]
    NULL_FIELDS_FIELD_NUMBER: _ClassVar[int]
    every_s: int
    keep: int
    signal: CheckpointPolicySignal
    resume_from: str
    null_fields: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, every_s: _Optional[int] = ..., keep: _Optional[int] = ..., signal: _Optional[_Union[CheckpointPolicySignal, str]] = ..., resume_from: _Optional[str] = ..., null_fields: _Optional[_Iterable[str]] = ...) -> None: ...

class CheckpointRoot(_message.Message):
    __slots__ = ("root", "hosts", "silent", "problem")
    ROOT_FIELD_NUMBER: _ClassVar[int]
    HOSTS_FIELD_NUMBER: _ClassVar[int]
    SILENT_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    root: str
    hosts: _containers.RepeatedScalarFieldContainer[str]
    silent: _containers.RepeatedScalarFieldContainer[str]
    problem: str
    def __init__(self, root: _Optional[str] = ..., hosts: _Optional[_Iterable[str]] = ..., silent: _Optional[_Iterable[str]] = ..., problem: _Optional[str] = ...) -> None: ...

class CheckpointRootPage(_message.Message):
    __slots__ = ("items", "next_cursor")
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    NEXT_CURSOR_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedCompositeFieldContainer[CheckpointRoot]
    next_cursor: str
    def __init__(self, items: _Optional[_Iterable[_Union[CheckpointRoot, _Mapping]]] = ..., next_cursor: _Optional[str] = ...) -> None: ...

class Clock(_message.Message):
    __slots__ = ("kind", "name", "ahead_s", "uncertain_s", "problem")
    KIND_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    AHEAD_S_FIELD_NUMBER: _ClassVar[int]
    UNCERTAIN_S_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    kind: ClockKind
    name: str
    ahead_s: float
    uncertain_s: float
    problem: str
    def __init__(self, kind: _Optional[_Union[ClockKind, str]] = ..., name: _Optional[str] = ..., ahead_s: _Optional[float] = ..., uncertain_s: _Optional[float] = ..., problem: _Optional[str] = ...) -> None: ...

class ClockPage(_message.Message):
    __slots__ = ("items", "next_cursor")
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    NEXT_CURSOR_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedCompositeFieldContainer[Clock]
    next_cursor: str
    def __init__(self, items: _Optional[_Iterable[_Union[Clock, _Mapping]]] = ..., next_cursor: _Optional[str] = ...) -> None: ...

class ClusterCounts(_message.Message):
    __slots__ = ("name", "hosts", "gpus", "trace_url")
    NAME_FIELD_NUMBER: _ClassVar[int]
    HOSTS_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    TRACE_URL_FIELD_NUMBER: _ClassVar[int]
    name: str
    hosts: _containers.RepeatedCompositeFieldContainer[GpuHostCount]
    gpus: _containers.RepeatedCompositeFieldContainer[GpuCount]
    trace_url: str
    def __init__(self, name: _Optional[str] = ..., hosts: _Optional[_Iterable[_Union[GpuHostCount, _Mapping]]] = ..., gpus: _Optional[_Iterable[_Union[GpuCount, _Mapping]]] = ..., trace_url: _Optional[str] = ...) -> None: ...

class ClusterReport(_message.Message):
    __slots__ = ("since", "until", "gpu_time", "jobs", "failures", "hosts", "gpu_models", "users", "parts")
    SINCE_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    GPU_TIME_FIELD_NUMBER: _ClassVar[int]
    JOBS_FIELD_NUMBER: _ClassVar[int]
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    HOSTS_FIELD_NUMBER: _ClassVar[int]
    GPU_MODELS_FIELD_NUMBER: _ClassVar[int]
    USERS_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    since: _timestamp_pb2.Timestamp
    until: _timestamp_pb2.Timestamp
    gpu_time: GpuTime
    jobs: JobFigures
    failures: FailureFigures
    hosts: _containers.RepeatedCompositeFieldContainer[HostFigures]
    gpu_models: _containers.RepeatedCompositeFieldContainer[ModelFigures]
    users: _containers.RepeatedCompositeFieldContainer[UserFigures]
    parts: _containers.RepeatedCompositeFieldContainer[PeriodPart]
    def __init__(self, since: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., until: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., gpu_time: _Optional[_Union[GpuTime, _Mapping]] = ..., jobs: _Optional[_Union[JobFigures, _Mapping]] = ..., failures: _Optional[_Union[FailureFigures, _Mapping]] = ..., hosts: _Optional[_Iterable[_Union[HostFigures, _Mapping]]] = ..., gpu_models: _Optional[_Iterable[_Union[ModelFigures, _Mapping]]] = ..., users: _Optional[_Iterable[_Union[UserFigures, _Mapping]]] = ..., parts: _Optional[_Iterable[_Union[PeriodPart, _Mapping]]] = ...) -> None: ...

class ClusterState(_message.Message):
    __slots__ = ("version", "at", "seq", "hosts", "gpus", "room", "running", "queue", "promises", "windows", "moved", "used", "telemetry", "policy")
    class MovedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: DoubleList
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[DoubleList, _Mapping]] = ...) -> None: ...
    class TelemetryEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: GpuTelemetryList
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[GpuTelemetryList, _Mapping]] = ...) -> None: ...
    VERSION_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    HOSTS_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    ROOM_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    PROMISES_FIELD_NUMBER: _ClassVar[int]
    WINDOWS_FIELD_NUMBER: _ClassVar[int]
    MOVED_FIELD_NUMBER: _ClassVar[int]
    USED_FIELD_NUMBER: _ClassVar[int]
    TELEMETRY_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    version: int
    at: float
    seq: int
    hosts: _containers.RepeatedCompositeFieldContainer[HostRow]
    gpus: _containers.RepeatedCompositeFieldContainer[GpuRow]
    room: _containers.RepeatedCompositeFieldContainer[HostUse]
    running: _containers.RepeatedCompositeFieldContainer[RunningRow]
    queue: _containers.RepeatedCompositeFieldContainer[PlacementRequest]
    promises: _containers.RepeatedCompositeFieldContainer[PromisedStart]
    windows: _containers.RepeatedCompositeFieldContainer[WindowRow]
    moved: _containers.MessageMap[str, DoubleList]
    used: _containers.RepeatedCompositeFieldContainer[PastUseRow]
    telemetry: _containers.MessageMap[str, GpuTelemetryList]
    policy: _struct_pb2.Struct
    def __init__(self, version: _Optional[int] = ..., at: _Optional[float] = ..., seq: _Optional[int] = ..., hosts: _Optional[_Iterable[_Union[HostRow, _Mapping]]] = ..., gpus: _Optional[_Iterable[_Union[GpuRow, _Mapping]]] = ..., room: _Optional[_Iterable[_Union[HostUse, _Mapping]]] = ..., running: _Optional[_Iterable[_Union[RunningRow, _Mapping]]] = ..., queue: _Optional[_Iterable[_Union[PlacementRequest, _Mapping]]] = ..., promises: _Optional[_Iterable[_Union[PromisedStart, _Mapping]]] = ..., windows: _Optional[_Iterable[_Union[WindowRow, _Mapping]]] = ..., moved: _Optional[_Mapping[str, DoubleList]] = ..., used: _Optional[_Iterable[_Union[PastUseRow, _Mapping]]] = ..., telemetry: _Optional[_Mapping[str, GpuTelemetryList]] = ..., policy: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ...) -> None: ...

class Delivery(_message.Message):
    __slots__ = ("target", "sent", "reason")
    TARGET_FIELD_NUMBER: _ClassVar[int]
    SENT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    target: str
    sent: bool
    reason: str
    def __init__(self, target: _Optional[str] = ..., sent: _Optional[bool] = ..., reason: _Optional[str] = ...) -> None: ...

class DeliveryPage(_message.Message):
    __slots__ = ("items", "next_cursor")
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    NEXT_CURSOR_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedCompositeFieldContainer[Delivery]
    next_cursor: str
    def __init__(self, items: _Optional[_Iterable[_Union[Delivery, _Mapping]]] = ..., next_cursor: _Optional[str] = ...) -> None: ...

class Dependency(_message.Message):
    __slots__ = ("job_id", "kind")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    kind: DependencyKind
    def __init__(self, job_id: _Optional[str] = ..., kind: _Optional[_Union[DependencyKind, str]] = ...) -> None: ...

class DependencyList(_message.Message):
    __slots__ = ("items",)
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedCompositeFieldContainer[Dependency]
    def __init__(self, items: _Optional[_Iterable[_Union[Dependency, _Mapping]]] = ...) -> None: ...

class DoubleList(_message.Message):
    __slots__ = ("items",)
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, items: _Optional[_Iterable[float]] = ...) -> None: ...

class DryRun(_message.Message):
    __slots__ = ("accepted", "message", "placement", "reason", "preempts", "preempts_at", "waits_for", "warnings")
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    PLACEMENT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    PREEMPTS_FIELD_NUMBER: _ClassVar[int]
    PREEMPTS_AT_FIELD_NUMBER: _ClassVar[int]
    WAITS_FOR_FIELD_NUMBER: _ClassVar[int]
    WARNINGS_FIELD_NUMBER: _ClassVar[int]
    accepted: bool
    message: str
    placement: Placement
    reason: Reason
    preempts: _containers.RepeatedScalarFieldContainer[str]
    preempts_at: float
    waits_for: str
    warnings: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, accepted: _Optional[bool] = ..., message: _Optional[str] = ..., placement: _Optional[_Union[Placement, _Mapping]] = ..., reason: _Optional[_Union[Reason, _Mapping]] = ..., preempts: _Optional[_Iterable[str]] = ..., preempts_at: _Optional[float] = ..., waits_for: _Optional[str] = ..., warnings: _Optional[_Iterable[str]] = ...) -> None: ...

class ElementsBody(_message.Message):
    __slots__ = ("reason", "elements", "null_fields")
    REASON_FIELD_NUMBER: _ClassVar[int]
    ELEMENTS_FIELD_NUMBER: _ClassVar[int]
    NULL_FIELDS_FIELD_NUMBER: _ClassVar[int]
    reason: str
    elements: str
    null_fields: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, reason: _Optional[str] = ..., elements: _Optional[str] = ..., null_fields: _Optional[_Iterable[str]] = ...) -> None: ...

class Enrollment(_message.Message):
    __slots__ = ("name", "join_token", "node_token", "expires_at")
    NAME_FIELD_NUMBER: _ClassVar[int]
    JOIN_TOKEN_FIELD_NUMBER: _ClassVar[int]
    NODE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_AT_FIELD_NUMBER: _ClassVar[int]
    name: str
    join_token: str
    node_token: str
    expires_at: _timestamp_pb2.Timestamp
    def __init__(self, name: _Optional[str] = ..., join_token: _Optional[str] = ..., node_token: _Optional[str] = ..., expires_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class EnrollmentOrder(_message.Message):
    __slots__ = ("address", "valid_s", "null_fields")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    VALID_S_FIELD_NUMBER: _ClassVar[int]
    NULL_FIELDS_FIELD_NUMBER: _ClassVar[int]
    address: str
    valid_s: float
    null_fields: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, address: _Optional[str] = ..., valid_s: _Optional[float] = ..., null_fields: _Optional[_Iterable[str]] = ...) -> None: ...

class Event(_message.Message):
    __slots__ = ("seq", "at", "kind", "actor", "job_id", "attempt", "host", "gpu_uuid", "data")
    SEQ_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    ACTOR_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    GPU_UUID_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    seq: int
    at: _timestamp_pb2.Timestamp
    kind: str
    actor: str
    job_id: str
    attempt: int
    host: str
    gpu_uuid: str
    data: _struct_pb2.Struct
    def __init__(self, seq: _Optional[int] = ..., at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., kind: _Optional[str] = ..., actor: _Optional[str] = ..., job_id: _Optional[str] = ..., attempt: _Optional[int] = ..., host: _Optional[str] = ..., gpu_uuid: _Optional[str] = ..., data: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ...) -> None: ...

class EventPage(_message.Message):
    __slots__ = ("items", "next_cursor")
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    NEXT_CURSOR_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedCompositeFieldContainer[Event]
    next_cursor: str
    def __init__(self, items: _Optional[_Iterable[_Union[Event, _Mapping]]] = ..., next_cursor: _Optional[str] = ...) -> None: ...

class ExecAttached(_message.Message):
    __slots__ = ("session", "attachment", "offset", "received")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    ATTACHMENT_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_FIELD_NUMBER: _ClassVar[int]
    session: ExecSession
    attachment: int
    offset: int
    received: int
    def __init__(self, session: _Optional[_Union[ExecSession, _Mapping]] = ..., attachment: _Optional[int] = ..., offset: _Optional[int] = ..., received: _Optional[int] = ...) -> None: ...

class ExecChunk(_message.Message):
    __slots__ = ("stream", "data", "next_offset", "exit_code", "reason")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    stream: ExecChunkStream
    data: bytes
    next_offset: int
    exit_code: int
    reason: str
    def __init__(self, stream: _Optional[_Union[ExecChunkStream, str]] = ..., data: _Optional[bytes] = ..., next_offset: _Optional[int] = ..., exit_code: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class ExecInfo(_message.Message):
    __slots__ = ("session", "command", "tty", "port", "readers", "ended")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    TTY_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    READERS_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    session: ExecSession
    command: _containers.RepeatedScalarFieldContainer[str]
    tty: bool
    port: int
    readers: int
    ended: bool
    def __init__(self, session: _Optional[_Union[ExecSession, _Mapping]] = ..., command: _Optional[_Iterable[str]] = ..., tty: _Optional[bool] = ..., port: _Optional[int] = ..., readers: _Optional[int] = ..., ended: _Optional[bool] = ...) -> None: ...

class ExecInfoPage(_message.Message):
    __slots__ = ("items", "next_cursor")
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    NEXT_CURSOR_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedCompositeFieldContainer[ExecInfo]
    next_cursor: str
    def __init__(self, items: _Optional[_Iterable[_Union[ExecInfo, _Mapping]]] = ..., next_cursor: _Optional[str] = ...) -> None: ...

class ExecReceived(_message.Message):
    __slots__ = ("received",)
    RECEIVED_FIELD_NUMBER: _ClassVar[int]
    received: int
    def __init__(self, received: _Optional[int] = ...) -> None: ...

class ExecRequest(_message.Message):
    __slots__ = ("command", "rank", "tty", "rows", "columns", "term", "unread_s", "port", "null_fields")
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    TTY_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    UNREAD_S_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    NULL_FIELDS_FIELD_NUMBER: _ClassVar[int]
    command: _containers.RepeatedScalarFieldContainer[str]
    rank: int
    tty: bool
    rows: int
    columns: int
    term: str
    unread_s: int
    port: int
    null_fields: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, command: _Optional[_Iterable[str]] = ..., rank: _Optional[int] = ..., tty: _Optional[bool] = ..., rows: _Optional[int] = ..., columns: _Optional[int] = ..., term: _Optional[str] = ..., unread_s: _Optional[int] = ..., port: _Optional[int] = ..., null_fields: _Optional[_Iterable[str]] = ...) -> None: ...

class ExecSession(_message.Message):
    __slots__ = ("id", "job_id", "attempt", "rank", "host")
    ID_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    id: str
    job_id: str
    attempt: int
    rank: int
    host: str
    def __init__(self, id: _Optional[str] = ..., job_id: _Optional[str] = ..., attempt: _Optional[int] = ..., rank: _Optional[int] = ..., host: _Optional[str] = ...) -> None: ...

class Failure(_message.Message):
    __slots__ = ("kind", "message", "rank", "host", "exit_code", "gpu_uuid", "xid", "before_start", "host_full", "no_secrets")
    KIND_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    GPU_UUID_FIELD_NUMBER: _ClassVar[int]
    XID_FIELD_NUMBER: _ClassVar[int]
    BEFORE_START_FIELD_NUMBER: _ClassVar[int]
    HOST_FULL_FIELD_NUMBER: _ClassVar[int]
    NO_SECRETS_FIELD_NUMBER: _ClassVar[int]
    kind: FailureKind
    message: str
    rank: int
    host: str
    exit_code: int
    gpu_uuid: str
    xid: int
    before_start: bool
    host_full: bool
    no_secrets: bool
    def __init__(self, kind: _Optional[_Union[FailureKind, str]] = ..., message: _Optional[str] = ..., rank: _Optional[int] = ..., host: _Optional[str] = ..., exit_code: _Optional[int] = ..., gpu_uuid: _Optional[str] = ..., xid: _Optional[int] = ..., before_start: _Optional[bool] = ..., host_full: _Optional[bool] = ..., no_secrets: _Optional[bool] = ...) -> None: ...

class FailureFigures(_message.Message):
    __slots__ = ("gpu_faults", "hosts_lost")
    GPU_FAULTS_FIELD_NUMBER: _ClassVar[int]
    HOSTS_LOST_FIELD_NUMBER: _ClassVar[int]
    gpu_faults: int
    hosts_lost: int
    def __init__(self, gpu_faults: _Optional[int] = ..., hosts_lost: _Optional[int] = ...) -> None: ...

class FieldError(_message.Message):
    __slots__ = ("field", "message", "given")
    FIELD_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    GIVEN_FIELD_NUMBER: _ClassVar[int]
    field: str
    message: str
    given: _struct_pb2.Value
    def __init__(self, field: _Optional[str] = ..., message: _Optional[str] = ..., given: _Optional[_Union[_struct_pb2.Value, _Mapping]] = ...) -> None: ...

class Figures(_message.Message):
    __slots__ = ("count", "mean", "p50", "p90", "p99", "max", "points")
    COUNT_FIELD_NUMBER: _ClassVar[int]
    MEAN_FIELD_NUMBER: _ClassVar[int]
    P50_FIELD_NUMBER: _ClassVar[int]
    P90_FIELD_NUMBER: _ClassVar[int]
    P99_FIELD_NUMBER: _ClassVar[int]
    MAX_FIELD_NUMBER: _ClassVar[int]
    POINTS_FIELD_NUMBER: _ClassVar[int]
    count: int
    mean: float
    p50: int
    p90: int
    p99: int
    max: int
    points: _containers.RepeatedCompositeFieldContainer[Point]
    def __init__(self, count: _Optional[int] = ..., mean: _Optional[float] = ..., p50: _Optional[int] = ..., p90: _Optional[int] = ..., p99: _Optional[int] = ..., max: _Optional[int] = ..., points: _Optional[_Iterable[_Union[Point, _Mapping]]] = ...) -> None: ...

class Gpu(_message.Message):
    __slots__ = ("info", "host", "host_state", "state", "reason", "job_id", "holders", "shared_by", "percent_granted", "memory_granted_mib", "temperature_c", "power_w", "utilization_percent", "memory_used_mib", "fault_count", "reset_count")
    INFO_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    HOST_STATE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    HOLDERS_FIELD_NUMBER: _ClassVar[int]
    SHARED_BY_FIELD_NUMBER: _ClassVar[int]
    PERCENT_GRANTED_FIELD_NUMBER: _ClassVar[int]
    MEMORY_GRANTED_MIB_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_C_FIELD_NUMBER: _ClassVar[int]
    POWER_W_FIELD_NUMBER: _ClassVar[int]
    UTILIZATION_PERCENT_FIELD_NUMBER: _ClassVar[int]
    MEMORY_USED_MIB_FIELD_NUMBER: _ClassVar[int]
    FAULT_COUNT_FIELD_NUMBER: _ClassVar[int]
    RESET_COUNT_FIELD_NUMBER: _ClassVar[int]
    info: GpuInfo
    host: str
    host_state: HostState
    state: GpuState
    reason: str
    job_id: str
    holders: _containers.RepeatedCompositeFieldContainer[GpuHolder]
    shared_by: str
    percent_granted: int
    memory_granted_mib: int
    temperature_c: int
    power_w: float
    utilization_percent: int
    memory_used_mib: int
    fault_count: int
    reset_count: int
    def __init__(self, info: _Optional[_Union[GpuInfo, _Mapping]] = ..., host: _Optional[str] = ..., host_state: _Optional[_Union[HostState, str]] = ..., state: _Optional[_Union[GpuState, str]] = ..., reason: _Optional[str] = ..., job_id: _Optional[str] = ..., holders: _Optional[_Iterable[_Union[GpuHolder, _Mapping]]] = ..., shared_by: _Optional[str] = ..., percent_granted: _Optional[int] = ..., memory_granted_mib: _Optional[int] = ..., temperature_c: _Optional[int] = ..., power_w: _Optional[float] = ..., utilization_percent: _Optional[int] = ..., memory_used_mib: _Optional[int] = ..., fault_count: _Optional[int] = ..., reset_count: _Optional[int] = ...) -> None: ...

class GpuCount(_message.Message):
    __slots__ = ("state", "host_state", "count")
    STATE_FIELD_NUMBER: _ClassVar[int]
    HOST_STATE_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    state: GpuState
    host_state: HostState
    count: int
    def __init__(self, state: _Optional[_Union[GpuState, str]] = ..., host_state: _Optional[_Union[HostState, str]] = ..., count: _Optional[int] = ...) -> None: ...

class GpuHealth(_message.Message):
    __slots__ = ("problem", "temperature_c", "power_w", "power_limit_w", "utilization_percent", "memory_used_mib", "energy_j", "throttled_by", "corrected_ecc", "uncorrected_ecc", "remapped_rows", "remap_pending", "remap_failed", "spare_rows_exhausted", "nvlinks_up", "nvlinks_best", "nvlink_errors", "fabric_problem", "pcie_replays", "pcie_width", "pcie_max_width", "xids")
    class XidsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_C_FIELD_NUMBER: _ClassVar[int]
    POWER_W_FIELD_NUMBER: _ClassVar[int]
    POWER_LIMIT_W_FIELD_NUMBER: _ClassVar[int]
    UTILIZATION_PERCENT_FIELD_NUMBER: _ClassVar[int]
    MEMORY_USED_MIB_FIELD_NUMBER: _ClassVar[int]
    ENERGY_J_FIELD_NUMBER: _ClassVar[int]
    THROTTLED_BY_FIELD_NUMBER: _ClassVar[int]
    CORRECTED_ECC_FIELD_NUMBER: _ClassVar[int]
    UNCORRECTED_ECC_FIELD_NUMBER: _ClassVar[int]
    REMAPPED_ROWS_FIELD_NUMBER: _ClassVar[int]
    REMAP_PENDING_FIELD_NUMBER: _ClassVar[int]
    REMAP_FAILED_FIELD_NUMBER: _ClassVar[int]
    SPARE_ROWS_EXHAUSTED_FIELD_NUMBER: _ClassVar[int]
    NVLINKS_UP_FIELD_NUMBER: _ClassVar[int]
    NVLINKS_BEST_FIELD_NUMBER: _ClassVar[int]
    NVLINK_ERRORS_FIELD_NUMBER: _ClassVar[int]
    FABRIC_PROBLEM_FIELD_NUMBER: _ClassVar[int]
    PCIE_REPLAYS_FIELD_NUMBER: _ClassVar[int]
    PCIE_WIDTH_FIELD_NUMBER: _ClassVar[int]
    PCIE_MAX_WIDTH_FIELD_NUMBER: _ClassVar[int]
    XIDS_FIELD_NUMBER: _ClassVar[int]
    problem: str
    temperature_c: int
    power_w: float
    power_limit_w: float
    utilization_percent: int
    memory_used_mib: int
    energy_j: float
    throttled_by: _containers.RepeatedScalarFieldContainer[str]
    corrected_ecc: int
    uncorrected_ecc: int
    remapped_rows: int
    remap_pending: bool
    remap_failed: bool
    spare_rows_exhausted: bool
    nvlinks_up: int
    nvlinks_best: int
    nvlink_errors: int
    fabric_problem: str
    pcie_replays: int
    pcie_width: int
    pcie_max_width: int
    xids: _containers.ScalarMap[str, int]
    def __init__(self, problem: _Optional[str] = ..., temperature_c: _Optional[int] = ..., power_w: _Optional[float] = ..., power_limit_w: _Optional[float] = ..., utilization_percent: _Optional[int] = ..., memory_used_mib: _Optional[int] = ..., energy_j: _Optional[float] = ..., throttled_by: _Optional[_Iterable[str]] = ..., corrected_ecc: _Optional[int] = ..., uncorrected_ecc: _Optional[int] = ..., remapped_rows: _Optional[int] = ..., remap_pending: _Optional[bool] = ..., remap_failed: _Optional[bool] = ..., spare_rows_exhausted: _Optional[bool] = ..., nvlinks_up: _Optional[int] = ..., nvlinks_best: _Optional[int] = ..., nvlink_errors: _Optional[int] = ..., fabric_problem: _Optional[str] = ..., pcie_replays: _Optional[int] = ..., pcie_width: _Optional[int] = ..., pcie_max_width: _Optional[int] = ..., xids: _Optional[_Mapping[str, int]] = ...) -> None: ...

class GpuHolder(_message.Message):
    __slots__ = ("job_id", "attempt", "share")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    attempt: int
    share: ShareGrant
    def __init__(self, job_id: _Optional[str] = ..., attempt: _Optional[int] = ..., share: _Optional[_Union[ShareGrant, _Mapping]] = ...) -> None: ...

class GpuHostCount(_message.Message):
    __slots__ = ("state", "lost_with", "count")
    STATE_FIELD_NUMBER: _ClassVar[int]
    LOST_WITH_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    state: HostState
    lost_with: str
    count: int
    def __init__(self, state: _Optional[_Union[HostState, str]] = ..., lost_with: _Optional[str] = ..., count: _Optional[int] = ...) -> None: ...

class GpuInfo(_message.Message):
    __slots__ = ("uuid", "index", "model", "memory_mib", "compute_capability", "pci_bus_id", "numa_node", "socket", "pcie_switch", "serial", "mig_capable")
    UUID_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    MEMORY_MIB_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_CAPABILITY_FIELD_NUMBER: _ClassVar[int]
    PCI_BUS_ID_FIELD_NUMBER: _ClassVar[int]
    NUMA_NODE_FIELD_NUMBER: _ClassVar[int]
    SOCKET_FIELD_NUMBER: _ClassVar[int]
    PCIE_SWITCH_FIELD_NUMBER: _ClassVar[int]
    SERIAL_FIELD_NUMBER: _ClassVar[int]
    MIG_CAPABLE_FIELD_NUMBER: _ClassVar[int]
    uuid: str
    index: int
    model: str
    memory_mib: int
    compute_capability: str
    pci_bus_id: str
    numa_node: int
    socket: int
    pcie_switch: str
    serial: str
    mig_capable: bool
    def __init__(self, uuid: _Optional[str] = ..., index: _Optional[int] = ..., model: _Optional[str] = ..., memory_mib: _Optional[int] = ..., compute_capability: _Optional[str] = ..., pci_bus_id: _Optional[str] = ..., numa_node: _Optional[int] = ..., socket: _Optional[int] = ..., pcie_switch: _Optional[str] = ..., serial: _Optional[str] = ..., mig_capable: _Optional[bool] = ...) -> None: ...

class GpuNow(_message.Message):
    __slots__ = ("host", "index", "uuid", "share", "utilization_percent", "memory_used_mib", "memory_mib", "temperature_c", "power_w")
    HOST_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    UUID_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    UTILIZATION_PERCENT_FIELD_NUMBER: _ClassVar[int]
    MEMORY_USED_MIB_FIELD_NUMBER: _ClassVar[int]
    MEMORY_MIB_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_C_FIELD_NUMBER: _ClassVar[int]
    POWER_W_FIELD_NUMBER: _ClassVar[int]
    host: str
    index: int
    uuid: str
    share: str
    utilization_percent: int
    memory_used_mib: int
    memory_mib: int
    temperature_c: int
    power_w: float
    def __init__(self, host: _Optional[str] = ..., index: _Optional[int] = ..., uuid: _Optional[str] = ..., share: _Optional[str] = ..., utilization_percent: _Optional[int] = ..., memory_used_mib: _Optional[int] = ..., memory_mib: _Optional[int] = ..., temperature_c: _Optional[int] = ..., power_w: _Optional[float] = ...) -> None: ...

class GpuPage(_message.Message):
    __slots__ = ("items", "next_cursor")
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    NEXT_CURSOR_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedCompositeFieldContainer[Gpu]
    next_cursor: str
    def __init__(self, items: _Optional[_Iterable[_Union[Gpu, _Mapping]]] = ..., next_cursor: _Optional[str] = ...) -> None: ...

class GpuRow(_message.Message):
    __slots__ = ("uuid", "host", "index", "state", "free", "use")
    UUID_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    FREE_FIELD_NUMBER: _ClassVar[int]
    USE_FIELD_NUMBER: _ClassVar[int]
    uuid: str
    host: str
    index: int
    state: GpuState
    free: bool
    use: GpuUse
    def __init__(self, uuid: _Optional[str] = ..., host: _Optional[str] = ..., index: _Optional[int] = ..., state: _Optional[_Union[GpuState, str]] = ..., free: _Optional[bool] = ..., use: _Optional[_Union[GpuUse, _Mapping]] = ...) -> None: ...

class GpuTelemetry(_message.Message):
    __slots__ = ("uuid", "temperature_c", "power_w", "utilization_percent", "memory_used_mib")
    UUID_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_C_FIELD_NUMBER: _ClassVar[int]
    POWER_W_FIELD_NUMBER: _ClassVar[int]
    UTILIZATION_PERCENT_FIELD_NUMBER: _ClassVar[int]
    MEMORY_USED_MIB_FIELD_NUMBER: _ClassVar[int]
    uuid: str
    temperature_c: int
    power_w: float
    utilization_percent: int
    memory_used_mib: int
    def __init__(self, uuid: _Optional[str] = ..., temperature_c: _Optional[int] = ..., power_w: _Optional[float] = ..., utilization_percent: _Optional[int] = ..., memory_used_mib: _Optional[int] = ...) -> None: ...

class GpuTelemetryList(_message.Message):
    __slots__ = ("items",)
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedCompositeFieldContainer[GpuTelemetry]
    def __init__(self, items: _Optional[_Iterable[_Union[GpuTelemetry, _Mapping]]] = ...) -> None: ...

class GpuTime(_message.Message):
    __slots__ = ("gpus", "gpu_hours", "allocated_gpu_hours", "allocation_ratio", "busy_gpu_hours", "utilization_of_allocated_percent", "utilization_of_all_percent", "energy_kwh")
    GPUS_FIELD_NUMBER: _ClassVar[int]
    GPU_HOURS_FIELD_NUMBER: _ClassVar[int]
    ALLOCATED_GPU_HOURS_FIELD_NUMBER: _ClassVar[int]
    ALLOCATION_RATIO_FIELD_NUMBER: _ClassVar[int]
    BUSY_GPU_HOURS_FIELD_NUMBER: _ClassVar[int]
    UTILIZATION_OF_ALLOCATED_PERCENT_FIELD_NUMBER: _ClassVar[int]
    UTILIZATION_OF_ALL_PERCENT_FIELD_NUMBER: _ClassVar[int]
    ENERGY_KWH_FIELD_NUMBER: _ClassVar[int]
    gpus: int
    gpu_hours: float
    allocated_gpu_hours: float
    allocation_ratio: float
    busy_gpu_hours: float
    utilization_of_allocated_percent: float
    utilization_of_all_percent: float
    energy_kwh: float
    def __init__(self, gpus: _Optional[int] = ..., gpu_hours: _Optional[float] = ..., allocated_gpu_hours: _Optional[float] = ..., allocation_ratio: _Optional[float] = ..., busy_gpu_hours: _Optional[float] = ..., utilization_of_allocated_percent: _Optional[float] = ..., utilization_of_all_percent: _Optional[float] = ..., energy_kwh: _Optional[float] = ...) -> None: ...

class GpuUse(_message.Message):
    __slots__ = ("mode", "tenant", "percent", "memory_mib", "mig_mask", "mig_compute_slices", "mig_media")
    MODE_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    PERCENT_FIELD_NUMBER: _ClassVar[int]
    MEMORY_MIB_FIELD_NUMBER: _ClassVar[int]
    MIG_MASK_FIELD_NUMBER: _ClassVar[int]
    MIG_COMPUTE_SLICES_FIELD_NUMBER: _ClassVar[int]
    MIG_MEDIA_FIELD_NUMBER: _ClassVar[int]
    mode: ShareMode
    tenant: str
    percent: int
    memory_mib: int
    mig_mask: int
    mig_compute_slices: int
    mig_media: int
    def __init__(self, mode: _Optional[_Union[ShareMode, str]] = ..., tenant: _Optional[str] = ..., percent: _Optional[int] = ..., memory_mib: _Optional[int] = ..., mig_mask: _Optional[int] = ..., mig_compute_slices: _Optional[int] = ..., mig_media: _Optional[int] = ...) -> None: ...

class Health(_message.Message):
    __slots__ = ("status", "version", "warnings", "now")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    WARNINGS_FIELD_NUMBER: _ClassVar[int]
    NOW_FIELD_NUMBER: _ClassVar[int]
    status: str
    version: str
    warnings: _containers.RepeatedScalarFieldContainer[str]
    now: float
    def __init__(self, status: _Optional[str] = ..., version: _Optional[str] = ..., warnings: _Optional[_Iterable[str]] = ..., now: _Optional[float] = ...) -> None: ...

class Host(_message.Message):
    __slots__ = ("name", "state", "machine", "leaf", "spine", "address", "simulated", "isolation", "missing_guarantees", "driver_version", "cuda_version", "cuda_installations", "unusable_cuda", "nvswitches", "nics", "nvlinks", "nvlink_domain", "labels", "containers", "outputs_root", "refused_gpus", "lease_remaining_s", "gpus_total", "gpus_free", "reason", "windows", "certificate_ends_at")
    class CudaInstallationsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class UnusableCudaEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class RefusedGpusEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    MACHINE_FIELD_NUMBER: _ClassVar[int]
    LEAF_FIELD_NUMBER: _ClassVar[int]
    SPINE_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    SIMULATED_FIELD_NUMBER: _ClassVar[int]
    ISOLATION_FIELD_NUMBER: _ClassVar[int]
    MISSING_GUARANTEES_FIELD_NUMBER: _ClassVar[int]
    DRIVER_VERSION_FIELD_NUMBER: _ClassVar[int]
    CUDA_VERSION_FIELD_NUMBER: _ClassVar[int]
    CUDA_INSTALLATIONS_FIELD_NUMBER: _ClassVar[int]
    UNUSABLE_CUDA_FIELD_NUMBER: _ClassVar[int]
    NVSWITCHES_FIELD_NUMBER: _ClassVar[int]
    NICS_FIELD_NUMBER: _ClassVar[int]
    NVLINKS_FIELD_NUMBER: _ClassVar[int]
    NVLINK_DOMAIN_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    CONTAINERS_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_ROOT_FIELD_NUMBER: _ClassVar[int]
    REFUSED_GPUS_FIELD_NUMBER: _ClassVar[int]
    LEASE_REMAINING_S_FIELD_NUMBER: _ClassVar[int]
    GPUS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    GPUS_FREE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    WINDOWS_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_ENDS_AT_FIELD_NUMBER: _ClassVar[int]
    name: str
    state: HostState
    machine: str
    leaf: str
    spine: str
    address: str
    simulated: bool
    isolation: str
    missing_guarantees: _containers.RepeatedScalarFieldContainer[str]
    driver_version: str
    cuda_version: str
    cuda_installations: _containers.ScalarMap[str, str]
    unusable_cuda: _containers.ScalarMap[str, str]
    nvswitches: int
    nics: _containers.RepeatedCompositeFieldContainer[Nic]
    nvlinks: _containers.RepeatedCompositeFieldContainer[NvLink]
    nvlink_domain: str
    labels: _containers.ScalarMap[str, str]
    containers: _containers.RepeatedScalarFieldContainer[str]
    outputs_root: str
    refused_gpus: _containers.ScalarMap[str, str]
    lease_remaining_s: float
    gpus_total: int
    gpus_free: int
    reason: str
    windows: _containers.RepeatedCompositeFieldContainer[HostWindow]
    certificate_ends_at: _timestamp_pb2.Timestamp
    def __init__(self, name: _Optional[str] = ..., state: _Optional[_Union[HostState, str]] = ..., machine: _Optional[str] = ..., leaf: _Optional[str] = ..., spine: _Optional[str] = ..., address: _Optional[str] = ..., simulated: _Optional[bool] = ..., isolation: _Optional[str] = ..., missing_guarantees: _Optional[_Iterable[str]] = ..., driver_version: _Optional[str] = ..., cuda_version: _Optional[str] = ..., cuda_installations: _Optional[_Mapping[str, str]] = ..., unusable_cuda: _Optional[_Mapping[str, str]] = ..., nvswitches: _Optional[int] = ..., nics: _Optional[_Iterable[_Union[Nic, _Mapping]]] = ..., nvlinks: _Optional[_Iterable[_Union[NvLink, _Mapping]]] = ..., nvlink_domain: _Optional[str] = ..., labels: _Optional[_Mapping[str, str]] = ..., containers: _Optional[_Iterable[str]] = ..., outputs_root: _Optional[str] = ..., refused_gpus: _Optional[_Mapping[str, str]] = ..., lease_remaining_s: _Optional[float] = ..., gpus_total: _Optional[int] = ..., gpus_free: _Optional[int] = ..., reason: _Optional[str] = ..., windows: _Optional[_Iterable[_Union[HostWindow, _Mapping]]] = ..., certificate_ends_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class HostFigures(_message.Message):
    __slots__ = ("host", "gpus", "host_hours", "allocated_gpu_hours", "allocation_ratio", "gpu_faults", "losses", "mtbf_h")
    HOST_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    HOST_HOURS_FIELD_NUMBER: _ClassVar[int]
    ALLOCATED_GPU_HOURS_FIELD_NUMBER: _ClassVar[int]
    ALLOCATION_RATIO_FIELD_NUMBER: _ClassVar[int]
    GPU_FAULTS_FIELD_NUMBER: _ClassVar[int]
    LOSSES_FIELD_NUMBER: _ClassVar[int]
    MTBF_H_FIELD_NUMBER: _ClassVar[int]
    host: str
    gpus: int
    host_hours: float
    allocated_gpu_hours: float
    allocation_ratio: float
    gpu_faults: int
    losses: int
    mtbf_h: float
    def __init__(self, host: _Optional[str] = ..., gpus: _Optional[int] = ..., host_hours: _Optional[float] = ..., allocated_gpu_hours: _Optional[float] = ..., allocation_ratio: _Optional[float] = ..., gpu_faults: _Optional[int] = ..., losses: _Optional[int] = ..., mtbf_h: _Optional[float] = ...) -> None: ...

class HostInventory(_message.Message):
    __slots__ = ("machine", "driver_version", "cuda_version", "cpus", "ram_mib", "cuda_installations", "unusable_cuda", "mps", "mig_profiles", "simulated", "isolation", "missing_guarantees", "isolates_gangs", "gpus", "nvlinks", "nvlink_generation", "nvswitches", "nics", "source", "nvlink_domain", "labels", "outputs_root", "refused_gpus")
    class CudaInstallationsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class UnusableCudaEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class MigProfilesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: StringList
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[StringList, _Mapping]] = ...) -> None: ...
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class RefusedGpusEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    MACHINE_FIELD_NUMBER: _ClassVar[int]
    DRIVER_VERSION_FIELD_NUMBER: _ClassVar[int]
    CUDA_VERSION_FIELD_NUMBER: _ClassVar[int]
    CPUS_FIELD_NUMBER: _ClassVar[int]
    RAM_MIB_FIELD_NUMBER: _ClassVar[int]
    CUDA_INSTALLATIONS_FIELD_NUMBER: _ClassVar[int]
    UNUSABLE_CUDA_FIELD_NUMBER: _ClassVar[int]
    MPS_FIELD_NUMBER: _ClassVar[int]
    MIG_PROFILES_FIELD_NUMBER: _ClassVar[int]
    SIMULATED_FIELD_NUMBER: _ClassVar[int]
    ISOLATION_FIELD_NUMBER: _ClassVar[int]
    MISSING_GUARANTEES_FIELD_NUMBER: _ClassVar[int]
    ISOLATES_GANGS_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    NVLINKS_FIELD_NUMBER: _ClassVar[int]
    NVLINK_GENERATION_FIELD_NUMBER: _ClassVar[int]
    NVSWITCHES_FIELD_NUMBER: _ClassVar[int]
    NICS_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    NVLINK_DOMAIN_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_ROOT_FIELD_NUMBER: _ClassVar[int]
    REFUSED_GPUS_FIELD_NUMBER: _ClassVar[int]
    machine: str
    driver_version: str
    cuda_version: str
    cpus: int
    ram_mib: int
    cuda_installations: _containers.ScalarMap[str, str]
    unusable_cuda: _containers.ScalarMap[str, str]
    mps: bool
    mig_profiles: _containers.MessageMap[str, StringList]
    simulated: bool
    isolation: str
    missing_guarantees: _containers.RepeatedScalarFieldContainer[str]
    isolates_gangs: bool
    gpus: _containers.RepeatedCompositeFieldContainer[GpuInfo]
    nvlinks: _containers.RepeatedCompositeFieldContainer[NvLink]
    nvlink_generation: int
    nvswitches: int
    nics: _containers.RepeatedCompositeFieldContainer[Nic]
    source: str
    nvlink_domain: str
    labels: _containers.ScalarMap[str, str]
    outputs_root: str
    refused_gpus: _containers.ScalarMap[str, str]
    def __init__(self, machine: _Optional[str] = ..., driver_version: _Optional[str] = ..., cuda_version: _Optional[str] = ..., cpus: _Optional[int] = ..., ram_mib: _Optional[int] = ..., cuda_installations: _Optional[_Mapping[str, str]] = ..., unusable_cuda: _Optional[_Mapping[str, str]] = ..., mps: _Optional[bool] = ..., mig_profiles: _Optional[_Mapping[str, StringList]] = ..., simulated: _Optional[bool] = ..., isolation: _Optional[str] = ..., missing_guarantees: _Optional[_Iterable[str]] = ..., isolates_gangs: _Optional[bool] = ..., gpus: _Optional[_Iterable[_Union[GpuInfo, _Mapping]]] = ..., nvlinks: _Optional[_Iterable[_Union[NvLink, _Mapping]]] = ..., nvlink_generation: _Optional[int] = ..., nvswitches: _Optional[int] = ..., nics: _Optional[_Iterable[_Union[Nic, _Mapping]]] = ..., source: _Optional[str] = ..., nvlink_domain: _Optional[str] = ..., labels: _Optional[_Mapping[str, str]] = ..., outputs_root: _Optional[str] = ..., refused_gpus: _Optional[_Mapping[str, str]] = ...) -> None: ...

class HostPage(_message.Message):
    __slots__ = ("items", "next_cursor")
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    NEXT_CURSOR_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedCompositeFieldContainer[Host]
    next_cursor: str
    def __init__(self, items: _Optional[_Iterable[_Union[Host, _Mapping]]] = ..., next_cursor: _Optional[str] = ...) -> None: ...

class HostRow(_message.Message):
    __slots__ = ("name", "state", "inventory", "leaf", "spine")
    NAME_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    INVENTORY_FIELD_NUMBER: _ClassVar[int]
    LEAF_FIELD_NUMBER: _ClassVar[int]
    SPINE_FIELD_NUMBER: _ClassVar[int]
    name: str
    state: HostState
    inventory: HostInventory
    leaf: str
    spine: str
    def __init__(self, name: _Optional[str] = ..., state: _Optional[_Union[HostState, str]] = ..., inventory: _Optional[_Union[HostInventory, _Mapping]] = ..., leaf: _Optional[str] = ..., spine: _Optional[str] = ...) -> None: ...

class HostSlice(_message.Message):
    __slots__ = ("host", "gpu_uuids", "gpu_indices", "shares", "cpus", "ram_mib", "group")
    HOST_FIELD_NUMBER: _ClassVar[int]
    GPU_UUIDS_FIELD_NUMBER: _ClassVar[int]
    GPU_INDICES_FIELD_NUMBER: _ClassVar[int]
    SHARES_FIELD_NUMBER: _ClassVar[int]
    CPUS_FIELD_NUMBER: _ClassVar[int]
    RAM_MIB_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    host: str
    gpu_uuids: _containers.RepeatedScalarFieldContainer[str]
    gpu_indices: _containers.RepeatedScalarFieldContainer[int]
    shares: _containers.RepeatedCompositeFieldContainer[ShareGrant]
    cpus: int
    ram_mib: int
    group: str
    def __init__(self, host: _Optional[str] = ..., gpu_uuids: _Optional[_Iterable[str]] = ..., gpu_indices: _Optional[_Iterable[int]] = ..., shares: _Optional[_Iterable[_Union[ShareGrant, _Mapping]]] = ..., cpus: _Optional[int] = ..., ram_mib: _Optional[int] = ..., group: _Optional[str] = ...) -> None: ...

class HostUse(_message.Message):
    __slots__ = ("host", "cpus", "ram_mib")
    HOST_FIELD_NUMBER: _ClassVar[int]
    CPUS_FIELD_NUMBER: _ClassVar[int]
    RAM_MIB_FIELD_NUMBER: _ClassVar[int]
    host: str
    cpus: int
    ram_mib: int
    def __init__(self, host: _Optional[str] = ..., cpus: _Optional[int] = ..., ram_mib: _Optional[int] = ...) -> None: ...

class HostWindow(_message.Message):
    __slots__ = ("maintenance", "is_open", "start_at", "end_at", "gpus")
    MAINTENANCE_FIELD_NUMBER: _ClassVar[int]
    IS_OPEN_FIELD_NUMBER: _ClassVar[int]
    START_AT_FIELD_NUMBER: _ClassVar[int]
    END_AT_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    maintenance: bool
    is_open: bool
    start_at: _timestamp_pb2.Timestamp
    end_at: _timestamp_pb2.Timestamp
    gpus: int
    def __init__(self, maintenance: _Optional[bool] = ..., is_open: _Optional[bool] = ..., start_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., end_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., gpus: _Optional[int] = ...) -> None: ...

class Int64List(_message.Message):
    __slots__ = ("items",)
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, items: _Optional[_Iterable[int]] = ...) -> None: ...

class Job(_message.Message):
    __slots__ = ("id", "spec", "state", "attempt", "reason", "placement", "failure", "stopped_by", "exit_code", "user_retries", "hardware_retries", "preemptions", "inferred_kind", "created_at", "queued_at", "retry_at", "started_at", "finished_at", "checkpoint_at", "run_time", "retry_of", "workflow_url", "warnings")
    ID_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    PLACEMENT_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    STOPPED_BY_FIELD_NUMBER: _ClassVar[int]
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    USER_RETRIES_FIELD_NUMBER: _ClassVar[int]
    HARDWARE_RETRIES_FIELD_NUMBER: _ClassVar[int]
    PREEMPTIONS_FIELD_NUMBER: _ClassVar[int]
    INFERRED_KIND_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    QUEUED_AT_FIELD_NUMBER: _ClassVar[int]
    RETRY_AT_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_FIELD_NUMBER: _ClassVar[int]
    FINISHED_AT_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_AT_FIELD_NUMBER: _ClassVar[int]
    RUN_TIME_FIELD_NUMBER: _ClassVar[int]
    RETRY_OF_FIELD_NUMBER: _ClassVar[int]
    WORKFLOW_URL_FIELD_NUMBER: _ClassVar[int]
    WARNINGS_FIELD_NUMBER: _ClassVar[int]
    id: str
    spec: JobSpec
    state: JobState
    attempt: int
    reason: Reason
    placement: Placement
    failure: Failure
    stopped_by: StoppedBy
    exit_code: int
    user_retries: int
    hardware_retries: int
    preemptions: int
    inferred_kind: WorkKind
    created_at: _timestamp_pb2.Timestamp
    queued_at: _timestamp_pb2.Timestamp
    retry_at: _timestamp_pb2.Timestamp
    started_at: _timestamp_pb2.Timestamp
    finished_at: _timestamp_pb2.Timestamp
    checkpoint_at: _timestamp_pb2.Timestamp
    run_time: RunTime
    retry_of: str
    workflow_url: str
    warnings: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, id: _Optional[str] = ..., spec: _Optional[_Union[JobSpec, _Mapping]] = ..., state: _Optional[_Union[JobState, str]] = ..., attempt: _Optional[int] = ..., reason: _Optional[_Union[Reason, _Mapping]] = ..., placement: _Optional[_Union[Placement, _Mapping]] = ..., failure: _Optional[_Union[Failure, _Mapping]] = ..., stopped_by: _Optional[_Union[StoppedBy, _Mapping]] = ..., exit_code: _Optional[int] = ..., user_retries: _Optional[int] = ..., hardware_retries: _Optional[int] = ..., preemptions: _Optional[int] = ..., inferred_kind: _Optional[_Union[WorkKind, str]] = ..., created_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., queued_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., retry_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., started_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., finished_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., checkpoint_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., run_time: _Optional[_Union[RunTime, _Mapping]] = ..., retry_of: _Optional[str] = ..., workflow_url: _Optional[str] = ..., warnings: _Optional[_Iterable[str]] = ...) -> None: ...

class JobChanges(_message.Message):
    __slots__ = ("priority", "time_limit_s", "after", "reservation", "null_fields")
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    TIME_LIMIT_S_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    RESERVATION_FIELD_NUMBER: _ClassVar[int]
    NULL_FIELDS_FIELD_NUMBER: _ClassVar[int]
    priority: int
    time_limit_s: int
    after: DependencyList
    reservation: str
    null_fields: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, priority: _Optional[int] = ..., time_limit_s: _Optional[int] = ..., after: _Optional[_Union[DependencyList, _Mapping]] = ..., reservation: _Optional[str] = ..., null_fields: _Optional[_Iterable[str]] = ...) -> None: ...

class JobEnvironment(_message.Message):
    __slots__ = ("upload", "venv", "modules", "container", "outputs", "null_fields")
    UPLOAD_FIELD_NUMBER: _ClassVar[int]
    VENV_FIELD_NUMBER: _ClassVar[int]
    MODULES_FIELD_NUMBER: _ClassVar[int]
    CONTAINER_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    NULL_FIELDS_FIELD_NUMBER: _ClassVar[int]
    upload: str
    venv: str
    modules: _containers.RepeatedScalarFieldContainer[str]
    container: str
    outputs: str
    null_fields: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, upload: _Optional[str] = ..., venv: _Optional[str] = ..., modules: _Optional[_Iterable[str]] = ..., container: _Optional[str] = ..., outputs: _Optional[str] = ..., null_fields: _Optional[_Iterable[str]] = ...) -> None: ...

class JobFigures(_message.Message):
    __slots__ = ("submitted", "completed", "failed", "cancelled", "completed_per_hour", "success_ratio", "retries", "preemptions", "wait_s", "completion_s", "failures")
    class FailuresEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    SUBMITTED_FIELD_NUMBER: _ClassVar[int]
    COMPLETED_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    CANCELLED_FIELD_NUMBER: _ClassVar[int]
    COMPLETED_PER_HOUR_FIELD_NUMBER: _ClassVar[int]
    SUCCESS_RATIO_FIELD_NUMBER: _ClassVar[int]
    RETRIES_FIELD_NUMBER: _ClassVar[int]
    PREEMPTIONS_FIELD_NUMBER: _ClassVar[int]
    WAIT_S_FIELD_NUMBER: _ClassVar[int]
    COMPLETION_S_FIELD_NUMBER: _ClassVar[int]
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    submitted: int
    completed: int
    failed: int
    cancelled: int
    completed_per_hour: float
    success_ratio: float
    retries: int
    preemptions: int
    wait_s: Spread
    completion_s: Spread
    failures: _containers.ScalarMap[str, int]
    def __init__(self, submitted: _Optional[int] = ..., completed: _Optional[int] = ..., failed: _Optional[int] = ..., cancelled: _Optional[int] = ..., completed_per_hour: _Optional[float] = ..., success_ratio: _Optional[float] = ..., retries: _Optional[int] = ..., preemptions: _Optional[int] = ..., wait_s: _Optional[_Union[Spread, _Mapping]] = ..., completion_s: _Optional[_Union[Spread, _Mapping]] = ..., failures: _Optional[_Mapping[str, int]] = ...) -> None: ...

class JobPage(_message.Message):
    __slots__ = ("items", "next_cursor")
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    NEXT_CURSOR_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedCompositeFieldContainer[Job]
    next_cursor: str
    def __init__(self, items: _Optional[_Iterable[_Union[Job, _Mapping]]] = ..., next_cursor: _Optional[str] = ...) -> None: ...

class JobSpec(_message.Message):
    __slots__ = ("require_isolation", "name", "namespace", "user", "command", "env", "workdir", "gpus", "groups", "spare_hosts", "keep_reservation_s", "rank_per", "launcher", "preemptible", "checkpoints", "checkpoint", "priority", "kind", "begin_at", "deadline_at", "after", "if_unmet", "hold", "reservation", "time_limit_s", "warn_before_s", "warn_signal", "warn_program_only", "hang_limit_s", "idle_limit_s", "power_limit_w", "max_retries", "max_hardware_retries", "retry_wait_s", "retry_longest_wait_s", "grace_s", "secrets", "job_token", "notify", "readable_by", "artifacts", "environment", "fencing", "null_fields")
    class EnvEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    REQUIRE_ISOLATION_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    ENV_FIELD_NUMBER: _ClassVar[int]
    WORKDIR_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    SPARE_HOSTS_FIELD_NUMBER: _ClassVar[int]
    KEEP_RESERVATION_S_FIELD_NUMBER: _ClassVar[int]
    RANK_PER_FIELD_NUMBER: _ClassVar[int]
    LAUNCHER_FIELD_NUMBER: _ClassVar[int]
    PREEMPTIBLE_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINTS_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    BEGIN_AT_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_AT_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    IF_UNMET_FIELD_NUMBER: _ClassVar[int]
    HOLD_FIELD_NUMBER: _ClassVar[int]
    RESERVATION_FIELD_NUMBER: _ClassVar[int]
    TIME_LIMIT_S_FIELD_NUMBER: _ClassVar[int]
    WARN_BEFORE_S_FIELD_NUMBER: _ClassVar[int]
    WARN_SIGNAL_FIELD_NUMBER: _ClassVar[int]
    WARN_PROGRAM_ONLY_FIELD_NUMBER: _ClassVar[int]
    HANG_LIMIT_S_FIELD_NUMBER: _ClassVar[int]
    IDLE_LIMIT_S_FIELD_NUMBER: _ClassVar[int]
    POWER_LIMIT_W_FIELD_NUMBER: _ClassVar[int]
    MAX_RETRIES_FIELD_NUMBER: _ClassVar[int]
    MAX_HARDWARE_RETRIES_FIELD_NUMBER: _ClassVar[int]
    RETRY_WAIT_S_FIELD_NUMBER: _ClassVar[int]
    RETRY_LONGEST_WAIT_S_FIELD_NUMBER: _ClassVar[int]
    GRACE_S_FIELD_NUMBER: _ClassVar[int]
    SECRETS_FIELD_NUMBER: _ClassVar[int]
    JOB_TOKEN_FIELD_NUMBER: _ClassVar[int]
    NOTIFY_FIELD_NUMBER: _ClassVar[int]
    READABLE_BY_FIELD_NUMBER: _ClassVar[int]
    ARTIFACTS_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENT_FIELD_NUMBER: _ClassVar[int]
    FENCING_FIELD_NUMBER: _ClassVar[int]
    NULL_FIELDS_FIELD_NUMBER: _ClassVar[int]
    require_isolation: bool
    name: str
    namespace: str
    user: str
    command: _containers.RepeatedScalarFieldContainer[str]
    env: _containers.ScalarMap[str, str]
    workdir: str
    gpus: ResourceRequest
    groups: _containers.RepeatedCompositeFieldContainer[RankGroup]
    spare_hosts: int
    keep_reservation_s: int
    rank_per: RankPer
    launcher: Launcher
    preemptible: bool
    checkpoints: bool
    checkpoint: CheckpointPolicy
    priority: int
    kind: WorkKind
    begin_at: _timestamp_pb2.Timestamp
    deadline_at: _timestamp_pb2.Timestamp
    after: _containers.RepeatedCompositeFieldContainer[Dependency]
    if_unmet: IfUnmet
    hold: bool
    reservation: str
    time_limit_s: int
    warn_before_s: int
    warn_signal: str
    warn_program_only: bool
    hang_limit_s: int
    idle_limit_s: int
    power_limit_w: int
    max_retries: int
    max_hardware_retries: int
    retry_wait_s: float
    retry_longest_wait_s: float
    grace_s: float
    secrets: _containers.RepeatedCompositeFieldContainer[SecretUse]
    job_token: bool
    notify: _containers.RepeatedCompositeFieldContainer[NotifyRule]
    readable_by: ReadableBy
    artifacts: Artifacts
    environment: JobEnvironment
    fencing: Fencing
    null_fields: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, require_isolation: _Optional[bool] = ..., name: _Optional[str] = ..., namespace: _Optional[str] = ..., user: _Optional[str] = ..., command: _Optional[_Iterable[str]] = ..., env: _Optional[_Mapping[str, str]] = ..., workdir: _Optional[str] = ..., gpus: _Optional[_Union[ResourceRequest, _Mapping]] = ..., groups: _Optional[_Iterable[_Union[RankGroup, _Mapping]]] = ..., spare_hosts: _Optional[int] = ..., keep_reservation_s: _Optional[int] = ..., rank_per: _Optional[_Union[RankPer, str]] = ..., launcher: _Optional[_Union[Launcher, str]] = ..., preemptible: _Optional[bool] = ..., checkpoints: _Optional[bool] = ..., checkpoint: _Optional[_Union[CheckpointPolicy, _Mapping]] = ..., priority: _Optional[int] = ..., kind: _Optional[_Union[WorkKind, str]] = ..., begin_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., deadline_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., after: _Optional[_Iterable[_Union[Dependency, _Mapping]]] = ..., if_unmet: _Optional[_Union[IfUnmet, str]] = ..., hold: _Optional[bool] = ..., reservation: _Optional[str] = ..., time_limit_s: _Optional[int] = ..., warn_before_s: _Optional[int] = ..., warn_signal: _Optional[str] = ..., warn_program_only: _Optional[bool] = ..., hang_limit_s: _Optional[int] = ..., idle_limit_s: _Optional[int] = ..., power_limit_w: _Optional[int] = ..., max_retries: _Optional[int] = ..., max_hardware_retries: _Optional[int] = ..., retry_wait_s: _Optional[float] = ..., retry_longest_wait_s: _Optional[float] = ..., grace_s: _Optional[float] = ..., secrets: _Optional[_Iterable[_Union[SecretUse, _Mapping]]] = ..., job_token: _Optional[bool] = ..., notify: _Optional[_Iterable[_Union[NotifyRule, _Mapping]]] = ..., readable_by: _Optional[_Union[ReadableBy, str]] = ..., artifacts: _Optional[_Union[Artifacts, _Mapping]] = ..., environment: _Optional[_Union[JobEnvironment, _Mapping]] = ..., fencing: _Optional[_Union[Fencing, str]] = ..., null_fields: _Optional[_Iterable[str]] = ...) -> None: ...

class JobUsage(_message.Message):
    __slots__ = ("total", "attempts", "running")
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    total: Totals
    attempts: _containers.RepeatedCompositeFieldContainer[AttemptUsage]
    running: RunningUsage
    def __init__(self, total: _Optional[_Union[Totals, _Mapping]] = ..., attempts: _Optional[_Iterable[_Union[AttemptUsage, _Mapping]]] = ..., running: _Optional[_Union[RunningUsage, _Mapping]] = ...) -> None: ...

class KindOfWork(_message.Message):
    __slots__ = ("strategy", "priority")
    STRATEGY_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    strategy: str
    priority: int
    def __init__(self, strategy: _Optional[str] = ..., priority: _Optional[int] = ...) -> None: ...

class LogChunk(_message.Message):
    __slots__ = ("attempt", "rank", "next_offset", "text", "note")
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    attempt: int
    rank: int
    next_offset: int
    text: str
    note: str
    def __init__(self, attempt: _Optional[int] = ..., rank: _Optional[int] = ..., next_offset: _Optional[int] = ..., text: _Optional[str] = ..., note: _Optional[str] = ...) -> None: ...

class LoginInfo(_message.Message):
    __slots__ = ("issuer", "client_id", "scopes", "use_id_token")
    ISSUER_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    SCOPES_FIELD_NUMBER: _ClassVar[int]
    USE_ID_TOKEN_FIELD_NUMBER: _ClassVar[int]
    issuer: str
    client_id: str
    scopes: _containers.RepeatedScalarFieldContainer[str]
    use_id_token: bool
    def __init__(self, issuer: _Optional[str] = ..., client_id: _Optional[str] = ..., scopes: _Optional[_Iterable[str]] = ..., use_id_token: _Optional[bool] = ...) -> None: ...

class MetricsHistory(_message.Message):
    __slots__ = ("since", "until", "sample_s", "point_s", "gpus", "hosts", "unmeasured_hosts", "retention_days", "utilization_percent", "memory_used_mib", "temperature_c", "power_w", "prometheus_url")
    class UnmeasuredHostsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    SINCE_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_S_FIELD_NUMBER: _ClassVar[int]
    POINT_S_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    HOSTS_FIELD_NUMBER: _ClassVar[int]
    UNMEASURED_HOSTS_FIELD_NUMBER: _ClassVar[int]
    RETENTION_DAYS_FIELD_NUMBER: _ClassVar[int]
    UTILIZATION_PERCENT_FIELD_NUMBER: _ClassVar[int]
    MEMORY_USED_MIB_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_C_FIELD_NUMBER: _ClassVar[int]
    POWER_W_FIELD_NUMBER: _ClassVar[int]
    PROMETHEUS_URL_FIELD_NUMBER: _ClassVar[int]
    since: _timestamp_pb2.Timestamp
    until: _timestamp_pb2.Timestamp
    sample_s: int
    point_s: int
    gpus: int
    hosts: _containers.RepeatedScalarFieldContainer[str]
    unmeasured_hosts: _containers.ScalarMap[str, str]
    retention_days: int
    utilization_percent: Figures
    memory_used_mib: Figures
    temperature_c: Figures
    power_w: Figures
    prometheus_url: str
    def __init__(self, since: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., until: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., sample_s: _Optional[int] = ..., point_s: _Optional[int] = ..., gpus: _Optional[int] = ..., hosts: _Optional[_Iterable[str]] = ..., unmeasured_hosts: _Optional[_Mapping[str, str]] = ..., retention_days: _Optional[int] = ..., utilization_percent: _Optional[_Union[Figures, _Mapping]] = ..., memory_used_mib: _Optional[_Union[Figures, _Mapping]] = ..., temperature_c: _Optional[_Union[Figures, _Mapping]] = ..., power_w: _Optional[_Union[Figures, _Mapping]] = ..., prometheus_url: _Optional[str] = ...) -> None: ...

class ModelFigures(_message.Message):
    __slots__ = ("model", "gpus", "gpu_hours", "gpu_faults", "mtbf_h")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    GPU_HOURS_FIELD_NUMBER: _ClassVar[int]
    GPU_FAULTS_FIELD_NUMBER: _ClassVar[int]
    MTBF_H_FIELD_NUMBER: _ClassVar[int]
    model: str
    gpus: int
    gpu_hours: float
    gpu_faults: int
    mtbf_h: float
    def __init__(self, model: _Optional[str] = ..., gpus: _Optional[int] = ..., gpu_hours: _Optional[float] = ..., gpu_faults: _Optional[int] = ..., mtbf_h: _Optional[float] = ...) -> None: ...

class NewToken(_message.Message):
    __slots__ = ("token", "info")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    INFO_FIELD_NUMBER: _ClassVar[int]
    token: str
    info: TokenInfo
    def __init__(self, token: _Optional[str] = ..., info: _Optional[_Union[TokenInfo, _Mapping]] = ...) -> None: ...

class Nic(_message.Message):
    __slots__ = ("name", "kind", "pci_bus_id", "numa_node", "gpus")
    NAME_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    PCI_BUS_ID_FIELD_NUMBER: _ClassVar[int]
    NUMA_NODE_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    name: str
    kind: NicKind
    pci_bus_id: str
    numa_node: int
    gpus: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, name: _Optional[str] = ..., kind: _Optional[_Union[NicKind, str]] = ..., pci_bus_id: _Optional[str] = ..., numa_node: _Optional[int] = ..., gpus: _Optional[_Iterable[int]] = ...) -> None: ...

class NotifyRule(_message.Message):
    __slots__ = ("events", "target", "address", "null_fields")
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    NULL_FIELDS_FIELD_NUMBER: _ClassVar[int]
    events: _containers.RepeatedScalarFieldContainer[NotifyOn]
    target: str
    address: str
    null_fields: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, events: _Optional[_Iterable[_Union[NotifyOn, str]]] = ..., target: _Optional[str] = ..., address: _Optional[str] = ..., null_fields: _Optional[_Iterable[str]] = ...) -> None: ...

class NvLink(_message.Message):
    __slots__ = ("a", "b", "links")
    A_FIELD_NUMBER: _ClassVar[int]
    B_FIELD_NUMBER: _ClassVar[int]
    LINKS_FIELD_NUMBER: _ClassVar[int]
    a: int
    b: int
    links: int
    def __init__(self, a: _Optional[int] = ..., b: _Optional[int] = ..., links: _Optional[int] = ...) -> None: ...

class OptionalShareGrant(_message.Message):
    __slots__ = ("value",)
    VALUE_FIELD_NUMBER: _ClassVar[int]
    value: ShareGrant
    def __init__(self, value: _Optional[_Union[ShareGrant, _Mapping]] = ...) -> None: ...

class ParameterTable(_message.Message):
    __slots__ = ("names", "rows")
    NAMES_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    names: _containers.RepeatedScalarFieldContainer[str]
    rows: _containers.RepeatedCompositeFieldContainer[StringList]
    def __init__(self, names: _Optional[_Iterable[str]] = ..., rows: _Optional[_Iterable[_Union[StringList, _Mapping]]] = ...) -> None: ...

class PastUseRow(_message.Message):
    __slots__ = ("namespace", "user", "gpus", "begin", "end")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    user: str
    gpus: float
    begin: float
    end: float
    def __init__(self, namespace: _Optional[str] = ..., user: _Optional[str] = ..., gpus: _Optional[float] = ..., begin: _Optional[float] = ..., end: _Optional[float] = ...) -> None: ...

class PeriodPart(_message.Message):
    __slots__ = ("begin", "hours", "gpu_hours", "allocated_gpu_hours", "submitted", "completed", "failed")
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    HOURS_FIELD_NUMBER: _ClassVar[int]
    GPU_HOURS_FIELD_NUMBER: _ClassVar[int]
    ALLOCATED_GPU_HOURS_FIELD_NUMBER: _ClassVar[int]
    SUBMITTED_FIELD_NUMBER: _ClassVar[int]
    COMPLETED_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    begin: _timestamp_pb2.Timestamp
    hours: float
    gpu_hours: float
    allocated_gpu_hours: float
    submitted: int
    completed: int
    failed: int
    def __init__(self, begin: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., hours: _Optional[float] = ..., gpu_hours: _Optional[float] = ..., allocated_gpu_hours: _Optional[float] = ..., submitted: _Optional[int] = ..., completed: _Optional[int] = ..., failed: _Optional[int] = ...) -> None: ...

class PermissionList(_message.Message):
    __slots__ = ("items",)
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedScalarFieldContainer[Permission]
    def __init__(self, items: _Optional[_Iterable[_Union[Permission, str]]] = ...) -> None: ...

class Pipeline(_message.Message):
    __slots__ = ("id", "name", "namespace", "user", "state", "parameters", "created_at", "finished_at", "stopped_by", "steps")
    class ParametersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: _struct_pb2.Value
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_struct_pb2.Value, _Mapping]] = ...) -> None: ...
    ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    FINISHED_AT_FIELD_NUMBER: _ClassVar[int]
    STOPPED_BY_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    id: str
    name: str
    namespace: str
    user: str
    state: PipelineState
    parameters: _containers.MessageMap[str, _struct_pb2.Value]
    created_at: _timestamp_pb2.Timestamp
    finished_at: _timestamp_pb2.Timestamp
    stopped_by: StoppedBy
    steps: _containers.RepeatedCompositeFieldContainer[StepStatus]
    def __init__(self, id: _Optional[str] = ..., name: _Optional[str] = ..., namespace: _Optional[str] = ..., user: _Optional[str] = ..., state: _Optional[_Union[PipelineState, str]] = ..., parameters: _Optional[_Mapping[str, _struct_pb2.Value]] = ..., created_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., finished_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., stopped_by: _Optional[_Union[StoppedBy, _Mapping]] = ..., steps: _Optional[_Iterable[_Union[StepStatus, _Mapping]]] = ...) -> None: ...

class PipelinePage(_message.Message):
    __slots__ = ("items", "next_cursor")
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    NEXT_CURSOR_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedCompositeFieldContainer[Pipeline]
    next_cursor: str
    def __init__(self, items: _Optional[_Iterable[_Union[Pipeline, _Mapping]]] = ..., next_cursor: _Optional[str] = ...) -> None: ...

class PipelineRequest(_message.Message):
    __slots__ = ("file", "parameters", "workdir", "cache", "dry_run", "null_fields")
    class ParametersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: _struct_pb2.Value
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_struct_pb2.Value, _Mapping]] = ...) -> None: ...
    FILE_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    WORKDIR_FIELD_NUMBER: _ClassVar[int]
    CACHE_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    NULL_FIELDS_FIELD_NUMBER: _ClassVar[int]
    file: str
    parameters: _containers.MessageMap[str, _struct_pb2.Value]
    workdir: str
    cache: bool
    dry_run: bool
    null_fields: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, file: _Optional[str] = ..., parameters: _Optional[_Mapping[str, _struct_pb2.Value]] = ..., workdir: _Optional[str] = ..., cache: _Optional[bool] = ..., dry_run: _Optional[bool] = ..., null_fields: _Optional[_Iterable[str]] = ...) -> None: ...

class Placement(_message.Message):
    __slots__ = ("slices", "level", "bandwidth_gb_s", "score", "why", "scores", "epoch", "decided_in_ms")
    SLICES_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    BANDWIDTH_GB_S_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    SCORES_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    DECIDED_IN_MS_FIELD_NUMBER: _ClassVar[int]
    slices: _containers.RepeatedCompositeFieldContainer[HostSlice]
    level: TopologyLevel
    bandwidth_gb_s: float
    score: float
    why: str
    scores: ScoreTable
    epoch: int
    decided_in_ms: float
    def __init__(self, slices: _Optional[_Iterable[_Union[HostSlice, _Mapping]]] = ..., level: _Optional[_Union[TopologyLevel, str]] = ..., bandwidth_gb_s: _Optional[float] = ..., score: _Optional[float] = ..., why: _Optional[str] = ..., scores: _Optional[_Union[ScoreTable, _Mapping]] = ..., epoch: _Optional[int] = ..., decided_in_ms: _Optional[float] = ...) -> None: ...

class PlacementHostCount(_message.Message):
    __slots__ = ("code", "hosts", "asked", "available", "filter")
    CODE_FIELD_NUMBER: _ClassVar[int]
    HOSTS_FIELD_NUMBER: _ClassVar[int]
    ASKED_FIELD_NUMBER: _ClassVar[int]
    AVAILABLE_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    code: ReasonCode
    hosts: int
    asked: str
    available: str
    filter: str
    def __init__(self, code: _Optional[_Union[ReasonCode, str]] = ..., hosts: _Optional[int] = ..., asked: _Optional[str] = ..., available: _Optional[str] = ..., filter: _Optional[str] = ...) -> None: ...

class PlacementRequest(_message.Message):
    __slots__ = ("job_id", "attempt", "gpus", "priority", "namespace", "user", "enqueued_at", "excluded_gpus", "excluded_hosts", "class_key", "task_token", "time_limit_s", "preemptible", "checkpoints", "grace_s", "groups", "run_time", "assumed_limit_s", "group")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    ENQUEUED_AT_FIELD_NUMBER: _ClassVar[int]
    EXCLUDED_GPUS_FIELD_NUMBER: _ClassVar[int]
    EXCLUDED_HOSTS_FIELD_NUMBER: _ClassVar[int]
    CLASS_KEY_FIELD_NUMBER: _ClassVar[int]
    TASK_TOKEN_FIELD_NUMBER: _ClassVar[int]
    TIME_LIMIT_S_FIELD_NUMBER: _ClassVar[int]
    PREEMPTIBLE_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINTS_FIELD_NUMBER: _ClassVar[int]
    GRACE_S_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    RUN_TIME_FIELD_NUMBER: _ClassVar[int]
    ASSUMED_LIMIT_S_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    attempt: int
    gpus: ResourceRequest
    priority: int
    namespace: str
    user: str
    enqueued_at: float
    excluded_gpus: _containers.RepeatedScalarFieldContainer[str]
    excluded_hosts: _containers.RepeatedScalarFieldContainer[str]
    class_key: str
    task_token: str
    time_limit_s: float
    preemptible: bool
    checkpoints: bool
    grace_s: float
    groups: _containers.RepeatedCompositeFieldContainer[PlacementRequestGroups]
    run_time: RunTime
    assumed_limit_s: float
    group: str
    def __init__(self, job_id: _Optional[str] = ..., attempt: _Optional[int] = ..., gpus: _Optional[_Union[ResourceRequest, _Mapping]] = ..., priority: _Optional[int] = ..., namespace: _Optional[str] = ..., user: _Optional[str] = ..., enqueued_at: _Optional[float] = ..., excluded_gpus: _Optional[_Iterable[str]] = ..., excluded_hosts: _Optional[_Iterable[str]] = ..., class_key: _Optional[str] = ..., task_token: _Optional[str] = ..., time_limit_s: _Optional[float] = ..., preemptible: _Optional[bool] = ..., checkpoints: _Optional[bool] = ..., grace_s: _Optional[float] = ..., groups: _Optional[_Iterable[_Union[PlacementRequestGroups, _Mapping]]] = ..., run_time: _Optional[_Union[RunTime, _Mapping]] = ..., assumed_limit_s: _Optional[float] = ..., group: _Optional[str] = ...) -> None: ...

class PlacementRequestGroups(_message.Message):
    __slots__ = ("first", "second")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    SECOND_FIELD_NUMBER: _ClassVar[int]
    first: str
    second: ResourceRequest
    def __init__(self, first: _Optional[str] = ..., second: _Optional[_Union[ResourceRequest, _Mapping]] = ...) -> None: ...

class Point(_message.Message):
    __slots__ = ("at", "mean", "max")
    AT_FIELD_NUMBER: _ClassVar[int]
    MEAN_FIELD_NUMBER: _ClassVar[int]
    MAX_FIELD_NUMBER: _ClassVar[int]
    at: _timestamp_pb2.Timestamp
    mean: float
    max: int
    def __init__(self, at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., mean: _Optional[float] = ..., max: _Optional[int] = ...) -> None: ...

class Problem(_message.Message):
    __slots__ = ("type", "title", "status", "detail", "code", "retryable", "instance", "errors", "details")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    TITLE_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    RETRYABLE_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    ERRORS_FIELD_NUMBER: _ClassVar[int]
    DETAILS_FIELD_NUMBER: _ClassVar[int]
    type: str
    title: str
    status: int
    detail: str
    code: str
    retryable: bool
    instance: str
    errors: _containers.RepeatedCompositeFieldContainer[FieldError]
    details: _struct_pb2.Struct
    def __init__(self, type: _Optional[str] = ..., title: _Optional[str] = ..., status: _Optional[int] = ..., detail: _Optional[str] = ..., code: _Optional[str] = ..., retryable: _Optional[bool] = ..., instance: _Optional[str] = ..., errors: _Optional[_Iterable[_Union[FieldError, _Mapping]]] = ..., details: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ...) -> None: ...

class PromisedHost(_message.Message):
    __slots__ = ("host", "gpu_indices")
    HOST_FIELD_NUMBER: _ClassVar[int]
    GPU_INDICES_FIELD_NUMBER: _ClassVar[int]
    host: str
    gpu_indices: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, host: _Optional[str] = ..., gpu_indices: _Optional[_Iterable[int]] = ...) -> None: ...

class PromisedPlace(_message.Message):
    __slots__ = ("host", "gpu_uuids", "host_resources")
    HOST_FIELD_NUMBER: _ClassVar[int]
    GPU_UUIDS_FIELD_NUMBER: _ClassVar[int]
    HOST_RESOURCES_FIELD_NUMBER: _ClassVar[int]
    host: str
    gpu_uuids: _containers.RepeatedScalarFieldContainer[str]
    host_resources: bool
    def __init__(self, host: _Optional[str] = ..., gpu_uuids: _Optional[_Iterable[str]] = ..., host_resources: _Optional[bool] = ...) -> None: ...

class PromisedStart(_message.Message):
    __slots__ = ("job_id", "attempt", "start", "given_at", "class_key", "time_limit_s", "places", "waits_for")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    GIVEN_AT_FIELD_NUMBER: _ClassVar[int]
    CLASS_KEY_FIELD_NUMBER: _ClassVar[int]
    TIME_LIMIT_S_FIELD_NUMBER: _ClassVar[int]
    PLACES_FIELD_NUMBER: _ClassVar[int]
    WAITS_FOR_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    attempt: int
    start: float
    given_at: float
    class_key: str
    time_limit_s: float
    places: _containers.RepeatedCompositeFieldContainer[PromisedPlace]
    waits_for: str
    def __init__(self, job_id: _Optional[str] = ..., attempt: _Optional[int] = ..., start: _Optional[float] = ..., given_at: _Optional[float] = ..., class_key: _Optional[str] = ..., time_limit_s: _Optional[float] = ..., places: _Optional[_Iterable[_Union[PromisedPlace, _Mapping]]] = ..., waits_for: _Optional[str] = ...) -> None: ...

class QueueEntry(_message.Message):
    __slots__ = ("position", "job_id", "attempt", "waiting_since", "spec", "reason")
    POSITION_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    WAITING_SINCE_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    position: int
    job_id: str
    attempt: int
    waiting_since: _timestamp_pb2.Timestamp
    spec: JobSpec
    reason: Reason
    def __init__(self, position: _Optional[int] = ..., job_id: _Optional[str] = ..., attempt: _Optional[int] = ..., waiting_since: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., spec: _Optional[_Union[JobSpec, _Mapping]] = ..., reason: _Optional[_Union[Reason, _Mapping]] = ...) -> None: ...

class QueueEntryPage(_message.Message):
    __slots__ = ("items", "next_cursor")
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    NEXT_CURSOR_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedCompositeFieldContainer[QueueEntry]
    next_cursor: str
    def __init__(self, items: _Optional[_Iterable[_Union[QueueEntry, _Mapping]]] = ..., next_cursor: _Optional[str] = ...) -> None: ...

class QuotaUse(_message.Message):
    __slots__ = ("namespace", "parent", "weight", "guaranteed_gpus", "limit_gpus", "max_gpus_per_user", "max_job_duration_s", "max_queue_size", "held_gpus", "held_by_user", "waiting_jobs")
    class HeldByUserEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    PARENT_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    GUARANTEED_GPUS_FIELD_NUMBER: _ClassVar[int]
    LIMIT_GPUS_FIELD_NUMBER: _ClassVar[int]
    MAX_GPUS_PER_USER_FIELD_NUMBER: _ClassVar[int]
    MAX_JOB_DURATION_S_FIELD_NUMBER: _ClassVar[int]
    MAX_QUEUE_SIZE_FIELD_NUMBER: _ClassVar[int]
    HELD_GPUS_FIELD_NUMBER: _ClassVar[int]
    HELD_BY_USER_FIELD_NUMBER: _ClassVar[int]
    WAITING_JOBS_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    parent: str
    weight: float
    guaranteed_gpus: int
    limit_gpus: int
    max_gpus_per_user: int
    max_job_duration_s: int
    max_queue_size: int
    held_gpus: float
    held_by_user: _containers.ScalarMap[str, float]
    waiting_jobs: int
    def __init__(self, namespace: _Optional[str] = ..., parent: _Optional[str] = ..., weight: _Optional[float] = ..., guaranteed_gpus: _Optional[int] = ..., limit_gpus: _Optional[int] = ..., max_gpus_per_user: _Optional[int] = ..., max_job_duration_s: _Optional[int] = ..., max_queue_size: _Optional[int] = ..., held_gpus: _Optional[float] = ..., held_by_user: _Optional[_Mapping[str, float]] = ..., waiting_jobs: _Optional[int] = ...) -> None: ...

class QuotaUsePage(_message.Message):
    __slots__ = ("items", "next_cursor")
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    NEXT_CURSOR_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedCompositeFieldContainer[QuotaUse]
    next_cursor: str
    def __init__(self, items: _Optional[_Iterable[_Union[QuotaUse, _Mapping]]] = ..., next_cursor: _Optional[str] = ...) -> None: ...

class RankGroup(_message.Message):
    __slots__ = ("name", "gpus", "command", "env", "rank_per", "null_fields")
    class EnvEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    ENV_FIELD_NUMBER: _ClassVar[int]
    RANK_PER_FIELD_NUMBER: _ClassVar[int]
    NULL_FIELDS_FIELD_NUMBER: _ClassVar[int]
    name: str
    gpus: ResourceRequest
    command: StringList
    env: _containers.ScalarMap[str, str]
    rank_per: RankPer
    null_fields: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., gpus: _Optional[_Union[ResourceRequest, _Mapping]] = ..., command: _Optional[_Union[StringList, _Mapping]] = ..., env: _Optional[_Mapping[str, str]] = ..., rank_per: _Optional[_Union[RankPer, str]] = ..., null_fields: _Optional[_Iterable[str]] = ...) -> None: ...

class RankUsage(_message.Message):
    __slots__ = ("rank", "host", "seconds", "gpu_seconds", "mean_utilization_percent", "peak_utilization_percent", "mean_gpu_memory_mib", "peak_gpu_memory_mib", "energy_j", "cpu_s", "peak_memory_mib", "ecc_errors", "throttled_s")
    RANK_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    GPU_SECONDS_FIELD_NUMBER: _ClassVar[int]
    MEAN_UTILIZATION_PERCENT_FIELD_NUMBER: _ClassVar[int]
    PEAK_UTILIZATION_PERCENT_FIELD_NUMBER: _ClassVar[int]
    MEAN_GPU_MEMORY_MIB_FIELD_NUMBER: _ClassVar[int]
    PEAK_GPU_MEMORY_MIB_FIELD_NUMBER: _ClassVar[int]
    ENERGY_J_FIELD_NUMBER: _ClassVar[int]
    CPU_S_FIELD_NUMBER: _ClassVar[int]
    PEAK_MEMORY_MIB_FIELD_NUMBER: _ClassVar[int]
    ECC_ERRORS_FIELD_NUMBER: _ClassVar[int]
    THROTTLED_S_FIELD_NUMBER: _ClassVar[int]
    rank: int
    host: str
    seconds: float
    gpu_seconds: float
    mean_utilization_percent: float
    peak_utilization_percent: int
    mean_gpu_memory_mib: float
    peak_gpu_memory_mib: int
    energy_j: float
    cpu_s: float
    peak_memory_mib: int
    ecc_errors: int
    throttled_s: float
    def __init__(self, rank: _Optional[int] = ..., host: _Optional[str] = ..., seconds: _Optional[float] = ..., gpu_seconds: _Optional[float] = ..., mean_utilization_percent: _Optional[float] = ..., peak_utilization_percent: _Optional[int] = ..., mean_gpu_memory_mib: _Optional[float] = ..., peak_gpu_memory_mib: _Optional[int] = ..., energy_j: _Optional[float] = ..., cpu_s: _Optional[float] = ..., peak_memory_mib: _Optional[int] = ..., ecc_errors: _Optional[int] = ..., throttled_s: _Optional[float] = ...) -> None: ...

class Reason(_message.Message):
    __slots__ = ("code", "message", "counts", "next_step", "holders", "more_holders", "starts_by", "promised_hosts", "estimated_start", "estimate", "estimated_between", "first_job", "position")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    NEXT_STEP_FIELD_NUMBER: _ClassVar[int]
    HOLDERS_FIELD_NUMBER: _ClassVar[int]
    MORE_HOLDERS_FIELD_NUMBER: _ClassVar[int]
    STARTS_BY_FIELD_NUMBER: _ClassVar[int]
    PROMISED_HOSTS_FIELD_NUMBER: _ClassVar[int]
    ESTIMATED_START_FIELD_NUMBER: _ClassVar[int]
    ESTIMATE_FIELD_NUMBER: _ClassVar[int]
    ESTIMATED_BETWEEN_FIELD_NUMBER: _ClassVar[int]
    FIRST_JOB_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    code: WaitCode
    message: str
    counts: _containers.RepeatedCompositeFieldContainer[PlacementHostCount]
    next_step: str
    holders: _containers.RepeatedCompositeFieldContainer[BlockingJob]
    more_holders: int
    starts_by: float
    promised_hosts: _containers.RepeatedCompositeFieldContainer[PromisedHost]
    estimated_start: float
    estimate: EstimateBasis
    estimated_between: ReasonEstimatedBetween
    first_job: str
    position: int
    def __init__(self, code: _Optional[_Union[WaitCode, str]] = ..., message: _Optional[str] = ..., counts: _Optional[_Iterable[_Union[PlacementHostCount, _Mapping]]] = ..., next_step: _Optional[str] = ..., holders: _Optional[_Iterable[_Union[BlockingJob, _Mapping]]] = ..., more_holders: _Optional[int] = ..., starts_by: _Optional[float] = ..., promised_hosts: _Optional[_Iterable[_Union[PromisedHost, _Mapping]]] = ..., estimated_start: _Optional[float] = ..., estimate: _Optional[_Union[EstimateBasis, str]] = ..., estimated_between: _Optional[_Union[ReasonEstimatedBetween, _Mapping]] = ..., first_job: _Optional[str] = ..., position: _Optional[int] = ...) -> None: ...

class ReasonBody(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class ReasonEstimatedBetween(_message.Message):
    __slots__ = ("first", "second")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    SECOND_FIELD_NUMBER: _ClassVar[int]
    first: float
    second: float
    def __init__(self, first: _Optional[float] = ..., second: _Optional[float] = ...) -> None: ...

class RemediationStatus(_message.Message):
    __slots__ = ("gpu_uuid", "host", "step", "waits_for_approval", "notes")
    GPU_UUID_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    WAITS_FOR_APPROVAL_FIELD_NUMBER: _ClassVar[int]
    NOTES_FIELD_NUMBER: _ClassVar[int]
    gpu_uuid: str
    host: str
    step: RepairStep
    waits_for_approval: bool
    notes: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, gpu_uuid: _Optional[str] = ..., host: _Optional[str] = ..., step: _Optional[_Union[RepairStep, str]] = ..., waits_for_approval: _Optional[bool] = ..., notes: _Optional[_Iterable[str]] = ...) -> None: ...

class ResourceRequest(_message.Message):
    __slots__ = ("hosts", "gpus_per_host", "total", "share", "cpus_per_host", "ram_mib_per_host", "cpus_per_gpu", "ram_mib_per_gpu", "cuda", "isolated", "reservation", "memory_mib", "min_compute_capability", "model", "exclude_model", "min_bandwidth_gb_s", "allow_cross_numa", "constraints", "hosts_include", "hosts_exclude", "strategy", "required_level", "preferred_level", "null_fields")
    HOSTS_FIELD_NUMBER: _ClassVar[int]
    GPUS_PER_HOST_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    CPUS_PER_HOST_FIELD_NUMBER: _ClassVar[int]
    RAM_MIB_PER_HOST_FIELD_NUMBER: _ClassVar[int]
    CPUS_PER_GPU_FIELD_NUMBER: _ClassVar[int]
    RAM_MIB_PER_GPU_FIELD_NUMBER: _ClassVar[int]
    CUDA_FIELD_NUMBER: _ClassVar[int]
    ISOLATED_FIELD_NUMBER: _ClassVar[int]
    RESERVATION_FIELD_NUMBER: _ClassVar[int]
    MEMORY_MIB_FIELD_NUMBER: _ClassVar[int]
    MIN_COMPUTE_CAPABILITY_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    EXCLUDE_MODEL_FIELD_NUMBER: _ClassVar[int]
    MIN_BANDWIDTH_GB_S_FIELD_NUMBER: _ClassVar[int]
    ALLOW_CROSS_NUMA_FIELD_NUMBER: _ClassVar[int]
    CONSTRAINTS_FIELD_NUMBER: _ClassVar[int]
    HOSTS_INCLUDE_FIELD_NUMBER: _ClassVar[int]
    HOSTS_EXCLUDE_FIELD_NUMBER: _ClassVar[int]
    STRATEGY_FIELD_NUMBER: _ClassVar[int]
    REQUIRED_LEVEL_FIELD_NUMBER: _ClassVar[int]
    PREFERRED_LEVEL_FIELD_NUMBER: _ClassVar[int]
    NULL_FIELDS_FIELD_NUMBER: _ClassVar[int]
    hosts: int
    gpus_per_host: int
    total: int
    share: Share
    cpus_per_host: int
    ram_mib_per_host: int
    cpus_per_gpu: int
    ram_mib_per_gpu: int
    cuda: str
    isolated: bool
    reservation: str
    memory_mib: int
    min_compute_capability: str
    model: str
    exclude_model: str
    min_bandwidth_gb_s: float
    allow_cross_numa: bool
    constraints: _containers.RepeatedScalarFieldContainer[str]
    hosts_include: _containers.RepeatedScalarFieldContainer[str]
    hosts_exclude: _containers.RepeatedScalarFieldContainer[str]
    strategy: Strategy
    required_level: str
    preferred_level: str
    null_fields: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, hosts: _Optional[int] = ..., gpus_per_host: _Optional[int] = ..., total: _Optional[int] = ..., share: _Optional[_Union[Share, _Mapping]] = ..., cpus_per_host: _Optional[int] = ..., ram_mib_per_host: _Optional[int] = ..., cpus_per_gpu: _Optional[int] = ..., ram_mib_per_gpu: _Optional[int] = ..., cuda: _Optional[str] = ..., isolated: _Optional[bool] = ..., reservation: _Optional[str] = ..., memory_mib: _Optional[int] = ..., min_compute_capability: _Optional[str] = ..., model: _Optional[str] = ..., exclude_model: _Optional[str] = ..., min_bandwidth_gb_s: _Optional[float] = ..., allow_cross_numa: _Optional[bool] = ..., constraints: _Optional[_Iterable[str]] = ..., hosts_include: _Optional[_Iterable[str]] = ..., hosts_exclude: _Optional[_Iterable[str]] = ..., strategy: _Optional[_Union[Strategy, str]] = ..., required_level: _Optional[str] = ..., preferred_level: _Optional[str] = ..., null_fields: _Optional[_Iterable[str]] = ...) -> None: ...

class RetryBody(_message.Message):
    __slots__ = ("elements", "null_fields")
    ELEMENTS_FIELD_NUMBER: _ClassVar[int]
    NULL_FIELDS_FIELD_NUMBER: _ClassVar[int]
    elements: str
    null_fields: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, elements: _Optional[str] = ..., null_fields: _Optional[_Iterable[str]] = ...) -> None: ...

class RetryRequest(_message.Message):
    __slots__ = ("from_step", "null_fields")
    FROM_STEP_FIELD_NUMBER: _ClassVar[int]
    NULL_FIELDS_FIELD_NUMBER: _ClassVar[int]
    from_step: str
    null_fields: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, from_step: _Optional[str] = ..., null_fields: _Optional[_Iterable[str]] = ...) -> None: ...

class RoleMap(_message.Message):
    __slots__ = ("items",)
    class ItemsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Role
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Role, str]] = ...) -> None: ...
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    items: _containers.ScalarMap[str, Role]
    def __init__(self, items: _Optional[_Mapping[str, Role]] = ...) -> None: ...

class RunTime(_message.Message):
    __slots__ = ("median_s", "low_s", "high_s", "runs")
    MEDIAN_S_FIELD_NUMBER: _ClassVar[int]
    LOW_S_FIELD_NUMBER: _ClassVar[int]
    HIGH_S_FIELD_NUMBER: _ClassVar[int]
    RUNS_FIELD_NUMBER: _ClassVar[int]
    median_s: float
    low_s: float
    high_s: float
    runs: int
    def __init__(self, median_s: _Optional[float] = ..., low_s: _Optional[float] = ..., high_s: _Optional[float] = ..., runs: _Optional[int] = ...) -> None: ...

class RunningRow(_message.Message):
    __slots__ = ("job_id", "attempt", "namespace", "user", "priority", "gpu_uuids", "started_at", "time_limit_s", "checkpoint_at", "preemptible", "checkpoints", "leaving", "shares", "host_use", "gpus", "groups", "grace_s", "run_time")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    GPU_UUIDS_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_FIELD_NUMBER: _ClassVar[int]
    TIME_LIMIT_S_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_AT_FIELD_NUMBER: _ClassVar[int]
    PREEMPTIBLE_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINTS_FIELD_NUMBER: _ClassVar[int]
    LEAVING_FIELD_NUMBER: _ClassVar[int]
    SHARES_FIELD_NUMBER: _ClassVar[int]
    HOST_USE_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    GRACE_S_FIELD_NUMBER: _ClassVar[int]
    RUN_TIME_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    attempt: int
    namespace: str
    user: str
    priority: int
    gpu_uuids: _containers.RepeatedScalarFieldContainer[str]
    started_at: float
    time_limit_s: float
    checkpoint_at: float
    preemptible: bool
    checkpoints: bool
    leaving: bool
    shares: _containers.RepeatedCompositeFieldContainer[OptionalShareGrant]
    host_use: _containers.RepeatedCompositeFieldContainer[HostUse]
    gpus: ResourceRequest
    groups: _containers.RepeatedCompositeFieldContainer[RunningRowGroups]
    grace_s: float
    run_time: RunTime
    def __init__(self, job_id: _Optional[str] = ..., attempt: _Optional[int] = ..., namespace: _Optional[str] = ..., user: _Optional[str] = ..., priority: _Optional[int] = ..., gpu_uuids: _Optional[_Iterable[str]] = ..., started_at: _Optional[float] = ..., time_limit_s: _Optional[float] = ..., checkpoint_at: _Optional[float] = ..., preemptible: _Optional[bool] = ..., checkpoints: _Optional[bool] = ..., leaving: _Optional[bool] = ..., shares: _Optional[_Iterable[_Union[OptionalShareGrant, _Mapping]]] = ..., host_use: _Optional[_Iterable[_Union[HostUse, _Mapping]]] = ..., gpus: _Optional[_Union[ResourceRequest, _Mapping]] = ..., groups: _Optional[_Iterable[_Union[RunningRowGroups, _Mapping]]] = ..., grace_s: _Optional[float] = ..., run_time: _Optional[_Union[RunTime, _Mapping]] = ...) -> None: ...

class RunningRowGroups(_message.Message):
    __slots__ = ("first", "second")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    SECOND_FIELD_NUMBER: _ClassVar[int]
    first: str
    second: ResourceRequest
    def __init__(self, first: _Optional[str] = ..., second: _Optional[_Union[ResourceRequest, _Mapping]] = ...) -> None: ...

class RunningUsage(_message.Message):
    __slots__ = ("attempt", "gpus", "ranks", "unmeasured_hosts")
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    UNMEASURED_HOSTS_FIELD_NUMBER: _ClassVar[int]
    attempt: int
    gpus: _containers.RepeatedCompositeFieldContainer[GpuNow]
    ranks: _containers.RepeatedCompositeFieldContainer[RankUsage]
    unmeasured_hosts: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, attempt: _Optional[int] = ..., gpus: _Optional[_Iterable[_Union[GpuNow, _Mapping]]] = ..., ranks: _Optional[_Iterable[_Union[RankUsage, _Mapping]]] = ..., unmeasured_hosts: _Optional[_Iterable[str]] = ...) -> None: ...

class Schedule(_message.Message):
    __slots__ = ("id", "namespace", "user", "request", "paused", "note", "created_at", "next_times", "runs")
    ID_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    PAUSED_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    NEXT_TIMES_FIELD_NUMBER: _ClassVar[int]
    RUNS_FIELD_NUMBER: _ClassVar[int]
    id: str
    namespace: str
    user: str
    request: ScheduleRequest
    paused: bool
    note: str
    created_at: _timestamp_pb2.Timestamp
    next_times: _containers.RepeatedCompositeFieldContainer[_timestamp_pb2.Timestamp]
    runs: _containers.RepeatedCompositeFieldContainer[ScheduleRun]
    def __init__(self, id: _Optional[str] = ..., namespace: _Optional[str] = ..., user: _Optional[str] = ..., request: _Optional[_Union[ScheduleRequest, _Mapping]] = ..., paused: _Optional[bool] = ..., note: _Optional[str] = ..., created_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., next_times: _Optional[_Iterable[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]]] = ..., runs: _Optional[_Iterable[_Union[ScheduleRun, _Mapping]]] = ...) -> None: ...

class SchedulePage(_message.Message):
    __slots__ = ("items", "next_cursor")
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    NEXT_CURSOR_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedCompositeFieldContainer[Schedule]
    next_cursor: str
    def __init__(self, items: _Optional[_Iterable[_Union[Schedule, _Mapping]]] = ..., next_cursor: _Optional[str] = ...) -> None: ...

class ScheduleRequest(_message.Message):
    __slots__ = ("cron", "every_s", "timezone", "overlap", "catch_up_s", "paused", "job", "null_fields")
    CRON_FIELD_NUMBER: _ClassVar[int]
    EVERY_S_FIELD_NUMBER: _ClassVar[int]
    TIMEZONE_FIELD_NUMBER: _ClassVar[int]
    OVERLAP_FIELD_NUMBER: _ClassVar[int]
    CATCH_UP_S_FIELD_NUMBER: _ClassVar[int]
    PAUSED_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    NULL_FIELDS_FIELD_NUMBER: _ClassVar[int]
    cron: str
    every_s: int
    timezone: str
    overlap: Overlap
    catch_up_s: int
    paused: bool
    job: JobSpec
    null_fields: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, cron: _Optional[str] = ..., every_s: _Optional[int] = ..., timezone: _Optional[str] = ..., overlap: _Optional[_Union[Overlap, str]] = ..., catch_up_s: _Optional[int] = ..., paused: _Optional[bool] = ..., job: _Optional[_Union[JobSpec, _Mapping]] = ..., null_fields: _Optional[_Iterable[str]] = ...) -> None: ...

class ScheduleRun(_message.Message):
    __slots__ = ("due_at", "job_id", "state", "refusal")
    DUE_AT_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    due_at: _timestamp_pb2.Timestamp
    job_id: str
    state: JobState
    refusal: str
    def __init__(self, due_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., job_id: _Optional[str] = ..., state: _Optional[_Union[JobState, str]] = ..., refusal: _Optional[str] = ...) -> None: ...

class ScoreRow(_message.Message):
    __slots__ = ("candidate", "total", "parts")
    class PartsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    CANDIDATE_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    candidate: str
    total: float
    parts: _containers.ScalarMap[str, float]
    def __init__(self, candidate: _Optional[str] = ..., total: _Optional[float] = ..., parts: _Optional[_Mapping[str, float]] = ...) -> None: ...

class ScoreTable(_message.Message):
    __slots__ = ("rows", "others")
    ROWS_FIELD_NUMBER: _ClassVar[int]
    OTHERS_FIELD_NUMBER: _ClassVar[int]
    rows: _containers.RepeatedCompositeFieldContainer[ScoreRow]
    others: int
    def __init__(self, rows: _Optional[_Iterable[_Union[ScoreRow, _Mapping]]] = ..., others: _Optional[int] = ...) -> None: ...

class SecretInfo(_message.Message):
    __slots__ = ("namespace", "name", "created_at", "created_by", "updated_at", "updated_by", "is_text", "key_id")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    CREATED_BY_FIELD_NUMBER: _ClassVar[int]
    UPDATED_AT_FIELD_NUMBER: _ClassVar[int]
    UPDATED_BY_FIELD_NUMBER: _ClassVar[int]
    IS_TEXT_FIELD_NUMBER: _ClassVar[int]
    KEY_ID_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    name: str
    created_at: _timestamp_pb2.Timestamp
    created_by: str
    updated_at: _timestamp_pb2.Timestamp
    updated_by: str
    is_text: bool
    key_id: str
    def __init__(self, namespace: _Optional[str] = ..., name: _Optional[str] = ..., created_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., created_by: _Optional[str] = ..., updated_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., updated_by: _Optional[str] = ..., is_text: _Optional[bool] = ..., key_id: _Optional[str] = ...) -> None: ...

class SecretInfoPage(_message.Message):
    __slots__ = ("items", "next_cursor")
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    NEXT_CURSOR_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedCompositeFieldContainer[SecretInfo]
    next_cursor: str
    def __init__(self, items: _Optional[_Iterable[_Union[SecretInfo, _Mapping]]] = ..., next_cursor: _Optional[str] = ...) -> None: ...

class SecretUse(_message.Message):
    __slots__ = ("name", "env", "file", "null_fields")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ENV_FIELD_NUMBER: _ClassVar[int]
    FILE_FIELD_NUMBER: _ClassVar[int]
    NULL_FIELDS_FIELD_NUMBER: _ClassVar[int]
    name: str
    env: str
    file: str
    null_fields: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., env: _Optional[str] = ..., file: _Optional[str] = ..., null_fields: _Optional[_Iterable[str]] = ...) -> None: ...

class SecretValue(_message.Message):
    __slots__ = ("value", "encoding")
    VALUE_FIELD_NUMBER: _ClassVar[int]
    ENCODING_FIELD_NUMBER: _ClassVar[int]
    value: str
    encoding: SecretValueEncoding
    def __init__(self, value: _Optional[str] = ..., encoding: _Optional[_Union[SecretValueEncoding, str]] = ...) -> None: ...

class ServiceCase(_message.Message):
    __slots__ = ("exported_at", "gpu", "open", "serial", "driver_version", "cuda_version", "machine", "faults", "resets", "steps", "attempts")
    EXPORTED_AT_FIELD_NUMBER: _ClassVar[int]
    GPU_FIELD_NUMBER: _ClassVar[int]
    OPEN_FIELD_NUMBER: _ClassVar[int]
    SERIAL_FIELD_NUMBER: _ClassVar[int]
    DRIVER_VERSION_FIELD_NUMBER: _ClassVar[int]
    CUDA_VERSION_FIELD_NUMBER: _ClassVar[int]
    MACHINE_FIELD_NUMBER: _ClassVar[int]
    FAULTS_FIELD_NUMBER: _ClassVar[int]
    RESETS_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    exported_at: _timestamp_pb2.Timestamp
    gpu: Gpu
    open: bool
    serial: str
    driver_version: str
    cuda_version: str
    machine: str
    faults: _containers.RepeatedCompositeFieldContainer[Event]
    resets: int
    steps: _containers.RepeatedCompositeFieldContainer[Event]
    attempts: _containers.RepeatedCompositeFieldContainer[_struct_pb2.Struct]
    def __init__(self, exported_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., gpu: _Optional[_Union[Gpu, _Mapping]] = ..., open: _Optional[bool] = ..., serial: _Optional[str] = ..., driver_version: _Optional[str] = ..., cuda_version: _Optional[str] = ..., machine: _Optional[str] = ..., faults: _Optional[_Iterable[_Union[Event, _Mapping]]] = ..., resets: _Optional[int] = ..., steps: _Optional[_Iterable[_Union[Event, _Mapping]]] = ..., attempts: _Optional[_Iterable[_Union[_struct_pb2.Struct, _Mapping]]] = ...) -> None: ...

class Share(_message.Message):
    __slots__ = ("mig_profile", "percent", "memory_mib", "mode", "null_fields")
    MIG_PROFILE_FIELD_NUMBER: _ClassVar[int]
    PERCENT_FIELD_NUMBER: _ClassVar[int]
    MEMORY_MIB_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    NULL_FIELDS_FIELD_NUMBER: _ClassVar[int]
    mig_profile: str
    percent: int
    memory_mib: int
    mode: ShareMode
    null_fields: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, mig_profile: _Optional[str] = ..., percent: _Optional[int] = ..., memory_mib: _Optional[int] = ..., mode: _Optional[_Union[ShareMode, str]] = ..., null_fields: _Optional[_Iterable[str]] = ...) -> None: ...

class ShareGrant(_message.Message):
    __slots__ = ("mode", "percent", "memory_mib", "mig_profile", "mig_start", "mig_size")
    MODE_FIELD_NUMBER: _ClassVar[int]
    PERCENT_FIELD_NUMBER: _ClassVar[int]
    MEMORY_MIB_FIELD_NUMBER: _ClassVar[int]
    MIG_PROFILE_FIELD_NUMBER: _ClassVar[int]
    MIG_START_FIELD_NUMBER: _ClassVar[int]
    MIG_SIZE_FIELD_NUMBER: _ClassVar[int]
    mode: ShareMode
    percent: int
    memory_mib: int
    mig_profile: str
    mig_start: int
    mig_size: int
    def __init__(self, mode: _Optional[_Union[ShareMode, str]] = ..., percent: _Optional[int] = ..., memory_mib: _Optional[int] = ..., mig_profile: _Optional[str] = ..., mig_start: _Optional[int] = ..., mig_size: _Optional[int] = ...) -> None: ...

class ShownTarget(_message.Message):
    __slots__ = ("name", "kind", "namespaces", "personal", "domains", "address")
    NAME_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    NAMESPACES_FIELD_NUMBER: _ClassVar[int]
    PERSONAL_FIELD_NUMBER: _ClassVar[int]
    DOMAINS_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    name: str
    kind: str
    namespaces: _containers.RepeatedScalarFieldContainer[str]
    personal: bool
    domains: _containers.RepeatedScalarFieldContainer[str]
    address: str
    def __init__(self, name: _Optional[str] = ..., kind: _Optional[str] = ..., namespaces: _Optional[_Iterable[str]] = ..., personal: _Optional[bool] = ..., domains: _Optional[_Iterable[str]] = ..., address: _Optional[str] = ...) -> None: ...

class ShownTargetPage(_message.Message):
    __slots__ = ("items", "next_cursor")
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    NEXT_CURSOR_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedCompositeFieldContainer[ShownTarget]
    next_cursor: str
    def __init__(self, items: _Optional[_Iterable[_Union[ShownTarget, _Mapping]]] = ..., next_cursor: _Optional[str] = ...) -> None: ...

class Spread(_message.Message):
    __slots__ = ("count", "mean", "p50", "p90", "p99", "longest")
    COUNT_FIELD_NUMBER: _ClassVar[int]
    MEAN_FIELD_NUMBER: _ClassVar[int]
    P50_FIELD_NUMBER: _ClassVar[int]
    P90_FIELD_NUMBER: _ClassVar[int]
    P99_FIELD_NUMBER: _ClassVar[int]
    LONGEST_FIELD_NUMBER: _ClassVar[int]
    count: int
    mean: float
    p50: float
    p90: float
    p99: float
    longest: float
    def __init__(self, count: _Optional[int] = ..., mean: _Optional[float] = ..., p50: _Optional[float] = ..., p90: _Optional[float] = ..., p99: _Optional[float] = ..., longest: _Optional[float] = ...) -> None: ...

class StepJob(_message.Message):
    __slots__ = ("index", "job_id", "state", "cached", "refusal")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    CACHED_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    index: int
    job_id: str
    state: JobState
    cached: bool
    refusal: str
    def __init__(self, index: _Optional[int] = ..., job_id: _Optional[str] = ..., state: _Optional[_Union[JobState, str]] = ..., cached: _Optional[bool] = ..., refusal: _Optional[str] = ...) -> None: ...

class StepStatus(_message.Message):
    __slots__ = ("name", "after", "when", "state", "message", "total", "completed", "jobs", "output")
    NAME_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    WHEN_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    COMPLETED_FIELD_NUMBER: _ClassVar[int]
    JOBS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    name: str
    after: _containers.RepeatedScalarFieldContainer[str]
    when: str
    state: StepState
    message: str
    total: int
    completed: int
    jobs: _containers.RepeatedCompositeFieldContainer[StepJob]
    output: _struct_pb2.Value
    def __init__(self, name: _Optional[str] = ..., after: _Optional[_Iterable[str]] = ..., when: _Optional[str] = ..., state: _Optional[_Union[StepState, str]] = ..., message: _Optional[str] = ..., total: _Optional[int] = ..., completed: _Optional[int] = ..., jobs: _Optional[_Iterable[_Union[StepJob, _Mapping]]] = ..., output: _Optional[_Union[_struct_pb2.Value, _Mapping]] = ...) -> None: ...

class StoppedBy(_message.Message):
    __slots__ = ("verb", "actor", "reason")
    VERB_FIELD_NUMBER: _ClassVar[int]
    ACTOR_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    verb: StoppedByVerb
    actor: str
    reason: str
    def __init__(self, verb: _Optional[_Union[StoppedByVerb, str]] = ..., actor: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class StringList(_message.Message):
    __slots__ = ("items",)
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, items: _Optional[_Iterable[str]] = ...) -> None: ...

class TokenInfo(_message.Message):
    __slots__ = ("id", "user", "roles", "scopes", "max_priority", "note", "created_at", "created_by", "expires_at", "last_used_at", "revoked_at")
    class RolesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Role
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Role, str]] = ...) -> None: ...
    ID_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    ROLES_FIELD_NUMBER: _ClassVar[int]
    SCOPES_FIELD_NUMBER: _ClassVar[int]
    MAX_PRIORITY_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    CREATED_BY_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_AT_FIELD_NUMBER: _ClassVar[int]
    LAST_USED_AT_FIELD_NUMBER: _ClassVar[int]
    REVOKED_AT_FIELD_NUMBER: _ClassVar[int]
    id: str
    user: str
    roles: _containers.ScalarMap[str, Role]
    scopes: PermissionList
    max_priority: int
    note: str
    created_at: _timestamp_pb2.Timestamp
    created_by: str
    expires_at: _timestamp_pb2.Timestamp
    last_used_at: _timestamp_pb2.Timestamp
    revoked_at: _timestamp_pb2.Timestamp
    def __init__(self, id: _Optional[str] = ..., user: _Optional[str] = ..., roles: _Optional[_Mapping[str, Role]] = ..., scopes: _Optional[_Union[PermissionList, _Mapping]] = ..., max_priority: _Optional[int] = ..., note: _Optional[str] = ..., created_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., created_by: _Optional[str] = ..., expires_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., last_used_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., revoked_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class TokenInfoPage(_message.Message):
    __slots__ = ("items", "next_cursor")
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    NEXT_CURSOR_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedCompositeFieldContainer[TokenInfo]
    next_cursor: str
    def __init__(self, items: _Optional[_Iterable[_Union[TokenInfo, _Mapping]]] = ..., next_cursor: _Optional[str] = ...) -> None: ...

class TokenRequest(_message.Message):
    __slots__ = ("user", "roles", "scopes", "max_priority", "expires_at", "note", "null_fields")
    USER_FIELD_NUMBER: _ClassVar[int]
    ROLES_FIELD_NUMBER: _ClassVar[int]
    SCOPES_FIELD_NUMBER: _ClassVar[int]
    MAX_PRIORITY_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_AT_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    NULL_FIELDS_FIELD_NUMBER: _ClassVar[int]
    user: str
    roles: RoleMap
    scopes: PermissionList
    max_priority: int
    expires_at: _timestamp_pb2.Timestamp
    note: str
    null_fields: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, user: _Optional[str] = ..., roles: _Optional[_Union[RoleMap, _Mapping]] = ..., scopes: _Optional[_Union[PermissionList, _Mapping]] = ..., max_priority: _Optional[int] = ..., expires_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., note: _Optional[str] = ..., null_fields: _Optional[_Iterable[str]] = ...) -> None: ...

class Totals(_message.Message):
    __slots__ = ("attempts", "gpu_seconds", "energy_j", "cpu_s", "ecc_errors", "throttled_s")
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    GPU_SECONDS_FIELD_NUMBER: _ClassVar[int]
    ENERGY_J_FIELD_NUMBER: _ClassVar[int]
    CPU_S_FIELD_NUMBER: _ClassVar[int]
    ECC_ERRORS_FIELD_NUMBER: _ClassVar[int]
    THROTTLED_S_FIELD_NUMBER: _ClassVar[int]
    attempts: int
    gpu_seconds: float
    energy_j: float
    cpu_s: float
    ecc_errors: int
    throttled_s: float
    def __init__(self, attempts: _Optional[int] = ..., gpu_seconds: _Optional[float] = ..., energy_j: _Optional[float] = ..., cpu_s: _Optional[float] = ..., ecc_errors: _Optional[int] = ..., throttled_s: _Optional[float] = ...) -> None: ...

class UnchangedElements(_message.Message):
    __slots__ = ("state", "count", "indices", "why")
    STATE_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    INDICES_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    state: JobState
    count: int
    indices: str
    why: str
    def __init__(self, state: _Optional[_Union[JobState, str]] = ..., count: _Optional[int] = ..., indices: _Optional[str] = ..., why: _Optional[str] = ...) -> None: ...

class Upload(_message.Message):
    __slots__ = ("namespace", "sha256", "received", "complete", "limit_bytes", "used_at")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_FIELD_NUMBER: _ClassVar[int]
    LIMIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    USED_AT_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    sha256: str
    received: int
    complete: bool
    limit_bytes: int
    used_at: _timestamp_pb2.Timestamp
    def __init__(self, namespace: _Optional[str] = ..., sha256: _Optional[str] = ..., received: _Optional[int] = ..., complete: _Optional[bool] = ..., limit_bytes: _Optional[int] = ..., used_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class UsageReport(_message.Message):
    __slots__ = ("total", "users")
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    USERS_FIELD_NUMBER: _ClassVar[int]
    total: Totals
    users: _containers.RepeatedCompositeFieldContainer[UserUsage]
    def __init__(self, total: _Optional[_Union[Totals, _Mapping]] = ..., users: _Optional[_Iterable[_Union[UserUsage, _Mapping]]] = ...) -> None: ...

class UserFigures(_message.Message):
    __slots__ = ("namespace", "user", "gpu_hours", "energy_kwh", "utilization_percent", "completed", "failed", "cancelled", "wait_p50_s")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    GPU_HOURS_FIELD_NUMBER: _ClassVar[int]
    ENERGY_KWH_FIELD_NUMBER: _ClassVar[int]
    UTILIZATION_PERCENT_FIELD_NUMBER: _ClassVar[int]
    COMPLETED_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    CANCELLED_FIELD_NUMBER: _ClassVar[int]
    WAIT_P50_S_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    user: str
    gpu_hours: float
    energy_kwh: float
    utilization_percent: float
    completed: int
    failed: int
    cancelled: int
    wait_p50_s: float
    def __init__(self, namespace: _Optional[str] = ..., user: _Optional[str] = ..., gpu_hours: _Optional[float] = ..., energy_kwh: _Optional[float] = ..., utilization_percent: _Optional[float] = ..., completed: _Optional[int] = ..., failed: _Optional[int] = ..., cancelled: _Optional[int] = ..., wait_p50_s: _Optional[float] = ...) -> None: ...

class UserUsage(_message.Message):
    __slots__ = ("attempts", "gpu_seconds", "energy_j", "cpu_s", "ecc_errors", "throttled_s", "namespace", "user")
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    GPU_SECONDS_FIELD_NUMBER: _ClassVar[int]
    ENERGY_J_FIELD_NUMBER: _ClassVar[int]
    CPU_S_FIELD_NUMBER: _ClassVar[int]
    ECC_ERRORS_FIELD_NUMBER: _ClassVar[int]
    THROTTLED_S_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    attempts: int
    gpu_seconds: float
    energy_j: float
    cpu_s: float
    ecc_errors: int
    throttled_s: float
    namespace: str
    user: str
    def __init__(self, attempts: _Optional[int] = ..., gpu_seconds: _Optional[float] = ..., energy_j: _Optional[float] = ..., cpu_s: _Optional[float] = ..., ecc_errors: _Optional[int] = ..., throttled_s: _Optional[float] = ..., namespace: _Optional[str] = ..., user: _Optional[str] = ...) -> None: ...

class WhatIf(_message.Message):
    __slots__ = ("at", "notes", "now", "then", "starts")
    AT_FIELD_NUMBER: _ClassVar[int]
    NOTES_FIELD_NUMBER: _ClassVar[int]
    NOW_FIELD_NUMBER: _ClassVar[int]
    THEN_FIELD_NUMBER: _ClassVar[int]
    STARTS_FIELD_NUMBER: _ClassVar[int]
    at: _timestamp_pb2.Timestamp
    notes: _containers.RepeatedScalarFieldContainer[str]
    now: WhatIfRun
    then: WhatIfRun
    starts: _containers.RepeatedCompositeFieldContainer[WhatIfStart]
    def __init__(self, at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., notes: _Optional[_Iterable[str]] = ..., now: _Optional[_Union[WhatIfRun, _Mapping]] = ..., then: _Optional[_Union[WhatIfRun, _Mapping]] = ..., starts: _Optional[_Iterable[_Union[WhatIfStart, _Mapping]]] = ...) -> None: ...

class WhatIfRequest(_message.Message):
    __slots__ = ("hosts", "settings", "lasting_s", "until_s", "null_fields")
    HOSTS_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    LASTING_S_FIELD_NUMBER: _ClassVar[int]
    UNTIL_S_FIELD_NUMBER: _ClassVar[int]
    NULL_FIELDS_FIELD_NUMBER: _ClassVar[int]
    hosts: _containers.RepeatedCompositeFieldContainer[AddedHosts]
    settings: _containers.RepeatedScalarFieldContainer[str]
    lasting_s: float
    until_s: float
    null_fields: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, hosts: _Optional[_Iterable[_Union[AddedHosts, _Mapping]]] = ..., settings: _Optional[_Iterable[str]] = ..., lasting_s: _Optional[float] = ..., until_s: _Optional[float] = ..., null_fields: _Optional[_Iterable[str]] = ...) -> None: ...

class WhatIfRun(_message.Message):
    __slots__ = ("name", "gpus", "end_s", "allocation_ratio", "started", "waiting", "preemptions", "wait_p50_s", "wait_p90_s", "wait_max_s", "series")
    NAME_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    END_S_FIELD_NUMBER: _ClassVar[int]
    ALLOCATION_RATIO_FIELD_NUMBER: _ClassVar[int]
    STARTED_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    PREEMPTIONS_FIELD_NUMBER: _ClassVar[int]
    WAIT_P50_S_FIELD_NUMBER: _ClassVar[int]
    WAIT_P90_S_FIELD_NUMBER: _ClassVar[int]
    WAIT_MAX_S_FIELD_NUMBER: _ClassVar[int]
    SERIES_FIELD_NUMBER: _ClassVar[int]
    name: str
    gpus: int
    end_s: float
    allocation_ratio: float
    started: int
    waiting: int
    preemptions: int
    wait_p50_s: float
    wait_p90_s: float
    wait_max_s: float
    series: WhatIfSeries
    def __init__(self, name: _Optional[str] = ..., gpus: _Optional[int] = ..., end_s: _Optional[float] = ..., allocation_ratio: _Optional[float] = ..., started: _Optional[int] = ..., waiting: _Optional[int] = ..., preemptions: _Optional[int] = ..., wait_p50_s: _Optional[float] = ..., wait_p90_s: _Optional[float] = ..., wait_max_s: _Optional[float] = ..., series: _Optional[_Union[WhatIfSeries, _Mapping]] = ...) -> None: ...

class WhatIfSeries(_message.Message):
    __slots__ = ("at_s", "held_gpus", "waiting_jobs")
    AT_S_FIELD_NUMBER: _ClassVar[int]
    HELD_GPUS_FIELD_NUMBER: _ClassVar[int]
    WAITING_JOBS_FIELD_NUMBER: _ClassVar[int]
    at_s: _containers.RepeatedScalarFieldContainer[float]
    held_gpus: _containers.RepeatedScalarFieldContainer[float]
    waiting_jobs: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, at_s: _Optional[_Iterable[float]] = ..., held_gpus: _Optional[_Iterable[float]] = ..., waiting_jobs: _Optional[_Iterable[float]] = ...) -> None: ...

class WhatIfStart(_message.Message):
    __slots__ = ("job_id", "namespace", "gpus", "now_s", "then_s")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    NOW_S_FIELD_NUMBER: _ClassVar[int]
    THEN_S_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    namespace: str
    gpus: int
    now_s: float
    then_s: float
    def __init__(self, job_id: _Optional[str] = ..., namespace: _Optional[str] = ..., gpus: _Optional[int] = ..., now_s: _Optional[float] = ..., then_s: _Optional[float] = ...) -> None: ...

class WhoAmI(_message.Message):
    __slots__ = ("name", "kind", "roles", "scopes", "signed_in_by", "acting_as", "priorities", "max_priority", "kinds", "default_kind", "default_priority", "default_time_limit_s")
    class RolesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Role
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Role, str]] = ...) -> None: ...
    class PrioritiesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class MaxPriorityEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class KindsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: KindOfWork
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[KindOfWork, _Mapping]] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    ROLES_FIELD_NUMBER: _ClassVar[int]
    SCOPES_FIELD_NUMBER: _ClassVar[int]
    SIGNED_IN_BY_FIELD_NUMBER: _ClassVar[int]
    ACTING_AS_FIELD_NUMBER: _ClassVar[int]
    PRIORITIES_FIELD_NUMBER: _ClassVar[int]
    MAX_PRIORITY_FIELD_NUMBER: _ClassVar[int]
    KINDS_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_KIND_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_PRIORITY_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_TIME_LIMIT_S_FIELD_NUMBER: _ClassVar[int]
    name: str
    kind: PrincipalKind
    roles: _containers.ScalarMap[str, Role]
    scopes: PermissionList
    signed_in_by: str
    acting_as: str
    priorities: _containers.ScalarMap[str, int]
    max_priority: _containers.ScalarMap[str, int]
    kinds: _containers.MessageMap[str, KindOfWork]
    default_kind: str
    default_priority: int
    default_time_limit_s: int
    def __init__(self, name: _Optional[str] = ..., kind: _Optional[_Union[PrincipalKind, str]] = ..., roles: _Optional[_Mapping[str, Role]] = ..., scopes: _Optional[_Union[PermissionList, _Mapping]] = ..., signed_in_by: _Optional[str] = ..., acting_as: _Optional[str] = ..., priorities: _Optional[_Mapping[str, int]] = ..., max_priority: _Optional[_Mapping[str, int]] = ..., kinds: _Optional[_Mapping[str, KindOfWork]] = ..., default_kind: _Optional[str] = ..., default_priority: _Optional[int] = ..., default_time_limit_s: _Optional[int] = ...) -> None: ...

class Window(_message.Message):
    __slots__ = ("name", "maintenance", "is_open", "start_at", "end_at", "repeat", "until_at", "hosts", "namespaces", "users", "reason", "actor", "created_at", "jobs", "to_stop")
    NAME_FIELD_NUMBER: _ClassVar[int]
    MAINTENANCE_FIELD_NUMBER: _ClassVar[int]
    IS_OPEN_FIELD_NUMBER: _ClassVar[int]
    START_AT_FIELD_NUMBER: _ClassVar[int]
    END_AT_FIELD_NUMBER: _ClassVar[int]
    REPEAT_FIELD_NUMBER: _ClassVar[int]
    UNTIL_AT_FIELD_NUMBER: _ClassVar[int]
    HOSTS_FIELD_NUMBER: _ClassVar[int]
    NAMESPACES_FIELD_NUMBER: _ClassVar[int]
    USERS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    ACTOR_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    JOBS_FIELD_NUMBER: _ClassVar[int]
    TO_STOP_FIELD_NUMBER: _ClassVar[int]
    name: str
    maintenance: bool
    is_open: bool
    start_at: _timestamp_pb2.Timestamp
    end_at: _timestamp_pb2.Timestamp
    repeat: Repeat
    until_at: _timestamp_pb2.Timestamp
    hosts: _containers.RepeatedCompositeFieldContainer[WindowHost]
    namespaces: _containers.RepeatedScalarFieldContainer[str]
    users: _containers.RepeatedScalarFieldContainer[str]
    reason: str
    actor: str
    created_at: _timestamp_pb2.Timestamp
    jobs: _containers.RepeatedScalarFieldContainer[str]
    to_stop: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., maintenance: _Optional[bool] = ..., is_open: _Optional[bool] = ..., start_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., end_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., repeat: _Optional[_Union[Repeat, str]] = ..., until_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., hosts: _Optional[_Iterable[_Union[WindowHost, _Mapping]]] = ..., namespaces: _Optional[_Iterable[str]] = ..., users: _Optional[_Iterable[str]] = ..., reason: _Optional[str] = ..., actor: _Optional[str] = ..., created_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., jobs: _Optional[_Iterable[str]] = ..., to_stop: _Optional[_Iterable[str]] = ...) -> None: ...

class WindowChanges(_message.Message):
    __slots__ = ("start_at", "end_at", "duration_s", "repeat", "until_at", "namespaces", "users", "reason", "stop_running", "null_fields")
    START_AT_FIELD_NUMBER: _ClassVar[int]
    END_AT_FIELD_NUMBER: _ClassVar[int]
    DURATION_S_FIELD_NUMBER: _ClassVar[int]
    REPEAT_FIELD_NUMBER: _ClassVar[int]
    UNTIL_AT_FIELD_NUMBER: _ClassVar[int]
    NAMESPACES_FIELD_NUMBER: _ClassVar[int]
    USERS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    STOP_RUNNING_FIELD_NUMBER: _ClassVar[int]
    NULL_FIELDS_FIELD_NUMBER: _ClassVar[int]
    start_at: _timestamp_pb2.Timestamp
    end_at: _timestamp_pb2.Timestamp
    duration_s: int
    repeat: Repeat
    until_at: _timestamp_pb2.Timestamp
    namespaces: StringList
    users: StringList
    reason: str
    stop_running: bool
    null_fields: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, start_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., end_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., duration_s: _Optional[int] = ..., repeat: _Optional[_Union[Repeat, str]] = ..., until_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., namespaces: _Optional[_Union[StringList, _Mapping]] = ..., users: _Optional[_Union[StringList, _Mapping]] = ..., reason: _Optional[str] = ..., stop_running: _Optional[bool] = ..., null_fields: _Optional[_Iterable[str]] = ...) -> None: ...

class WindowHost(_message.Message):
    __slots__ = ("host", "gpus", "gpu_indices")
    HOST_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    GPU_INDICES_FIELD_NUMBER: _ClassVar[int]
    host: str
    gpus: int
    gpu_indices: Int64List
    def __init__(self, host: _Optional[str] = ..., gpus: _Optional[int] = ..., gpu_indices: _Optional[_Union[Int64List, _Mapping]] = ...) -> None: ...

class WindowPage(_message.Message):
    __slots__ = ("items", "next_cursor")
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    NEXT_CURSOR_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedCompositeFieldContainer[Window]
    next_cursor: str
    def __init__(self, items: _Optional[_Iterable[_Union[Window, _Mapping]]] = ..., next_cursor: _Optional[str] = ...) -> None: ...

class WindowPlace(_message.Message):
    __slots__ = ("host", "gpu_uuids")
    HOST_FIELD_NUMBER: _ClassVar[int]
    GPU_UUIDS_FIELD_NUMBER: _ClassVar[int]
    host: str
    gpu_uuids: StringList
    def __init__(self, host: _Optional[str] = ..., gpu_uuids: _Optional[_Union[StringList, _Mapping]] = ...) -> None: ...

class WindowRequest(_message.Message):
    __slots__ = ("name", "maintenance", "start_at", "end_at", "duration_s", "repeat", "until_at", "hosts", "host_count", "gpu_count", "gpu_model", "namespaces", "users", "reason", "stop_running", "null_fields")
    NAME_FIELD_NUMBER: _ClassVar[int]
    MAINTENANCE_FIELD_NUMBER: _ClassVar[int]
    START_AT_FIELD_NUMBER: _ClassVar[int]
    END_AT_FIELD_NUMBER: _ClassVar[int]
    DURATION_S_FIELD_NUMBER: _ClassVar[int]
    REPEAT_FIELD_NUMBER: _ClassVar[int]
    UNTIL_AT_FIELD_NUMBER: _ClassVar[int]
    HOSTS_FIELD_NUMBER: _ClassVar[int]
    HOST_COUNT_FIELD_NUMBER: _ClassVar[int]
    GPU_COUNT_FIELD_NUMBER: _ClassVar[int]
    GPU_MODEL_FIELD_NUMBER: _ClassVar[int]
    NAMESPACES_FIELD_NUMBER: _ClassVar[int]
    USERS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    STOP_RUNNING_FIELD_NUMBER: _ClassVar[int]
    NULL_FIELDS_FIELD_NUMBER: _ClassVar[int]
    name: str
    maintenance: bool
    start_at: _timestamp_pb2.Timestamp
    end_at: _timestamp_pb2.Timestamp
    duration_s: int
    repeat: Repeat
    until_at: _timestamp_pb2.Timestamp
    hosts: _containers.RepeatedScalarFieldContainer[str]
    host_count: int
    gpu_count: int
    gpu_model: str
    namespaces: _containers.RepeatedScalarFieldContainer[str]
    users: _containers.RepeatedScalarFieldContainer[str]
    reason: str
    stop_running: bool
    null_fields: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., maintenance: _Optional[bool] = ..., start_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., end_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., duration_s: _Optional[int] = ..., repeat: _Optional[_Union[Repeat, str]] = ..., until_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., hosts: _Optional[_Iterable[str]] = ..., host_count: _Optional[int] = ..., gpu_count: _Optional[int] = ..., gpu_model: _Optional[str] = ..., namespaces: _Optional[_Iterable[str]] = ..., users: _Optional[_Iterable[str]] = ..., reason: _Optional[str] = ..., stop_running: _Optional[bool] = ..., null_fields: _Optional[_Iterable[str]] = ...) -> None: ...

class WindowRow(_message.Message):
    __slots__ = ("name", "start", "end", "places", "maintenance", "is_open", "period_s", "until", "namespaces", "users")
    NAME_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    PLACES_FIELD_NUMBER: _ClassVar[int]
    MAINTENANCE_FIELD_NUMBER: _ClassVar[int]
    IS_OPEN_FIELD_NUMBER: _ClassVar[int]
    PERIOD_S_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    NAMESPACES_FIELD_NUMBER: _ClassVar[int]
    USERS_FIELD_NUMBER: _ClassVar[int]
    name: str
    start: float
    end: float
    places: _containers.RepeatedCompositeFieldContainer[WindowPlace]
    maintenance: bool
    is_open: bool
    period_s: int
    until: float
    namespaces: _containers.RepeatedScalarFieldContainer[str]
    users: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., start: _Optional[float] = ..., end: _Optional[float] = ..., places: _Optional[_Iterable[_Union[WindowPlace, _Mapping]]] = ..., maintenance: _Optional[bool] = ..., is_open: _Optional[bool] = ..., period_s: _Optional[int] = ..., until: _Optional[float] = ..., namespaces: _Optional[_Iterable[str]] = ..., users: _Optional[_Iterable[str]] = ...) -> None: ...
