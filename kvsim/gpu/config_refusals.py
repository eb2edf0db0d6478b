"""What vLLM refuses before it looks at the memory: lengths and batch limits that do not go together.

`_get_and_verify_max_len` (`config/model.py`) and `SchedulerConfig` (`config/scheduler.py`), 0.6.6 to 0.33.0.
"""

from kvsim.gpu.capacity_question import CapacityQuestion
from kvsim.gpu.releases import chunks_prefill


def config_refusal(question: CapacityQuestion) -> str | None:
    """vLLM's words, or None where the flags go together."""
    return _too_long(question) or _too_small_a_batch(question)


def allowed_length(question: CapacityQuestion) -> int:
    """The longest max_model_len, up to the question's, that the configuration allows; 0 if none."""
    length = question.setup.max_model_len
    own = question.model.own_length(question.release.minor)
    if own is not None and not question.flags.get("allow_long_max_model_len"):
        length = min(length, max(int(own.most), own.model_max_length or 0))
    shorter = question.with_length(length)
    if not _too_small_a_batch(shorter):
        return length
    length = min(length, question.setup.max_num_batched_tokens)
    return 0 if _too_small_a_batch(question.with_length(length)) else length


def _too_long(question: CapacityQuestion) -> str | None:
    asked = question.flags.get("max_model_len", -1)
    own = question.model.own_length(question.release.minor)
    if own is None or question.flags.get("allow_long_max_model_len"):
        return None
    return own.refusal(asked, question.release.minor)


def _too_small_a_batch(question: CapacityQuestion) -> str | None:
    setup = question.setup
    tokens, seqs, length = setup.max_num_batched_tokens, setup.max_num_seqs, setup.max_model_len
    if tokens < length and not chunks_prefill(question.release, question.model, length, question.flags):
        return (
            f"max_num_batched_tokens ({tokens}) is smaller than max_model_len ({length}). This effectively "
            "limits the maximum sequence length to max_num_batched_tokens and makes vLLM reject longer "
            "sequences. Please increase max_num_batched_tokens or decrease max_model_len."
        )
    if tokens < seqs:
        return f"max_num_batched_tokens ({tokens}) must be greater than or equal to max_num_seqs ({seqs})."
    return None
