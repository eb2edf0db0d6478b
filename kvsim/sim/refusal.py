"""Requests that an engine can never serve."""

from kvsim.engine.config import EngineConfig
from kvsim.workload.request import Request


def refusal(config: EngineConfig, request: Request) -> str | None:
    """Why a request can never run to its end, or None."""
    num_output_tokens = min(request.num_output_tokens, request.max_tokens)
    largest_image = max((feature.length for feature in request.features), default=0)
    return config.refusal(request.num_prompt_tokens, num_output_tokens, largest_image)
