"""The step time of one model on GPUs of one kind: all kernels laid out for the compiled step."""

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from kvsim.errors import KvsimError
from kvsim.gpu.catalog import GpuSpec
from kvsim.gpu.cost import linear
from kvsim.gpu.cost.attention import attention_record, attention_sets, attention_shapes
from kvsim.gpu.cost.calibration import Calibration, ValueSet, calibration, device
from kvsim.gpu.cost.curves import TOKENS, rising
from kvsim.gpu.cost.description import beyond, described
from kvsim.gpu.cost.forms import Device, encoder_time, small_time
from kvsim.gpu.cost.linear import Arithmetic
from kvsim.gpu.cost.step import COST_DTYPE, StepShape, price
from kvsim.gpu.layers import kv_dtype_bytes
from kvsim.gpu.model import DTYPE_BYTES, ModelSpec, VisionSpec

# Patches that one patch attends to in the vision encoder: those of an image of about 1,000 tokens.
ENCODER_SPAN = 4096
CUDA_GRAPH_TOKENS = 512  # vLLM captures batches up to here (config/vllm.py, cudagraph_capture_sizes)


@dataclass(frozen=True)
class StepCost:
    """Step time of one model on GPUs of one kind.

    calibration: numbers to use instead of those that come with kvsim for the GPU.
    data_parallel_size: ranks that share out the routed experts, if there are any.
    cuda_graph_tokens: batches up to here are padded to a captured size; 0 for eager mode.
    Raises KvsimError if the model's shape lacks a fact, for ranks that the heads do not divide among,
    and for a dtype that is not modelled.
    """

    model: ModelSpec
    gpu: GpuSpec
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    data_parallel_size: int = 1
    kv_cache_dtype: str = "auto"
    async_scheduling: bool = True
    cuda_graph_tokens: int = CUDA_GRAPH_TOKENS
    calibration: Calibration | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        model = self.model
        needed = {
            "hidden_size": model.hidden_size,
            "vocab_size": model.vocab_size,
            "num_attention_heads": model.num_attention_heads,
            "intermediate_size": model.intermediate_size or model.moe_intermediate_size,
        }
        missing = [key for key, value in needed.items() if not value]
        if missing:
            raise KvsimError(f"model: {missing[0]} of {model.name} is needed for the step time")
        ranks, heads = self.tensor_parallel_size, model.num_attention_heads
        if heads % ranks:
            raise KvsimError(
                f"tensor_parallel_size: {ranks} ranks do not divide the {heads} attention heads "
                f"of {model.name}"
            )
        if model.dtype not in DTYPE_BYTES:
            known = ", ".join(DTYPE_BYTES)
            raise KvsimError(f"dtype: {model.dtype!r} of {model.name} is not modelled; one of {known}")
        kv_dtype_bytes(self.kv_cache_dtype, model.dtype)

    @cached_property
    def _known(self) -> Calibration:
        return self.calibration or calibration(self.gpu.name)

    @cached_property
    def parameters(self) -> NDArray[np.void]:
        """COST_DTYPE record, shape (1,), for `step_time`."""
        record = np.zeros(1, COST_DTYPE)
        record["graph_tokens"] = self.cuda_graph_tokens
        record["tokens"][0] = 1e-6 * rising(self._token_us())
        record["requests"][0] = 1e-6 * rising(self._request_us())
        if self.model.vision:
            record["images"][0] = 1e-6 * rising(self._image_us(self.model.vision))
        for kind, (layers, shape) in self._attention_shapes.items():
            if layers:
                prefill, decode = attention_sets(self._known, self._kv_dtype, shape)
                record["attention"][0, kind] = attention_record(prefill, decode, shape, self.device, layers)[
                    0
                ]
        return record

    def seconds(self, shape: StepShape) -> float:
        """Time of one step in seconds."""
        count = len(shape.num_scheduled_tokens)
        scheduled = np.ascontiguousarray(shape.num_scheduled_tokens, np.int32)
        computed = np.ascontiguousarray(shape.num_computed_tokens, np.int32)
        return float(price(self.parameters, scheduled, computed, count, shape.num_encoder_tokens))

    @property
    def description(self) -> str:
        """One sentence for reports: what the times rest on."""
        return described(self.gpu.name, self.used, self._assumed())

    def beyond(self, context: float, requests: float, tokens: float) -> list[str]:
        """Sentences on what of a run's longest context, largest batch and largest step was never measured."""
        return list(beyond(self.used, {"context": context, "requests": requests, "tokens": tokens}))

    @cached_property
    def used(self) -> dict[str, ValueSet]:
        """The value sets that this model's steps take, by ``operation/dtype``."""
        known = self._known.values
        found = [self._linear.values, self._plain.values, known["small/bfloat16"], known["sampler/bfloat16"]]
        for _, (layers, shape) in self._attention_shapes.items():
            if layers:
                found += attention_sets(self._known, self._kv_dtype, shape)
        if self.model.num_moe_layers:
            found.append(self._known.get("moe"))
        if self.tensor_parallel_size > 1:
            found += [self._known.get(f"all_reduce_{kind}") for kind in ("custom", "nccl")]
        if self.pipeline_parallel_size > 1:
            found.append(self._known.get("send"))
        if self.model.vision:
            found.append(self._known.get("attention_encoder"))
        return {key: values for key, values in known.items() if any(values is each for each in found)}

    def _assumed(self) -> list[str]:
        """What is physics without a measurement behind it."""
        model, words = self.model, []
        if not self._linear.measured:
            words.append(f"{model.quantization or model.dtype} linear layers by physics, not measured")
        if model.is_mla:
            words.append("latent attention by physics, not measured")
        if self._kv_dtype == "fp8" and "attention_decode/fp8" not in self.used:
            words.append("fp8 KV by bytes, not measured")
        if self.data_parallel_size > 1 and model.num_moe_layers:
            words.append(f"experts shared by {self.data_parallel_size} ranks, their exchange not counted")
        return words

    @cached_property
    def device(self) -> Device:
        return device(self.gpu)

    def frontend_seconds(self, prompt_tokens: NDArray[np.int64]) -> NDArray[np.float64]:
        """From a request's arrival until the engine sees it: HTTP and tokeniser."""
        p = self._known.get("engine", "host").parameters
        return np.asarray(1e-6 * (p["frontend"] + prompt_tokens * p["frontend_per_token"]), np.float64)

    @property
    def _kv_dtype(self) -> str:
        return "fp8" if kv_dtype_bytes(self.kv_cache_dtype, self.model.dtype) == 1 else "bfloat16"

    @cached_property
    def _attention_shapes(self):  # type: ignore[no-untyped-def]
        return attention_shapes(self.model, self.tensor_parallel_size, self.kv_cache_dtype)

    @cached_property
    def _linear(self) -> Arithmetic:
        return Arithmetic.of(self.model.quantization, self.model.dtype, self._known, self.device)

    @cached_property
    def _plain(self) -> Arithmetic:
        """For weights that are never quantised."""
        return Arithmetic.of(None, self.model.dtype, self._known, self.device)

    @property
    def _full_bytes(self) -> int:
        return DTYPE_BYTES[self.model.dtype]

    def _token_us(self) -> NDArray[np.float64]:
        model, ranks, gpu, known = self.model, self.tensor_parallel_size, self.device, self._known
        engine = known.get("engine", "host").parameters
        total = np.full(len(TOKENS), engine["step"] + (ranks - 1) * engine["step_per_rank"])
        if not self.async_scheduling:
            total += engine["synchronous"]
        for count, columns, inner in linear.linear_shapes(model, ranks):
            total += count * linear.gemm_curve(self._linear, gpu, columns, inner)
        if model.num_moe_layers:
            experts = linear.expert_curve(
                model, ranks, self._linear, known.get("moe"), gpu, self.data_parallel_size
            )
            total += model.num_moe_layers * experts
        small = linear.small_curve(model, ranks, self._linear, known.get("small"), gpu)
        total += model.num_hidden_layers * small
        size = TOKENS * model.hidden_size * self._full_bytes
        if ranks > 1:
            total += 2 * model.num_hidden_layers * linear.all_reduce_curve(size, ranks, known, gpu)
        if self.pipeline_parallel_size > 1:
            sends = linear.send_curve(size, known.get("send"), gpu)
            total += (self.pipeline_parallel_size - 1) * sends
        return total

    def _request_us(self) -> NDArray[np.float64]:
        """LM head and sampler; vLLM computes logits of every request of the batch, prefill chunks too."""
        model, known = self.model, self._known
        columns = model.vocab_size / self.tensor_parallel_size
        head = linear.gemm_curve(self._plain, self.device, columns, model.hidden_size)
        sampler = known.get("sampler").parameters
        logits = 4.0 * TOKENS * model.vocab_size
        each = TOKENS * known.get("engine", "host").parameters["step_per_request"]
        return head + small_time(sampler, self.device.bandwidth, logits) + each

    def _image_us(self, vision: VisionSpec) -> NDArray[np.float64]:
        """Vision encoder over image tokens: its layers over the patches, attention within each image."""
        ranks, plain, gpu = self.tensor_parallel_size, self._plain, self.device
        patches = TOKENS * vision.spatial_merge_size**2
        width = (2 if vision.gated_mlp else 1) * vision.intermediate_size
        hidden = vision.hidden_size
        layer = np.zeros(len(TOKENS))
        for columns, inner in (
            (3 * hidden / ranks, hidden),
            (hidden, hidden / ranks),
            (width / ranks, hidden),
            (hidden, vision.intermediate_size / ranks),
        ):
            layer += linear.gemm_curve(plain, gpu, columns, inner, patches)
        values = self._known.get("attention_encoder")
        length = np.minimum(patches, ENCODER_SPAN)
        heads = max(vision.num_heads / ranks, 1.0)
        layer += encoder_time(
            values.parameters, gpu, patches / length, length, heads, hidden / vision.num_heads
        )
        merged = hidden * vision.spatial_merge_size**2
        merger = linear.gemm_curve(plain, gpu, merged / ranks, merged)
        merger = merger + linear.gemm_curve(plain, gpu, vision.out_hidden_size, merged / ranks)
        return vision.depth * layer + merger
