"""What can be counted in one reading of the request rows: how requests ended, tokens, limits met."""

import re
from collections import Counter
from collections.abc import Mapping

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kvsim.results import arrow
from kvsim.results.columns import FINISHED, REFUSED, STATUSES

# Service levels, in seconds -> column; names as in `slo:` and in vLLM's --goodput.
LIMITED = ("ttft", "tpot", "e2e")
MEASURED_BY = ("status", "arrival_time")
NUMBERS = (
    "first_token_time",
    "num_prompt_tokens",
    "num_output_tokens",
    "num_cached_tokens",
    "num_preemptions",
    *LIMITED,
)
TALLIED = (*MEASURED_BY, "reason", *NUMBERS)


class Tally:
    """Sums over the rows so far. *Measured* are finished ones that arrived when the warm-up was over."""

    def __init__(self, warm_up: float, slo: Mapping[str, float]) -> None:
        self._warm_up, self._slo = warm_up, slo
        self.by_status = dict.fromkeys(("finished", "refused", "unfinished", "aborted"), 0)
        self.refusals: Counter[str] = Counter()
        self.num_left_out = 0
        self.num_preempted_requests = 0
        self.prompt_tokens = self.cached_tokens = 0  # of requests with a first token
        self.longest_context = 0  # tokens of prompt and output of the longest of them
        self.measured_tokens = self.measured_finished = self.num_good = 0
        self.num_within = dict.fromkeys(slo, 0)

    def take(self, chunk: pa.RecordBatch) -> None:
        """Rows with the columns `TALLIED`."""
        status = statuses(chunk.column("status"))
        of = {name: arrow.floats(chunk.column(name)) for name in NUMBERS}
        for code, count in enumerate(np.bincount(status, minlength=len(STATUSES))):
            self.by_status[STATUSES[code]] += int(count)
        self._take_refusals(chunk.column("reason"), status == REFUSED)
        began = ~np.isnan(of["first_token_time"])
        self.prompt_tokens += int(of["num_prompt_tokens"][began].sum())
        self.cached_tokens += int(of["num_cached_tokens"][began].sum())
        lengths = (of["num_prompt_tokens"] + of["num_output_tokens"])[began]
        self.longest_context = max(self.longest_context, int(lengths.max(initial=0)))
        self.num_preempted_requests += int((of["num_preemptions"] > 0).sum())
        warm = self._warm(chunk)
        self.num_left_out += int((~warm).sum())
        self.measured_tokens += int(of["num_output_tokens"][warm].sum())
        self._take_limits(of, warm & (status == FINISHED))

    def measured(self, chunk: pa.RecordBatch) -> NDArray[np.bool_]:
        """Which rows are; they have the columns `MEASURED_BY`."""
        return self._warm(chunk) & (statuses(chunk.column("status")) == FINISHED)

    def _warm(self, chunk: pa.RecordBatch) -> NDArray[np.bool_]:
        return arrow.floats(chunk.column("arrival_time")) >= self._warm_up

    def _take_refusals(self, reasons: pa.Array, refused: NDArray[np.bool_]) -> None:
        texts = Counter(reasons[int(index)].as_py() for index in np.flatnonzero(refused))
        for text, count in texts.items():
            self.refusals[refusal_kind(text)] += count

    def _take_limits(self, of: Mapping[str, NDArray[np.float64]], finished: NDArray[np.bool_]) -> None:
        """Limits as `vllm bench serve --goodput` has them: a single token has a TPOT of 0."""
        self.measured_finished += int(finished.sum())
        good = finished
        for name, limit in self._slo.items():
            within = finished & (np.nan_to_num(of[name]) <= limit)
            self.num_within[name] += int(within.sum())
            good = good & within
        self.num_good += int(good.sum())


def statuses(cells: pa.StringArray) -> NDArray[np.int64]:
    """Numbers of `STATUSES`."""
    codes = np.zeros(128, np.int64)
    codes[[ord(status[0]) for status in STATUSES]] = range(len(STATUSES))
    return codes[arrow.first_letters(cells)]


def refusal_kind(reason: str) -> str:
    """A reason without its numbers, so that like refusals are counted together."""
    return re.sub(r"\d[\d,.]*\d|\d", "N", reason)
