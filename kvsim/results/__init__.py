"""Flat records of a run, the summary computed from them, and the folder that holds both."""

from kvsim.results.caching_metrics import CachingMetrics
from kvsim.results.columns import (
    ABORTED,
    COLUMNS,
    EVENT_COLUMNS,
    FINISHED,
    REASONS,
    REFUSED,
    STEP_COLUMNS,
    UNFINISHED,
    WAITING_REASONS,
    Column,
)
from kvsim.results.event_log import EventLog
from kvsim.results.joining import joined
from kvsim.results.log import RequestLog
from kvsim.results.recorded import ManyRowsWarning, StepLog
from kvsim.results.replicas import ReplicaStats, RouterStats
from kvsim.results.result import RunResult
from kvsim.results.sinks import MemorySink, ParquetSink, Sink, Sinks, Tables
from kvsim.results.store import ResultsError, folder_name, replacing
from kvsim.results.summary import summarize

__all__ = [
    "ABORTED",
    "COLUMNS",
    "EVENT_COLUMNS",
    "FINISHED",
    "REASONS",
    "REFUSED",
    "STEP_COLUMNS",
    "UNFINISHED",
    "WAITING_REASONS",
    "CachingMetrics",
    "Column",
    "EventLog",
    "ManyRowsWarning",
    "MemorySink",
    "ParquetSink",
    "ReplicaStats",
    "RequestLog",
    "ResultsError",
    "RouterStats",
    "RunResult",
    "Sink",
    "Sinks",
    "StepLog",
    "Tables",
    "folder_name",
    "joined",
    "replacing",
    "summarize",
]
