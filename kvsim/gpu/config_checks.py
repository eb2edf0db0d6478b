"""What a ``config.json`` cannot be: a model without KV cache, heads that do not fit, unknown types."""

from kvsim.errors import KvsimError
from kvsim.gpu.config_json import Config, listed, shown

DTYPES = ("bfloat16", "float16", "half", "float32", "float", "auto")
# Families of encoders alone, which keep no K and V between steps.
_ENCODERS = (
    "bert",
    "roberta",
    "xlm-roberta",
    "distilbert",
    "albert",
    "electra",
    "modernbert",
    "nomic_bert",
    "mpnet",
    "camembert",
    "deberta",
    "deberta-v2",
    "gte",
    "snowflake-arctic-embed",
    "clip",
    "siglip",
    "vit",
)
_ENCODER_MODELS = ("BertModel", "BertForMaskedLM", "RobertaModel", "RobertaForMaskedLM", "ModernBertModel")


def check_kind(config: Config) -> None:
    """Raises KvsimError for an encoder alone, and for architectures that are no list of names."""
    names = listed(config, "architectures")
    odd = next((name for name in names if not isinstance(name, str)), None)
    if odd is not None:
        raise KvsimError(f"model: architectures has {shown(odd)} in it, wanted names")
    family = config.get("model_type")
    if family is not None and not isinstance(family, str):
        raise KvsimError(f"model: model_type is {shown(family)}, wanted a name")
    if family in _ENCODERS or (not family and any(name in _ENCODER_MODELS for name in names)):
        raise KvsimError(f"model: {family or names[0]} is an encoder alone, which has no KV cache")


def check_heads(text: Config, heads: int, kv_heads: int) -> None:
    """Raises KvsimError unless every KV head serves as many query heads as the others."""
    if text.get("kv_lora_rank") or not (heads and kv_heads):
        return
    if heads % kv_heads:
        raise KvsimError(
            f"model: num_attention_heads {heads} is not a multiple of num_key_value_heads {kv_heads}"
        )


def dtype_of(text: Config) -> str:
    """The type of the weights that are not quantised. Raises KvsimError for one that is not known."""
    key = "dtype" if text.get("dtype") else "torch_dtype"
    value = text.get(key) or "bfloat16"
    name = value.removeprefix("torch.") if isinstance(value, str) else None
    if name not in DTYPES:
        raise KvsimError(f"model: {key} {shown(value)} is not known; one of {', '.join(DTYPES[:-1])}")
    return name
