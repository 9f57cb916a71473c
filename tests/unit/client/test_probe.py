"""What surrounds a run: git, packages, processors, graphics cards."""

import os
import subprocess
from pathlib import Path

import pytest

from accelbus.client import probe

ENVIRON = {
    **{name: value for name, value in os.environ.items() if not name.startswith("GIT_")},
    "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull, "GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b", "GIT_COMMITTER_NAME": "a",
    "GIT_COMMITTER_EMAIL": "a@b",
}  # fmt: skip


class Tree:
    """A working tree of git."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(parents=True)
        self.git("init", "-q", "-b", "main")

    def git(self, *arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=self.path, env=ENVIRON, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    def commit(self, **files: str) -> str:
        for name, text in files.items():
            (self.path / name).write_text(text)
        self.git("add", ".")
        self.git("commit", "-q", "-m", "more")
        return self.git("rev-parse", "HEAD")

    def state(self) -> dict:
        return probe.git_state(str(self.path))

    def patch(self, limit: int = 10_000) -> str | None:
        return probe.git_patch(str(self.path), limit)


@pytest.fixture
def tree(tmp_path, monkeypatch):
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    return Tree(tmp_path / "tree")


class TestGit:
    def test_a_clean_tree(self, tree):
        """Commit, branch and remote, and nothing changed."""
        commit = tree.commit(train="x = 1\n")
        tree.git("remote", "add", "origin", "https://me:s3cret@example.org/me/it.git")
        state = tree.state()
        assert (state["commit"], state["branch"], state["dirty"], state["untracked"]) == (commit, "main", False, [])
        assert state["remote"] == "https://example.org/me/it.git"
        assert tree.patch() == ""

    def test_a_changed_tree(self, tree):
        """The patch brings the commit to what ran, staged or not; new files are named."""
        tree.commit(a="1\n", b="1\n")
        (tree.path / "a").write_text("2\n")
        (tree.path / "b").write_text("3\n")
        tree.git("add", "b")
        (tree.path / "new file").write_text("")
        state = tree.state()
        assert state["dirty"] is True
        assert state["untracked"] == ["new file"]
        patch = tree.patch()
        assert "-1\n+2\n" in patch
        assert "-1\n+3\n" in patch
        subprocess.run(["git", "stash", "-q"], cwd=tree.path, env=ENVIRON, check=True)
        subprocess.run(["git", "apply"], cwd=tree.path, env=ENVIRON, check=True, input=patch.encode())
        assert ((tree.path / "a").read_text(), (tree.path / "b").read_text()) == ("2\n", "3\n")

    def test_a_large_patch_is_cut(self, tree):
        """At a line, and it says so."""
        tree.commit(a="")
        (tree.path / "a").write_text("".join(f"line {number}\n" for number in range(10_000)))
        patch = tree.patch(1000)
        assert len(patch) < 1100
        assert patch.splitlines()[-1] == "[cut here: the patch is larger than 1000 bytes]"
        assert patch.splitlines()[-2].startswith("+line ")

    def test_no_branch_and_no_commit(self, tree):
        """A detached head has a commit; a new tree has a branch."""
        assert (tree.state()["commit"], tree.state()["branch"], tree.patch()) == (None, "main", None)
        commit = tree.commit(a="1")
        tree.git("checkout", "-q", "--detach")
        assert (tree.state()["commit"], tree.state()["branch"]) == (commit, None)

    def test_the_remote_of_the_branch_is_taken(self, tree):
        """Not everybody calls it origin."""
        tree.commit(a="1")
        tree.git("remote", "add", "upstream", "git@example.org:me/it.git")
        tree.git("config", "branch.main.remote", "upstream")
        assert tree.state()["remote"] == "git@example.org:me/it.git"

    def test_looking_changes_nothing(self, tree):
        """Neither the index nor a lock that a commit running beside would stumble over; and no program of the repository's runs."""
        tree.commit(a="1\n")
        marker = tree.path.parent / "ran"
        tree.git("config", "core.fsmonitor", f"touch {marker}; true")
        tree.git("config", "diff.external", f"touch {marker}; true")
        tree.git("config", "core.pager", f"touch {marker}; cat")
        os.utime(tree.path / "a", (1, 1))
        index = tree.path / ".git" / "index"
        before = index.read_bytes()
        assert tree.state()["dirty"] is False
        assert tree.patch() == ""
        assert index.read_bytes() == before
        assert not marker.exists()

    def test_the_first_directory_in_a_tree_counts(self, tree, tmp_path):
        """The script's, if it is in one, else where it was started."""
        (tree.path / "sub").mkdir()
        (tmp_path / "plain").mkdir()
        assert probe.find_root([str(tmp_path / "nothing"), str(tmp_path / "plain"), str(tree.path / "sub")]) == str(tree.path)
        assert probe.find_root([str(tmp_path / "plain")]) is None
        assert probe.git_state(None) is None
        assert probe.git_patch(None, 100) is None

    def test_without_git_nothing_is_known(self, tree, monkeypatch):
        """Containers often have none."""
        monkeypatch.setenv("PATH", "")
        assert probe.find_root([str(tree.path)]) is None

    def test_a_git_that_hangs_is_ended(self, tmp_path, monkeypatch):
        """On a dead network file system, say."""
        (tmp_path / "git").write_text("#!/bin/sh\nexec sleep 3600\n")
        (tmp_path / "git").chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
        monkeypatch.setattr(probe, "_QUICK", 0.1)
        assert probe._output(["git", "status"], cwd=None, timeout=0.1, limit=100) is None


@pytest.mark.parametrize(
    "given, shown",
    [
        ("https://github.com/me/it.git", "https://github.com/me/it.git"),
        ("https://ghp_s3cret@github.com/me/it.git", "https://github.com/me/it.git"),
        ("https://me:s3@cret@host:8443/me/it", "https://host:8443/me/it"),
        ("https://host/it?access_token=s3cret#x", "https://host/it"),
        ("ssh://git:s3cret@host:22/it", "ssh://git@host:22/it"),
        ("ssh://git@host/it", "ssh://git@host/it"),
        ("git@github.com:me/it.git", "git@github.com:me/it.git"),
        ("/srv/git/it.git", "/srv/git/it.git"),
        ("file:///srv/git/it.git", "file:///srv/git/it.git"),
    ],
)
def test_an_address_is_recorded_without_credentials(given, shown):
    """User and password of https, tokens in queries; the user of ssh is only a name."""
    assert probe.without_credentials(given) == shown


class TestPackages:
    def test_the_first_of_a_name_counts(self, tmp_path):
        """It is the one that is imported."""
        for directory, version in (("a", "2"), ("b", "1")):
            info = tmp_path / directory / f"thing-{version}.dist-info"
            info.mkdir(parents=True)
            (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: Thing\nVersion: {version}\n")
        assert probe.packages([str(tmp_path / "a"), str(tmp_path / "b")]) == {"Thing": "2"}

    def test_a_broken_package_is_left_out(self, tmp_path):
        """Half of it was removed."""
        (tmp_path / "gone-1.dist-info").mkdir()
        assert probe.packages([str(tmp_path)]).keys() <= {"gone", "None"}


class TestMachine:
    def test_processors_memory_and_system(self):
        """Of this very machine."""
        assert probe.cpu()["count"] == os.cpu_count()
        assert probe.cpu()["name"]
        assert probe.memory_bytes() > 2**20
        assert os.uname().release in probe.operating_system()

    def test_cards_as_the_driver_s_program_lists_them(self, tmp_path, monkeypatch):
        """Names may hold commas."""
        (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho 'NVIDIA H200, big, 143771, 570.86'\necho 'NVIDIA T4, [N/A], 570.86'\n")
        (tmp_path / "nvidia-smi").chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
        assert probe.gpus() == [
            {"name": "NVIDIA H200, big", "memory_mib": 143771, "driver": "570.86"},
            {"name": "NVIDIA T4", "memory_mib": None, "driver": "570.86"},
        ]

    def test_cards_as_the_kernel_lists_them(self, tmp_path, monkeypatch):
        """Where the program is missing, as in many containers."""
        (tmp_path / "information").write_text("Model: \t\t NVIDIA A100\nIRQ: 1\n")
        monkeypatch.setenv("PATH", "")
        monkeypatch.setattr(probe.glob, "glob", lambda _: [str(tmp_path / "information")] * 2)
        assert probe.gpus() == [{"name": "NVIDIA A100"}] * 2

    def test_no_cards(self, monkeypatch):
        """None, and not an error."""
        monkeypatch.setenv("PATH", "")
        monkeypatch.setattr(probe.glob, "glob", lambda _: [])
        assert probe.gpus() is None
