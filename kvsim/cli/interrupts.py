"""Signals that end the program.

Imports next to nothing, so that they are looked after from the first moment on.
"""

import os
import signal
import sys
from contextlib import suppress
from types import FrameType
from typing import NoReturn

SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
_CLEAR_LINE_AND_SHOW_CURSOR = "\r\x1b[2K\x1b[?25h"


class Interrupts:
    """Within, a signal ends the process: half-written results go, one line is said, exit 128 + signal.

    Nothing is raised, since the import system and callbacks from C swallow exceptions. Signals
    ignored from the start stay ignored, as under nohup.
    """

    outcome = "nothing was written"

    def __enter__(self) -> None:
        self.outcome = Interrupts.outcome
        self._before = {number: signal.getsignal(number) for number in SIGNALS}
        for number, handler in self._before.items():
            if handler not in (signal.SIG_IGN, None):
                signal.signal(number, self._end)

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            if handler is not None:
                signal.signal(number, handler)

    def _end(self, number: int, frame: FrameType | None) -> NoReturn:
        for each in SIGNALS:
            signal.signal(each, signal.SIG_IGN)  # a second one must not cut this short
        for module in ("kvsim.results.store", "kvsim.sweep.pools"):
            with suppress(KeyError, AttributeError, OSError):  # not imported, or not yet whole
                sys.modules[module].abandon_all()
        with suppress(OSError):
            start = _CLEAR_LINE_AND_SHOW_CURSOR if os.isatty(2) else ""
            text = f"{start}kvsim: interrupted; {self.outcome}\n"
            os.write(2, text.encode(errors="replace"))  # the stream itself may be in mid-write
        os._exit(128 + number)


interrupts = Interrupts()
