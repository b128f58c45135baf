"""The system calls that a jailed process may make, by purpose. Every other call is refused; see ``seccomp``.

The choice follows the default profiles of the container engines (moby/profiles ``seccomp/default.json``,
containers/common ``pkg/seccomp/seccomp.json``), without capabilities, for x86_64 and aarch64. It differs from them
where GPU jobs need more (NUMA policies, debuggers) and where a job on a shared host needs less (``modify_ldt``,
clocks). A name that an architecture does not have is skipped there.
"""

from __future__ import annotations

_FILES = """
    access chdir chmod chown close close_range copy_file_range creat dup dup2 dup3 faccessat faccessat2 fadvise64
    fallocate fchdir fchmod fchmodat fchmodat2 fchown fchownat fcntl fdatasync fgetxattr flistxattr flock fremovexattr
    fsetxattr fstat fstatfs fsync ftruncate futimesat getcwd getdents getdents64 getxattr getxattrat ioctl lchown
    lgetxattr link linkat listxattr listxattrat llistxattr lremovexattr lseek lsetxattr lstat mkdir mkdirat mknod
    mknodat name_to_handle_at newfstatat open openat openat2 pread64 preadv preadv2 pwrite64 pwritev pwritev2 read
    readahead readlink readlinkat readv removexattr removexattrat rename renameat renameat2 rmdir sendfile setxattr
    setxattrat splice stat statfs statx symlink symlinkat sync sync_file_range syncfs tee truncate umask unlink unlinkat
    utime utimensat utimes vmsplice write writev
"""
"""``mknod`` makes pipes and sockets; device nodes need a capability, and the device filter refuses them."""

_WAITING = """
    epoll_create epoll_create1 epoll_ctl epoll_pwait epoll_pwait2 epoll_wait eventfd eventfd2 inotify_add_watch
    inotify_init inotify_init1 inotify_rm_watch io_cancel io_destroy io_getevents io_pgetevents io_setup io_submit pipe
    pipe2 poll ppoll pselect6 select signalfd signalfd4 timerfd_create timerfd_gettime timerfd_settime
"""
"""``io_submit`` (libaio) is what offloading to NVMe uses; io_uring has a long history of holes, and is refused."""

_MEMORY = """
    brk cachestat get_mempolicy madvise map_shadow_stack mbind membarrier memfd_create memfd_secret migrate_pages
    mincore mlock mlock2 mlockall mmap move_pages mprotect mremap mseal msync munlock munlockall munmap pkey_alloc
    pkey_free pkey_mprotect process_madvise process_mrelease remap_file_pages set_mempolicy set_mempolicy_home_node
"""
"""With the policies of NUMA nodes, which the engines tie to CAP_SYS_NICE: they harm nobody, the cpuset bounds them."""

_PROCESSES = """
    execve execveat exit exit_group fork get_robust_list getcpu getpgid getpgrp getpid getppid getpriority getrlimit
    getrusage getsid gettid ioprio_get ioprio_set kill pause prctl prlimit64 restart_syscall rseq rt_sigaction
    rt_sigpending rt_sigprocmask rt_sigqueueinfo rt_sigreturn rt_sigsuspend rt_sigtimedwait rt_tgsigqueueinfo
    sched_get_priority_max sched_get_priority_min sched_getaffinity sched_getattr sched_getparam sched_getscheduler
    sched_rr_get_interval sched_setaffinity sched_setattr sched_setparam sched_setscheduler sched_yield set_robust_list
    set_tid_address setpgid setpriority setrlimit setsid sigaltstack tgkill tkill uretprobe vfork wait4 waitid
    arch_prctl get_thread_area set_thread_area
"""
"""``clone`` is allowed by its flags. ``clone3``, whose flags no filter can read, is answered as if it did not exist:
the C library then uses ``clone``."""

_DEBUGGING = "kcmp pidfd_getfd pidfd_open pidfd_send_signal process_vm_readv process_vm_writev ptrace"
"""On one's own processes: the PID namespace has no others but its holder, which has another uid."""

_THREADS = "futex futex_requeue futex_wait futex_waitv futex_wake"

_IDENTITY = """
    capget capset getegid geteuid getgid getgroups getresgid getresuid getuid landlock_add_rule landlock_create_ruleset
    landlock_restrict_self seccomp setfsgid setfsuid setgid setgroups setregid setresgid setresuid setreuid setuid
"""
"""To become somebody else needs a capability, and there is none. ``seccomp`` and Landlock only take rights away."""

_NETWORK = """
    accept accept4 bind connect getpeername getsockname getsockopt listen recvfrom recvmmsg recvmsg sendmmsg sendmsg
    sendto setsockopt shutdown socketpair
"""
"""``socket`` is allowed by its family."""

_BETWEEN_PROCESSES = """
    mq_getsetattr mq_notify mq_open mq_timedreceive mq_timedsend mq_unlink msgctl msgget msgrcv msgsnd semctl semget
    semop semtimedop shmat shmctl shmdt shmget
"""
"""In an IPC namespace of the attempt's own."""

_TIME = """
    alarm clock_getres clock_gettime clock_nanosleep getitimer gettimeofday nanosleep setitimer time timer_create
    timer_delete timer_getoverrun timer_gettime timer_settime times
"""

_SYSTEM = "getrandom listmount statmount sysinfo uname"

ALLOWED = frozenset(
    " ".join(
        (
            *(_FILES, _WAITING, _MEMORY, _PROCESSES, _DEBUGGING, _THREADS, _IDENTITY, _NETWORK),
            *(_BETWEEN_PROCESSES, _TIME, _SYSTEM),
        )
    ).split()
)
"""Names of the calls that are allowed whatever their arguments."""

SOCKET_FAMILIES = {"AF_UNIX": 1, "AF_INET": 2, "AF_INET6": 10, "AF_NETLINK": 16}
"""The families of ``socket``. Others reach the hypervisor (AF_VSOCK), other machines below IP, or much rarely used
kernel code."""

PERSONALITIES = (0x0, 0x8, 0x2_0000, 0x2_0008, 0x4_0000, 0xFFFF_FFFF)
"""Of ``personality``: Linux, 32-bit machine name, a 2.6 version number, both, without address randomisation (what
debuggers start a program with), and the question which one is set."""

CLONE_NEW_ANY = 0x7E02_0000
"""All CLONE_NEW… flags of clone(2). A rank with its own user namespace would have every capability in it."""

AS_IF_MISSING = frozenset({"clone3"})
"""Calls that are answered as if the kernel did not have them, so that libraries use older ones."""
