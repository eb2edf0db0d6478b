"""Numbers in the units that a person reads: milliseconds, GiB, percent."""

GIB = 2**30


def milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e3:,.1f}"


def gib(num_bytes: float) -> str:
    """Bytes in GiB (2^30)."""
    return f"{num_bytes / GIB:.2f} GiB"


def percent(fraction: float | None) -> str:
    if fraction is None:
        return "-"
    return "<0.1%" if 0 < fraction < 0.0005 else f"{fraction:.1%}"
