"""``kvsim capacity``: one plan, a sweep of plans, a start-up log, or an evaluation."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from kvsim.cli import collector
from kvsim.errors import KvsimError
from kvsim.files import checked_place, readable, same_file
from kvsim.gpu.capacity import CapacityPlan, plan_capacity
from kvsim.gpu.catalog import config_file
from kvsim.gpu.evaluation import evaluate
from kvsim.gpu.log_facts import LogFacts
from kvsim.gpu.log_reader import read_log
from kvsim.gpu.profile_file import read_profile, save_profile
from kvsim.gpu.profiles import Profile, plan_with_profile, profile_of
from kvsim.gpu.serve_flags import ServeFlags, read_command, words_of_config
from kvsim.gpu.sweep import as_flags, quoted, swept
from kvsim.report.capacity import plot_sweep, print_capacity, print_sweep
from kvsim.report.evaluation import evaluation_facts, print_evaluation
from kvsim.report.start_log import log_facts, print_log
from kvsim.report.tables import console
from kvsim.sweep.axes import flag_axes

_NEWEST = "0.33"
_MOST_ROWS = 2000


@dataclass(frozen=True)
class Card:
    """The options that say on what, and with which release, the server runs; None where absent."""

    gpu: str | None
    gpu_memory_gib: float | None
    used_by_others_gib: float
    vllm_version: str | None
    profile: Path | None

    def facts(self) -> dict[str, Any]:
        """By the names of `plan_capacity`, the profile apart."""
        return {
            "gpu": self.gpu,
            "gpu_memory_gib": self.gpu_memory_gib,
            "used_by_others_gib": self.used_by_others_gib,
            "vllm_version": self.vllm_version,
        }

    def observed(self) -> Profile | None:
        return read_profile(readable(self.profile)) if self.profile is not None else None


@dataclass(frozen=True)
class Modes:
    """The options that choose between a plan, a sweep, a log and an evaluation."""

    words: Sequence[str]
    card: Card
    sweep: Sequence[str]
    plot: Path | None
    log: Path | None
    save_profile: Path | None
    evaluate: Path | None
    rows: bool

    def check(self) -> None:
        """Raises KvsimError for an option that would be without effect beside the others."""
        given = self._given()
        if self.evaluate is not None:
            _refuse(given, "--evaluate", "it takes only --rows and --json", but=("--rows",))
        elif self.rows:
            raise KvsimError("--rows: wants an --evaluate to show the rows of")
        elif self.log is not None:
            _refuse(given, "--log", "plan without it", but=("MODEL", *_OF_A_CARD, "--save-profile"))
        elif self.save_profile is not None:
            raise KvsimError("--save-profile: wants a --log to read")

    def _given(self) -> list[str]:
        options = {
            "MODEL": self.words,
            "--gpu": self.card.gpu,
            "--gpu-memory-gib": self.card.gpu_memory_gib is not None,
            "--used-by-others-gib": self.card.used_by_others_gib,
            "--vllm-version": self.card.vllm_version,
            "--profile": self.card.profile,
            "--sweep": self.sweep,
            "--plot": self.plot,
            "--log": self.log,
            "--save-profile": self.save_profile,
            "--rows": self.rows,
        }
        return [name for name, value in options.items() if value]


_OF_A_CARD = ("--gpu", "--gpu-memory-gib", "--used-by-others-gib", "--vllm-version")


def _refuse(given: Sequence[str], beside: str, mend: str, but: Sequence[str]) -> None:
    idle = [name for name in given if name not in (*but, beside)]
    if idle:
        raise KvsimError(f"{idle[0]}: has no effect beside {beside}; {mend}")


def capacity_command(
    words: Sequence[str], card: Card, sweep: Sequence[str], plot: Path | None, *, as_json: bool
) -> None:
    """Plan one server, or a table of them; raises `KvsimError` for bad input."""
    collector.resume()
    command, profile = _command(words), card.observed()
    if command.model is None:
        raise KvsimError("MODEL is missing: kvsim capacity MODEL --gpu GPU (see kvsim capacity --help)")
    if plot is not None and not sweep:
        raise KvsimError("--plot: wants a --sweep to draw")
    facts = card.facts() | command.values
    facts["vllm_version"] = card.vllm_version or command.version or _NEWEST
    if sweep:
        _sweep(command.model, facts, profile, sweep, plot, as_json=as_json)
        return
    plan = plan_with_profile(profile, command.model, ignored=command.ignored, **facts)
    plan = replace(plan, notes=(*_remarks(command), *plan.notes))
    if as_json:
        print(json.dumps(plan.to_dict(), indent=1))
    else:
        print_capacity(plan, console())


def _command(words: Sequence[str]) -> ServeFlags:
    command = read_command(words)
    if command.config is None:
        return command
    from kvsim.scenario.yaml_file import parse_mapping, read_text  # takes a while to load

    path = readable(Path(command.config))
    content, _ = parse_mapping(read_text(path), str(path))
    try:
        return read_command(words, words_of_config(content))
    except KvsimError as error:
        raise KvsimError(f"{error} (flags of the command line and of {path})") from error


def _remarks(command: ServeFlags) -> tuple[str, ...]:
    """Flags of the command line that are neither used nor without a bearing on memory."""
    unknown = tuple(f"unknown to vLLM 0.6 to 0.33: {flag}" for flag in command.unknown)
    return (
        command.remarks
        + unknown
        + tuple(f"bears on memory, but is not modelled: {flag}" for flag in command.unmodelled)
    )


def _sweep(
    model: str,
    facts: dict[str, Any],
    profile: Profile | None,
    sweep: Sequence[str],
    plot: Path | None,
    *,
    as_json: bool,
) -> None:
    axes = as_flags(flag_axes([quoted(text) for text in sweep], most=_MOST_ROWS))
    rows = swept(model, facts, axes, partial(plan_with_profile, profile))
    names = list(axes)
    if plot is not None:
        plot_sweep(names, rows, plot)
    if as_json:
        print(json.dumps([_row_facts(names, values, plan) for values, plan in rows], indent=1))
    else:
        print_sweep(names, rows, console())
        wrong = sum(isinstance(plan, str) for _, plan in rows)
        if wrong:
            console().print(f"{wrong:,} of {len(rows):,} settings are not allowed")


def _row_facts(names: Sequence[str], values: Sequence[Any], plan: CapacityPlan | str) -> dict[str, Any]:
    swept_values = dict(zip(names, values, strict=True))
    return swept_values | ({"error": plan} if isinstance(plan, str) else plan.to_dict())


def log_command(log: Path, words: Sequence[str], card: Card, save: Path | None, *, as_json: bool) -> None:
    """Bridge of a start-up log beside the prediction; `card` and `words` say what the log does not."""
    collector.resume()
    command, seen = _command(words), read_log(readable(log))
    if save is not None:
        _check_place(save, log, command)
    facts = _logged(seen, command, card)
    model = command.model or seen.model
    plan, why = None, "the log does not name the model; give MODEL"
    if model is not None:
        try:
            plan = plan_capacity(model, **facts)
        except KvsimError as error:
            if command.model is not None:
                raise
            why = str(error)
    if save is not None:

        def tokens_at(available: int) -> int:
            assert model is not None
            free = facts | {"available_kv_cache_bytes": available, "max_model_len_must_fit": False}
            return plan_capacity(model, **free).kv_cache_size_tokens

        save_profile(profile_of(seen, plan, tokens_at if plan is not None else None, facts), save)
    if as_json:
        print(json.dumps(log_facts(seen, plan, why), indent=1))
    else:
        print_log(seen, plan, why, console())
        if save is not None:
            console().print(f"Observed parts kept in {save}", soft_wrap=True)


def _check_place(save: Path, log: Path, command: ServeFlags) -> None:
    """Raises KvsimError where a profile would take the place of what it is made from, or of no file."""
    try:
        checked_place(save)
    except KvsimError as error:
        raise KvsimError(f"--save-profile: {error}") from error
    model = config_file(command.model) if command.model else None
    for what, path in (("--log", log), ("--config", command.config), ("MODEL", model)):
        if path is not None and same_file(save, Path(path)):
            raise KvsimError(f"--save-profile: {save} is the file of {what}; name another")


def _logged(seen: LogFacts, command: ServeFlags, card: Card) -> dict[str, Any]:
    """What `plan_capacity` is asked for a log: what it prints, overruled by what is given."""
    facts = card.facts() | {"engine": seen.engine or ""} | seen.flags() | command.values
    if card.gpu is None and card.gpu_memory_gib is None:
        facts["gpu_memory_gib"] = seen.total_gib
    facts["vllm_version"] = card.vllm_version or command.version or seen.version or _NEWEST
    return facts


def evaluate_command(path: Path, *, every: bool, as_json: bool) -> None:
    """Compare with published start-up logs."""
    collector.resume()
    found = evaluate(readable(path))
    if as_json:
        print(json.dumps(evaluation_facts(found), indent=1))
    else:
        print_evaluation(found, console(), every=every)
