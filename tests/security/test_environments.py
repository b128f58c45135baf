"""Environments of jobs in the jail: code belongs to the account, and a container is a view, never a way out.

The images are made here: a directory with busybox, as an archive, as a SquashFS, and as an image of podman.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import subprocess
import sys
import tarfile
import tempfile
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import IO, Any

import pytest

from gpu_platform.client.archive import pack
from gpu_platform.domain.errors import HostUnavailable, PreflightFailed
from gpu_platform.domain.jobs.attempt import HostPlan
from gpu_platform.domain.jobs.environment import JobEnvironment, outputs_path
from gpu_platform.node.environments.containers import ContainerStage
from gpu_platform.node.environments.program import MODULE_INITS
from gpu_platform.node.environments.stages import environment_stages
from gpu_platform.node.environments.uploaded_code import CODE
from gpu_platform.node.system.paths import attempt_dir
from tests.integration.test_hosts_exec import ExecRig
from tests.support.hosts_rig import HostRig

pytestmark = pytest.mark.usefixtures("jails")

BUSYBOX = "/bin/busybox"
APPLETS = ("sh", "ls", "id", "cat", "env", "touch", "stat", "dd", "mknod", "mount", "unshare", "nsenter", "readlink")


class Service:
    """Gives one archive to every attempt."""

    def __init__(self) -> None:
        self.content = b""

    @property
    def environment(self) -> JobEnvironment:
        return JobEnvironment(upload=hashlib.sha256(self.content).hexdigest())

    def __call__(self, plan: HostPlan, file: IO[bytes]) -> None:
        file.write(self.content)


@pytest.fixture
def service() -> Service:
    return Service()


@pytest.fixture
async def host(tmp_path: Path, dev: Path, service: Service) -> AsyncIterator[HostRig]:
    tmp_path.chmod(0o755)
    rig = HostRig(tmp_path / "state", isolation="required", dev=dev, writable_paths=[Path(sys.prefix)])
    rig.restart(environment_stages(rig.settings, rig.home, rig.inventory, service))
    yield rig
    await rig.aclose()


@pytest.fixture(scope="session")
def small_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root file system with a static shell."""
    if not os.path.exists(BUSYBOX) or b"statically" not in _file_type(BUSYBOX):
        pytest.skip("busybox-static is not installed")
    root = tmp_path_factory.mktemp("image") / "rootfs"
    for directory in ("bin", "etc", "usr/bin"):
        (root / directory).mkdir(parents=True)
    shutil.copy(BUSYBOX, root / "bin" / "busybox")
    for applet in APPLETS:
        (root / "bin" / applet).symlink_to("busybox")
    (root / "etc" / "os-release").write_text("NAME=small\n")
    return root


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that every account of the machine reaches, and that jails do not cover as they do ``/tmp``."""
    found = Path(tempfile.mkdtemp(prefix="gpu-platform-", dir="/srv"))
    found.chmod(0o755)
    yield found
    shutil.rmtree(found)


@pytest.fixture
def rootfs(small_root: Path, place: Path) -> Path:
    root = place / "rootfs"
    shutil.copytree(small_root, root, symlinks=True)
    return root


def _file_type(path: str) -> bytes:
    """``statically`` for a program without a loader (PT_INTERP)."""
    with open(path, "rb") as file:
        return b"dynamically" if b"/ld-linux" in file.read() else b"statically"


def done(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, umask=0o022)


async def output(host: HostRig, *command: str, code: int = 0, **changes: Any) -> str:
    plan = host.plan(*command, **changes)
    host.launch(plan)
    exits = await host.watch(plan)
    said = host.log(plan)
    assert [one.exit_code for one in exits.exits] == [code], (exits, said)
    await host.stop(plan.key)
    return said


def in_container(rootfs: Path | str, **fields: Any) -> JobEnvironment:
    return JobEnvironment(container=str(rootfs), **fields)


async def test_code_is_the_accounts_own_working_directory_and_goes_with_the_attempt(
    host: HostRig, service: Service, tmp_path: Path
) -> None:
    code = tmp_path / "project"
    code.mkdir()
    (code / "run.sh").write_text("#!/bin/sh\ntouch written && stat -c '%u' run.sh && id -u && pwd")
    (code / "run.sh").chmod(0o755)
    with pack(code, 1 << 20) as archive:
        service.content = archive.read(0, 1 << 20)
    key = host.key()
    owner, own, place = (await output(host, "./run.sh", key=key, environment=service.environment)).split()
    assert owner == own != "0"
    assert place == str(attempt_dir(host.home, key) / CODE)
    assert not Path(place).exists(), "it is removed with the attempt"
    assert not list(attempt_dir(host.home, key).glob("*.tar"))


async def test_a_node_worker_that_restarts_keeps_the_code_of_open_attempts_and_removes_the_rest(
    host: HostRig, service: Service, tmp_path: Path
) -> None:
    code = tmp_path / "project"
    code.mkdir()
    (code / "a").write_text("here")
    with pack(code, 1 << 20) as archive:
        service.content = archive.read(0, 1 << 20)
    plan = host.plan("/bin/cat", "a", environment=service.environment)
    host.worker.prepare(plan)
    left = host.home / "jobs" / "j-gone" / "1" / CODE
    (left / "deep").mkdir(parents=True)
    service.content = b"no service is asked again"
    host.restart()
    assert not left.exists()
    host.launch(plan)
    await host.watch(plan)
    assert host.log(plan) == "here"


async def test_code_with_another_hash_is_never_unpacked(host: HostRig, service: Service) -> None:
    service.content = b"x" * 10_000
    wanted = service.environment
    service.content = b"y" * 10_000
    plan = host.plan("true", environment=wanted)
    with pytest.raises(HostUnavailable, match=r"got other code than job .* names"):
        host.launch(plan)
    assert not (attempt_dir(host.home, plan.key) / CODE).exists()


async def test_a_hostile_archive_is_the_jobs_own_failure(host: HostRig, service: Service, tmp_path: Path) -> None:
    path = tmp_path / "hostile.tar"
    with tarfile.open(path, "w") as tar:
        link = tarfile.TarInfo("l")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc"
        tar.addfile(link)
    service.content = path.read_bytes()
    with pytest.raises(PreflightFailed, match=r"refuses the uploaded code .* leads out of it, to '/etc'"):
        host.launch(host.plan("true", environment=service.environment))


async def test_what_a_job_leaves_in_its_code_is_removed_however_deep_it_is(
    host: HostRig, service: Service, tmp_path: Path
) -> None:
    victim = tmp_path / "victim"
    victim.mkdir(mode=0o777)
    victim.chmod(0o777)
    (victim / "keep").write_text("")
    code = tmp_path / "project"
    code.mkdir()
    (code / "a").write_text("")
    with pack(code, 1 << 20) as archive:
        service.content = archive.read(0, 1 << 20)
    script = f"""
import os
os.symlink({str(victim)!r}, "out")
for _ in range(400):
    os.mkdir("d" * 20); os.chdir("d" * 20)
"""
    key = host.key()
    await output(host, "/usr/bin/python3", "-c", script, key=key, environment=service.environment)
    assert not (attempt_dir(host.home, key) / CODE).exists()
    assert (victim / "keep").exists()


async def test_outputs_stay_and_belong_to_the_account(host: HostRig) -> None:
    key = host.key()
    environment = JobEnvironment(outputs="results")
    await output(host, "/bin/sh", "-c", "echo 1 > $GPU_PLATFORM_OUTPUTS/a", key=key, environment=environment)
    root = host.settings.state_dir / "outputs" / outputs_path(key.job_id, "results")
    assert (root / "a").read_text() == "1\n"
    assert (root / "a").stat().st_uid != 0


async def test_a_virtual_environment_is_active_or_the_reason_is_said(host: HostRig, place: Path) -> None:
    venv = place / "venv"
    done("/usr/bin/python3", "-m", "venv", "--without-pip", str(venv))
    show = "import os, sys; print(sys.prefix, os.environ['VIRTUAL_ENV'])"
    said = await output(host, "python", "-c", show, environment=JobEnvironment(venv=str(venv)))
    assert said.split() == [str(venv), str(venv)]
    wrong = {
        str(place / "nowhere"): "there is no such directory",
        str(place): "it has no pyvenv.cfg",
    }
    for path, why in wrong.items():
        with pytest.raises(PreflightFailed, match=f"{path} cannot be used on box: {why}"):
            host.launch(host.plan("python", environment=JobEnvironment(venv=path)))


async def test_modules_are_loaded_in_order_or_the_reason_is_said(host: HostRig, place: Path) -> None:
    environment = JobEnvironment(modules=("first/1.0", "second"))
    init = place / "init.sh"
    host.settings.node.module_init = init
    with pytest.raises(PreflightFailed, match=r"loads modules .*first/1.0, second.* has no command module"):
        host.launch(host.plan("env", environment=environment))
    init.write_text('module() { [ "$2" != second ] || [ "$LOADED" = first/1.0 ] || return 1; export LOADED=$2; }\n')
    init.chmod(0o644)
    said = await output(host, "/bin/sh", "-c", 'echo $LOADED "$@"', "x", "a b", "$c", environment=environment)
    assert said == "second a b $c\n"
    other = JobEnvironment(modules=("second",))
    assert "module load second failed on box" in await output(host, "env", environment=other, code=126)


async def test_exec_has_the_virtual_environment_and_the_modules_of_the_rank(host: HostRig, place: Path) -> None:
    venv = place / "venv"
    done("/usr/bin/python3", "-m", "venv", "--without-pip", str(venv))
    init = host.settings.node.module_init = place / "init.sh"
    init.write_text("module() { export LOADED=$LOADED:$2; }\n")
    init.chmod(0o644)
    plan = host.plan(
        "sleep", "1000", environment=JobEnvironment(modules=("first/1.0", "second"), venv=str(venv)), user="bob"
    )
    host.launch(plan)
    beside = ExecRig(host)
    ran = await beside.run(plan.key, "sh", "-c", 'echo $LOADED $VIRTUAL_ENV "$@"', "x", "a b")
    assert ran.out == f":first/1.0:second {venv} a b\n"
    assert (await beside.run(plan.key, "no-such-program")).code == 127
    plain = host.plan("sleep", "1000")
    host.launch(plain)
    assert (await beside.run(plain.key, "sh", "-c", "echo $LOADED")).out == "\n"


async def test_exec_is_in_the_container_of_the_rank(host: HostRig, rootfs: Path) -> None:
    plan = host.plan("sh", "-c", "while :; do read line </dev/zero; done", environment=in_container(rootfs))
    host.launch(plan)
    ran = await ExecRig(host).run(plan.key, "sh", "-c", "cat /etc/os-release; id -u; ls -d /boot /root 2>/dev/null")
    assert ran.out.split()[0] == "NAME=small"
    assert ran.out.split()[1] != "0"
    assert len(ran.out.split()) == 2, "nothing of the host"


@pytest.mark.skipif(not any(os.path.exists(init) for init in MODULE_INITS), reason="no Lmod or Environment Modules")
async def test_modules_of_this_machine(host: HostRig, place: Path) -> None:
    (place / "files").mkdir()
    (place / "files" / "tool").write_text("#%Module\nsetenv TOOL here\nprepend-path PATH /opt/tool/bin\n")
    environment = JobEnvironment(modules=("tool",))
    said = await output(
        host, "/bin/sh", "-c", "echo $TOOL $PATH", env={"MODULEPATH": str(place / "files")}, environment=environment
    )
    assert said.startswith("here /opt/tool/bin:")


async def test_a_container_shows_its_files_and_nothing_of_the_host(host: HostRig, rootfs: Path, place: Path) -> None:
    (place / "beside").write_text("secret of the host")
    script = f"""
        cat /etc/os-release; id -u; ls -d /usr/lib /home /opt /root /boot 2>/dev/null
        exec 2>/dev/null
        cat {place}/beside; touch /new && echo WROTE; touch /bin/new && echo WROTE
        echo kept > $GPU_PLATFORM_OUTPUTS/a; echo $PATH
    """
    said = await output(host, "sh", "-c", script, environment=in_container(rootfs, outputs="o"))
    name, uid, path = said.split()
    assert name == "NAME=small"
    assert uid != "0"
    assert path == "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    assert sorted(one.name for one in rootfs.iterdir()) == ["bin", "etc", "usr"], "nothing was written into the image"
    assert not list(host.home.glob("jobs/*/*/root")), "nothing is left of it"


async def test_the_fence_holds_in_a_container(host: HostRig, rootfs: Path, dev: Path) -> None:
    other = (dev / "nvidia1").stat().st_rdev
    os.mknod(rootfs / "planted", stat.S_IFCHR | 0o666, other)
    shutil.copy(rootfs / "bin" / "busybox", rootfs / "bin" / "busybox-suid")
    (rootfs / "bin" / "busybox-suid").chmod(0o4755)
    script = f"""
        exec 2>/dev/null
        ls /dev | grep nvidia || ls /dev
        dd if=/planted of=/dev/null count=1 && echo OPENED
        dd if=/dev/nvidia1 of=/dev/null count=1 && echo OPENED
        mknod /tmp/n c {os.major(other)} {os.minor(other)} && echo MADE
        mount -t tmpfs x /tmp && echo MOUNTED
        unshare -U /bin/busybox true && echo UNSHARED
        nsenter -t 1 -m /bin/busybox true && echo ENTERED
        /bin/busybox-suid id -u
    """
    said = await output(host, "sh", "-c", script, environment=in_container(rootfs), code=0)
    assert not [word for word in ("OPENED", "MADE", "MOUNTED", "UNSHARED", "ENTERED") if word in said], said
    assert said.split()[-1] not in ("0", "ENTERED")
    assert "nvidia0" in said.split()
    assert "nvidia1" not in said.split()


async def test_no_program_of_an_image_runs_as_root(host: HostRig, rootfs: Path) -> None:
    """The processes that make the jail are root: what they execute or load must never be the image's."""
    witness = "#!/bin/sh\nid -u >> /proc/1/cwd/tmp/witness; exit 1\n"
    for name in ("setpriv", "sleep", "sh"):
        program = rootfs / "usr" / "bin" / name
        program.write_text(witness)
        program.chmod(0o755)
    (rootfs / "etc" / "nsswitch.conf").write_text("passwd: evil files\ngroup: evil files\n")
    (rootfs / "etc" / "ld.so.preload").write_text("/usr/bin/setpriv\n")
    script = "readlink /proc/1/exe; cat /proc/1/comm /tmp/witness; id -G"
    said = await output(host, "/bin/sh", "-c", f"{script} 2>/dev/null; true", environment=in_container(rootfs))
    assert "sleep" in said or "ld.so" in said, "the host's own program holds the jail"
    assert "\n0\n" not in said


@pytest.mark.parametrize("link", ["var", "home"])
async def test_an_image_leads_no_mount_out_of_itself(host: HostRig, rootfs: Path, tmp_path: Path, link: str) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    (rootfs / link).symlink_to(f"/oldroot{victim}" if link == "var" else str(victim))
    work = Path("/home") / f"gpu-platform-test-{uuid.uuid4().hex[:8]}"
    work.mkdir()
    try:
        plan = host.plan("/bin/ls", environment=in_container(rootfs), workdir=str(work))
        with pytest.raises(PreflightFailed, match="the container has a link where"):
            host.launch(plan)
        assert os.listdir(victim) == []
    finally:
        work.rmdir()


async def test_places_of_the_jail_are_the_jails_own_whatever_the_image_has_there(host: HostRig, rootfs: Path) -> None:
    for name in ("tmp", "run", "proc"):
        (rootfs / name).symlink_to("/etc")
    (rootfs / "etc" / "passwd").symlink_to("/etc/shadow")
    said = await output(host, "/bin/sh", "-c", "ls -ld /tmp /run /proc; id -un", environment=in_container(rootfs))
    assert "->" not in said
    assert said.split()[-1].startswith("job-")


async def test_a_container_that_is_not_there_or_may_not_be_seen_is_named(host: HostRig, rootfs: Path) -> None:
    wrong = {
        "/srv/no-such-image": "there is no such directory",
        "/etc": "it is a directory of the system",
        str(host.settings.state_dir): "it is a directory of the system or of the platform",
    }
    for path, why in wrong.items():
        with pytest.raises(PreflightFailed, match=f"the container {path} cannot be used on box: {why}"):
            host.launch(host.plan("ls", environment=in_container(path)))
    rootfs.chmod(0o700)
    with pytest.raises(PreflightFailed, match=r"the account job-\d+ .* may not enter"):
        host.launch(host.plan("ls", environment=in_container(rootfs)))


@pytest.mark.skipif(shutil.which("mksquashfs") is None, reason="squashfs-tools are not installed")
async def test_an_image_file_is_unpacked_with_the_rights_of_the_account(
    host: HostRig, small_root: Path, place: Path
) -> None:
    image = place / "small.sqsh"
    done("mksquashfs", str(small_root), str(image), "-quiet", "-no-progress")
    image.chmod(0o644)
    key = host.key()
    said = await output(host, "cat", "/etc/os-release", key=key, environment=in_container(image))
    assert said == "NAME=small\n"
    assert not (attempt_dir(host.home, key) / "image").exists()
    sif = place / "small.sif"
    header = b"#!/usr/bin/env run-singularity\n".ljust(32, b"\0") + b"SIF_MAGIC".ljust(8160, b"\0")
    sif.write_bytes(header + image.read_bytes())
    sif.chmod(0o644)
    assert await output(host, "cat", "/etc/os-release", environment=in_container(sif)) == "NAME=small\n"
    image.chmod(0o600)
    with pytest.raises(PreflightFailed, match="the account of the job cannot read it"):
        host.launch(host.plan("ls", environment=in_container(image)))
    sif.write_bytes(b"no image")
    with pytest.raises(PreflightFailed, match="there is no SquashFS in it"):
        host.launch(host.plan("ls", environment=in_container(sif)))


@pytest.mark.skipif(shutil.which("mksquashfs") is None, reason="squashfs-tools are not installed")
def test_an_image_file_for_which_a_host_has_no_room_is_not_at_fault(small_disk: Path, place: Path) -> None:
    (place / "image").mkdir()
    (place / "image" / "large").write_bytes(os.urandom(4 << 20))
    image = place / "large.sqsh"
    done("mksquashfs", str(place / "image"), str(image), "-quiet", "-no-progress")
    image.chmod(0o644)
    rig = HostRig(small_disk)
    plan = rig.plan("ls", environment=in_container(image))
    attempt_dir(rig.home, plan.key).mkdir(parents=True)
    stage = ContainerStage(rig.settings.node, rig.settings.state_dir, rig.home, jailed=True, simulated=True)
    with pytest.raises(HostUnavailable, match=r"the disk of its records \(.*\) is full: make room there"):
        stage.prepare(plan)
    rig.worker.close()


CHANGES = [f"--change=ENV {one}" for one in ("COLOUR=blue", "RANK=9", "NVIDIA_VISIBLE_DEVICES=all", "HOME=/etc")]


@pytest.fixture
def podman_image(small_root: Path) -> Iterator[str]:
    """An image in the store of this machine, as ``podman load`` puts it there."""
    if shutil.which("podman") is None:
        pytest.skip("podman is not installed")
    name = f"localhost/gpu-platform-test-{uuid.uuid4().hex[:8]}:1"
    archive = subprocess.run(["tar", "-C", small_root, "-c", "."], check=True, capture_output=True).stdout
    made = subprocess.run(["podman", "import", *CHANGES, "-", name], input=archive, capture_output=True, check=False)
    if made.returncode != 0:
        pytest.skip(f"podman does not work here: {made.stderr.decode()[-200:]}")
    yield name
    subprocess.run(["podman", "rmi", "--force", name], check=False, capture_output=True)


async def test_an_image_of_podman_runs_in_the_jail(host: HostRig, podman_image: str) -> None:
    environment = in_container(f"docker://{podman_image}")
    said = await output(
        host, "sh", "-c", "cat /etc/os-release; echo $COLOUR $RANK $HOME; id -u; env", environment=environment
    )
    name, *facts, uid = said.split()[:5]
    assert (name, facts) == ("NAME=small", ["blue", "0", "/tmp/home"]), "what the platform says, no image says"
    assert "NVIDIA_VISIBLE_DEVICES=GPU-" in said
    assert uid != "0"
    images = host.settings.state_dir / "images"
    assert stat.S_IMODE(images.stat().st_mode) == 0o700, "its setuid programs are nobody's on the host"
    env = {"COLOUR": "red"}
    assert await output(host, "sh", "-c", "echo $COLOUR", env=env, environment=environment) == "red\n"
