"""Configuration: later wins, and every mistake is named with its file, key and remedy."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpuwatch.cli.main import run
from gpuwatch.config import DEFAULT, KEYS, default_files, load, runtime_directory, value_of
from gpuwatch.errors import ConfigError, InputNotFoundError, UsageError


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_without_any_setting_every_value_is_the_default() -> None:
    loaded = load(env={}, files=())
    assert set(loaded.origins.values()) == {DEFAULT}
    assert loaded.config.period_s == 1.0
    assert loaded.config.diagnosis.busy_below_pct == 70.0
    assert loaded.config.diagnosis.after_s == 10.0
    assert not loaded.config.probes.automatic, "probes occupy a GPU: never by default"


def test_later_layers_win_and_origins_say_which(tmp_path: Path) -> None:
    system = write(tmp_path / "etc.toml", "period_s = 2\n[diagnosis]\nafter_s = 20\nevery_s = 400\n")
    user = write(tmp_path / "user.toml", "[diagnosis]\nafter_s = 30\n[probes]\nset = ['copy']\n")
    env = {"GPUWATCH_DIAGNOSIS_EVERY_S": "600", "GPUWATCH_DIAGNOSIS_STACKS": "false", "GPUWATCH_PROBES_SET": "a, b"}
    loaded = load(flags={"period_s": 0.5, "endpoint": None}, env=env, files=(system, user))
    config, origins = loaded.config, loaded.origins
    assert (config.period_s, origins["period_s"]) == (0.5, "--period")
    assert (config.diagnosis.after_s, origins["diagnosis.after_s"]) == (30.0, str(user))
    assert (config.diagnosis.every_s, origins["diagnosis.every_s"]) == (600.0, "$GPUWATCH_DIAGNOSIS_EVERY_S")
    assert config.diagnosis.stacks is False
    assert config.probes.set == ("a", "b")
    assert origins["endpoint"] == DEFAULT


def test_every_key_can_be_read_back() -> None:
    config = load(env={}, files=()).config
    assert "diagnosis.idle_after_s" in KEYS
    assert [value_of(config, key) for key in ("period_s", "diagnosis.idle_after_s")] == [1.0, 60.0]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("perid_s = 1\n", "unknown key perid_s; did you mean period_s?"),
        ("[diagnosis]\nafter = 3\n", "unknown key diagnosis.after; did you mean diagnosis.after_s?"),
        ("[diagnose]\nafter_s = 3\n", "unknown key diagnose; did you mean"),
        ("period_s = 9\n", "period_s: expected a number from 0.1 to 5, got 9"),
        ("period_s = nan\n", "period_s: expected a number from 0.1 to 5, got nan"),
        ("period_s = '1'\n", "period_s: expected a number from 0.1 to 5, got '1'"),
        ("period_s = true\n", "period_s: expected a number from 0.1 to 5, got True"),
        ("log_level = 'loud'\n", "log_level: expected one of debug, info, warning, error, got 'loud'"),
        ("endpoint = 3\n", "endpoint: expected a text, got 3"),
        ("diagnosis = 3\n", "diagnosis: expected a table [diagnosis], got 3"),
        ("[diagnosis]\nstacks = 'no'\n", "diagnosis.stacks: expected true or false, got 'no'"),
        (
            "[diagnosis]\nnative_stacks = 'rarely'\n",
            "diagnosis.native_stacks: expected one of auto, never, got 'rarely'",
        ),
        ("[probes]\nset = 'copy'\n", "probes.set: expected a list of names, got 'copy'"),
        ("period_s = \n", "not valid TOML"),
    ],
)
def test_a_mistake_in_a_file_names_file_key_and_remedy(tmp_path: Path, text: str, said: str) -> None:
    path = write(tmp_path / "config.toml", text)
    with pytest.raises(ConfigError) as caught:
        load(path, env={})
    assert str(caught.value).startswith(f"{path}: ")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_mistyped_variable_is_not_silently_ignored() -> None:
    with pytest.raises(ConfigError, match=r"did you mean \$GPUWATCH_DIAGNOSIS_AFTER_S\?"):
        load(env={"GPUWATCH_DIAGNOSIS_AFTR_S": "3"}, files=())
    with pytest.raises(
        ConfigError, match=r"\$GPUWATCH_PERIOD_S: period_s: expected a number from 0.1 to 5, got 'fast'"
    ):
        load(env={"GPUWATCH_PERIOD_S": "fast"}, files=())


def test_a_variable_of_another_program_part_is_left_alone() -> None:
    assert (
        load(env={"GPUWATCH_NVML_LIBRARY": "/x.so", "GPUWATCH_ENDPOINT": ""}, files=()).config
        == load(env={}, files=()).config
    )


def test_a_named_file_must_exist_and_replaces_the_default_ones(tmp_path: Path) -> None:
    with pytest.raises(InputNotFoundError, match="no such configuration file"):
        load(tmp_path / "none.toml", env={})
    other = write(tmp_path / "home" / "gpuwatch" / "config.toml", "period_s = 3\n")
    env = {"XDG_CONFIG_HOME": str(tmp_path / "home")}
    assert other in default_files(env)
    named = write(tmp_path / "mine.toml", "log_level = 'debug'\n")
    assert load(named, env=env).config.period_s == 1.0


def test_a_socket_path_that_the_kernel_cannot_take_is_refused_before_anything_starts() -> None:
    assert runtime_directory("ipc:///run/gpuwatch") == Path("/run/gpuwatch")
    assert runtime_directory("/run/gpuwatch") == Path("/run/gpuwatch")
    fits = "/" + "x" * (107 - len("/requests.sock") - 1)
    assert runtime_directory(fits) == Path(fits)
    with pytest.raises(UsageError, match="108 bytes, Unix sockets allow 107"):
        runtime_directory(fits + "x")
    with pytest.raises(UsageError, match="use ssh"):
        runtime_directory("tcp://other:5555")


def test_config_show_prints_value_and_origin_of_every_key(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "c.toml", "[diagnosis]\nafter_s = 25\n")
    assert run(["config", "show", "--config", str(path), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert list(shown) == list(KEYS)
    assert shown["diagnosis.after_s"] == {"value": 25.0, "origin": str(path)}
    assert run(["config", "show", "--config", str(path)]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("diagnosis.after_s"))
    assert line.split() == ["diagnosis.after_s", "25.0", str(path)]


def test_config_check_says_ok_or_exits_78_with_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = write(tmp_path / "g.toml", "period_s = 1\n"), write(tmp_path / "b.toml", "periods = 1\n")
    assert run(["config", "check", str(good)]) == 0
    assert capsys.readouterr().out == f"{good}: ok, 1 key set\n"
    assert run(["config", "check", str(bad)]) == 78
    assert capsys.readouterr().err == f"gpuwatch: {bad}: unknown key periods; did you mean period_s?\n"
