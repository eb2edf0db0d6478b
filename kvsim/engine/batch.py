"""The batch that a step is building: requests, their tokens, images to encode, budgets left."""

from kvsim.cache.state import NONE
from kvsim.compiled import compiled_inline, compiled_part
from kvsim.engine.encoder_cache import allocate_encoder_inputs, embeds_to_encode


@compiled_inline
def new_batch_index(eng):
    """Ring position of the batch that is being scheduled."""
    return (eng.scalars["first_batch"][0] + eng.scalars["num_batches"][0]) % len(eng.batches)


@compiled_inline
def add_to_batch(eng, r, num_new, num_spec, origin):
    b = eng.scalars["new_batch"][0]
    n = eng.batches["num_reqs"][b]
    row = eng.scheduled[b]
    row["uid"][n] = eng.kv.requests["uid"][r]
    row["request"][n] = r
    row["num_scheduled_tokens"][n] = num_new
    row["num_computed_tokens"][n] = eng.kv.requests["num_computed_tokens"][r]
    row["num_spec_tokens"][n] = num_spec
    row["origin"][n] = origin
    eng.batches["num_reqs"][b] = n + 1
    eng.batches["num_tokens"][b] += num_new
    eng.scalars["token_budget"][0] -= num_new


@compiled_part
def take_from_batch(eng, r):
    """Undo the scheduling of a request in this step; its tokens return to the budgets."""
    b = eng.scalars["new_batch"][0]
    row = eng.scheduled[b]
    n = eng.batches["num_reqs"][b]
    at = NONE
    for i in range(n):
        if row["request"][i] == r:
            at = i
    if at == NONE:
        return False
    num_new = row["num_scheduled_tokens"][at]
    for i in range(at, n - 1):
        row[i] = row[i + 1]
    eng.batches["num_reqs"][b] = n - 1
    eng.batches["num_tokens"][b] -= num_new
    eng.scalars["token_budget"][0] += num_new
    eng.scalars["encoder_budget"][0] += embeds_to_encode(eng, r)
    eng.batches["num_encoder_tokens"][b] -= embeds_to_encode(eng, r)
    return True


@compiled_inline
def schedule_encoder(eng, r, num_embeds):
    if num_embeds == 0:
        return
    eng.scalars["encoder_budget"][0] -= num_embeds
    eng.batches["num_encoder_tokens"][eng.scalars["new_batch"][0]] += num_embeds
    allocate_encoder_inputs(eng, r)
