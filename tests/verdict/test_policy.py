"""A policy file that is wrong is refused with its place; a right one says what it says."""

from __future__ import annotations

import pytest

from gpuwatch.errors import ConfigError
from gpuwatch.verdict.policy import Amount, parse
from gpuwatch.verdict.verdicts import Level

GOOD = """
[default]
max_regression = "5%"
ambiguous = "warn"

[probe.launch]
max_regression = "15%"
missing = "ok"

[probe.launch.enqueue]
expect_max = "8 us"
source = "our own acceptance test"
"""


def test_the_nearest_rule_wins_and_the_rest_comes_from_above() -> None:
    policy = parse(GOOD, "p.toml")
    rule = policy.rule("launch", "enqueue")
    assert (rule.max_regression, rule.ambiguous, rule.missing) == (0.15, Level.WARN, Level.OK)
    assert rule.expect_max == Amount(8.0, "us")
    assert policy.rule("matmul", "bf16").max_regression == 0.05
    assert policy.demanded() == [("launch", "enqueue")]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "[default]\nmax_regresion = '5%'",
            "p.toml: default.max_regresion: unknown key or wrong type; did you mean max_reg",
        ),
        ("[default]\nmax_regression = 5", "p.toml: default.max_regression: 5: expected a percentage in quotes"),
        ("[default]\nmax_regression = '0%'", "above 0%"),
        ("[default]\nmax_regression = '5'", "expected a percentage"),
        ("[probes.matmul]\n", "p.toml: probes: unknown key or wrong type; did you mean probe?"),
        ("[probe]\nmatmul = 3", "p.toml: probe.matmul: must be a table"),
        ("default = 3", "p.toml: default: must be a table"),
        ("[default]\nexpect_min = '3 GB/s'", "an expected figure belongs to one quantity"),
        ("[probe.memory]\nexpect_min = '3 GB/s'", "an expected figure belongs to one quantity"),
        (
            "[probe.memory.triad]\nexpect_min = 3600",
            "p.toml: probe.memory.triad.expect_min: 3600: expected a number and a unit",
        ),
        ("[probe.memory.triad]\nexpect_min = '3.6 furlongs'", "expected a number and a unit"),
        ("[default]\nambiguous = 'maybe'", "expected one of ok, warn"),
        ("[default]\nsource = 3", "unknown key or wrong type"),
        ("[default", "p.toml: not TOML"),
        ("[probe.matmull]\nmissing = 'ok'", "p.toml: probe.matmull: no such probe; did you mean matmul?"),
        ("[probe.zzz.triad]\nexpect_min = '3 GB/s'", "p.toml: probe.zzz: no such probe; there are: matmul, conv"),
    ],
)
def test_a_wrong_file_is_one_line_with_the_place(text: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(text, "p.toml")
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
