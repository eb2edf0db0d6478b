"""What to say about a key that is not known."""

import difflib
from collections.abc import Collection


def unknown_key(key: str, known: Collection[str]) -> str:
    """Names the nearest known spelling, or else all known keys."""
    near = difflib.get_close_matches(key.lower(), known, n=1, cutoff=0.6)
    if near:
        return f"unknown key; did you mean {near[0]}?"
    return f"unknown key; known are {', '.join(known)}"


def unknown_name(name: str, known: Collection[str]) -> str:
    """The same about a name that another section should have."""
    near = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.6)
    return f"{name} is not there; " + (f"did you mean {near[0]}?" if near else f"one of {', '.join(known)}")
