"""A capacity question with every default settled, so that a way out can change one thing at a time."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from kvsim.errors import KvsimError
from kvsim.gpu import catalog
from kvsim.gpu.as_served import as_served, flags_of_release, override_notes, release_notes
from kvsim.gpu.capacity_flags import check_card, checked_flags, image_limits, ineffective
from kvsim.gpu.drafts import drafts_of
from kvsim.gpu.memory import KVCacheOptions
from kvsim.gpu.memory_extras import MemoryExtra, memory_extras, unmodelled
from kvsim.gpu.memory_setup import MemorySetup
from kvsim.gpu.model import ModelSpec
from kvsim.gpu.prediction import MemoryPrediction, predict_memory
from kvsim.gpu.refusals import GIB, RefusalWords, format_gib
from kvsim.gpu.releases import Release, batch_limits, chunks_prefill, release
from kvsim.gpu.staged_layout import StagedLayout, staged_layout

_OFFLINE_BATCH = {2048: 8192, 8192: 16384}  # V1's defaults for offline use, by those of a server
_LONGEST_NAME = 1024
_FIRST_WITHOUT_V0 = 11
_UNKNOWN_LENGTH = 1 << 20  # automatic max_model_len of a model that states none


@dataclass(frozen=True)
class CapacityQuestion:
    """Model, release, card and flags.

    given: bytes for the KV cache, None to predict them. used_by_others: bytes of other processes.
    observed: bytes of parts that a log has shown, which replace the predicted ones. offline: see `settle`.
    """

    model: ModelSpec
    release: Release
    setup: MemorySetup
    options: KVCacheOptions
    flags: Mapping[str, Any]
    given: int | None = None
    used_by_others: int = 0
    observed: Mapping[str, int] = field(default_factory=dict)
    offline: bool = False

    @property
    def words(self) -> RefusalWords:
        return RefusalWords.of_release(self.release.minor, v0=self.release.v0)

    @property
    def total(self) -> int:
        return self.setup.total_bytes

    def layout(self) -> StagedLayout:
        drafts = drafts_of(self.flags)
        mode = self.flags.get("mamba_cache_mode") or ("align" if self.release.minor >= 17 else "none")
        return staged_layout(
            self.model,
            self.options,
            self.release,
            mamba_mode=mode if self.flags.get("enable_prefix_caching", True) else "none",
            spec_tokens=drafts.tokens,
            mtp_layers=drafts.mtp_layers,
            draft=drafts.model,
        )

    def prediction(self) -> MemoryPrediction | None:
        """None where the bytes are given."""
        if self.given is not None:
            return None
        found = predict_memory(self.model, self.release, self.setup)
        if not self.observed:
            return found
        return replace(found, **dict(self.observed), error=self._error(found))  # type: ignore[arg-type]

    def _error(self, found: MemoryPrediction) -> int:
        """Nothing is estimated once every part was observed; without the graphs, only they are."""
        parts = {"weights", "activation", "non_torch"}
        if not set(self.observed) >= parts:
            return found.error
        return found.error // 4 if found.cuda_graphs and "cuda_graphs" not in self.observed else 0

    def extras(self) -> tuple[MemoryExtra, ...]:
        return () if self.given is not None else memory_extras(self.model, self.setup, self.flags)

    def available(self) -> int:
        """Bytes for the KV cache on one GPU; may be negative."""
        if self.given is not None:
            return self.given
        prediction = self.prediction()
        assert prediction is not None
        left = prediction.available - sum(extra.size for extra in self.extras())
        if not self.release.v0 and self.release.minor < 9:  # counted everything on the device as its own
            left -= self.used_by_others
        return left

    def notes(self) -> tuple[str, ...]:
        notes = (
            *release_notes(self.model, self.release),
            *ineffective(self.flags),
            *unmodelled(self.model, self.flags),
        )
        return (*notes, *override_notes(self.flags, self.release))

    def with_length(self, length: int) -> "CapacityQuestion":
        """With another max_model_len, and the batch limits that follow from it."""
        return self.with_flags(max_model_len=length)

    def with_flags(self, **changes: Any) -> "CapacityQuestion":
        """With other flags for length and batches, and the limits that follow from them."""
        flags = {**self.flags, **changes}
        length = changes.get("max_model_len", self.setup.max_model_len)
        tokens, seqs = _limits(
            self.release, self.total, self.setup.gpu_name, self.model, length, flags, offline=self.offline
        )
        sizes = {"max_model_len": length, "max_num_batched_tokens": tokens}
        observed = dict(self.observed)
        if tokens != self.setup.max_num_batched_tokens:
            observed.pop("activation", None)  # seen in a profile run of other size
        return replace(
            self,
            flags=flags,
            observed=observed,
            options=replace(self.options, **sizes),
            setup=replace(self.setup, max_num_seqs=seqs, **sizes),
        )

    def with_utilization(self, value: float) -> "CapacityQuestion":
        return replace(self, setup=replace(self.setup, gpu_memory_utilization=value))

    def with_kv_dtype(self, name: str) -> "CapacityQuestion":
        return replace(self, options=replace(self.options, kv_cache_dtype=name))

    def with_ranks(self, ranks: int) -> "CapacityQuestion":
        """Over that many tensor-parallel ranks; what was observed on fewer says nothing there."""
        return replace(
            self,
            observed={},
            options=replace(self.options, tensor_parallel_size=ranks),
            setup=replace(self.setup, tensor_parallel_size=ranks),
        )


def settle(
    model: str | Path | Mapping[str, Any] | ModelSpec,
    gpu: str | None,
    memory_gib: float | None,
    used_by_others_gib: float,
    given: int | None,
    version: str,
    flags: Mapping[str, Any],
    *,
    engine: str = "",
    offline: bool = False,
    observed: Mapping[str, int] | None = None,
) -> CapacityQuestion:
    """Check everything and fill in the release's defaults. Raises KvsimError "<flag>: ..."."""
    of = _release(str(version), engine)
    flags = flags_of_release(checked_flags(flags), of)
    check_card(gpu, memory_gib, used_by_others_gib, given, observed)
    spec = as_served(_read_model(model), of, flags)
    given = flags.get("kv_cache_memory_bytes", given)
    name, total = _card(gpu, memory_gib, given)
    _check_others(used_by_others_gib, total)
    usual = spec.usual_length(of.minor)
    length = flags.get("max_model_len", usual)
    if length is None:
        raise KvsimError("max_model_len: missing; give tokens, the model's own maximum is not known")
    limit = length if length > 0 else usual or _UNKNOWN_LENGTH
    batched, seqs = _limits(of, total, name, spec, limit, flags, offline=offline)
    options = KVCacheOptions(
        **{f.name: flags[f.name] for f in fields(KVCacheOptions) if f.name in flags}
        | {"max_num_batched_tokens": batched, "max_model_len": length}
    )
    images, pixels = image_limits(flags)
    drafts_of(flags)
    setup = MemorySetup(
        total_bytes=total,
        gpu_name=name,
        gpu_memory_utilization=flags.get("gpu_memory_utilization") or of.default_utilization,
        max_model_len=limit,
        max_num_seqs=seqs,
        max_num_batched_tokens=batched,
        tensor_parallel_size=options.tensor_parallel_size,
        pipeline_parallel_size=options.pipeline_parallel_size,
        enforce_eager=flags.get("enforce_eager", False),
        image_pixels=pixels,
        images_per_prompt=images,
    )
    others = round(used_by_others_gib * GIB)
    return CapacityQuestion(spec, of, setup, options, flags, given, others, dict(observed or {}), offline)


def _limits(
    of: Release,
    total: int,
    name: str,
    spec: ModelSpec,
    length: int,
    flags: Mapping[str, Any],
    *,
    offline: bool,
) -> tuple[int, int]:
    """(max_num_batched_tokens, max_num_seqs), the defaults where a flag does not say."""
    batched, seqs = batch_limits(
        of,
        total,
        name,
        spec,
        max_model_len=length,
        max_num_seqs=flags.get("max_num_seqs"),
        max_num_batched_tokens=flags.get("max_num_batched_tokens"),
        chunked=chunks_prefill(of, spec, length, flags),
    )
    if offline and not of.v0 and "max_num_batched_tokens" not in flags:
        batched = min(_OFFLINE_BATCH.get(batched, batched), seqs * length)
    return batched, seqs


def _release(version: str, engine: str) -> Release:
    if engine.upper() not in ("", "V0", "V1"):
        raise KvsimError(f"engine: {engine[:40]!r} is not known; give V0 or V1")
    found = release(version[:200], engine)
    if found.v0 and found.minor >= _FIRST_WITHOUT_V0:  # asking for V0 has no effect there
        return release(version[:200], "V1")
    return found


def _read_model(model: Any) -> ModelSpec:
    if not isinstance(model, str | Path | Mapping | ModelSpec):
        raise KvsimError(f"model: {str(model)[:40]!r} is no name, path or configuration")
    if isinstance(model, ModelSpec):
        return model
    if isinstance(model, str) and len(model) > _LONGEST_NAME:
        raise KvsimError(f"model: {model[:60]!r}... is too long for a name or path")
    return ModelSpec.from_config(model) if isinstance(model, Mapping) else catalog.model(model)


def _check_others(gib: float, total: int) -> None:
    if not 0 <= gib < 1e6:
        raise KvsimError(f"used_by_others_gib: {gib!r} is not a number from 0")
    if total and gib * GIB > total:
        raise KvsimError(f"used_by_others_gib: {gib:g} is more than the card has, {format_gib(total)} GiB")


def _card(gpu: str | None, memory_gib: float | None, given: int | None) -> tuple[str, int]:
    """Name and total bytes; 0 bytes where the cache's bytes are given and no card is."""
    if memory_gib is not None and not 0 < memory_gib < 1e6:
        wrong = "is beyond any card" if memory_gib > 0 else "is not above 0"
        raise KvsimError(f"gpu_memory_gib: {memory_gib!r} {wrong}")
    spec = catalog.gpu(gpu) if gpu is not None else None
    if memory_gib is not None:
        return spec.name if spec else f"a {memory_gib:g} GiB GPU", round(memory_gib * GIB)
    if spec is not None:
        return spec.name, spec.memory_bytes
    if given is None:
        raise KvsimError("gpu: missing; give a name of kvsim gpus, or gpu_memory_gib")
    return "a GPU", 0
