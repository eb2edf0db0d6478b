"""Flat records of a run, the summary computed from them, and the folder that holds both."""

from kvsim.results.caching_metrics import CachingMetrics
from kvsim.results.columns import ABORTED, COLUMNS, FINISHED, REASONS, REFUSED, UNFINISHED, Column
from kvsim.results.log import MemorySink, RequestLog, Sink
from kvsim.results.result import FolderSink, RunResult
from kvsim.results.store import ParquetSink, ResultsError, folder_name, replacing
from kvsim.results.summary import summarize

__all__ = [
    "ABORTED",
    "COLUMNS",
    "FINISHED",
    "REASONS",
    "REFUSED",
    "UNFINISHED",
    "CachingMetrics",
    "Column",
    "FolderSink",
    "MemorySink",
    "ParquetSink",
    "RequestLog",
    "ResultsError",
    "RunResult",
    "Sink",
    "folder_name",
    "replacing",
    "summarize",
]
