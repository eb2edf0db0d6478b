"""Image requests and the processors' token counts."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.tokens import PLACEHOLDER_TOKEN, expand
from kvsim.workload.checks import FieldError
from kvsim.workload.image import ImageWorkload
from kvsim.workload.image_tokens import PROCESSORS, image_tokens, processor_of, smart_resize

# width, height, tokens of Qwen2.5-VL, tokens of Qwen3-VL: computed with `smart_resize` of
# transformers 5.20.2 (factor 28, areas 3136..12845056; factor 32, areas 65536..16777216).
MEASURED = [
    (1, 1, 4, 64), (28, 28, 4, 64), (42, 42, 4, 64), (70, 70, 4, 64), (100, 100, 16, 64),
    (224, 224, 64, 64), (336, 336, 144, 100), (640, 480, 391, 300), (1152, 864, 1271, 972),
    (1920, 1080, 2691, 2040), (3840, 2160, 10549, 8160), (4096, 4096, 16384, 16384),
    (8000, 6000, 16170, 16170), (10000, 10000, 16129, 16384), (10000, 50, 714, 624),
    (50, 10000, 714, 624), (20, 4000, 143, 125), (16, 16, 4, 64), (48, 80, 6, 77), (80, 48, 6, 77),
    (300, 200, 77, 70), (1001, 333, 432, 310), (2000, 10, 29, 114), (1327, 618, 1034, 779),
    (1618, 2667, 5510, 4233), (198, 297, 77, 70), (2195, 386, 1092, 828), (238, 2079, 592, 455),
    (880, 154, 186, 140), (353, 1777, 819, 616), (1713, 287, 610, 486), (986, 372, 455, 372),
    (243, 2317, 747, 576), (508, 915, 594, 464), (2584, 2570, 8464, 6480), (2388, 254, 765, 600),
]  # fmt: skip

FOUNDING = ImageWorkload(
    rate=1.0, num_requests=200, num_images=3, image_size=[1152, 864], processor="qwen3-vl"
)


@pytest.mark.parametrize(("width", "height", "qwen25", "qwen3"), MEASURED)
def test_tokens_equal_those_of_transformers(width, height, qwen25, qwen3):
    assert image_tokens("qwen2.5-vl", width, height) == qwen25
    assert image_tokens("qwen3-vl", width, height) == qwen3


def test_pixel_limits_can_be_replaced():
    """As transformers 5.20.2 gives: 1344 x 768 and 448 x 448 pixels."""
    assert image_tokens("qwen3-vl", 1920, 1080, max_pixels=1024 * 1024) == 42 * 24
    assert image_tokens("qwen2.5-vl", 100, 100, min_pixels=256 * 784) == 16 * 16


@given(st.sampled_from(sorted(PROCESSORS)), st.integers(1, 9000), st.integers(1, 9000))
def test_resized_pictures_obey_the_processor(family, width, height):
    if max(width, height) > 200 * min(width, height):
        with pytest.raises(FieldError, match="over 200 times"):
            image_tokens(family, width, height)
        return
    processor = PROCESSORS[family]
    wide, high = smart_resize(width, height, processor)
    assert wide % processor.factor == high % processor.factor == 0
    assert wide * high >= processor.min_pixels
    if min(wide, high) > processor.factor:  # a side of one square is never made smaller
        assert wide * high <= processor.max_pixels
    assert image_tokens(family, width, height) == image_tokens(family, height, width)


@pytest.mark.parametrize(
    ("model", "family"),
    [
        ("Qwen/Qwen3-VL-2B-Instruct", "qwen3-vl"),
        ("qwen3_vl_2b", "qwen3-vl"),
        ("Qwen/Qwen2.5-VL-7B-Instruct", "qwen2.5-vl"),
        ("Qwen/Qwen2-VL-7B", "qwen2-vl"),
        ("Qwen/Qwen3-8B", None),
    ],
)
def test_family_of_a_model(model, family):
    assert processor_of(model) == family


def test_the_founding_studys_prompt():
    request = next(FOUNDING.requests(0))
    (feature,) = request.features
    assert (request.num_prompt_tokens, feature.offset, feature.length) == (997, 4, 972)
    tokens = expand(request.prompt)
    assert (tokens[4:976] == PLACEHOLDER_TOKEN).all()
    assert not (np.delete(tokens, np.s_[4:976]) == PLACEHOLDER_TOKEN).any()


def test_pictures_come_from_the_catalogue():
    names = [request.features[0].identifier for request in FOUNDING.requests(0)]
    assert set(names) == {"image-0", "image-1", "image-2"}
    fresh = [request.features[0].identifier for request in replace(FOUNDING, num_images=0).requests(0)]
    assert len(set(fresh)) == 200


def test_a_picture_keeps_its_size():
    mixed = replace(FOUNDING, num_images=20, image_size=[[640, 480], [1152, 864]])
    sizes: dict[str, set[int]] = {}
    for request in mixed.requests(0):
        for feature in request.features:
            sizes.setdefault(feature.identifier, set()).add(feature.length)
    assert all(len(lengths) == 1 for lengths in sizes.values())
    assert set.union(*sizes.values()) == {300, 972}


@pytest.mark.parametrize("position", ["before_instruction", "after_instruction"])
def test_layout_of_several_pictures(position):
    workload = ImageWorkload(
        rate=1.0,
        num_requests=50,
        images_per_request=3,
        image_tokens={"distribution": "uniform", "min": 5, "max": 9},
        image_position=position,
        instruction_len=7,
        text_after=2,
    )
    for request in workload.requests(3):
        ends = 4 if position == "before_instruction" else 11
        for feature in request.features:
            assert feature.offset == ends
            ends += feature.length + 2
        rest = 9 if position == "before_instruction" else 2
        assert request.num_prompt_tokens == ends - 2 + rest
        places = np.flatnonzero(expand(request.prompt) == PLACEHOLDER_TOKEN)
        spans = [np.arange(f.offset, f.offset + f.length) for f in request.features]
        assert np.array_equal(places, np.concatenate(spans))


def test_instructions_are_shared_or_each_its_own():
    own = {request.prompt[-1, 0] for request in FOUNDING.requests(0)}
    assert len(own) == 200
    shared = {request.prompt[-1, 0] for request in replace(FOUNDING, num_instructions=4).requests(0)}
    assert len(shared) == 4


def test_pixels_need_a_processor():
    with pytest.raises(FieldError, match="need one of qwen2-vl"):
        next(replace(FOUNDING, processor=None).requests(0))


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"image_size": None}, "image_size"),
        ({"image_tokens": 5}, "image_size"),
        ({"image_size": [0, 5]}, "image_size"),
        ({"image_size": [5]}, "image_size"),
        ({"image_size": []}, "image_size"),
        ({"image_size": [[5, 5], [5, 2.5]]}, "image_size"),
        ({"image_size": "640x480"}, "image_size"),
        ({"image_size": [1, 201]}, "image_size"),
        ({"processor": "llava"}, "processor"),
        ({"num_images": -1}, "num_images"),
        ({"images_per_request": 10**6}, "images_per_request"),
        ({"image_position": "middle"}, "image_position"),
        ({"text_before": -1}, "text_before"),
        ({"min_pixels": 500, "max_pixels": 400}, "min_pixels"),
        ({"image_size": None, "image_tokens": 0}, "image_tokens"),
        ({"text_before": 0, "instruction_len": 0, "images_per_request": 0}, "instruction_len"),
    ],
)
def test_bad_values_name_their_field(changes, field):
    with pytest.raises(FieldError) as caught:
        replace(FOUNDING, **changes)
    assert caught.value.field == field
    assert "\n" not in str(caught.value)
