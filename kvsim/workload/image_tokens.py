"""How many prompt tokens a picture takes, from its size in pixels.

Qwen2-VL, Qwen2.5-VL and Qwen3-VL shrink or enlarge a picture so that both sides are
multiples of `factor` pixels and its area lies within the processor's limits; every
factor x factor square becomes one token. Source: `smart_resize` of transformers 5.20
(models/qwen2_vl/image_processing_qwen2_vl.py, which Qwen3-VL uses for pictures too); limits
from the models' published preprocessor_config.json. Not reproduced: videos.
"""

import math
from dataclasses import dataclass

from kvsim.workload.checks import FieldError, one_of, whole

MAX_SIDE = 1_000_000
MAX_ASPECT_RATIO = 200


@dataclass(frozen=True)
class ImageProcessor:
    """The numbers of one family's picture processor; pixels are areas."""

    factor: int
    min_pixels: int
    max_pixels: int


PROCESSORS = {
    "qwen2-vl": ImageProcessor(factor=28, min_pixels=3_136, max_pixels=12_845_056),
    "qwen2.5-vl": ImageProcessor(factor=28, min_pixels=3_136, max_pixels=12_845_056),
    "qwen3-vl": ImageProcessor(factor=32, min_pixels=65_536, max_pixels=16_777_216),
}


def processor_of(model: str) -> str | None:
    """The family in `PROCESSORS` that a model's name belongs to, else None."""
    plain = _alphanumeric(model)
    return next((name for name in PROCESSORS if _alphanumeric(name) in plain), None)


def _alphanumeric(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())


def smart_resize(width: int, height: int, processor: ImageProcessor) -> tuple[int, int]:
    """Width and height in pixels after the processor; raises FieldError for a shape that it refuses."""
    factor = processor.factor
    if max(width, height) > MAX_ASPECT_RATIO * min(width, height):
        problem = f"{width} x {height} pixels: one side is over {MAX_ASPECT_RATIO} times the other"
        raise FieldError("image_size", problem)
    wide, high = round(width / factor) * factor, round(height / factor) * factor
    if wide * high > processor.max_pixels:
        shrink = math.sqrt((height * width) / processor.max_pixels)
        wide = max(factor, math.floor(width / shrink / factor) * factor)
        high = max(factor, math.floor(height / shrink / factor) * factor)
    elif wide * high < processor.min_pixels:
        grow = math.sqrt(processor.min_pixels / (height * width))
        wide = math.ceil(width * grow / factor) * factor
        high = math.ceil(height * grow / factor) * factor
    return wide, high


def image_tokens(
    family: str, width: int, height: int, min_pixels: int | None = None, max_pixels: int | None = None
) -> int:
    """Prompt tokens of one picture of width x height pixels.

    `min_pixels` and `max_pixels` replace the model's limits (vLLM's `--mm-processor-kwargs`).
    Raises FieldError for an unknown family or a size that the processor refuses.
    """
    known = PROCESSORS[one_of("processor", family, tuple(PROCESSORS))]
    whole("image_size", width, 1, MAX_SIDE)
    whole("image_size", height, 1, MAX_SIDE)
    limits = ImageProcessor(
        known.factor,
        known.min_pixels if min_pixels is None else min_pixels,
        known.max_pixels if max_pixels is None else max_pixels,
    )
    wide, high = smart_resize(width, height, limits)
    return (wide // known.factor) * (high // known.factor)
