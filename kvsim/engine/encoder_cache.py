"""The encoder cache: which images' embeddings are on the GPU, who needs them, who goes first.

Followed: vLLM 0.33.0 `v1/core/encoder_cache_manager.py`. An entry that no request references
stays until its room is needed; the one unreferenced longest goes first. References are counted
per request: in 0.33 they last to the request's last copy of an image, in 0.16 to the first.
"""

from kvsim.cache.state import NONE, ZERO
from kvsim.compiled import compiled, compiled_part


@compiled_part
def find_encoder_entry(eng, identifier):
    e = eng.scalars["first_entry"][0]
    while e != NONE:
        if eng.encoder_cache["identifier"][e] == identifier:
            return e
        e = eng.encoder_cache["next_entry"][e]
    return e


@compiled_part
def _add_entry(eng, identifier, num_embeds):
    cache, s = eng.encoder_cache, eng.scalars
    e = s["spare_entry"][0]
    s["spare_entry"][0] = cache["next_entry"][e]
    first = s["first_entry"][0]
    cache["identifier"][e] = identifier
    cache["num_embeds"][e] = num_embeds
    cache["ref_cnt"][e] = 0
    cache["prev_entry"][e] = NONE
    cache["next_entry"][e] = first
    if first != NONE:
        cache["prev_entry"][first] = e
    s["first_entry"][0] = e
    return e


@compiled_part
def _drop_entry(eng, e):
    cache, s = eng.encoder_cache, eng.scalars
    before, after = cache["prev_entry"][e], cache["next_entry"][e]
    if before == NONE:
        s["first_entry"][0] = after
    else:
        cache["next_entry"][before] = after
    if after != NONE:
        cache["prev_entry"][after] = before
    cache["next_entry"][e] = s["spare_entry"][0]
    s["spare_entry"][0] = e


@compiled_part
def _make_freeable(eng, e):
    cache, s = eng.encoder_cache, eng.scalars
    newest = s["newest_freeable"][0]
    cache["prev_freeable"][e] = newest
    cache["next_freeable"][e] = NONE
    if newest == NONE:
        s["oldest_freeable"][0] = e
    else:
        cache["next_freeable"][newest] = e
    s["newest_freeable"][0] = e
    s["num_freeable_slots"][0] += cache["num_embeds"][e]


@compiled_part
def _unlink_freeable(eng, e):
    cache, s = eng.encoder_cache, eng.scalars
    before, after = cache["prev_freeable"][e], cache["next_freeable"][e]
    if before == NONE:
        s["oldest_freeable"][0] = after
    else:
        cache["next_freeable"][before] = after
    if after == NONE:
        s["newest_freeable"][0] = before
    else:
        cache["prev_freeable"][after] = before


@compiled_part
def _references(eng, r, identifier):
    """How many of the request's images hold the entry."""
    first = eng.kv.requests["feature_offset"][r]
    n = 0
    for f in range(first, first + eng.kv.requests["num_features"][r]):
        if eng.features["identifier"][f] == identifier:
            n += eng.features["referenced"][f]
    return n


@compiled_part
def _holder(eng, r, f):
    """The image whose flag stands for the reference: itself (0.33), or the first copy (0.16)."""
    if eng.scalars["encoder_reference_per_input"][0]:
        return f
    first = eng.kv.requests["feature_offset"][r]
    while eng.features["identifier"][first] != eng.features["identifier"][f]:
        first += 1
    return first


@compiled_part
def _reference(eng, r, f, e):
    if _references(eng, r, eng.features["identifier"][f]) == 0:
        eng.encoder_cache["ref_cnt"][e] += 1
    eng.features["referenced"][_holder(eng, r, f)] = 1


@compiled_part
def check_and_update_cache(eng, r, f):
    """Whether an image is already encoded; if so the request now references it."""
    e = find_encoder_entry(eng, eng.features["identifier"][f])
    if e == NONE:
        return False
    if eng.encoder_cache["ref_cnt"][e] == 0:
        _unlink_freeable(eng, e)
        eng.scalars["num_freeable_slots"][0] -= eng.encoder_cache["num_embeds"][e]
    _reference(eng, r, f, e)
    return True


@compiled_part
def can_allocate(eng, f, compute_budget, num_embeds_to_schedule):
    """Whether budget and room suffice for one more image; evicts unreferenced entries for it."""
    s = eng.scalars
    num_embeds = eng.features["length"][f]
    if num_embeds > compute_budget:
        return False
    num_embeds += num_embeds_to_schedule
    if num_embeds <= s["num_free_slots"][0]:
        return True
    if num_embeds > s["num_freeable_slots"][0]:
        return False
    while num_embeds > s["num_free_slots"][0]:
        e = s["oldest_freeable"][0]
        _unlink_freeable(eng, e)
        s["num_free_slots"][0] += eng.encoder_cache["num_embeds"][e]
        _drop_entry(eng, e)
    return True


@compiled_part
def allocate_encoder_input(eng, r, f):
    s = eng.scalars
    identifier, num_embeds = eng.features["identifier"][f], eng.features["length"][f]
    e = find_encoder_entry(eng, identifier)
    if e == NONE:
        e = _add_entry(eng, identifier, num_embeds)
    _reference(eng, r, f, e)
    s["num_free_slots"][0] -= num_embeds
    s["num_freeable_slots"][0] -= num_embeds


@compiled_part
def free_encoder_input(eng, r, f):
    """Drop the request's reference through one image; the entry stays, evictable."""
    identifier = eng.features["identifier"][f]
    holder = _holder(eng, r, f)
    held = eng.features["referenced"][holder]
    eng.features["referenced"][holder] = 0
    if held == 0 or _references(eng, r, identifier) > 0:
        return
    e = find_encoder_entry(eng, identifier)
    if e == NONE or eng.encoder_cache["ref_cnt"][e] == 0:
        return
    eng.encoder_cache["ref_cnt"][e] -= 1
    if eng.encoder_cache["ref_cnt"][e] == 0:
        _make_freeable(eng, e)


@compiled_part
def free_all_encoder_inputs(eng, r):
    first = eng.kv.requests["feature_offset"][r]
    for f in range(first, first + eng.kv.requests["num_features"][r]):
        free_encoder_input(eng, r, f)


@compiled_part
def free_passed_encoder_inputs(eng, r):
    """Release images that lie wholly within what is computed (and accepted, in 0.33)."""
    q = eng.kv.requests
    passed = q["num_computed_tokens"][r]
    if eng.scalars["encoder_released_after_output"][0]:
        passed -= q["num_output_placeholders"][r]
    first = q["feature_offset"][r]
    for f in range(first, first + q["num_features"][r]):
        if eng.features["offset"][f] + eng.features["length"][f] <= passed:
            free_encoder_input(eng, r, f)


@compiled
def init_encoder_cache(eng, cache_size):
    s = eng.scalars
    s["num_free_slots"][0] = cache_size
    s["num_freeable_slots"][0] = cache_size
    s["first_entry"][0] = NONE
    s["oldest_freeable"][0] = NONE
    s["newest_freeable"][0] = NONE
    s["spare_entry"][0] = 0
    n = len(eng.encoder_cache)
    for e in range(n):
        eng.encoder_cache["next_entry"][e] = e + 1 if e + 1 < n else NONE


# ---------------------------------------------------------------- which images a chunk needs


@compiled_part
def _embed_counts_differ(eng, f, num_embeds):
    """An identifier that stands for images of two sizes fails the request (0.33)."""
    return eng.scalars["encoder_reference_per_input"][0] != 0 and num_embeds != eng.features["length"][f]


@compiled_part
def try_schedule_encoder_inputs(eng, r, num_computed, num_new):
    """Tokens that may be scheduled given the images in their range, and the embeddings to encode.

    Images to encode get `scheduled_step` = this step; images already encoded are referenced. An
    image without budget or room cuts the chunk to just before it, or to nothing if the position
    is already inside it.
    """
    if eng.scalars["encoder_reference_per_input"][0]:
        return _try_schedule(eng, r, num_computed, num_new)
    return _try_schedule_016(eng, r, num_computed, num_new)


@compiled_part
def _mark_to_encode(eng, f):
    eng.features["scheduled_step"][f] = eng.scalars["current_step"][0]


@compiled_part
def _scheduled_copy(eng, first, f):
    """An earlier image of the request with the same identifier that this step encodes, or NONE."""
    for other in range(first, f):
        same = eng.features["identifier"][other] == eng.features["identifier"][f]
        if same and eng.features["scheduled_step"][other] == eng.scalars["current_step"][0]:
            return other
    return NONE


@compiled_part
def forget_schedule(eng, r):
    """Undo this step's marks of a request (tried again, or given up)."""
    first = eng.kv.requests["feature_offset"][r]
    for f in range(first, first + eng.kv.requests["num_features"][r]):
        if abs(eng.features["scheduled_step"][f]) == eng.scalars["current_step"][0]:
            eng.features["scheduled_step"][f] = 0


@compiled_part
def _try_schedule(eng, r, num_computed, num_new):
    s, q = eng.scalars, eng.kv.requests
    forget_schedule(eng, r)
    if num_new == 0:
        return num_new, ZERO
    shift = s["encoder_shift"][0]
    budget = s["encoder_budget"][0]
    window_end = num_computed + num_new + shift
    to_schedule = ZERO
    first = q["feature_offset"][r]
    for f in range(first, first + q["num_features"][r]):
        start, length = eng.features["offset"][f], eng.features["length"][f]
        if start + length <= num_computed:
            continue
        if start >= window_end:
            break
        unsplit = s["disable_chunked_mm_input"][0] != 0 and num_computed <= start
        if unsplit and num_computed + num_new < start + length:
            num_new = max(0, start - (num_computed + shift))
            break
        copy = _scheduled_copy(eng, first, f)
        if copy != NONE:
            if _embed_counts_differ(eng, f, eng.features["length"][copy]):
                return _reject(eng, r), ZERO
            eng.features["scheduled_step"][f] = -s["current_step"][0]  # shares that copy's place
            continue
        e = find_encoder_entry(eng, eng.features["identifier"][f])
        if e != NONE and _embed_counts_differ(eng, f, eng.encoder_cache["num_embeds"][e]):
            return _reject(eng, r), ZERO
        if check_and_update_cache(eng, r, f):
            continue
        if not can_allocate(eng, f, budget, to_schedule):
            num_new = min(num_new, start - num_computed) if num_computed < start else 0
            break
        to_schedule += length
        budget -= length
        _mark_to_encode(eng, f)
    return num_new, to_schedule


@compiled_part
def _reject(eng, r):
    forget_schedule(eng, r)
    if eng.kv.requests["encoder_mismatch"][r] == 0:
        eng.kv.requests["encoder_mismatch"][r] = 1
        eng.scalars["num_mismatched"][0] += 1
    return ZERO


@compiled_part
def _try_schedule_016(eng, r, num_computed, num_new):
    s, q = eng.scalars, eng.kv.requests
    forget_schedule(eng, r)
    if num_new == 0:
        return num_new, ZERO
    shift = s["encoder_shift"][0]
    budget = s["encoder_budget"][0]
    to_schedule = ZERO
    first = q["feature_offset"][r]
    for f in range(first, first + q["num_features"][r]):
        start, length = eng.features["offset"][f], eng.features["length"][f]
        if start >= num_computed + num_new + shift:
            break
        if start + length <= num_computed:
            continue
        if _scheduled_copy(eng, first, f) != NONE or check_and_update_cache(eng, r, f):
            continue
        unsplit = s["disable_chunked_mm_input"][0] != 0 and num_computed < start
        if unsplit and num_computed + num_new < start + length:
            num_new = start - num_computed
            break
        if not can_allocate(eng, f, budget, to_schedule):
            num_new = start - (num_computed + shift) if num_computed + shift < start else 0
            break
        if min(length, num_computed + num_new - start) <= max(0, num_computed - start):
            continue  # only the draft head's look-ahead touches it
        to_schedule += length
        budget -= length
        _mark_to_encode(eng, f)
    return num_new, to_schedule


@compiled_part
def allocate_encoder_inputs(eng, r):
    """Give the images that this step encodes their place; later copies share it."""
    first = eng.kv.requests["feature_offset"][r]
    end = first + eng.kv.requests["num_features"][r]
    step = eng.scalars["current_step"][0]
    for f in range(first, end):
        if eng.features["scheduled_step"][f] == step:
            allocate_encoder_input(eng, r, f)
    for f in range(first, end):
        if eng.features["scheduled_step"][f] == -step:
            check_and_update_cache(eng, r, f)


@compiled_part
def embeds_to_encode(eng, r):
    """Embeddings that this step encodes for a request."""
    first = eng.kv.requests["feature_offset"][r]
    n = 0
    for f in range(first, first + eng.kv.requests["num_features"][r]):
        if eng.features["scheduled_step"][f] == eng.scalars["current_step"][0]:
            n += eng.features["length"][f]
    return n
