"""The card and the flags that bear on memory at start-up, and the constants that no configuration tells."""

import json
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class MemorySetup:
    """The card and the flags that bear on memory, all settled.

    total_bytes: what the driver shows. image_pixels: upper limit of an image's area, None for the
    processor's own; images_per_prompt: None for no limit, 0 switches images off.
    """

    total_bytes: int
    gpu_name: str
    gpu_memory_utilization: float
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    enforce_eager: bool = False
    image_pixels: int | None = None
    images_per_prompt: int | None = None

    @property
    def lacks_flash_attention(self) -> bool:
        """Cards before compute capability 8.0."""
        return bool(re.match(r"(tesla\s+)?(t4|v100|rtx 20|p100)\b", self.gpu_name.lower()))


@cache
def constants() -> dict[str, Any]:
    """Fitted constants, see the file for source and fit set."""
    path = Path(__file__).parent / "data" / "memory_constants.json"
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found
