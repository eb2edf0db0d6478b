"""vLLM's ``--quantization`` and ``--dtype`` applied to a model's shape facts.

Method names are those of `QUANTIZATION_METHODS` (`model_executor/layers/quantization/__init__.py`) in
vLLM 0.33.0 and 0.16.0. A method stands for the weight formats that it can hold, the usual one first;
the bytes of each format are `kvsim.gpu.model.QUANT_BYTES`.
"""

from dataclasses import replace

from kvsim.errors import KvsimError
from kvsim.gpu.model import DTYPE_BYTES, ModelSpec

_BOTH = {
    "fp8": ("fp8",),
    "fbgemm_fp8": ("fp8",),
    "modelopt": ("fp8", "nvfp4"),
    "modelopt_fp4": ("nvfp4",),
    "modelopt_mxfp8": ("mxfp8",),
    "mxfp4": ("mxfp4",),
    "awq": ("int4",),
    "awq_marlin": ("int4",),
    "gptq": ("int4", "int8"),
    "gptq_marlin": ("int4", "int8"),
}
_FORMATS = {
    "0.33": _BOTH
    | {
        "auto_awq": ("int4",),
        "auto_gptq": ("int4", "int8"),
        "gpt_oss_mxfp4": ("mxfp4",),
        "fp8_per_tensor": ("fp8",),
        "fp8_per_block": ("fp8",),
        "fp8_per_channel": ("fp8",),
        "int8_per_channel_weight_only": ("int8",),
        "mxfp8": ("mxfp8",),
    },
    "0.16": _BOTH
    | {
        "ptpc_fp8": ("fp8",),
        "petit_nvfp4": ("nvfp4",),
        "cpu_awq": ("int4",),
        "bitsandbytes": ("nf4",),
    },
}
# How many bits these spend is told by the checkpoint, or not every layer is quantised.
_PARTIAL = ("compressed-tensors", "quark", "torchao", "inc", "moe_wna16", "fp_quant", "experts_int8")
_UNSTATED = {
    "0.33": (*_PARTIAL, "modelopt_mixed", "humming", "deepseek_v4_fp8", "online", "nvfp4_per_token"),
    "0.16": (*_PARTIAL, "gguf"),
}


def served_as(
    model: ModelSpec, version: str, quantization: str | None = None, dtype: str = "auto"
) -> ModelSpec:
    """The model as vLLM of that release holds it: bytes of a weight, and of a cached value for "auto".

    Raises KvsimError "quantization: ..." or "dtype: ..." for an unknown name or one that the model's own
    format contradicts.
    """
    if quantization is not None:
        model = replace(model, quantization=_format(model, version, quantization.lower()))
    if dtype == "auto":
        return model
    if dtype not in DTYPE_BYTES:
        raise KvsimError(f"dtype: {dtype!r} is not known; one of auto, {', '.join(DTYPE_BYTES)}")
    return replace(model, dtype=dtype)


def _format(model: ModelSpec, version: str, method: str) -> str:
    known, unstated, own = _FORMATS[version], _UNSTATED[version], model.quantization
    if method in unstated:
        if own is None:
            raise KvsimError(
                f"quantization: {method} does not say how many bits the weights have; name the quantised "
                "model instead, as in model: Qwen/Qwen3-8B-FP8"
            )
        return own
    if method not in known:
        names = ", ".join([*known, *unstated])
        raise KvsimError(f"quantization: {method!r} is not a method of vLLM {version}; one of {names}")
    if own is not None and own not in known[method]:
        raise KvsimError(
            f"quantization: {method} contradicts {model.name}, whose weights are {own}; leave it out"
        )
    return own or known[method][0]
