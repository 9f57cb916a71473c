"""The command line: ``accelbus COMMAND``. Argument parsing and printing only, one module per command.

Exit codes: 0, all is well; 1, something is owed, lost or failing; 2, the command was not understood or its run is not there.
"""

from __future__ import annotations

import codecs
import io
import os
import sys
from collections.abc import Sequence
from typing import Any, Final

FINE: Final = 0
TROUBLE: Final = 1
USAGE: Final = 2
_INTERRUPTED: Final = 130
_SPELLED: Final = "accelbus.spelled"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. Errors of ours are one line on stderr, never a traceback."""
    from accelbus.errors import AccelbusError, ConfigurationError, RunNotFoundError

    if arguments is None:
        _let_everything_be_printed()
    try:
        return _run(sys.argv[1:] if arguments is None else list(arguments))
    except (ConfigurationError, RunNotFoundError) as error:
        return _fail(str(error), USAGE)
    except BrokenPipeError:
        # Whoever read our output has seen enough; without this the interpreter complains when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return TROUBLE
    except (AccelbusError, OSError) as error:
        return _fail(str(error), TROUBLE)
    except KeyboardInterrupt:
        return _INTERRUPTED


def _run(arguments: list[str]) -> int:
    import typer

    from accelbus.cli.app import app

    try:
        code = app(arguments, prog_name="accelbus", standalone_mode=False)
    except typer.Exit as leaving:
        return leaving.exit_code
    except typer.Abort:
        return _INTERRUPTED
    except _usage_error() as error:
        path = error.ctx.command_path if error.ctx is not None else "accelbus"
        return _fail(f"{error.format_message().rstrip('.')} (see {path} --help)", USAGE)
    return code if isinstance(code, int) else FINE


def _let_everything_be_printed() -> None:
    """Make stdout and stderr take any name, whatever the locale: a path that is no text here is written byte for byte."""
    codecs.register_error(_SPELLED, _spell)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            is_ascii = codecs.lookup(stream.encoding).name == "ascii"
            # What Python does by itself in such a locale unless it is told not to.
            stream.reconfigure(encoding="utf-8" if is_ascii else None, errors=_SPELLED)


def _spell(error: UnicodeError) -> tuple[bytes, int]:
    """Return the bytes that file names are made of as they are, and anything else as an escape."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    codes = [ord(character) for character in error.object[error.start : error.end]]
    return b"".join(bytes([code - 0xDC00]) if 0xDC80 <= code <= 0xDCFF else f"\\u{code:04x}".encode() for code in codes), error.end


def _usage_error() -> Any:
    """Return the base of click's usage errors: newer typers bring a click of their own, older ones use the installed one."""
    import typer

    return typer.BadParameter.__base__


def _fail(text: str, code: int) -> int:
    print(f"accelbus: {text}", file=sys.stderr)
    return code


__all__ = ["FINE", "TROUBLE", "USAGE", "main"]
