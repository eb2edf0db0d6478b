"""Engine steps on a terminal: what the attention backend is given, and the block map."""

from collections.abc import Iterator, Sequence
from itertools import groupby

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from kvsim.report.shorten import hashes, names, numbers
from kvsim.scenario import Scenario
from kvsim.sim.step_view import (
    BlockMap,
    HashedBlock,
    MappedBlock,
    ScheduledRequest,
    StepGroup,
    StepView,
    WaitingRequest,
)

MOST_REQUESTS, FIRST_REQUESTS, LAST_REQUESTS = 12, 8, 2
MOST_SINGLE_BLOCKS = 32
MOST_MAP_ROWS = 100
MOST_QUEUE_ROWS = 24
_KINDS = {
    "full": "full attention",
    "sliding_window": "sliding window",
    "chunked_local": "chunked local attention",
}


def print_heading(scenario: Scenario, console: Console) -> None:
    """What is looked at, once above all steps."""
    mode = "asynchronous" if scenario.engine.async_scheduling else "synchronous"
    console.print(Text(f"{scenario.name}: {scenario.model} on {scenario.gpu}", style="bold"))
    console.print(
        f"Rules of vLLM {scenario.vllm_version}, seed {scenario.seed}, {mode} scheduling", style="dim"
    )


def print_step(view: StepView, console: Console) -> None:
    """One step: the requests of its batch, attention metadata, what happened to blocks and requests."""
    console.print()
    console.print(Text(_title(view), style="bold"))
    parts: list[RenderableType] = [_requests(view.requests), _facts(view)]
    if view.block_map is not None:
        parts += [_map_title(view.step, view.block_map), _block_map(view.block_map)]
        parts += [Text("Free queue, the next block first", style="bold"), _free_queue(view.block_map)]
    for part in parts:
        console.print(Padding(part, (0, 0, 0, 2), expand=False))


def _title(view: StepView) -> str:
    tokens, requests = view.total_num_scheduled_tokens, len(view.requests)
    return (
        f"Step {view.step:,}: {_count(tokens, 'token')} of {_count(requests, 'request')}, "
        f"at {view.start_time:,.6f} s for {(view.end_time - view.start_time) * 1e3:,.3f} ms"
    )


def _count(n: int, noun: str) -> str:
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"


def _table(*columns: str, numeric: Sequence[str] = ()) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for column in columns:
        table.add_column(column, justify="right" if column in numeric else "left", overflow="fold")
    return table


# ---------------------------------------------------------------- the batch


def _requests(requests: Sequence[ScheduledRequest]) -> Table:
    """Requests in batch order; the middle of a long batch is counted only."""
    drafts = any(request.num_spec_tokens for request in requests)
    images = any(request.images for request in requests)
    counts = ["computed", "scheduled", *(["drafts"] if drafts else [])]
    table = _table("request", "origin", *counts, *(["encodes"] if images else []), numeric=counts)
    for request in _ends(requests):
        if request is None:
            table.add_row(_left_out(requests))
            continue
        row = [request.request_id, request.origin]
        row += [f"{request.num_computed_tokens:,}", f"{request.num_scheduled_tokens:,}"]
        row += [f"{request.num_spec_tokens:,}"] if drafts else []
        row += [names(request.images)] if images else []
        table.add_row(*row)
    return table


def _ends(requests: Sequence[ScheduledRequest]) -> Iterator[ScheduledRequest | None]:
    """The first and the last of them; None stands for the ones between."""
    if len(requests) <= MOST_REQUESTS:
        yield from requests
        return
    yield from requests[:FIRST_REQUESTS]
    yield None
    yield from requests[-LAST_REQUESTS:]


def _left_out(requests: Sequence[ScheduledRequest]) -> Text:
    return Text(f"... {len(requests) - FIRST_REQUESTS - LAST_REQUESTS:,} more", style="dim")


def _facts(view: StepView) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="cyan", no_wrap=True)
    table.add_column(overflow="fold")
    seen = view.groups[0].attention_metadata
    table.add_row("num_actual_tokens", str(seen.num_actual_tokens))
    table.add_row("max_query_len", str(seen.max_query_len))
    table.add_row("query_start_loc", numbers(seen.query_start_loc))
    table.add_row("max_seq_len", str(seen.max_seq_len))
    table.add_row("seq_lens", numbers(seen.seq_lens))
    for group in view.groups:
        if len(view.groups) > 1:
            table.add_row(f"group {group.group}", _group_title(group))
        table.add_row("slot_mapping", _slots(group))
        for label, text in _block_table(view, group):
            table.add_row(label, text)
    for label, text in _events(view):
        table.add_row(label, text)
    return table


def _group_title(group: StepGroup) -> str:
    text = f"{_KINDS[group.kind]}, blocks of {group.block_size} tokens"
    return f"{text}, {group.window:,} tokens; 0 is the null block" if group.window else text


def _slots(group: StepGroup) -> str:
    seen = group.attention_metadata
    text = numbers(seen.slot_mapping[: seen.num_actual_tokens])
    if seen.num_padding_tokens == 0:
        return text
    padding = f"padding to the CUDA graph size of {len(seen.slot_mapping)}, not image tokens"
    return f"{text}, -1 x{seen.num_padding_tokens} ({padding})"


def _block_table(view: StepView, group: StepGroup) -> Iterator[tuple[str, str | Text]]:
    label = "block_table"
    rows = iter(group.attention_metadata.block_table)
    tables = {request.request_id: next(rows) for request in view.requests}
    for request in _ends(view.requests):
        if request is None:
            yield "", _left_out(view.requests)
            continue
        yield label, f"{request.request_id}: {numbers(tables[request.request_id])}"
        label = ""


# ---------------------------------------------------------------- what else happened


def _events(view: StepView) -> Iterator[tuple[str, str]]:
    if view.finished_req_ids:
        yield "finished_req_ids", f"{names(view.finished_req_ids)} (since the step before)"
    if view.preempted_req_ids:
        yield "preempted_req_ids", names(view.preempted_req_ids)
    if view.ended:
        yield "ended", names([f"{each.request_id} ({each.status})" for each in view.ended])
    if view.waiting:
        yield "waiting", f"{len(view.waiting):,}: {names([_waiting(each) for each in view.waiting])}"
    for label, blocks in (("blocks cached", view.blocks_cached), ("blocks evicted", view.blocks_evicted)):
        for group, members in groupby(blocks, key=lambda block: block.group):
            which = f"group {group}: " if len(view.groups) > 1 else ""
            yield label, which + _hashed(list(members))
            label = ""
    yield "free blocks", f"{view.num_free_blocks:,}"


def _waiting(request: WaitingRequest) -> str:
    return f"{request.request_id} ({request.reason})" if request.reason else request.request_id


def _hashed(blocks: Sequence[HashedBlock]) -> str:
    ids = [block.block_id for block in blocks]
    return f"{numbers(ids)} (hash {hashes([block.hash for block in blocks])})"


# ---------------------------------------------------------------- the block map


def _map_title(step: int, blocks: BlockMap) -> Text:
    ahead = f"; step {blocks.latest_step:,} is already scheduled" if blocks.latest_step > step else ""
    return Text(f"Block map after step {step:,}{ahead}", style="bold")


def _block_map(blocks: BlockMap) -> Table:
    """A row for each block in use or cached; for many, a row for those that differ in their hash only."""
    several = len({block.group for block in blocks.blocks}) > 1
    columns = ["blocks", "ref_cnt", "tokens", *(["group"] if several else []), "owners", "hash"]
    table = _table(*columns, numeric=("ref_cnt", "tokens", "group"))
    table.add_row(str(blocks.null_block), "", "", *([""] if several else []), Text("null block", style="dim"))
    rows = _map_rows(blocks.blocks)
    for row in rows[:MOST_MAP_ROWS]:
        first = row[0]
        cells = [numbers([block.block_id for block in row]), str(first.ref_cnt), str(first.num_tokens)]
        cells += [str(first.group)] if several else []
        cached = [digest for block in row for digest in block.hashes]
        table.add_row(*cells, names(first.owners), hashes(cached) if cached else "-")
    if len(rows) > MOST_MAP_ROWS:
        table.add_row(Text(f"... {len(rows) - MOST_MAP_ROWS:,} more rows", style="dim"))
    return table


def _map_rows(blocks: Sequence[MappedBlock]) -> list[list[MappedBlock]]:
    if len(blocks) <= MOST_SINGLE_BLOCKS:
        return [[block] for block in blocks]
    alike: dict[tuple[object, ...], list[MappedBlock]] = {}
    for block in blocks:
        key = block.num_tokens, block.group, len(block.hashes), *block.owners
        alike.setdefault(key, []).append(block)
    return list(alike.values())


def _free_queue(blocks: BlockMap) -> Table:
    """Which block is handed out next, and whether cached content goes with it."""
    table = _table("place", "blocks", "content")
    cached = {block.block_id for block in blocks.blocks}
    place, rows = 1, []
    for holds, members in groupby(blocks.free_queue, key=cached.__contains__):
        ids = list(members)
        last = place + len(ids) - 1
        content = "cached, evicted when handed out" if holds else "nothing"
        rows.append((str(place) if len(ids) == 1 else f"{place}..{last}", numbers(ids), content))
        place = last + 1
    for row in rows[:MOST_QUEUE_ROWS]:
        table.add_row(*row)
    if len(rows) > MOST_QUEUE_ROWS:
        table.add_row(Text(f"... {len(rows) - MOST_QUEUE_ROWS:,} more rows", style="dim"))
    return table
