"""Python's garbage collector, kept out of the way while libraries load.

It would look through each of their half a million objects several times, which takes a third as long
again as loading them; what they made stays anyway.
"""

import gc


def pause() -> None:
    """No collecting from now on: for a process that is about to load its libraries."""
    gc.disable()


def resume() -> None:
    """Collect again, but look through nothing that is there by now. Does nothing if not paused."""
    if not gc.isenabled():
        gc.freeze()
        gc.enable()
