"""``systemctl``, ``systemd-run`` and ``journalctl`` on a machine without systemd.

They start what units say, as the accounts that units name, with their variables and directories, and start it again
when it ends. They do not isolate as systemd does: ``tests/security/test_units.py`` asks systemd itself about that.

It is copied to machines (``tests/support/page_machine.py``) and imports nothing but Python's own library.
"""

import os
import pwd
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

UNITS = Path("/etc/systemd/system")
RUNNING = Path("/run/small-systemd")
STOP_TIMEOUT_S = 20


def main() -> int:
    RUNNING.mkdir(exist_ok=True)
    name, arguments = Path(sys.argv[0]).name, sys.argv[1:]
    return {"systemctl": systemctl, "systemd-run": systemd_run, "journalctl": journalctl}[name](arguments)


def systemctl(arguments: list[str]) -> int:
    verb, *rest = arguments
    units = [Unit(name) for name in rest if not name.startswith("-")]
    if verb == "daemon-reload":
        return 0
    for unit in units:
        if verb in ("stop", "restart"):
            unit.stop()
        if verb in ("start", "restart") or (verb == "enable" and "--now" in rest):
            unit.start()
    return 0 if verb in ("start", "stop", "restart", "enable") else fail(f"systemctl {verb}: not known here")


def systemd_run(arguments: list[str]) -> int:
    options = list(arguments[: first_word(arguments)])
    command = arguments[first_word(arguments) :]
    env, uid, directory = {"PATH": os.defpath}, "root", "/"
    for option in options:
        name, _, value = option.partition("=")
        if name == "--uid":
            uid = value
        elif name == "--working-directory":
            directory = value
        elif name == "--setenv":
            env.update(dict([value.split("=", 1)]))
        elif name == "--property":
            kind, _, file = value.partition("=")
            assert kind == "EnvironmentFile", option
            env.update(read_environment(Path(file)))
        elif option not in ("--quiet", "--pipe", "--wait"):
            return fail(f"systemd-run {option}: not known here")
    return subprocess.run(command, env=env, cwd=directory, umask=0o022, **account(uid)).returncode


def first_word(arguments: list[str]) -> int:
    return next(number for number, word in enumerate(arguments) if not word.startswith("-"))


def journalctl(arguments: list[str]) -> int:
    name = arguments[arguments.index("--unit") + 1]
    lines = int(arguments[arguments.index("--lines") + 1])
    print("\n".join(Unit(name).log.read_text().splitlines()[-lines:]))
    return 0


class Unit:
    def __init__(self, name: str) -> None:
        self.name = name.removesuffix(".service")
        self.file = UNITS / f"{self.name}.service"
        self.pid_file = RUNNING / f"{self.name}.pid"
        self.log = RUNNING / f"{self.name}.log"

    def settings(self, key: str) -> list[str]:
        """All values of a key, with those of drop-ins last."""
        files = [self.file, *sorted(self.file.with_suffix(".service.d").glob("*.conf"))]
        return [value for file in files for value in re.findall(rf"^{key}=(.*)$", file.read_text(), re.MULTILINE)]

    def setting(self, key: str, default: str = "") -> str:
        return [default, *self.settings(key)][-1]

    def start(self) -> None:
        user = self.setting("User", "root")
        if directory := self.setting("StateDirectory"):
            there = Path("/var/lib") / directory
            there.mkdir(exist_ok=True)
            there.chmod(int(self.setting("StateDirectoryMode", "0755"), 8))
            home = pwd.getpwnam(user)
            os.chown(there, home.pw_uid, home.pw_gid)
        env = {"PATH": os.defpath, "HOME": pwd.getpwnam(user).pw_dir, "USER": user}
        for value in self.settings("Environment"):
            env.update(dict(pair.split("=", 1) for pair in shlex.split(value)))
        for value in self.settings("EnvironmentFile"):
            file = Path(value.removeprefix("-"))
            if file.exists() or not value.startswith("-"):
                env.update(read_environment(file))
        options = {
            "env": env,
            "cwd": self.setting("WorkingDirectory", "/"),
            "umask": int(self.setting("UMask", "0022"), 8),
        }
        for value in self.settings("ExecStartPre"):
            may_fail = value[:2].startswith("-") or value[:2].endswith("-")
            command = shlex.split(value.lstrip("-+").replace("$$", "$"))
            if may_fail and not Path(command[0]).exists():
                continue
            with self.log.open("ab") as log:
                subprocess.run(command, stdout=log, stderr=log, check=not may_fail, **options, **account(user))
        if os.fork() == 0:
            os.setsid()
            self._keep(shlex.split(self.setting("ExecStart")), {**options, **account(user)})
            os._exit(0)
        while not self.pid_file.exists():
            time.sleep(0.01)

    def _keep(self, command: list[str], options: dict) -> None:
        """Run the program again and again, as ``Restart=always`` says, until it is stopped."""
        null = os.open(os.devnull, os.O_RDWR)
        with self.log.open("ab") as log:
            for number, to in enumerate((null, log.fileno(), log.fileno())):
                os.dup2(to, number)
        while True:
            process = subprocess.Popen(command, **options)
            self.pid_file.write_text(f"{os.getpid()} {process.pid}")
            process.wait()
            time.sleep(float(self.setting("RestartSec", "1")))

    def stop(self) -> None:
        keeper, process = map(int, self.pid_file.read_text().split())
        os.kill(keeper, signal.SIGKILL)
        self.pid_file.unlink()
        deadline = time.monotonic() + STOP_TIMEOUT_S
        while Path(f"/proc/{process}").exists():
            os.kill(process, signal.SIGTERM if time.monotonic() < deadline else signal.SIGKILL)
            time.sleep(0.2)


def account(user: str) -> dict:
    found = pwd.getpwnam(user)
    if found.pw_uid == os.getuid():
        return {}
    return {"user": found.pw_uid, "group": found.pw_gid, "extra_groups": os.getgrouplist(user, found.pw_gid)}


def read_environment(file: Path) -> dict[str, str]:
    lines = [line for line in file.read_text().splitlines() if line.strip() and not line.startswith("#")]
    return dict(line.split("=", 1) for line in lines)


def fail(text: str) -> int:
    print(text, file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
