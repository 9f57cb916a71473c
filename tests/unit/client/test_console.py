"""What is printed is remembered, and nobody who prints notices."""

import contextlib
import io
import sys
import threading
from collections.abc import Iterator

import pytest

from accelbus.client.console import Console
from accelbus.config import Tuning


class Lines:
    """Takes what a console hands over."""

    def __init__(self, *, room: bool = True) -> None:
        self.events: list[tuple[str, list[str]]] = []
        self.room = room

    def put(self, stream: str, lines: list[str]) -> bool:
        if self.room:
            self.events.append((stream, lines))
        return self.room

    def of(self, stream: str = "stdout") -> list[str]:
        return [line for name, lines in self.events if name == stream for line in lines]


class Terminal(io.TextIOWrapper):
    """Looks like one."""

    def isatty(self) -> bool:
        return True


@contextlib.contextmanager
def recorded(monkeypatch, lines: Lines, **tuning) -> Iterator[Console]:
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, Terminal(io.BytesIO(), encoding="utf-8", write_through=True))
    console = Console(lines.put, Tuning(**{"console_interval": 0.01, **tuning}))
    console.open()
    try:
        yield console
    finally:
        console.close()


def shown(stream: str = "stdout") -> str:
    return getattr(sys, stream).buffer.getvalue().decode()


def test_both_streams_are_remembered(monkeypatch):
    """Each with its own lines; the end of a line that never came does not matter."""
    lines = Lines()
    with recorded(monkeypatch, lines):
        print("one", 2)
        print("trouble", file=sys.stderr)
        sys.stdout.writelines(["three\n", "four"])
    assert lines.of() == ["one 2", "three", "four"]
    assert lines.of("stderr") == ["trouble"]
    assert (shown(), shown("stderr")) == ("one 2\nthree\nfour", "trouble\n")


def test_a_stream_is_the_same_before_during_and_after(monkeypatch):
    """Object, class and methods; so what holds it, a handler of logging or a progress bar, is remembered too."""
    monkeypatch.setattr(sys, "stdout", stream := Terminal(io.BytesIO(), encoding="utf-8"))
    before = dict(vars(stream))
    lines = Lines()
    console = Console(lines.put, Tuning(console_interval=0.01))
    console.open()
    assert sys.stdout is stream
    assert stream.isatty()
    assert stream.write("text\n") == 5
    with pytest.raises(TypeError):
        stream.write(b"bytes")
    console.close()
    assert dict(vars(stream)) == before
    assert lines.of() == ["text"]


def test_what_somebody_has_put_in_front_of_the_stream_stays(monkeypatch):
    """A later wrapper goes on working when the run is over."""
    lines, seen = Lines(), []
    with recorded(monkeypatch, lines):
        ours = sys.stdout.write

        def theirs(text: str) -> int:
            seen.append(text)
            return ours(text)

        monkeypatch.setattr(sys.stdout, "write", theirs, raising=False)
        sys.stdout.write("during\n")
    sys.stdout.write("after\n")
    assert seen == ["during\n", "after\n"]
    assert lines.of() == ["during"]
    assert shown() == "during\nafter\n"


def test_a_stream_that_cannot_be_changed_is_left_alone(monkeypatch):
    """And a missing one, as in a program without a console, is none."""

    class Slotted:
        __slots__ = ()

        def write(self, text: str) -> int:
            return len(text)

    monkeypatch.setattr(sys, "stdout", Slotted())
    monkeypatch.setattr(sys, "stderr", None)
    lines = Lines()
    console = Console(lines.put, Tuning())
    console.open()
    assert sys.stdout.write("text") == 4
    console.close()
    assert lines.events == []


def test_one_object_for_both_streams_is_remembered_once(monkeypatch):
    """Programs that send errors to stdout print every line once."""
    lines = Lines()
    monkeypatch.setattr(sys, "stdout", Terminal(io.BytesIO(), encoding="utf-8"))
    monkeypatch.setattr(sys, "stderr", sys.stdout)
    console = Console(lines.put, Tuning(console_interval=0.01))
    console.open()
    print("once", file=sys.stderr)
    console.close()
    assert [lines.of("stdout"), lines.of("stderr")] == [["once"], []]


def test_a_write_that_fails_is_not_remembered(monkeypatch):
    """The error is the user's to see, as always."""
    lines = Lines()
    with recorded(monkeypatch, lines):
        sys.stdout.close()
        with pytest.raises(ValueError, match="closed file"):
            print("nobody sees this")
    assert lines.of() == []


def test_lone_surrogates_are_written_out(monkeypatch):
    """A name of a file may hold some; stderr prints them escaped, and so are they remembered."""
    lines = Lines()
    with recorded(monkeypatch, lines):
        sys.stderr.reconfigure(errors="backslashreplace")
        print("file \udcff", file=sys.stderr)
    assert lines.of("stderr") == ["file \\udcff"]


def test_what_our_own_threads_print_is_not_remembered(monkeypatch):
    """A line about delivering lines would make lines for ever."""
    lines = Lines()
    with recorded(monkeypatch, lines) as console:
        thread = threading.Thread(target=lambda: (started.wait(), print("ours")))
        started = threading.Event()
        thread.start()
        console._own_threads.add(thread.ident)
        started.set()
        thread.join()
        print("theirs")
    assert lines.of() == ["theirs"]
    assert shown() == "ours\ntheirs\n"


def test_a_flood_is_cut_and_counted(monkeypatch):
    """The user sees all of it; what is recorded says how much is missing."""
    lines = Lines()
    with recorded(monkeypatch, lines, console_waiting=1000, console_interval=0.2) as console:
        for number in range(1000):
            print(f"line {number}")
    kept = [line for line in lines.of() if line.startswith("line ")]
    assert kept[:5] == [f"line {number}" for number in range(5)]
    assert len("\n".join(kept)) <= 2000
    assert console.lines_left_out >= 1000 - len(kept) > 0
    assert any("lines are not recorded]" in line for line in lines.of())
    assert shown().count("\n") == 1000


def test_one_huge_text_is_cut(monkeypatch):
    """Nobody waits while a megabyte is looked through."""
    lines = Lines()
    with recorded(monkeypatch, lines, console_waiting=1000) as console:
        print("x\n" * 100_000)
    assert len(lines.of()) <= 501
    assert console.lines_left_out >= 99_000


def test_a_run_has_a_quota(monkeypatch):
    """Weeks of chatter do not fill a disk."""
    lines = Lines()
    with recorded(monkeypatch, lines, console_bytes=30) as console:
        for number in range(100):
            print(f"line {number}")
    assert lines.of()[:4] == ["line 0", "line 1", "line 2", "line 3"]
    assert console.lines_left_out == 96


def test_lines_without_room_are_counted(monkeypatch):
    """A full spool is for metrics."""
    with recorded(monkeypatch, Lines(room=False)) as console:
        print("one\ntwo\nthree")
    assert console.lines_left_out >= 3


def test_a_forked_child_prints_and_is_not_remembered(monkeypatch):
    """It is another process, with a producer of its own if it wants one."""
    lines = Lines()
    with recorded(monkeypatch, lines) as console:
        console.abandon_in_child()
        assert "write" not in vars(sys.stdout)
        print("of the child")
    assert lines.of() == []


def test_many_threads_may_print(monkeypatch):
    """Every line arrives, once."""
    lines = Lines()
    with recorded(monkeypatch, lines):
        threads = [threading.Thread(target=lambda n=n: [sys.stdout.write(f"{n}-{i}\n") for i in range(100)]) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(lines.of()) == sorted(f"{n}-{i}" for n in range(8) for i in range(100))
