"""The longest request that a model is made for, as vLLM derives it from ``config.json``.

`_get_and_verify_max_len` (`config.py`, later `config/model.py`) of the releases 0.6.6 to 0.33.0. Changes:
model_max_length decides from 0.8 on; LongRoPE starts with its original length from 0.11 on; a YaRN
factor, applied to the original length before, counts as applied already from 0.30 on.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from kvsim.errors import KvsimError
from kvsim.gpu.config_json import MAX_SIZE, Config, integer, shown

LENGTH_KEYS = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "seq_length",
    "model_max_length",
    "max_target_positions",
    "max_sequence_length",
    "max_seq_length",
    "seq_len",
)
ROPE_PARAMETERS_SINCE = 12  # before, rope_scaling alone counted
ROPE_KEYS = ("rope_scaling", "rope_parameters")
_ORIGINAL = "original_max_position_embeddings"
_NOT_STRETCHED = ("su", "longrope", "llama3")
_STRETCHED_BEFOREHAND = ("yarn", "deepseek_yarn", "deepseek_llama_scaling")  # from 0.30 on
_LEGACY_KINDS = {"su": "longrope", "mrope": "default"}
_WITHOUT_ROPE = ("opt", "gpt2", "gpt_bigcode", "bloom", "mpt", "whisper")
# Kinds of `get_rope`, with those that only a configuration has.
_KINDS = ("default", "linear", "dynamic", "ntk", "yarn", "longrope", "llama3", "proportional")
_KINDS_TOO = ("deepseek_yarn", "deepseek_llama_scaling", "bailing_mrope", "openpangu", "mllama4")


@dataclass(frozen=True)
class RopeScaling:
    """One rotary scaling. kind: rope_type, in its newer spelling. original: length before the factor."""

    kind: str
    factor: float | None = None
    original: int | None = None

    @property
    def table_factor(self) -> float:
        """Rows of the cos/sin table, in units of the length that it starts from (`get_rope`)."""
        grows = self.kind in ("linear", "dynamic", "ntk", *_STRETCHED_BEFOREHAND)
        return (self.factor or 1) if grows else 1


@dataclass(frozen=True)
class LengthFacts:
    """What a configuration says of lengths.

    stated: (key, tokens) in vLLM's order of keys. original: original_max_position_embeddings beside them.
    has_rope: whether positions are rotary. scaled: whether a factor is in the stated length (Gemma 3).
    """

    stated: tuple[tuple[str, int], ...] = ()
    ropes: tuple[RopeScaling, ...] = ()
    original: int | None = None
    has_rope: bool = True
    scaled: bool = False

    @property
    def shortest(self) -> int | None:
        """The least of the stated lengths, before any factor."""
        return min((tokens for _, tokens in self.stated), default=None)

    @property
    def table_rows(self) -> float:
        """Rows of the rotary cos/sin table of the model's full length."""
        positions = dict(self.stated).get(LENGTH_KEYS[0]) or self.shortest or 0
        rows: float = positions
        for rope in self.ropes:
            start = (rope.original or positions) if rope.kind in _STRETCHED_BEFOREHAND else positions
            rows = max(rows, start * rope.table_factor)
            if rope.kind == "longrope":  # a table of short factors before the one of long factors
                rows = max(rows, positions + (rope.original or self.original or 0))
        return rows


@dataclass(frozen=True)
class OwnLength:
    """What a release makes of it. most: tokens that need no permission. usual: without --max-model-len.

    shown: `most` as vLLM prints it, a float once a factor was applied. key: where it comes from.
    """

    most: float
    usual: int
    key: str
    model_max_length: int | None

    def too_long(self, asked: int) -> str | None:
        """The sentence that says so, in vLLM's words; None for a length that is allowed."""
        longest = self.model_max_length
        if asked <= self.most or (longest is not None and asked <= longest):
            return None
        return (
            f"User-specified max_model_len ({asked}) is greater than the derived max_model_len "
            f"({self.key}={self.most} or model_max_length={longest} in model's config.json)."
        )

    def refusal(self, asked: int, minor: int) -> str | None:
        """All that vLLM says to a longer max_model_len than that, or None."""
        words = self.too_long(asked)
        if words is None:
            return None
        permission = "To allow overriding this maximum, set the env var VLLM_ALLOW_LONG_MAX_MODEL_LEN=1"
        if minor < 10:
            return f"{words} This may lead to incorrect model outputs or CUDA errors. {permission}"
        return f"{words} {permission}. {_WARNING}"


_WARNING = (
    "VLLM_ALLOW_LONG_MAX_MODEL_LEN must be used with extreme caution. If the model uses relative position "
    "encoding (RoPE), positions exceeding derived_max_model_len lead to nan. If the model uses absolute "
    "position encoding, positions exceeding derived_max_model_len will cause a CUDA array out-of-bounds "
    "error."
)


def own_length(facts: LengthFacts, minor: int) -> OwnLength | None:
    """The length that release 0.`minor` derives; None where the configuration states none."""
    keys = [(key, tokens) for key, tokens in facts.stated if minor >= 7 or key != "max_target_positions"]
    if not keys:
        return None
    key, tokens = min(keys, key=lambda pair: pair[1])  # the first of equals, as vLLM's loop has it
    stated = dict(keys).get("model_max_length")
    if stated and minor >= 8:
        key, tokens = "model_max_length", stated
    most = tokens if facts.scaled and minor >= 8 else _stretched(facts, minor, tokens)
    usual = int(most)
    if minor >= 11 and any(rope.kind == "longrope" for rope in facts.ropes):
        usual = facts.original or usual
    return OwnLength(most, usual, key, stated)


def _stretched(facts: LengthFacts, minor: int, tokens: int) -> float:
    # From 0.12 on every model with rotary positions has rope_parameters, whose factor is 1.0 if absent.
    if not facts.ropes:
        return tokens * 1.0 if minor >= 12 and facts.has_rope else tokens
    kept = _NOT_STRETCHED + (_STRETCHED_BEFOREHAND if minor >= 30 else ())
    scaling = [rope for rope in facts.ropes if rope.kind not in kept]
    if not scaling and minor < 12:
        return tokens
    factor: float = 1.0
    for rope in scaling:
        factor = rope.factor if rope.factor is not None else factor
        if rope.kind == "yarn":
            tokens = rope.original or tokens
    return tokens * factor


def read_lengths(text: Config) -> LengthFacts:
    """Out of the language model's keys. Raises KvsimError naming the bad key."""
    family = str(text.get("model_type", ""))
    return LengthFacts(
        stated=_stated(text),
        ropes=_ropes(text),
        original=integer(text, _ORIGINAL) or None,
        has_rope=family not in _WITHOUT_ROPE,
        scaled="gemma3" in family,
    )


def with_overrides(facts: LengthFacts, overrides: Config) -> LengthFacts:
    """With the lengths and scalings of --hf-overrides in place of the configuration's."""
    ropes = _ropes(overrides) if any(overrides.get(key) is not None for key in ROPE_KEYS) else facts.ropes
    unknown = next((rope.kind for rope in ropes if rope.kind not in (*_KINDS, *_KINDS_TOO)), None)
    if unknown is not None and ropes != facts.ropes:
        raise KvsimError(f"model: rope_type {unknown[:40]!r} is not known; one of {', '.join(_KINDS)}")
    stated = dict(facts.stated) | dict(_stated(overrides, least=1))
    ordered = tuple((key, stated[key]) for key in LENGTH_KEYS if key in stated)
    original = integer(overrides, _ORIGINAL) or facts.original
    return replace(facts, stated=ordered, ropes=ropes, original=original)


def _stated(text: Config, least: int = 0) -> tuple[tuple[str, int], ...]:
    found = ((key, integer(text, key, least=least)) for key in LENGTH_KEYS)
    return tuple((key, tokens) for key, tokens in found if tokens)


def _ropes(text: Config) -> tuple[RopeScaling, ...]:
    """Scalings of the model, or one for each kind of layer that states its own."""
    found: dict[str, Any] = {}
    for key in ROPE_KEYS:
        value = text.get(key)
        if value is not None and not isinstance(value, Mapping):
            raise KvsimError(f"model: {key} is {shown(value)}, wanted an object with keys")
        found |= value or {}
    if not found:
        return ()
    if all(isinstance(value, Mapping) or value is None for value in found.values()):
        return tuple(_rope(value, "rope_parameters") for value in found.values() if value)
    return (_rope(found, next(key for key in ROPE_KEYS if text.get(key))),)


def _rope(value: Mapping[str, Any], where: str) -> RopeScaling:
    kind = value.get("rope_type", value.get("type")) or "default"
    if not isinstance(kind, str):
        raise KvsimError(f"model: {where}.rope_type is {shown(kind)}, wanted a name")
    factor = value.get("factor")
    number = isinstance(factor, int | float) and not isinstance(factor, bool) and 0 < factor <= MAX_SIZE
    if factor is not None and not number:
        raise KvsimError(f"model: {where}.factor is {shown(factor)}, wanted a number above 0")
    return RopeScaling(_LEGACY_KINDS.get(kind, kind), factor, integer(value, _ORIGINAL) or None)
