"""Lets ``mpirun`` on rank 0 start its daemons on all hosts of the gang, without ssh.

This text is the first thing that each rank of a job with ``launcher: mpi`` runs, where the rank runs: in its jail, as
its account, under its limits. Rank 0 listens, and the other ranks connect to it. Then rank 0 becomes the job's command.
What ``mpirun`` takes for ssh is this program again (``agent``)::

    mpirun -> agent HOST COMMAND -> (socket file) -> broker of rank 0 -> (TCP) -> rank of HOST -> sh -c COMMAND

Whoever connects proves that it knows the key of the gang, and so does rank 0. Ranks that wait end with rank 0. Standard
library only, Python 3.8 or later: it runs with the Python that the host has.
"""

import base64
import contextlib
import hashlib
import hmac
import json
import os
import secrets
import select
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

KEY, PORT = "GPU_PLATFORM_GANG_KEY", "GPU_PLATFORM_GANG_PORT"
SLOTS, TEMPLATES = "GPU_PLATFORM_MPI_SLOTS", "GPU_PLATFORM_MPI_VARIABLES"
PATIENCE_S = 300.0
"""How long rank 0 waits for the other ranks, which start at the same time."""
_HANDSHAKE_S = 20.0
_MAX_LINE = 1 << 22
_HIDDEN = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK", KEY, PORT, SLOTS, TEMPLATES)
"""They say how many ranks the platform started, which is not how many processes mpirun starts."""
_SEGMENTS = ("OMPI_MCA_btl_vader_backing_directory", "OMPI_MCA_btl_sm_backing_directory")
_DEAF_TO = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""mpirun gets the signals of the platform and forwards them. A rank that only waits ends with rank 0."""


class Link:
    """Messages over a socket: one line of JSON each. Several threads may send."""

    def __init__(self, connection):
        self.connection = connection
        self._file = connection.makefile("rb")
        self._lock = threading.Lock()

    def send(self, **message):
        """Send one message. Raises ``OSError``."""
        line = json.dumps(message).encode() + b"\n"
        with self._lock:
            self.connection.sendall(line)

    def receive(self):
        """The next message. None: the other side has closed, or sends no messages."""
        try:
            line = self._file.readline(_MAX_LINE)
            message = json.loads(line) if line.endswith(b"\n") else None
        except (OSError, ValueError, RecursionError):
            return None
        return message if isinstance(message, dict) else None

    def close(self):
        """Wake up whoever reads, here and on the other side."""
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)
        self._file.close()
        self.connection.close()


def private_directory(parent=None):
    """A new directory of this account alone, with a name that is short enough for sockets."""
    parent = parent or tempfile.gettempdir()
    return tempfile.mkdtemp(prefix="mpi-", dir=parent if len(parent) < 60 else "/tmp")


def proof(key, who, *texts):
    """A text that only somebody with the key can make."""
    return hmac.new(key.encode(), json.dumps([who, *texts]).encode(), hashlib.sha256).hexdigest()


def is_proof(message, expected):
    """True if the message has this proof. Whatever a stranger writes there is no error."""
    return hmac.compare_digest(expected.encode(), str(message.get("proof")).encode(errors="replace"))


def main(argv):
    """Run as one of: a rank of the gang, what mpirun takes for ssh."""
    if argv[0] == "agent":
        return agent(argv[1], argv[2:])
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    address = os.environ["MASTER_ADDR"], int(os.environ[PORT])
    key, slots = os.environ[KEY], int(os.environ[SLOTS])
    environ = {name: value for name, value in os.environ.items() if name not in _HIDDEN}
    if rank == 0:
        return lead(address, key, size, slots, environ, argv[1:])
    return follow(address, key, rank, slots, environ)


# -- rank 0 ------------------------------------------------------------------------------------------------------------


def lead(address, key, size, slots, environ, command):
    """Wait for all ranks, leave a broker behind, and become the job's command."""
    directory = private_directory()
    listener = _listen(address)
    broker = Broker(key, size, slots, directory, environ)
    _started(broker.accept, listener)
    missing = broker.wait_for_ranks(PATIENCE_S)
    if missing:
        print(f"mpi: ranks {missing} did not come to rank 0 at {address[0]}:{address[1]} in {PATIENCE_S:.0f} s: do the "
              "hosts of the gang reach each other?", file=sys.stderr)  # fmt: skip
        return 1
    environ.update(broker.write_files())
    # A new process keeps no threads. It gets the listener and the links of the old one, as they are.
    main_pid = os.getpid()
    ready, told = os.pipe()
    if os.fork() == 0:
        if os.fork() == 0:
            os.setsid()
            listener.close()
            broker.serve(main_pid, told)
        os._exit(0)
    os.close(told)
    os.wait()
    os.read(ready, 1)
    try:
        os.execvpe(command[0], command, environ)
    except OSError as error:
        print(f"mpi: {command[0]}: {error.strerror}", file=sys.stderr)
        return 127 if isinstance(error, FileNotFoundError) else 126


def _listen(address):
    for host in (address[0], ""):
        try:
            return socket.create_server((host, address[1]), backlog=512)
        except OSError as error:
            failure = error
    raise SystemExit(f"mpi: rank 0 cannot listen at {address[0]}:{address[1]}: {failure.strerror}")


class Broker:
    """Knows the ranks that wait, and passes commands of mpirun on to them."""

    def __init__(self, key, size, slots, directory, environ):
        self._key, self._size, self._directory, self._environ = key, size, directory, environ
        self._slots: dict = {0: slots}
        self._links: dict = {}
        self._came = threading.Condition()
        self._runs = {}
        self._ended = False
        self._socket = os.path.join(directory, "agent.sock")

    def accept(self, listener):
        """Take connections of ranks for ever. One that says nothing keeps nobody waiting."""
        while True:
            _started(self._admit, listener.accept()[0])

    def _admit(self, connection):
        link, nonce = Link(connection), secrets.token_hex(16)
        try:
            connection.settimeout(_HANDSHAKE_S)
            link.send(nonce=nonce)
            hello = link.receive() or {}
            rank, slots, own = hello.get("rank"), hello.get("slots"), hello.get("nonce")
            expected = proof(self._key, "rank", nonce, rank, slots, own)
            if not is_proof(hello, expected) or rank not in range(1, self._size):
                return link.close()
            with self._came:
                if rank in self._links:
                    return link.close()
                link.send(proof=proof(self._key, "zero", own))
                connection.settimeout(None)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                self._links[rank], self._slots[rank] = link, slots
                self._came.notify_all()
        except (OSError, TypeError, AttributeError):
            link.close()

    def wait_for_ranks(self, patience_s):
        """Wait until every rank has come. Returns those that did not."""
        with self._came:
            self._came.wait_for(lambda: len(self._links) == self._size - 1, patience_s)
            return [rank for rank in range(1, self._size) if rank not in self._links]

    def write_files(self):
        """Write the hostfile and the program that mpirun takes for ssh. Returns the variables that name them."""
        files = ("hostfile", "machinefile", "rsh", "mpi_gang.py")
        hosts, machines, rsh, program = (os.path.join(self._directory, name) for name in files)
        _write(program, source, 0o600)
        _write(hosts, "".join(f"gang-{rank} slots={self._slots[rank]}\n" for rank in range(self._size)), 0o600)
        _write(machines, "".join(f"gang-{rank}:{self._slots[rank]}\n" for rank in range(self._size)), 0o600)
        words = " ".join(shlex.quote(word) for word in (sys.executable, program, "agent", self._socket))
        _write(rsh, f'#!/bin/sh\nexec {words} "$@"\n')
        templates, interface = json.loads(os.environ[TEMPLATES]), os.environ.get("NCCL_SOCKET_IFNAME")
        return variables(templates, hosts=hosts, machines=machines, rsh=rsh, interface=interface)

    def serve(self, main_pid, told):
        """Pass on commands until the process ``main_pid``, the job's command, has ended."""
        for number in _DEAF_TO:
            signal.signal(number, signal.SIG_IGN)
        ended, orders = os.pidfd_open(main_pid) if hasattr(os, "pidfd_open") else None, []
        server = socket.socket(socket.AF_UNIX)
        server.bind(self._socket)
        server.listen(512)
        self._lock = threading.Lock()
        for rank, link in self._links.items():
            _started(self._read, rank, link)
        os.close(told)
        while True:
            readable, _, _ = select.select([server] if ended is None else [server, ended], [], [], 1.0)
            if ended in readable or (ended is None and not os.path.isdir(f"/proc/{main_pid}")):
                break
            if server in readable:
                connection, _ = server.accept()
                orders.append(_started(self._order, Link(connection)))
        _wait_for(orders)  # daemons end soon after mpirun
        self._ended = True
        for link in self._links.values():
            link.close()
        subprocess.call(["rm", "-rf", self._directory])
        os._exit(0)

    def _order(self, agent):
        """One command of mpirun, from its beginning to its end."""
        asked = agent.receive() or {}
        name, command = str(asked.get("host")), str(asked.get("command"))
        rank = int(name[5:]) if name.startswith("gang-") and name[5:].isdigit() else None
        if rank == 0:
            return _run(agent, agent, None, command, self._environ)
        link = self._links.get(rank)
        if link is None:
            agent.send(err=f"mpi: {name} is no host of this gang, which has gang-0 to gang-{self._size - 1}\n")
            return agent.send(exit=255)
        with self._lock:
            number = len(self._runs)
            self._runs[number] = rank, agent
        try:
            link.send(run=number, command=command)
            while agent.receive() is not None:
                pass
            link.send(kill=number)  # mpirun ended what it takes for ssh
        except OSError:
            if not self._ended:
                self._tell(agent, err=f"mpi: the connection to {name} is lost\n", exit=255)

    def _read(self, rank, link):
        """Take what a rank says about its commands."""
        while (said := link.receive()) is not None:
            owner, agent = self._runs.get(said.pop("run", None), (None, None))
            if owner == rank:
                self._tell(agent, **said)
        for owner, agent in list(self._runs.values()):
            if owner == rank and not self._ended:
                self._tell(agent, err=f"mpi: the connection to gang-{rank} is lost\n", exit=255)

    @staticmethod
    def _tell(agent, **message):
        with contextlib.suppress(OSError):
            agent.send(**message)


def variables(templates, **places):
    """The variables that tell mpirun about the gang, from texts with ``{hosts}`` and other places in them."""
    if os.geteuid() == 0:
        # The platform decided as whom ranks run, and Open MPI would refuse this one.
        for name in ("OMPI_ALLOW_RUN_AS_ROOT", "PRTE_ALLOW_RUN_AS_ROOT"):
            templates = {**templates, name: "1", name + "_CONFIRM": "1"}
    known = {name: text for name, text in templates.items() if places["interface"] or text != "{interface}"}
    return {name: text.format(**places) for name, text in known.items() if name not in os.environ}


def _write(path, text, mode=0o700):
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w") as file:
        file.write(text)


# -- the other ranks ---------------------------------------------------------------------------------------------------


def follow(address, key, rank, slots, environ):
    """Connect to rank 0, and run its commands until it has ended."""
    link = _connect(address, key, rank, slots)
    for number in _DEAF_TO:
        signal.signal(number, signal.SIG_IGN)
    running, threads = {}, []
    while (order := link.receive()) is not None:
        if "run" in order:
            pipe = socket.socketpair()
            running[order["run"]] = pipe[0]
            threads.append(_started(_run, Link(pipe[1]), link, order["run"], order["command"], environ))
        elif order.get("kill") in running:
            running.pop(order["kill"]).close()
    for pipe in running.values():
        pipe.close()
    _wait_for(threads)
    return 0


def _started(function, *arguments):
    thread = threading.Thread(target=function, args=arguments, daemon=True)
    thread.start()
    return thread


def _wait_for(threads):
    """Wait a while for commands to end. What hangs is left to the platform, which ends all processes of the job."""
    deadline = time.monotonic() + 3.0
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))


def _connect(address, key, rank, slots):
    """The link to rank 0, which may start later than this rank. What is there instead of it is asked again."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        link = None
        try:
            connection = socket.create_connection(address, timeout=_HANDSHAKE_S)
            link, nonce = Link(connection), secrets.token_hex(16)
            asked = (link.receive() or {}).get("nonce")
            link.send(rank=rank, slots=slots, nonce=nonce, proof=proof(key, "rank", asked, rank, slots, nonce))
            answer = link.receive() or {}
            if is_proof(answer, proof(key, "zero", nonce)):
                connection.settimeout(None)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                return link
        except OSError:
            pass
        if link is not None:
            link.close()
        if time.monotonic() > deadline:
            raise SystemExit(f"mpi: rank 0 does not answer at {address[0]}:{address[1]}")
        time.sleep(0.05)


def _run(control, output, number, command, environ):
    """Run one command as ssh would: send its output and its exit code to ``output``. It is killed when the other side
    of ``control`` is closed."""
    # Ranks of several simulated hosts share /tmp and /dev/shm, where daemons of one mpirun took each other's files.
    files, shared = private_directory(), private_directory("/dev/shm")
    own = {**environ, "TMPDIR": files, **dict.fromkeys(_SEGMENTS, shared)}
    process = subprocess.Popen(
        ["sh", "-c", command], env=own, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        start_new_session=True, preexec_fn=lambda: [signal.signal(number, signal.SIG_DFL) for number in _DEAF_TO],
    )  # fmt: skip
    mark = {} if number is None else {"run": number}

    def kill_with_it():
        while control.receive() is not None:
            pass
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)

    def pass_on(stream, name):
        with contextlib.suppress(OSError):  # nobody reads any more
            for block in iter(lambda: stream.read1(1 << 16), b""):
                output.send(**mark, **{name: base64.b64encode(block).decode()})

    _started(kill_with_it)
    try:
        for thread in [_started(pass_on, process.stdout, "out64"), _started(pass_on, process.stderr, "err64")]:
            thread.join()
        code = process.wait()
        if code == 127:
            program = command.split()[0] if command.split() else command
            output.send(**mark, err=f"mpi: {program} was not found on {os.environ.get('GPU_PLATFORM_HOST')}: install "
                        "the same MPI on every host of the gang\n")  # fmt: skip
        output.send(**mark, exit=code if code >= 0 else 128 - code)
    except OSError:
        pass
    finally:
        subprocess.call(["rm", "-rf", files, shared])


# -- what mpirun takes for ssh -----------------------------------------------------------------------------------------


def agent(path, words):
    """``rsh [options] HOST COMMAND…``: run a command on a host of the gang. Returns its exit code."""
    while words and words[0].startswith("-"):
        words = words[2:] if words[0] in ("-l", "-p", "-o", "-i", "-F", "-c") else words[1:]
    link = Link(socket.socket(socket.AF_UNIX))
    link.connection.connect(path)
    link.send(host=words[0], command=" ".join(words[1:]))
    while (said := link.receive()) is not None:
        for name, stream in (("out64", sys.stdout), ("err64", sys.stderr)):
            if name in said:
                stream.buffer.write(base64.b64decode(said[name]))
                stream.flush()
        sys.stderr.write(said.get("err", ""))
        sys.stderr.flush()
        if "exit" in said:
            return said["exit"]
    return 255


if __name__ == "__main__":
    source = globals().get("source", "")
    sys.exit(main(sys.argv[1:]))
