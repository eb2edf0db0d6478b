"""Puts the engine cases of a file to vLLM's own scheduler: are the expectations what vLLM does?

    PYTHONHASHSEED=0 python check_with_vllm.py more.yaml          # differences, if any
    PYTHONHASHSEED=0 python check_with_vllm.py more.yaml --show   # and everything observed

Needs the recorder's environment (../conformance/README.md), with one of its two vLLM releases, and PyYAML;
no GPU and no kvsim. Cases of other kinds, and of another release, are left out.
"""

import argparse
import collections
import pathlib
import sys

import yaml

HERE = pathlib.Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "conformance")]

import record  # noqa: E402
import scenario  # noqa: E402
from case_expect import differences  # noqa: E402
from case_forms import DEFAULTS, STUCK, WITHOUT_EFFECT, is_together, observe_engine, variants  # noqa: E402
from vllm.lora.request import LoRARequest  # noqa: E402
from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange  # noqa: E402
from vllm.sampling_params import SamplingParams  # noqa: E402
from vllm.v1.metrics import stats as vllm_stats  # noqa: E402
from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput  # noqa: E402
from vllm.v1.request import Request  # noqa: E402

NAMES = {"prefix_caching_hash_algo": "hash_algo", "scheduling_policy": "policy"}


class Metrics:
    """vLLM's metric under the runner's call."""

    def __init__(self):
        self.metrics = vllm_stats.CachingMetrics()

    def observe(self, requests, queries, hits):
        self.metrics.observe(vllm_stats.PrefixCacheStats(requests=requests, queries=queries, hits=hits))

    @property
    def hit_rate(self):
        return self.metrics.hit_rate


def config_of(case, requests):
    flags = {**DEFAULTS, **case.get("engine", {})}
    flags["num_gpu_blocks"] = flags.pop("num_gpu_blocks_override", None) or flags["num_gpu_blocks"]
    spec = flags.pop("speculative", None)
    if spec:
        flags["spec_method"] = spec["method"]
        flags["num_speculative_tokens"] = spec["num_speculative_tokens"]
        flags["disable_lookahead_block_hashes"] = not spec.get("lookahead_block_hashes", True)
    config = {NAMES.get(k, k): v for k, v in flags.items() if k not in WITHOUT_EFFECT}
    images = sum(length for r in requests for _, _, length in r.features)
    return scenario.config_of(
        {"config": {**config, "encoder_compute_budget": images + 1, "encoder_cache_size": images + 1}}
    )


class VllmRun:
    """All requests of a case on one cold scheduler, synchronously."""

    def __init__(self, case, requests):
        self.config = config_of(case, requests)
        self.sched, self.hasher, *_ = record.build(self.config)
        self.pool = self.sched.kv_cache_manager.block_pool
        self.metrics = Metrics()
        self.totals = collections.Counter()
        self.preempted = collections.Counter()
        self.events = collections.Counter(BlockStored=0, BlockRemoved=0, AllBlocksCleared=0)
        self.requests, self.live, self.finished = {}, {}, []
        self.hits, self.admitted, self.resumed, self.queues, self.usage = {}, {}, {}, [], []
        self.by_id = {r.id: r for r in requests}
        self.free_request, self.sched._free_request = self.sched._free_request, self.ended
        self.loras = {}
        for group in [requests] if is_together(case) else [[r] for r in requests]:
            for r in group:
                self.add(r)
            idle = 0
            while self.live and idle < STUCK:
                idle = 0 if self.step() else idle + 1

    def add(self, r):
        params = SamplingParams(max_tokens=r.max_tokens, ignore_eos=True, prompt_logprobs=r.prompt_logprobs)
        lora = r.lora and LoRARequest(
            lora_name=r.lora["name"],
            lora_int_id=self.loras.setdefault(r.lora["name"], len(self.loras) + 1),
            lora_path=r.lora["path"],
        )
        features = [
            MultiModalFeatureSpec(
                data=None,
                modality="image",
                identifier=identifier,
                mm_position=PlaceholderRange(offset=offset, length=length),
            )
            for identifier, offset, length in r.features
        ]
        request = Request(
            request_id=r.id,
            prompt_token_ids=r.tokens[: r.num_prompt_tokens],
            sampling_params=params,
            pooling_params=None,
            arrival_time=float(len(self.requests)),
            mm_features=features or None,
            lora_request=lora,
            cache_salt=r.cache_salt,
            priority=r.priority,
            block_hasher=self.hasher,
            **({"eos_token_id": 1} if record.V016 else {}),
        )
        self.requests[r.id] = self.live[r.id] = request
        self.sched.add_request(request)

    def step(self):
        before = {name: r.num_preemptions for name, r in self.requests.items()}
        output = self.sched.schedule()
        resumed = set(output.scheduled_cached_reqs.resumed_req_ids)
        new = {data.req_id for data in output.scheduled_new_reqs}
        for name, n in output.num_scheduled_tokens.items():
            request = self.requests[name]
            hit = request.num_computed_tokens - n
            if name in resumed or (name in new and request.num_preemptions):
                self.resumed[name] = {"num_tokens": request.num_tokens, "cached_tokens": hit}
            elif name in new:
                self.hits[name], self.admitted[name] = hit, len(self.usage) + 1
        self.count_lookups()
        self.update(output)
        for name, r in self.requests.items():
            self.preempted[name] += r.num_preemptions - before[name]
        for event in self.sched.kv_cache_manager.take_events():
            self.events[type(event).__name__] += 1
        self.note_state()
        return output.total_num_scheduled_tokens

    def count_lookups(self):
        stats = self.sched.kv_cache_manager.make_prefix_cache_stats()
        self.metrics.metrics.observe(stats)
        self.totals.update(queries=stats.queries, hits=stats.hits)

    def update(self, output):
        names = list(output.num_scheduled_tokens)
        sampled = []
        for name in names:
            request, r = self.requests[name], self.by_id[name]
            at = r.num_prompt_tokens + request.num_output_tokens
            sampled.append([] if request.is_prefill_chunk else r.tokens[at : at + 1])
        result = ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: i for i, name in enumerate(names)},
            sampled_token_ids=sampled,
        )
        # vLLM publishes what arises here itself: take the events before they go.
        publish, self.sched.kv_event_publisher.publish = self.sched.kv_event_publisher.publish, self.published
        self.sched.update_from_output(output, result)
        self.sched.kv_event_publisher.publish = publish
        k = self.config["num_speculative_tokens"]
        if k and names:
            self.sched.update_draft_token_ids(
                DraftTokenIds(req_ids=names, draft_token_ids=[[7] * k] * len(names))
            )

    def ended(self, request, **options):
        self.finished.append(request.request_id)
        del self.live[request.request_id]
        return self.free_request(request, **options)

    def published(self, batch):
        self.events.update(type(event).__name__ for event in batch.events)

    def note_state(self):
        queues = {"running": self.sched.running, "waiting": self.sched.waiting}
        names = {key: [r.request_id for r in queue] for key, queue in queues.items()}
        self.queues.append({**names, "finished": list(self.finished)})
        self.usage.append(self.sched.kv_cache_manager.usage)

    def observed(self):
        queries, hits = self.totals["queries"], self.totals["hits"]
        return {
            "prompt_tokens": {name: r.num_prompt_tokens for name, r in self.requests.items()},
            "cached_tokens": {name: self.hits.get(name) for name in self.requests},
            "admitted_in_step": {name: self.admitted.get(name) for name in self.requests},
            "num_preemptions": {name: self.preempted[name] for name in self.requests},
            "resumed": self.resumed,
            "prefix_cache_queries": queries,
            "prefix_cache_hits": hits,
            "hit_rate_cumulative": hits / queries if queries else 0.0,
            "hit_rate_last_1000_requests": self.metrics.hit_rate,
            "steps": len(self.usage),
            "queues": self.queues,
            "usage": self.usage,
            "kv_cache_usage_at_end": self.sched.kv_cache_manager.usage,
            "kv_events": dict(self.events),
            "distinct_hashes": len(self.pool.cached_block_hash_to_block._cache),
            "hashed_blocks": sum(block.block_hash is not None for block in self.pool.blocks),
            "num_gpu_blocks": self.config["num_gpu_blocks"],
        }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("file", type=pathlib.Path)
    parser.add_argument("--show", action="store_true")
    args = parser.parse_args()
    data = yaml.safe_load(args.file.read_text())
    version = "0.16" if record.V016 else "0.33"
    total = wrong = 0
    for case in data["cases"]:
        release = str(case.get("vllm_version", data.get("reference", "0.33"))).removeprefix("vllm-")
        if case["kind"] != "engine" or not release.startswith(version):
            continue
        for i, variant in enumerate(variants(case), 1):
            seen = observe_engine(variant, lambda c, requests: VllmRun(c, requests).observed(), Metrics())
            lines = differences(variant.get("expect", {}), seen, variant.get("tolerance"))
            total, wrong = total + 1, wrong + bool(lines)
            print(case["id"], i, "; ".join(lines) or "holds")
            if args.show:
                short = {"queues": seen.get("queues", [])[-3:], "usage": seen.get("usage", [])[-3:]}
                print("   ", {**seen, **short})
    print(f"{total} variants, {total - wrong} hold in vLLM {version}")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
