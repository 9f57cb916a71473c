"""At most one deliverer per (run, sink), on any host.

::

    sinks/<sink>/generations/<n>   who claimed generation n; created once, atomically: that decides a race
    sinks/<sink>/owner.json        the newest claimer's lease, rewritten every ``lease_interval``

The newest generation owns the sink. A lease may be replaced when it was not renewed for ``lease_expires``, or at once when its
process is known to be gone; a newer generation then fences the older, which looks before each cursor write. Ages are taken from
the file system's clock, so it does not matter whether the clocks of two hosts agree.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

import msgspec

from accelbus import host
from accelbus.config import Tuning
from accelbus.errors import OwnershipError


class Owner(msgspec.Struct, frozen=True, kw_only=True):
    """Who delivers."""

    generation: int
    host: str
    boot_id: str
    pid_namespace: str
    pid: int
    purpose: str
    """``bus`` or ``sync``."""
    released: bool = False
    """It left on its own terms; the sink is free."""

    def __str__(self) -> str:
        return f"{self.purpose} process {self.pid} on {self.host} (generation {self.generation})"


class Lease:
    """The right to deliver to the sink that keeps its things in *directory*."""

    def __init__(self, directory: Path, owner: Owner) -> None:
        self._directory = directory
        self.owner = owner

    @property
    def generation(self) -> int:
        return self.owner.generation

    def is_held(self) -> bool:
        """Return whether nobody else has claimed the sink since."""
        return is_newest(self._directory, self.generation)

    def renew(self) -> bool:
        """Keep the lease from expiring, and write it again if somebody deleted it. False: there is another owner, stop delivering.

        Raises:
            OSError: the lease could not be written; it expires if that goes on.
        """
        if not self.is_held():
            return False
        if not _newest(self._directory):
            generations = self._directory / "generations"
            generations.mkdir(parents=True, exist_ok=True, mode=0o700)
            _create(generations / str(self.generation), self.owner)
        _write_owner(self._directory, self.owner)
        return True

    def release(self) -> None:
        """Let others claim the sink at once."""
        with contextlib.suppress(OSError):
            if self.is_held():
                _write_owner(self._directory, msgspec.structs.replace(self.owner, released=True))


def claim(directory: Path, *, tuning: Tuning, purpose: str, take_over: bool = False) -> Lease:
    """Become the owner of the sink that keeps its things in *directory*.

    Args:
        directory: created if need be.
        tuning: ``lease_expires`` is used.
        purpose: what this process is, for the message that others get.
        take_over: replace an owner whose lease is live.

    Raises:
        OwnershipError: naming the owner whose lease is live, or who was quicker.
        OSError: the directory cannot be written.
    """
    generations = directory / "generations"
    generations.mkdir(parents=True, exist_ok=True, mode=0o700)
    while True:
        newest = _newest(directory)
        owner = read_owner(directory)
        if owner is not None and not take_over and is_live(directory, owner, tuning=tuning):
            raise OwnershipError(
                f"{directory.name!r} is delivered by {owner}; its lease is live. Wait for it, or take over with --take-over"
            )
        mine = _this_process(newest + 1, purpose)
        # Only the first attempt may take over: whoever was quicker in between has just decided the race.
        take_over = False
        if _create(generations / str(mine.generation), mine) and is_newest(directory, mine.generation):
            _write_owner(directory, mine)
            _prune(generations, mine.generation)
            return Lease(directory, mine)


def read_owner(directory: Path) -> Owner | None:
    """Return the newest claimer, None when nobody ever claimed the sink."""
    generation = _newest(directory)
    if not generation:
        return None
    for path in (directory / "owner.json", directory / "generations" / str(generation)):
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            owner = _decode(path.read_bytes())
            if owner.generation == generation:
                return owner
    # Claimed and not yet written, on a file system without hard links.
    return Owner(generation=generation, host="?", boot_id="?", pid_namespace="?", pid=0, purpose="unknown")


def is_live(directory: Path, owner: Owner, *, tuning: Tuning) -> bool:
    """Return whether the lease of *owner*, the newest claimer, may not be replaced."""
    if owner.released or (_shares_pids(owner) and not host.process_exists(owner.pid)):
        return False
    return _age(directory, owner.generation) < tuning.lease_expires


def is_newest(directory: Path, generation: int) -> bool:
    """Return whether *generation* owns the sink. Where nobody's claim is left, somebody has deleted them: nobody took over."""
    return _newest(directory) in (generation, 0)


def _newest(directory: Path) -> int:
    try:
        names = os.listdir(directory / "generations")
    except FileNotFoundError:
        return 0
    return max((int(name) for name in names if name.isdecimal()), default=0)


def _create(path: Path, owner: Owner) -> bool:
    """Create *path* with its content in one step. False: it was there."""
    descriptor, temporary = tempfile.mkstemp(prefix=".", dir=path.parent)
    try:
        with open(descriptor, "wb") as file:
            file.write(_encode(owner))
        try:
            os.link(temporary, path)
        except FileExistsError:
            return False
        except OSError:
            return _create_without_link(path, owner)
        return True
    finally:
        os.unlink(temporary)


def _create_without_link(path: Path, owner: Owner) -> bool:
    """For file systems without hard links: a reader that comes between creation and content sees an unknown, fresh owner."""
    try:
        with open(path, "xb") as file:
            file.write(_encode(owner))
    except FileExistsError:
        return False
    return True


def _prune(generations: Path, newest: int) -> None:
    for name in os.listdir(generations):
        if name.isdecimal() and int(name) < newest:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(generations / name)


def _write_owner(directory: Path, owner: Owner) -> None:
    # Not synced: after a crash of the host its process is gone anyhow.
    temporary = directory / f".owner.{os.getpid()}.{owner.generation}.tmp"
    temporary.write_bytes(_encode(owner))
    temporary.replace(directory / "owner.json")


def _age(directory: Path, generation: int) -> float:
    """Return the seconds since *generation* was renewed, by the clock that stamps the files."""
    stamps = []
    for path in (directory / "owner.json", directory / "generations" / str(generation)):
        with contextlib.suppress(OSError):
            stamps.append(path.stat().st_mtime)
    with tempfile.NamedTemporaryFile(prefix=".", dir=directory) as probe:
        now = os.fstat(probe.fileno()).st_mtime
    return now - max(stamps, default=0.0)


def _this_process(generation: int, purpose: str) -> Owner:
    return Owner(
        generation=generation,
        host=host.name(),
        boot_id=host.boot_id(),
        pid_namespace=host.pid_namespace(),
        pid=os.getpid(),
        purpose=purpose,
    )


def _shares_pids(owner: Owner) -> bool:
    return owner.boot_id == host.boot_id() and owner.pid_namespace == host.pid_namespace()


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Owner).decode

__all__ = ["Lease", "Owner", "claim", "is_live", "is_newest", "read_owner"]
