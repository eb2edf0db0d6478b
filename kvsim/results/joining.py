"""The tables of runs that went on side by side, as those of one."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from kvsim.results.log import CHUNK_ROWS
from kvsim.results.sinks import Sinks


def joined(tables: Sequence[Sinks], num_engines: Sequence[int], sinks: Sinks) -> None:
    """Write the tables of cells, each with so many engines, as those of one run.

    Requests are in order of arrival, then of cells; instances are numbered through.
    """
    firsts = np.cumsum([0, *num_engines[:-1]])
    parts = [_shifted(each.requests.read(), first) for each, first in zip(tables, firsts, strict=True)]
    requests = pa.concat_tables(parts, promote_options="default")  # not every cell need have sessions
    order = np.argsort(requests["arrival_time"].to_numpy(), kind="stable")
    requests = requests.take(pa.array(order))
    for at in range(0, max(len(requests), 1), CHUNK_ROWS):
        sinks.requests.write(requests.slice(at, CHUNK_ROWS).combine_chunks())
    places = np.empty(len(order), np.int64)
    places[order] = np.arange(len(order))
    first_rows = np.cumsum([0, *(len(part) for part in parts)])
    for name in ("steps", "events"):
        sink = getattr(sinks, name)
        if sink is None:
            continue
        for cell, each in enumerate(tables):
            table = _shifted(getattr(each, name).read(), firsts[cell])
            if name == "events":
                own = pa.array(places[first_rows[cell] : first_rows[cell + 1]])
                at = table.schema.get_field_index("request")
                table = table.set_column(
                    at, table.schema.field(at), own.take(table["request"].combine_chunks())
                )
            sink.write(table.combine_chunks())


def _shifted(table: pa.Table, first: int) -> pa.Table:
    """Instances numbered from `first`; -1 stays, which is none."""
    at = table.schema.get_field_index("instance")
    numbers = table["instance"].to_numpy()
    shifted = np.where(numbers < 0, numbers, numbers + first).astype(np.int32)
    return table.set_column(at, table.schema.field(at), pa.array(shifted))
