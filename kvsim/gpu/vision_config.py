"""Vision encoder facts out of a ``config.json``: dynamic resolution (Qwen), towers of one size (SigLIP)."""

import math

from kvsim.gpu.config_json import Config, integer, listed, section
from kvsim.gpu.model import VisionSpec


def read_vision(config: Config) -> VisionSpec | None:
    """The encoder of ``vision_config``; None if there is none or its depth is not stated."""
    vision = section(config, "vision_config")
    depth = integer(vision, "depth", "num_hidden_layers", "vt_num_hidden_layers")
    if not depth:
        return None
    own_width = integer(vision, "embed_dim")  # Qwen2-VL, whose hidden_size is the language model's
    hidden = own_width or integer(vision, "hidden_size", "vt_hidden_size")
    merge, pixels = _merge_and_pixels(config, vision)
    return VisionSpec(
        depth=depth,
        hidden_size=hidden,
        intermediate_size=integer(vision, "intermediate_size", "vt_intermediate_size")
        or _ratio(vision, hidden),
        num_heads=integer(vision, "num_heads", "num_attention_heads", "vt_num_attention_heads"),
        patch_size=integer(vision, "patch_size", "spatial_patch_size"),
        spatial_merge_size=merge,
        temporal_patch_size=integer(vision, "temporal_patch_size") or 1,
        out_hidden_size=integer(vision, "out_hidden_size")
        or (integer(vision, "hidden_size") if own_width else 0),
        gated_mlp=str(vision.get("hidden_act", "")) in ("silu", "swiglu"),
        min_pixels=integer(vision, "min_pixels") or None,
        max_pixels=pixels,
        deepstack_levels=integer(vision, "deepstack_layers")
        or len(listed(vision, "deepstack_visual_indexes")),
        num_position_embeddings=integer(vision, "num_position_embeddings"),
    )


def _ratio(vision: Config, hidden: int) -> int:
    ratio = vision.get("mlp_ratio")
    known = isinstance(ratio, int | float) and not isinstance(ratio, bool) and 0 < ratio < 100
    return round(hidden * ratio) if known and ratio else 0


def _merge_and_pixels(config: Config, vision: Config) -> tuple[int, int | None]:
    """Patches per side of a token, and the largest image's area.

    A tower of one image size lets no other through; how many patches make a token is told by
    ``mm_tokens_per_image`` (Gemma 3), a shuffle ratio (Llama 4, InternVL) or a merge size.
    """
    stated = integer(vision, "spatial_merge_size") or integer(config, "spatial_merge_size")
    kernel = listed(vision, "merge_kernel_size")
    if not stated and kernel and isinstance(kernel[0], int):
        stated = kernel[0]
    pixels = integer(vision, "max_pixels") or None
    side, patch = _square(vision), integer(vision, "patch_size")
    if pixels or not side or not patch:
        return stated or 1, pixels
    tokens = integer(config, "mm_tokens_per_image")
    if tokens:
        return max(1, round((side // patch) / math.sqrt(tokens))), side * side
    ratio = vision.get("pixel_shuffle_ratio", config.get("downsample_ratio"))
    if isinstance(ratio, float) and 0 < ratio < 1:
        return stated or round(1 / ratio), side * side
    return stated or 1, side * side


def _square(vision: Config) -> int:
    value = vision.get("image_size")
    if isinstance(value, list | tuple):
        value = value[0] if value else None
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 1 << 20 else 0
