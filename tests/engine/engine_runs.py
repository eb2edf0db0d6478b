"""Small engines and requests for the tests of this folder."""

from itertools import count

from kvsim.engine.config import EngineConfig
from kvsim.engine.core import IDLE, EngineCore
from kvsim.gpu import catalog
from kvsim.gpu.cost import StepCost
from kvsim.tokens import segments
from kvsim.workload.request import ImageFeature, LoRA, Request

COST = StepCost(catalog.model("Qwen3-VL-2B"), catalog.gpu("RTX 4090"))
_STREAMS = count(1000)


def engine(**flags):
    """An engine with a roomy pool unless told otherwise."""
    flags = {"num_gpu_blocks": 200, "max_model_len": 512, "block_size": 4, "max_num_seqs": 8, **flags}
    return EngineCore(EngineConfig(**flags), COST)


def request(
    request_id, prompt=16, output=4, *, stream=None, max_tokens=None, arrival=0.0, image=None, **more
):
    """`stream` names the prompt's tokens (else they are nobody else's); image: (offset, length)."""
    features = (ImageFeature("picture", *image),) if image else ()
    lora = more.pop("lora", 0)
    return Request(
        request_id,
        arrival,
        segments((stream or next(_STREAMS), 0, prompt)),
        segments((next(_STREAMS), 0, output)),
        max_tokens or output,
        features,
        lora=LoRA(f"adapter-{lora}", lora, f"/{lora}") if lora else None,
        **more,
    )


def drain(core, now=0.0, limit=10_000):
    """Step until idle; the time then."""
    for _ in range(limit):
        then = core.step(now)
        if then == IDLE:
            return now
        assert then >= now
        now = then
    raise AssertionError(f"not idle after {limit} steps")


def rows_by_id(core):
    """Records of the ended requests, by id."""
    names, rows = core.take_finished()
    return dict(zip(names, rows, strict=True))
