"""Facts about the host, and directories that are ours alone."""

import os
import pathlib
import signal
import subprocess
import sys

import pytest

from accelbus import host
from accelbus.errors import ConfigurationError

linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
root = pytest.mark.skipif(os.geteuid() != 0, reason="gives a file away")


def test_this_boot_has_one_id():
    """The same in every process."""
    seen = subprocess.run(
        [sys.executable, "-c", "from accelbus import host; print(host.boot_id())"], capture_output=True, text=True, check=True
    )
    assert seen.stdout.strip() == host.boot_id() != ""


@pytest.mark.parametrize(
    "sysctl", [{"kern.bootsessionuuid": "AB-12"}, {"kern.boottime": "{ sec = 1 }"}, {}], ids=["session", "time", "nothing"]
)
def test_without_proc_the_boot_has_an_id_too(monkeypatch, sysctl):
    """macOS: its session, or its time; elsewhere at least the host."""
    monkeypatch.setattr(host, "_read", lambda _: "")
    monkeypatch.setattr(host, "_output", lambda command: sysctl.get(command[-1], ""))
    assert host.boot_id.__wrapped__() == next(iter(sysctl.values()), f"unknown-{host.name()}")


def test_a_process_is_known_by_its_start_time():
    """The same for every observer, other than its parent's; gone when the process is."""
    process = subprocess.Popen(
        [sys.executable, "-c", "from accelbus import host; import os; print(host.process_start_time(os.getpid())); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        said = int(process.stdout.readline())
        assert host.process_start_time(process.pid) == said != host.process_start_time(os.getpid())
        assert host.process_exists(process.pid)
        assert host.parent_of(process.pid) == os.getpid()
        assert host.command_name(process.pid).startswith("python")
    finally:
        process.communicate("")
    assert host.process_start_time(process.pid) is None
    assert host.parent_of(process.pid) is None
    assert not host.process_exists(process.pid)


def test_start_times_can_be_compared():
    """A child is started after its parent, and soon."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        parent, child = host.process_start_time(os.getpid()), host.process_start_time(process.pid)
        assert parent is not None
        assert child is not None
        assert parent <= child
        assert 0 <= host.seconds_between(parent, child) < 3600
    finally:
        process.communicate()


def test_a_zombie_does_not_exist():
    """Killed and not yet reaped is gone."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    process.send_signal(signal.SIGKILL)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert not host.process_exists(process.pid)
    assert host.process_start_time(process.pid) is None
    process.communicate()


@pytest.mark.parametrize("pid", [0, -1, 2**22 + 1])
def test_what_is_no_process_does_not_exist(pid):
    """Process groups and numbers beyond the largest id are nobody."""
    assert not host.process_exists(pid)


@linux
def test_a_name_with_parentheses_does_not_confuse(tmp_path):
    """The kernel writes program names unescaped."""
    program = tmp_path / "a) R 1 (b"
    program.symlink_to("/bin/sleep")
    process = subprocess.Popen([program, "60"])
    try:
        assert host.parent_of(process.pid) == os.getpid()
        assert host.command_name(process.pid) == "a) R 1 (b"
    finally:
        process.kill()
        process.wait()


@linux
def test_the_environment_a_process_was_started_with_is_readable():
    """What it changed later is not seen; a process that is gone has none."""
    code = "import os; os.environ['LATER'] = '1'; print(flush=True); input()"
    process = subprocess.Popen(
        [sys.executable, "-c", code], env={"RANK": "1", "ODD": "a=b\udcff"}, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        process.stdout.readline()
        seen = host.environment_of(process.pid)
        assert seen is not None
        assert (seen["RANK"], seen["ODD"], seen.get("LATER")) == ("1", "a=b\udcff", None)
    finally:
        process.communicate(b"\n")
    assert host.environment_of(process.pid) is None


def test_without_proc_ps_is_asked(monkeypatch):
    """macOS: the same answers, whatever the unit."""
    monkeypatch.setattr(host.sys, "platform", "darwin")
    replies = {"state=,ppid=,lstart=": "Ss     1 Mon Nov 30 18:15:00 2026", "comm=": "-zsh"}
    monkeypatch.setattr(host, "_output", lambda command: replies.get(command[2], ""))
    monkeypatch.setattr(host, "_read", lambda _: "")
    assert host.parent_of(50) == 1
    assert host.process_start_time(50) == host.process_start_time(50) != None  # noqa: E711
    assert host.command_name(50) == "zsh"
    replies["state=,ppid=,lstart="] = "Ss     1 Mon Nov 30 18:15:01 2026"
    later = host.process_start_time(50)
    assert host.seconds_between(host.process_start_time(50) or 0, (later or 0) + 60) == 60
    replies["state=,ppid=,lstart="] = "Z      1 Mon Nov 30 18:15:01 2026"
    assert later is not None
    assert host.process_start_time(50) is None
    replies.clear()
    assert not host.process_exists(50)


# Directories


@pytest.fixture
def short():
    """A directory whose path leaves room, unlike tmp_path, and which is not below a directory open to others."""
    path = pathlib.Path("/tmp") / f"ab-test-{os.getpid()}"
    path.mkdir(mode=0o700)
    yield path
    subprocess.run(["rm", "-rf", str(path)], check=True)


def test_a_private_directory_is_made_and_found_again(short):
    """Mode 0700, whatever the umask."""
    previous = os.umask(0)
    try:
        host.make_private(short / "ours")
    finally:
        os.umask(previous)
    host.make_private(short / "ours")
    assert (short / "ours").stat().st_mode & 0o777 == 0o700


def test_a_link_is_refused(short):
    """Another user may have put it there."""
    (short / "target").mkdir(mode=0o700)
    (short / "ours").symlink_to(short / "target")
    with pytest.raises(OSError, match="found a link or file"):
        host.make_private(short / "ours")


def test_a_file_is_refused(short):
    """It is no directory."""
    (short / "ours").touch()
    with pytest.raises(OSError, match="found a link or file"):
        host.make_private(short / "ours")


def test_a_directory_open_to_others_is_refused(short):
    """It may hold what others put into it, so it is not repaired."""
    (short / "ours").mkdir()
    (short / "ours").chmod(0o755)
    with pytest.raises(PermissionError, match="expected mode 0700, found 0755"):
        host.make_private(short / "ours")


@root
def test_a_directory_of_somebody_else_is_refused(short):
    """Even when root could write to it."""
    (short / "ours").mkdir(mode=0o700)
    os.chown(short / "ours", 12345, -1)
    with pytest.raises(PermissionError, match="belongs to 12345"):
        host.make_private(short / "ours")


def test_a_parent_that_others_may_write_is_refused_unless_sticky(short):
    """Others could rename our directory and put theirs in its place."""
    short.chmod(0o777)
    with pytest.raises(PermissionError, match="not sticky"):
        host.make_private(short / "ours")
    short.chmod(0o1777)
    host.make_private(short / "ours")


def test_a_path_too_long_for_sockets_is_refused(short):
    """Socket addresses have 104 bytes on macOS."""
    with pytest.raises(OSError, match="at most 70 bytes"):
        host.make_private(short / ("x" * 70))


def test_the_private_directory_does_not_depend_on_tmpdir(monkeypatch, tmp_path):
    """Ranks of one job may see different ones."""
    before = host.private_directory()
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert host.private_directory() == before
    assert len(os.fsencode(before)) <= 70


def test_the_next_directory_is_used_when_one_is_not_ours(monkeypatch, short):
    """A squatter on the usual name costs nothing but the name."""
    usual = host.private_directory({})
    made = host.make_private

    def refuse_usual(directory):
        if directory == usual:
            raise PermissionError(0, "it belongs to 666")
        made(directory)

    monkeypatch.setattr(host, "make_private", refuse_usual)
    assert host.private_directory({"XDG_RUNTIME_DIR": str(short)}) == short / "accelbus"


def test_when_no_directory_can_be_used_the_error_says_why(monkeypatch):
    """Each candidate with its trouble, and the setting that helps."""

    def refuse(directory):
        raise PermissionError(0, f"no {directory.name}")

    monkeypatch.setattr(host, "make_private", refuse)
    with pytest.raises(ConfigurationError, match=r"/nowhere/accelbus: no accelbus.*ACCELBUS_SOCKET_DIR"):
        host.private_directory({"XDG_RUNTIME_DIR": "/nowhere"})


MOUNTS = """\
21 1 8:1 / / rw - ext4 /dev/sda1 rw
22 21 0:20 / /dev/shm rw,nosuid shared:3 - tmpfs tmpfs rw
23 21 0:30 / /data\\040set rw - nfs4 server:/data rw
24 21 0:31 / /lustre rw - lustre head@tcp:/x rw
25 21 0:32 / /remote rw - fuse.sshfs host: rw
26 24 8:2 / /lustre/local rw - xfs /dev/sdb rw
27 21 0:33 / /over rw - ext4 /dev/sdc rw
28 27 0:34 / /over rw - nfs server:/over rw
"""


@pytest.mark.parametrize(
    "path, network",
    [("/home/x", False), ("/data set/runs", True), ("/data", False), ("/lustre/x", True), ("/lustrex", False), ("/lustre/local/x", False),
     ("/remote", True), ("/over/x", True), ("/dev/shm/x", False)],
)  # fmt: skip
def test_network_file_systems_are_recognised(monkeypatch, path, network):
    """By the mount that holds the path: the longest, and the last of equal ones."""
    monkeypatch.setattr(host, "_read", lambda _: MOUNTS)
    assert host.is_on_network(pathlib.Path(path)) is network


def test_without_a_mount_table_nothing_is_claimed(monkeypatch):
    """No tmpfs, no network."""
    monkeypatch.setattr(host, "_read", lambda _: "")
    assert host.tmpfs_directory() is None
    assert not host.is_on_network(pathlib.Path("/"))


def test_a_directory_in_memory_that_is_not_ours_is_not_used(monkeypatch, short):
    """Spools hold what users log."""
    monkeypatch.setattr(host, "_SHARED_MEMORY", short)
    monkeypatch.setattr(host, "_read", lambda _: f"22 21 0:20 / {short} rw - tmpfs tmpfs rw")
    assert host.tmpfs_directory() == short / f"accelbus-{os.geteuid()}"
    (short / f"accelbus-{os.geteuid()}").chmod(0o777)
    assert host.tmpfs_directory() is None


@linux
def test_the_directory_in_memory_is_ours():
    """Where there is a tmpfs."""
    directory = host.tmpfs_directory()
    if directory is not None:
        assert directory.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("variable", ["SLURM_JOB_ID", "PBS_JOBID", "KUBERNETES_SERVICE_HOST", "container"])
def test_batch_jobs_and_containers_are_recognised(variable, monkeypatch):
    """They kill what a process leaves behind."""
    monkeypatch.setattr(host, "_CONTAINER_FILES", ())
    assert host.in_batch_job_or_container({variable: "1"})
    assert not host.in_batch_job_or_container({variable: ""})
