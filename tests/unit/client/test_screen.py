"""Printed text as a terminal would leave it."""

import io

import pytest
from hypothesis import given, settings, strategies as st

from accelbus.client.screen import Screen


def left_by(*texts: str, longest: int = 1000) -> list[str]:
    screen = Screen(longest)
    lines = []
    for text in texts:
        screen.write(text)
        lines += screen.take()
    return lines + screen.take(everything=True)


@pytest.mark.parametrize(
    "texts, lines",
    [
        (["a\nb\n"], ["a", "b"]),
        (["a\n\nb"], ["a", "", "b"]),
        (["a", "b", "\n"], ["ab"]),
        (["a\r\nb\r\n"], ["a", "b"]),
        (["a\r", "\nb\n"], ["a", "b"]),
        ([" 10%|#  \r 20%|## \r100%|###\n"], ["100%|###"]),
        (["\r 10%", "\r 20%", "\r100%", "\n"], ["100%"]),
        (["working…\r", "done    \n"], ["done"]),
        (["longer line\rshort\x1b[K\n"], ["short"]),
        (["\x1b[32mgreen\x1b[0m and \x1b[1;38;5;9mred\x1b[m\n"], ["green and red"]),
        (["\x1b[3", "2mgreen\x1b", "[0m\n"], ["green"]),
        (["\x1b]0;title\x07text\n"], ["text"]),
        (["abc\b\b\bxyz\n"], ["xyz"]),
        (["\x1b[2Kfresh\n"], ["fresh"]),
        (["\x1b[5Gfifth\n"], ["    fifth"]),
        (["tail without an end"], ["tail without an end"]),
        ([""], []),
    ],
)
def test_a_line_is_what_it_ends_as(texts, lines):
    """Whatever pieces it comes in."""
    assert left_by(*texts) == lines


def test_bars_below_each_other_become_one_line_each():
    """They go down and up again with every update; nothing of it is left but how each of them ended."""
    updates = [f"\router {outer}%\n\rinner {inner}%\x1b[A" for outer in (0, 50, 100) for inner in (0, 50, 100)]
    assert left_by(*updates, "\n\n") == ["outer 100%", "inner 100%"]


def test_a_bar_of_tqdm_becomes_one_line():
    """The real thing, with another one inside that goes away."""
    tqdm = pytest.importorskip("tqdm")
    file = io.StringIO()
    for _ in tqdm.trange(3, file=file, desc="outer", ncols=60, mininterval=0, ascii=True):
        for _ in tqdm.trange(5, file=file, desc="inner", ncols=60, mininterval=0, ascii=True, leave=False):
            pass
    text = file.getvalue()
    pieces = [text[index : index + 150] for index in range(0, len(text), 150)]
    lines = [line for line in left_by(*pieces, "after\n") if line]
    assert len(lines) == 2, lines
    assert lines[0].startswith("outer: 100%")
    assert lines[1] == "after"


def test_a_long_line_is_cut():
    """And says so; however it was written, it does not fill the memory."""
    assert left_by("x" * 50 + "\n", longest=10) == ["xxxxxxxxx…"]
    assert left_by("x" * 10 + "\n", longest=10) == ["x" * 10]
    screen = Screen(10)
    for _ in range(1000):
        screen.write("xyz" * 100)
    assert len(screen._rows[0]) <= 11
    assert screen.take(everything=True) == ["xyzxyzxyz…"]


def test_a_line_that_may_still_change_is_kept():
    """It is handed out when it has changed."""
    screen = Screen(100)
    screen.write("first\nhalf")
    assert screen.take() == ["first"]
    assert screen.take() == []
    screen.write(" done\n")
    assert screen.take() == ["half done"]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.text("ab \r\n\b\x1b[AK0123;mGB", max_size=20), max_size=8), st.booleans())
def test_no_text_is_too_odd(texts, often):
    """Nothing raises, every position stays within its bounds, and no line has a control character."""
    screen = Screen(20)
    lines = []
    for text in texts:
        screen.write(text)
        if often:
            lines += screen.take()
        assert 0 <= screen._row < len(screen._rows)
    lines += screen.take(everything=True)
    assert not [line for line in lines if set(line) & set("\r\n\b")]
    assert screen.take(everything=True) == []


@given(
    st.lists(st.text(st.characters(exclude_characters="\r\n\b\x1b", exclude_categories=("Cs",)), max_size=15).map(str.rstrip), max_size=8)
)
def test_plain_lines_stay_as_they_are(lines):
    """Cut into pieces anywhere."""
    text = "".join(line + "\n" for line in lines)
    assert left_by(*[text[index : index + 3] for index in range(0, len(text), 3)]) == lines
