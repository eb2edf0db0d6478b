"""Loads a user's own routing policy: `file.py:ClassName`, with keyword arguments from the scenario."""

import inspect
import sys
import types
from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from kvsim.cluster.policies.user import EVERY_CHOICE, UserPolicy, one_line
from kvsim.cluster.policy import Policy
from kvsim.errors import KvsimError


def is_user_policy(name: str) -> bool:
    """Whether a policy's name is a class in a Python file."""
    return ".py:" in name


def load_user_policy(
    name: str, arguments: Mapping[str, Any], folder: Path, reserved: Collection[str] = ()
) -> UserPolicy:
    """The policy that `name`, `file.py:ClassName`, stands for; a relative file is looked for in `folder`.

    Its code is run once here, the class is made anew for each router. Raises KvsimError, one line, for a file
    that is not there or does not run, and for a class that is not there, cannot choose or does not take
    these arguments, or has one with a name that is `reserved`.
    """
    file, _, class_name = name.rpartition(":")
    policy_class = _class_of(_module_of(name, folder / file), name, class_name)
    if issubclass(policy_class, Policy):
        raise KvsimError(
            f"policy {name}: {class_name} is a policy of kvsim's own or extends one; name those as "
            "docs/routing.md does, and write a class of your own with choose(self, request, view)"
        )
    _check_methods(policy_class, name)
    _check_names(policy_class, reserved, name)
    _check_arguments(policy_class, arguments, name)
    return UserPolicy(
        name=name,
        make=partial(policy_class, **arguments),
        wants_events=_reads_events(policy_class, name),
        metrics_interval=_metrics_interval(policy_class, name),
    )


def _check_names(policy_class: Any, reserved: Collection[str], name: str) -> None:
    try:
        taken = [each for each in inspect.signature(policy_class).parameters if each in reserved]
    except (TypeError, ValueError):  # no signature to look at
        return
    if taken:
        raise KvsimError(f"policy {name}: {taken[0]} is a key of every router; call the argument otherwise")


def _module_of(name: str, path: Path) -> types.ModuleType:
    try:
        source = path.read_bytes()
    except OSError as error:
        raise KvsimError(f"policy {name}: cannot read {path}: {error.strerror or error}") from None
    module = types.ModuleType(f"kvsim_user_policy_{path.stem}")
    module.__file__ = str(path)
    try:
        code = compile(source, str(path), "exec")
    except (SyntaxError, ValueError) as error:
        line = f", line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        raise KvsimError(f"policy {name}{line}: {one_line(getattr(error, 'msg', str(error)))}") from None
    # Dataclasses look their module up. It does not stay there, so that it is pickled as a whole.
    sys.modules[module.__name__] = module
    try:
        exec(code, module.__dict__)
    except (Exception, SystemExit) as error:
        what = f"{type(error).__name__}: {one_line(str(error))}"
        raise KvsimError(f"policy {name}{_line(error, path)}: {what}") from None
    finally:
        del sys.modules[module.__name__]
    return module


def _line(error: BaseException, path: Path) -> str:
    """The innermost line of the file that led to the error."""
    line, trace = None, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == str(path):
            line = trace.tb_lineno
        trace = trace.tb_next
    return f", line {line}" if line else ""


def _class_of(module: types.ModuleType, name: str, class_name: str) -> type:
    found = getattr(module, class_name, None)
    if inspect.isclass(found):
        return found
    classes = [
        key
        for key, value in vars(module).items()
        if inspect.isclass(value) and value.__module__ == module.__name__
    ]
    there = f"; it has {', '.join(classes)}" if classes else "; it has no class"
    raise KvsimError(f"policy {name}: the file has no class {class_name!r}{there}")


def _check_methods(policy_class: type, name: str) -> None:
    for method, wanted, given in (
        ("choose", "choose(self, request, view) -> int", ("request", "view")),
        ("ended", "ended(self, request_id, target, now)", ("request_id", "target", "now")),
    ):
        function = getattr(policy_class, method, None)
        if function is None and method != "choose":
            continue
        if not callable(function):
            raise KvsimError(f"policy {name}: the class has no method {wanted}")
        try:
            inspect.signature(function).bind(None, *given)
        except (TypeError, ValueError):
            raise KvsimError(f"policy {name}: {method} must be callable as {wanted}") from None


def _check_arguments(policy_class: type, arguments: Mapping[str, Any], name: str) -> None:
    try:
        signature = inspect.signature(policy_class)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(**arguments)
    except TypeError as error:
        accepted = ", ".join(map(str, signature.parameters.values())) or "no arguments"
        raise KvsimError(f"policy {name}: {error}; the class takes {accepted}") from None


def _reads_events(policy_class: type, name: str) -> bool:
    value = getattr(policy_class, "reads_events", False)
    if not isinstance(value, bool):
        raise KvsimError(f"policy {name}: reads_events = {value!r} must be True or False")
    return value


def _metrics_interval(policy_class: type, name: str) -> float | None:
    value = getattr(policy_class, "metrics_interval", EVERY_CHOICE)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if value is not None and not (number and 0 <= value < float("inf")):
        raise KvsimError(f"policy {name}: metrics_interval = {value!r} must be seconds, 0 or more, or None")
    return value
