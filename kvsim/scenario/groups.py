"""Groups of a cluster, filled in from their scenario, and what of a cluster does not go together."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import InitErrorDetails

from kvsim.errors import KvsimError
from kvsim.scenario.calibration import read_calibration
from kvsim.scenario.cluster import ClusterSection, GroupSection
from kvsim.scenario.engine import EngineSection
from kvsim.scenario.router import RouterSection
from kvsim.scenario.served import filled_engine
from kvsim.scenario.spelling import unknown_name
from kvsim.scenario.workload import image_parts
from kvsim.workload.checks import FieldError, shown
from kvsim.workload.image_tokens import processor_of


@dataclass(frozen=True)
class Surroundings:
    """What a group takes from its scenario where it says nothing."""

    vllm_version: str
    model: str
    model_sha256: str | None
    gpu: str
    calibration: str | None
    calibration_sha256: str | None
    engine: EngineSection
    workload: Any
    folder: Path


def settled(cluster: ClusterSection, around: Surroundings) -> ClusterSection:
    """The section with its groups filled in. Raises FieldError or pydantic's ValidationError."""
    _check_form(cluster)
    if cluster.is_short:
        return cluster
    groups = {name: _settled_group(name, group, cluster, around) for name, group in cluster.groups.items()}
    cluster = cluster.model_copy(update={"groups": groups})
    _check_routers(cluster, around)
    return cluster


def _check_form(cluster: ClusterSection) -> None:
    given = cluster.model_fields_set
    long = [name for name in ("links", "routers", "groups") if name in given]
    short = [name for name in ("replicas", "router") if name in given]
    if long and short:
        where = (
            "groups: {NAME: {replicas: 4, router: NAME}}"
            if short[0] == "replicas"
            else "routers: {NAME: ...}"
        )
        raise FieldError(short[0], f"does not go with {long[0]}; write {where} instead")
    if long and not cluster.groups:
        raise FieldError("groups", "missing; name at least one, such as groups: {a: {replicas: 4}}")


def _settled_group(
    name: str, group: GroupSection, cluster: ClusterSection, around: Surroundings
) -> GroupSection:
    at = f"groups.{name}"
    model, gpu = group.model or around.model, group.gpu or around.gpu
    pins = around if group.model is None else group
    calibration = _calibration(at, group, gpu, around)
    return group.model_copy(
        update={
            "router": _router_of(at, group, cluster),
            "link": _link_of(at, group, cluster),
            "model": model,
            "model_sha256": pins.model_sha256,
            "gpu": gpu,
            "calibration": calibration.get("calibration"),
            "calibration_sha256": calibration.get("calibration_sha256"),
            "engine": _engine(at, group, model, gpu, around),
        }
    )


def _router_of(at: str, group: GroupSection, cluster: ClusterSection) -> str:
    known = [*cluster.routers]
    if not known:
        problem = "there is none; name one, such as routers: {front: {policy: round_robin}}"
        raise FieldError(f"{at}.router", problem)
    if group.router is None and len(known) > 1:
        raise FieldError(f"{at}.router", f"missing; one of {', '.join(known)}")
    if group.router is None:
        return known[0]
    if group.router not in known:
        raise FieldError(f"{at}.router", unknown_name(group.router, known))
    return group.router


def _link_of(at: str, group: GroupSection, cluster: ClusterSection) -> str | None:
    known = [*cluster.links]
    if group.link is not None and group.link not in known:
        problem = unknown_name(group.link, known) if known else "there are none; name it under links"
        raise FieldError(f"{at}.link", problem)
    return group.link


def _calibration(at: str, group: GroupSection, gpu: str, around: Surroundings) -> dict[str, str | None]:
    if "calibration" in group.model_fields_set:
        if group.calibration is not None:
            try:
                read_calibration(group.calibration, around.folder, gpu)
            except ValueError as error:
                raise FieldError(f"{at}.calibration", str(error)) from None
        return {"calibration": group.calibration, "calibration_sha256": group.calibration_sha256}
    if gpu != around.gpu:
        return {}
    return {"calibration": around.calibration, "calibration_sha256": around.calibration_sha256}


def _engine(at: str, group: GroupSection, model: str, gpu: str, around: Surroundings) -> EngineSection:
    """The scenario's flags, those of the group over them, and the defaults of the group's model and GPU."""
    given, own = around.engine.given, group.engine.given
    if (model, gpu) != (around.model, around.gpu):
        _check_bytes(at, given, own, around)
    try:
        merged = EngineSection.model_validate(given | own)
    except ValidationError as error:
        raise prefixed(error, ("groups", at.removeprefix("groups."), "engine")) from None
    try:
        _check_pictures(model, around)
        return filled_engine(merged, around.vllm_version, model, gpu, around.workload, around.folder)
    except FieldError as error:
        raise FieldError(f"{at}.{_below(error.field)}", error.problem) from None
    except KvsimError as error:
        raise FieldError(f"{at}.engine", str(error)) from None


def _below(field: str) -> str:
    return field if field == "model" else f"engine.{field}"


def _check_bytes(at: str, given: Mapping[str, Any], own: Mapping[str, Any], around: Surroundings) -> None:
    """What a start-up log printed holds for its model and card alone."""
    flag = "available_kv_cache_bytes"
    if given.get(flag) is not None and flag not in own:
        raise FieldError(
            f"{at}.engine.{flag}",
            f"the scenario's is of {around.model} on {around.gpu}; give this group's, or null to estimate it",
        )


def _check_pictures(model: str, around: Surroundings) -> None:
    """Pictures are sized once for all groups."""
    family = processor_of(model)
    for images in image_parts(around.workload).values():
        if images.image_size is not None and family not in (None, images.processor):
            problem = f"{model} turns pixels to tokens as {family}, but they are sized for {images.processor}"
            raise FieldError("model", f"{problem}; give image_tokens in the workload instead of image_size")


def _check_routers(cluster: ClusterSection, around: Surroundings) -> None:
    served = Counter(group.router for group in cluster.groups.values())
    for name, router in cluster.routers.items():
        if not served[name]:
            raise FieldError(f"routers.{name}", "no group has it; give it one or leave it out")
        members = {key: group for key, group in cluster.groups.items() if group.router == name}
        _check_one_model(name, members)
        if len(members) > 1:
            policy = router.build(around.folder)
            if policy.reads_events or policy.tracks_blocks:
                _check_hashes(name, router, members)
    if len(cluster.routers) > 1 and getattr(around.workload, "max_concurrency", None) is not None:
        raise FieldError(
            "routers",
            "several do not go with workload.max_concurrency, whose next request waits for an end "
            "anywhere; give one router, or a rate",
        )


def _check_one_model(name: str, members: Mapping[str, GroupSection]) -> None:
    (first, group), *others = members.items()
    for other, its in others:
        if (its.model_sha256 or its.model) != (group.model_sha256 or group.model):
            raise FieldError(
                f"groups.{other}.model",
                f"{its.model}, but {first} of the same router ({name}) serves {group.model}; a request is "
                "for one model, so give each model a router of its own",
            )


def _check_hashes(name: str, router: RouterSection, members: Mapping[str, GroupSection]) -> None:
    """One index for all: blocks of the same tokens must have the same hash."""
    (first, group), *others = members.items()
    for other, its in others:
        for (flag, value), (_, usual) in zip(_hashed_by(its.engine), _hashed_by(group.engine), strict=True):
            if value != usual:
                raise FieldError(
                    f"groups.{other}.engine.{flag}",
                    f"{shown(value)}, but {first} has {shown(usual)}; {router.policy} ({name}) keeps one "
                    "index of KV blocks for both, so make them equal",
                )


def _hashed_by(engine: EngineSection) -> Iterator[tuple[str, Any]]:
    """What the hashes of the same tokens depend on."""
    yield "block_size", engine.block_size
    yield "decode_context_parallel_size", engine.decode_context_parallel_size
    yield "prefix_caching_hash_algo", engine.prefix_caching_hash_algo
    drafts = engine.speculative_config
    ahead = drafts is not None and drafts.method == "eagle" and not drafts.disable_lookahead_block_hashes
    yield "speculative_config", "eagle" if ahead else None


def prefixed(error: ValidationError, where: tuple[str, ...]) -> ValidationError:
    """The same complaint about keys that stand deeper."""
    details = [
        InitErrorDetails(
            type=each["type"],
            loc=(*where, *each["loc"]),
            input=each["input"],
            ctx=each.get("ctx", {}),
        )
        for each in error.errors(include_url=False)
    ]
    return ValidationError.from_exception_data(error.title, details)
