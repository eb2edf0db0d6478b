"""Peak memory of vLLM's profile run, phase by phase.

`profile_run` of the model runner (0.6.6 to 0.33.0): the largest batch of encoder inputs, a forward pass of
max_num_batched_tokens, one sampler call of max_num_seqs rows. Each phase frees its tensors before the next,
so the peak is the largest of the three.
"""

from kvsim.gpu.memory_setup import MemorySetup
from kvsim.gpu.model import ModelSpec
from kvsim.gpu.releases import Release

_BUDGET_TOKENS_OF_AN_IMAGE = 16384  # Qwen-VL processors' default upper limit
_MLA_WORKSPACE_TOKENS = 64 * 1024  # `MLACommonMetadataBuilder`: context tokens expanded at a time
_TABLE_ROWS = 128  # rows of the top-k kernel's table: one for each multiprocessor; cards have 80 to 170
SORTED_BELOW = 8  # rows; a smaller batch is sorted by torch, whatever the release


def activation_peaks(model: ModelSpec, release: Release, setup: MemorySetup) -> dict[str, int]:
    """Peak bytes of each phase of the profile run on one GPU."""
    held, encoder = _encoder(model, release, setup)
    peaks = {
        "language model": _language_peak(model, release, setup) + held,
        "sampler": _sampler_peak(model, release, setup) + held,
    }
    if encoder:
        peaks["vision encoder"] = encoder
    return {name: int(size) for name, size in peaks.items()}


def _language_peak(model: ModelSpec, release: Release, setup: MemorySetup) -> float:
    """The widest layer of one forward pass of max_num_batched_tokens."""
    tp, hidden = setup.tensor_parallel_size, model.hidden_size
    widths = []
    if model.num_moe_layers < model.num_hidden_layers or not model.num_experts:
        # gate and up, their product; residual, normed input and output; one more without FlashAttention
        tensors = 4 if setup.lacks_flash_attention else 3
        widths.append(3 * model.intermediate_size / tp + tensors * hidden)
    if model.num_experts:
        expert = model.moe_intermediate_size / tp
        # Fused experts: one buffer serves gate+up and the down output, one holds the product, per chosen
        # expert; then the input, the output, the residual and the reduced sum.
        chosen = model.num_experts_per_tok * (max(2 * expert, hidden) + expert)
        widths.append(chosen + 4 * hidden)
    if model.linear is not None:
        # projection, convolution's output, gate and core output; residual, normed input and output
        widths.append((2 * model.linear.conv_dim + 2 * model.linear.inner_size) / tp + 3 * hidden)
    # V0 hands embeddings, not tokens, to a model that takes images: those of the text and the merged ones
    # stay alive (two logs print 0.05 and 0.07 GiB more than a model of text would take).
    embeddings = 2 * hidden if release.v0 and model.vision else 0
    peak = 2 * setup.max_num_batched_tokens * (max(widths) + embeddings)
    return peak + _mla_workspace(model, setup)


def _mla_workspace(model: ModelSpec, setup: MemorySetup) -> float:
    """Context tokens expanded back to heads in a chunked prefill: the largest chunk is profiled."""
    if not model.is_mla:
        return 0
    tokens = min(max(8 * setup.max_model_len, 64 * setup.max_num_seqs), _MLA_WORKSPACE_TOKENS)
    heads = model.num_attention_heads / setup.tensor_parallel_size
    latent = model.kv_lora_rank + model.qk_rope_head_dim
    return 2 * tokens * (heads * (model.qk_nope_head_dim + model.v_head_dim) + latent)


# ---- sampler ----


def _sampler_peak(model: ModelSpec, release: Release, setup: MemorySetup) -> float:
    rows = min(setup.max_num_seqs, setup.max_num_batched_tokens)
    if release.v0 and model.vision is not None:
        # One dummy request for each largest picture that fits the budget (`profile_run` of V0).
        rows = max(1, min(rows, setup.max_num_batched_tokens // image_tokens(model, setup)))
    hidden_states = 2 * model.hidden_size * setup.max_num_batched_tokens
    return _sampler_bytes(model, release, rows) * model.vocab_size + hidden_states


def _sampler_bytes(model: ModelSpec, release: Release, rows: int) -> int:
    """Bytes alive at once, per entry of the vocabulary (`Sampler.forward`, `ops/topk_topp_sampler.py`)."""
    if release.v0:
        # 16-bit logits and 32-bit copy; sorted values, 64-bit places, probabilities, their sums, mask,
        # scattered result and scratch of the sort.
        return 36 * rows
    if release.runs_v2(model):
        if release.minor >= 33:  # profiles all sampling parameters, as V1 does
            return 14 * rows
        # Greedy dummies: the 32-bit copy is made to 0.26; later the 16-bit logits are used as they are.
        return (6 if release.minor <= 26 else 2) * rows
    if release.minor <= 16 or rows < SORTED_BELOW:
        return 34 * rows  # as V0, with one of the places less
    # No sort: 16-bit logits, 32-bit copy, probabilities, and noise (torch) or masked logits (FlashInfer).
    # 0.21 and 0.22 profile FlashInfer alone; the others also the kernel that keeps a table.
    table = 0 if release.minor in (21, 22) else 4 * min(rows, _TABLE_ROWS)
    return 14 * rows + table


# ---- encoders ----


def _encoder(model: ModelSpec, release: Release, setup: MemorySetup) -> tuple[int, int]:
    """Bytes of the encoder outputs that stay alive during the forward pass, and of the encoder's own peak.

    V0 profiled with prompts of max_num_batched_tokens whose images hardly mattered: none.
    """
    if model.encoder is not None and not release.v0:
        return _audio(model, setup)
    vision = model.vision
    if vision is None or setup.images_per_prompt == 0 or release.v0:
        return 0, 0
    tokens = image_tokens(model, setup)
    most = setup.max_num_seqs * (setup.images_per_prompt or 999)
    budget = max(setup.max_num_batched_tokens, tokens)
    items = max(1, min(budget // tokens, most))
    merge = vision.spatial_merge_size**2
    patches = items * tokens * merge
    pixels = 3 * vision.patch_size**2 * vision.temporal_patch_size
    out = (vision.out_hidden_size or model.hidden_size) * (1 + vision.deepstack_levels)
    # Input pixels; two tensors of the MLP; residual, its normed copy, positions, two of attention's;
    # and what every deepstack level has put aside.
    aside = out * vision.deepstack_levels / (1 + vision.deepstack_levels) / merge
    width = pixels + _mlp(model, setup) + 5 * vision.hidden_size + aside
    # 0.11 and 0.12 spread every output over a buffer of the whole budget.
    rows = items * budget if release.minor in (11, 12) else items * tokens
    return 2 * rows * out, int(2 * patches * width)


def _audio(model: ModelSpec, setup: MemorySetup) -> tuple[int, int]:
    """The same of an encoder-decoder model: as many inputs as the token budget admits."""
    encoder = model.encoder
    assert encoder is not None
    tokens = max(setup.max_num_batched_tokens // encoder.num_tokens, 1) * encoder.num_tokens
    width = 2 * encoder.intermediate_size / setup.tensor_parallel_size + 5 * model.hidden_size
    return 2 * tokens * model.hidden_size, int(2 * tokens * width)


def _mlp(model: ModelSpec, setup: MemorySetup) -> float:
    vision = model.vision
    assert vision is not None
    return (3 if vision.gated_mlp else 2) * vision.intermediate_size / setup.tensor_parallel_size


def image_tokens(model: ModelSpec, setup: MemorySetup) -> int:
    """Language tokens of the largest image that the processor lets through."""
    vision = model.vision
    if vision is None:
        return 0
    pixels = setup.image_pixels or vision.max_pixels
    if pixels is None:
        return _BUDGET_TOKENS_OF_AN_IMAGE if vision.spatial_merge_size > 1 else 576
    return max(1, pixels // max(1, vision.pixels_per_token_side**2))
