"""The effective configuration: defaults, files, environment, flags; later wins.

Owns: the keys, their types and ranges, where each value came from, and the names inside a runtime directory.
Refuses: guessing. An unknown key, a wrong type or a value out of range is an error that names file, key and remedy.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Literal, get_args, get_type_hints

import msgspec
from msgspec import Meta, Struct

from gpuwatch.errors import ConfigError, InputNotFoundError, UsageError

SYSTEM_FILE = Path("/etc/gpuwatch/config.toml")
SYSTEM_RUNTIME_DIR = "/run/gpuwatch"
STREAM_SOCKET = "stream.sock"
REQUEST_SOCKET = "requests.sock"
STEP_SOCKET = "steps.sock"
"""Takes datagrams of jobs that use ``gpuwatch.hook``, which tells every socket whose name begins with ``steps.``."""
LOCK_FILE = "lock"
"""Held with flock by the daemon that serves the directory; contains its pid."""
MAX_SOCKET_PATH_BYTES = 107
"""sockaddr_un.sun_path is 108 bytes with its NUL."""
ENV_PREFIX = "GPUWATCH_"
DEFAULT = "default"

Seconds = Annotated[float, Meta(ge=1, le=86_400 * 7)]


class DiagnosisConfig(Struct, frozen=True):
    """When a diagnosis starts by itself."""

    automatic: bool = True
    busy_below_pct: Annotated[float, Meta(ge=0, le=100)] = 70.0
    """Mean busy share of a GPU with a compute process under which its owner wants to know why."""
    after_s: Annotated[float, Meta(ge=1, le=3600)] = 10.0
    idle_after_s: Seconds = 60.0
    """A process that holds memory and runs nothing for this long is idle."""
    every_s: Annotated[float, Meta(ge=60, le=86_400 * 7)] = 300.0
    """Spacing of the diagnoses of a job whose picture does not change. Each costs up to 5 s of stack samples."""
    stacks: bool = True
    native_stacks: Literal["auto", "never"] = "auto"
    """Whether a burst of stacks may end with a look at native frames, which holds the job for a moment."""


class ProbesConfig(Struct, frozen=True):
    """When probes run by themselves: never, unless asked for, since they occupy a GPU."""

    automatic: bool = False
    idle_after_s: Seconds = 600.0
    every_s: Annotated[float, Meta(ge=60, le=86_400 * 365)] = 86_400.0
    set: tuple[str, ...] = ()
    """Names of probes; empty means the probe runner's own choice."""
    python: str = ""
    """Interpreter that has torch; empty means the one that runs gpuwatch."""
    baseline: str = ""
    """A file of ``gpuwatch probe baseline``: every finished probe is judged against it; empty means no judging."""


class Config(Struct, frozen=True):
    """Everything that can be set."""

    period_s: Annotated[float, Meta(ge=0.1, le=5)] = 1.0
    endpoint: str = ""
    """Runtime directory, as a path or ``ipc://`` and a path; empty means the search order of the README."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    let_gpus_sleep: bool = False
    """Give the driver back while nobody uses or watches a GPU, and do not wake one that is suspended: for laptops."""
    diagnosis: DiagnosisConfig = DiagnosisConfig()
    probes: ProbesConfig = ProbesConfig()


class Loaded(Struct, frozen=True):
    """A configuration and the origin of each of its values: ``default``, a file, a variable or a flag."""

    config: Config
    origins: dict[str, str]


def runtime_directory(endpoint: str) -> Path:
    """The directory that an endpoint names: ``ipc:///run/gpuwatch`` or a plain path. Raises UsageError."""
    scheme, separator, rest = endpoint.partition("://")
    if separator and scheme != "ipc":
        raise UsageError(f"endpoint {endpoint}: only ipc:// and a directory is known; for another host use ssh")
    path = Path(rest if separator else endpoint).absolute()
    longest = len(os.fsencode(path / REQUEST_SOCKET))
    if longest > MAX_SOCKET_PATH_BYTES:
        raise UsageError(
            f"endpoint {path}: its socket path has {longest} bytes, Unix sockets allow {MAX_SOCKET_PATH_BYTES};"
            " choose a shorter directory"
        )
    return path


def _leaves() -> dict[str, object]:
    """Dotted key to annotated type, in the order of the structs."""
    leaves: dict[str, object] = {}
    for name, hint in get_type_hints(Config, include_extras=True).items():
        if isinstance(hint, type) and issubclass(hint, Struct):
            leaves.update((f"{name}.{sub}", t) for sub, t in get_type_hints(hint, include_extras=True).items())
        else:
            leaves[name] = hint
    return leaves


KEYS: dict[str, object] = _leaves()
_TABLES = {key.partition(".")[0] for key in KEYS if "." in key}
_VARIABLES = {ENV_PREFIX + key.replace(".", "_").upper(): key for key in KEYS}


def default_files(env: Mapping[str, str]) -> tuple[Path, ...]:
    """System file, then the user's; a missing one is skipped."""
    home = env.get("XDG_CONFIG_HOME") or (f"{env['HOME']}/.config" if env.get("HOME") else "")
    return (SYSTEM_FILE, *((Path(home) / "gpuwatch" / "config.toml",) if home else ()))


def load(
    file: Path | None = None,
    flags: Mapping[str, object] | None = None,
    env: Mapping[str, str] | None = None,
    files: Iterable[Path] | None = None,
) -> Loaded:
    """The effective configuration. ``file`` replaces the default files and must exist; ``flags`` are dotted keys,
    None meaning not given. Raises ConfigError, InputNotFoundError."""
    env = os.environ if env is None else env
    values: dict[str, object] = {}
    origins = dict.fromkeys(KEYS, DEFAULT)

    def take(layer: Mapping[str, object], origin: Mapping[str, str]) -> None:
        values.update(layer)
        origins.update({key: origin[key] for key in layer})

    if file is not None:
        paths: Iterable[Path] = (file,)
    else:
        paths = [path for path in (default_files(env) if files is None else files) if path.exists()]
    for path in paths:
        layer = read_file(path)
        take(layer, dict.fromkeys(layer, str(path)))
    take(*_from_env(env))
    given = {key: value for key, value in (flags or {}).items() if value is not None}
    named = {key: "--" + key.rpartition(".")[2].removesuffix("_s").replace("_", "-") for key in given}
    take({key: _checked(key, value, named[key]) for key, value in given.items()}, named)
    return Loaded(_built(values), origins)


def read_file(path: Path) -> dict[str, object]:
    """The dotted keys of one TOML file, each checked. Raises ConfigError, InputNotFoundError."""
    import tomllib

    try:
        tree = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputNotFoundError(f"{path}: no such configuration file") from None
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"{path}: cannot be read: {exc}") from None
    except tomllib.TOMLDecodeError as exc:
        raise ConfigError(f"{path}: not valid TOML: {exc}") from None
    flat: dict[str, object] = {}
    for name, value in tree.items():
        if name not in _TABLES:
            flat[name] = value
        elif isinstance(value, dict):
            flat.update((f"{name}.{sub}", inner) for sub, inner in value.items())
        else:
            raise ConfigError(f"{path}: {name}: expected a table [{name}], got {_shown(value)}")
    return {key: _checked(key, value, str(path)) for key, value in flat.items()}


def value_of(config: Config, key: str) -> object:
    """The value of a dotted key."""
    table, _, name = key.rpartition(".")
    return getattr(getattr(config, table) if table else config, name)


def _from_env(env: Mapping[str, str]) -> tuple[dict[str, object], dict[str, str]]:
    values: dict[str, object] = {}
    origins: dict[str, str] = {}
    for variable, text in env.items():
        if not variable.startswith(ENV_PREFIX) or not text:
            continue
        key = _VARIABLES.get(variable)
        if key is None:
            _refuse_misspelt(variable)
            continue
        values[key] = _checked(key, _parsed(key, text), f"${variable}")
        origins[key] = f"${variable}"
    return values, origins


def _refuse_misspelt(variable: str) -> None:
    """A variable that is nearly one of ours is a typing error; one that is far from all belongs to somebody else."""
    near = _nearest(variable, _VARIABLES, cutoff=0.85)
    if near:
        raise ConfigError(f"${variable}: no such setting; did you mean ${near}?")


def _parsed(key: str, text: str) -> object:
    """A variable's text in the shape that TOML would have given; what does not fit stays text and is refused."""
    kind = _kind(key)
    if kind is bool:
        return {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}.get(text.lower(), text)
    if kind is float:
        try:
            return float(text)
        except ValueError:
            return text
    if kind is tuple:
        return [part.strip() for part in text.split(",") if part.strip()]
    return text


def _kind(key: str) -> type:
    hint = KEYS[key]
    if hint == tuple[str, ...]:
        return tuple
    base = get_args(hint)[0] if get_args(hint) else hint
    return base if isinstance(base, type) else str


def _checked(key: str, value: object, place: str) -> object:
    if key not in KEYS:
        near = _nearest(key, KEYS, cutoff=0.5)
        hint = f"did you mean {near}?" if near else f"known keys: {', '.join(KEYS)}"
        raise ConfigError(f"{place}: unknown key {key}; {hint}")
    try:
        # NaN passes every comparison that msgspec makes; None never fits.
        finite = None if isinstance(value, float) and not math.isfinite(value) else value
        return msgspec.convert(finite, KEYS[key])
    except msgspec.ValidationError:
        raise ConfigError(f"{place}: {key}: expected {expected(key)}, got {_shown(value)}") from None


def expected(key: str) -> str:
    """What a key takes, for a person: "a number from 0.1 to 5"."""
    kind = _kind(key)
    args = get_args(KEYS[key])
    if kind is float:
        meta = next(arg for arg in args if isinstance(arg, Meta))
        return f"a number from {meta.ge:.10g} to {meta.le:.10g}"
    if kind is bool:
        return "true or false"
    if kind is tuple:
        return "a list of names"
    return "one of " + ", ".join(args) if args else "a text"


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _nearest(word: str, known: Iterable[str], cutoff: float) -> str:
    import difflib

    return next(iter(difflib.get_close_matches(word, list(known), n=1, cutoff=cutoff)), "")


def _built(values: Mapping[str, object]) -> Config:
    tree: dict[str, object] = {key: value for key, value in values.items() if "." not in key}
    for table in _TABLES:
        tree[table] = {key.partition(".")[2]: v for key, v in values.items() if key.startswith(table + ".")}
    return msgspec.convert(tree, Config)
