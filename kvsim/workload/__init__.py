"""Traffic as frozen descriptions that yield requests lazily, the same for the same seed."""

from kvsim.workload.chat import ChatWorkload
from kvsim.workload.image import ImageWorkload
from kvsim.workload.mix import MixPart, MixWorkload
from kvsim.workload.request import FollowUp, ImageFeature, LoRA, Request, Workload
from kvsim.workload.shared_prefix import SharedPrefixWorkload
from kvsim.workload.trace import TraceWorkload, rows_to_requests
from kvsim.workload.trace_rows import TraceRow, check_row, check_rows

__all__ = [
    "ChatWorkload",
    "FollowUp",
    "ImageFeature",
    "ImageWorkload",
    "LoRA",
    "MixPart",
    "MixWorkload",
    "Request",
    "SharedPrefixWorkload",
    "TraceRow",
    "TraceWorkload",
    "Workload",
    "check_row",
    "check_rows",
    "rows_to_requests",
]
