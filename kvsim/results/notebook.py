"""A summary as a notebook shows it: one small block of HTML that looks right on light and dark pages."""

import html as escaping
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kvsim.results import cluster_glance, glance

_STYLE = """\
<style>
.kvsim {font-size: 13px; line-height: 1.4; max-width: 60em}
.kvsim .note {opacity: .65; font-size: 12px}
.kvsim table {border-collapse: collapse; margin: .6em 0 0 0; color: inherit;
  font: inherit; font-variant-numeric: tabular-nums}
.kvsim th, .kvsim td {padding: .15em .8em .15em 0; border: 0; background: none; text-align: left;
  vertical-align: top; white-space: normal}
.kvsim table tr {background: none !important}
.kvsim th {font-weight: 600; white-space: nowrap}
.kvsim .latency th + th, .kvsim .latency td {text-align: right; min-width: 5em}
.kvsim .latency tr + tr > * {border-top: 1px solid rgba(128, 128, 128, .35)}
</style>"""


def html(metrics: Mapping[str, Any]) -> str:
    notes = "<br>".join(map(escaping.escape, glance.notes(metrics)))
    facts = "".join(_row(row) for row in glance.facts(metrics))
    tables = filter(None, (glance.latency_table(metrics), cluster_glance.table(metrics)))
    return (
        f'{_STYLE}\n<div class="kvsim"><b>{escaping.escape(glance.title(metrics))}</b>'
        f'<div class="note">{notes}</div>'
        f"<table>{facts}</table>{''.join(map(_table, tables))}</div>"
    )


def _table(rows: Sequence[Sequence[str]]) -> str:
    """The first row is the header."""
    header, *others = rows
    return f'<table class="latency">{_row(header, header=True)}{"".join(map(_row, others))}</table>'


def _row(cells: Iterable[str], header: bool = False) -> str:
    """The first cell names the row."""
    first, *others = map(escaping.escape, cells)
    tag = "th" if header else "td"
    return f"<tr><th>{first}</th>" + "".join(f"<{tag}>{cell}</{tag}>" for cell in others) + "</tr>"
