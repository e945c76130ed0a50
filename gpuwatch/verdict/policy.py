"""What a user demands of the probes: a TOML file with units.

Owns: keys, their types and ranges, which rule holds for which quantity. Refuses: reading files, judging.

::

    [default]
    max_regression = "5%"
    ambiguous = "warn"

    [probe.matmul]
    max_regression = "3%"

    [probe.matmul.bf16_8192_sustained]
    expect_min = "600 TFLOP/s"
    source = "our own acceptance test"
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Collection, Mapping

import msgspec
from msgspec import Struct

from gpuwatch.errors import ConfigError
from gpuwatch.verdict.probe_run import PROBES
from gpuwatch.verdict.quantities import base_unit
from gpuwatch.verdict.verdicts import Level

LEVELS = {"ok": Level.OK, "warn": Level.WARN, "critical": Level.CRITICAL, "unknown": Level.UNKNOWN}


class Amount(Struct, frozen=True):
    """A number with its unit, such as 3.6 TB/s."""

    value: float
    unit: str

    def __str__(self) -> str:
        return f"{self.value:g} {self.unit}"


class Rule(Struct, frozen=True):
    """What is demanded of one quantity, one probe or all. None: not said here."""

    max_regression: float | None = None
    """As a share: 0.05 is 5 %."""
    expect_min: Amount | None = None
    expect_max: Amount | None = None
    source: str | None = None
    """Where the expected figure comes from."""
    slower: Level | None = None
    ambiguous: Level | None = None
    missing: Level | None = None
    """Level of a probe that the baseline has and the machine does not; "ok" allows it."""

    def over(self, other: Rule) -> Rule:
        """This rule, and ``other`` where it says nothing."""
        said = {key: getattr(self, key) for key in self.__struct_fields__ if getattr(self, key) is not None}
        return msgspec.structs.replace(other, **said)


class Policy(Struct, frozen=True):
    """Rules by "" (default), "probe" and "probe.value"."""

    rules: dict[str, Rule] = {}

    def rule(self, probe: str, value: str = "") -> Rule:
        """What holds for this quantity: its own rule, then its probe's, then the default."""
        found = self.rules.get("", Rule())
        for key in (probe, f"{probe}.{value}"):
            found = self.rules.get(key, Rule()).over(found)
        return found

    def only(self, probes: Collection[str]) -> Policy:
        """The rules that hold for these probes."""
        return Policy({key: rule for key, rule in self.rules.items() if not key or key.partition(".")[0] in probes})

    def without(self, probes: Collection[str]) -> list[str]:
        """One line for each demand on a probe that is none of these: it was left out on purpose, and is not judged."""
        others = (f"{probe}.{value}" for probe, value in self.demanded() if probe not in probes)
        return [f"policy: {name} is demanded and was left out" for name in others]

    def demanded(self) -> list[tuple[str, str]]:
        """Probe and value of every quantity with an expected figure."""
        keys = (key for key, rule in self.rules.items() if rule.expect_min or rule.expect_max)
        return [(probe, value) for probe, _, value in (key.partition(".") for key in keys)]


def parse(text: str, name: str) -> Policy:
    """The policy in a file's text. Raises ConfigError that names the file, the key and the nearest known one."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as exc:
        raise ConfigError(f"{name}: not TOML: {exc}") from None
    rules = {}
    for section, table in document.items():
        if section not in ("default", "probe"):
            raise ConfigError(f"{name}: {section}: {_unknown(section, ('default', 'probe'))}")
        if not isinstance(table, dict):
            raise ConfigError(f"{name}: {section}: must be a table, such as [default] or [probe.matmul]")
        if section == "default":
            rules[""] = _rule(table, name, "default")
            continue
        for probe, keys in table.items():
            rules |= _probe(probe, keys, name)
    if "" in rules and (rules[""].expect_min or rules[""].expect_max):
        raise ConfigError(f"{name}: default: an expected figure belongs to one quantity: [probe.NAME.QUANTITY]")
    return Policy(rules)


def percentage(text: object, where: str) -> float:
    """ "5%" as 0.05. Raises ConfigError: a bare number may mean 5 % or 500 %."""
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*%\s*", text) if isinstance(text, str) else None
    if match is None or not 0 < float(match[1]) < 100:
        raise ConfigError(f'{where}: {text!r}: expected a percentage in quotes above 0% and below 100%, such as "5%"')
    return float(match[1]) / 100


def _probe(probe: str, keys: object, name: str) -> dict[str, Rule]:
    names = tuple(spec.name for spec in PROBES)
    if names and probe not in names:
        near = difflib.get_close_matches(probe, names, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are: {', '.join(names)}"
        raise ConfigError(f"{name}: probe.{probe}: no such probe; {hint}")
    if not isinstance(keys, dict):
        raise ConfigError(f"{name}: probe.{probe}: must be a table, such as [probe.{probe}]")
    own = {key: value for key, value in keys.items() if not isinstance(value, dict)}
    rules = {probe: _rule(own, name, f"probe.{probe}")}
    if rules[probe].expect_min or rules[probe].expect_max:
        raise ConfigError(
            f"{name}: probe.{probe}: an expected figure belongs to one quantity: [probe.{probe}.QUANTITY]"
        )
    for value, table in keys.items():
        if isinstance(table, dict):
            rules[f"{probe}.{value}"] = _rule(table, name, f"probe.{probe}.{value}")
    return rules


def _rule(table: Mapping[str, object], name: str, place: str) -> Rule:
    known = Rule.__struct_fields__
    values: dict[str, object] = {}
    for key, value in table.items():
        where = f"{name}: {place}.{key}"
        if key == "max_regression":
            values[key] = percentage(value, where)
        elif key in ("expect_min", "expect_max"):
            values[key] = _amount(value, where)
        elif key in ("slower", "ambiguous", "missing"):
            if value not in LEVELS:
                raise ConfigError(f"{where}: {value!r}: expected one of {', '.join(LEVELS)}")
            values[key] = LEVELS[str(value)]
        elif key == "source" and isinstance(value, str):
            values[key] = value
        else:
            raise ConfigError(f"{where}: {_unknown(key, known)}")
    return msgspec.convert(values, Rule)


def _amount(text: object, where: str) -> Amount:
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?(?:e[0-9]+)?)\s*(\S+)\s*", text) if isinstance(text, str) else None
    if match is None or base_unit(match[2]) is None:
        raise ConfigError(
            f'{where}: {text!r}: expected a number and a unit in quotes, such as "3.6 TB/s", "600 TFLOP/s" or "8 us"'
        )
    return Amount(float(match[1]), match[2])


def _unknown(key: str, known: tuple[str, ...]) -> str:
    near = difflib.get_close_matches(key, known, n=1)
    return "unknown key or wrong type; " + (f"did you mean {near[0]}?" if near else f"there are: {', '.join(known)}")
