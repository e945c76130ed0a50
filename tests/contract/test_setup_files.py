"""What a newcomer reads and runs first: the Makefile, the README and the pages of docs/ say what the code does."""

from __future__ import annotations

import ast
import inspect
import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from msgspec import Struct

from gpuwatch import __version__, errors, wire
from gpuwatch.cli.main import COMMANDS, cli
from gpuwatch.config import KEYS, Config, value_of
from gpuwatch.model import Reason
from gpuwatch.replay.format import _KINDS, FORMAT_VERSION
from gpuwatch.tui.help import KEYS as KEY_BINDINGS

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.glob("*.md"))]


def text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def tracked() -> list[Path]:
    """Files that are in the repository or on their way into it; nothing that git ignores."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    if listed.returncode:
        pytest.skip("not a git checkout")
    return [path for name in listed.stdout.decode().split("\0") if name and (path := ROOT / name).is_file()]


def makefile_targets() -> dict[str, str]:
    return dict(re.findall(r"^([a-z-]+):.*?## (.+)$", text(ROOT / "Makefile"), re.MULTILINE))


# make


def test_make_alone_shows_every_target_with_its_help() -> None:
    shown = subprocess.run(["make", "-s", "-C", str(ROOT)], capture_output=True, text=True, check=True).stdout
    targets = makefile_targets()
    assert {"demo", "test", "check", "format", "bench", "faults", "wheel", "clean", "help"} == set(targets)
    for name, help_text in targets.items():
        assert re.search(rf"^  make {name} +{re.escape(help_text)}$", shown, re.MULTILINE), name


def test_the_demo_needs_neither_torch_nor_the_development_tools() -> None:
    plan = subprocess.run(
        ["make", "-n", "-B", "-C", str(ROOT), "demo"], capture_output=True, text=True, check=True
    ).stdout
    assert "install -e ." in plan
    assert "[dev]" not in plan


def test_a_changed_dependency_is_installed_by_the_next_make() -> None:
    rules = text(ROOT / "Makefile")
    assert re.search(r"^\$\(VENV\)/\.base-stamp: pyproject\.toml$", rules, re.MULTILINE)
    assert re.search(r"^\$\(VENV\)/\.dev-stamp: \$\(VENV\)/\.base-stamp$", rules, re.MULTILINE)


@pytest.mark.parametrize(
    ("interpreter", "says"),
    [
        ("exit 1", "no Python 3.11 or newer"),
        ('case "$*" in *ensurepip*) exit 1;; esac', "has no venv module"),
    ],
)
def test_a_python_that_cannot_be_used_is_one_clear_line(tmp_path: Path, interpreter: str, says: str) -> None:
    python = tmp_path / "python3"
    python.write_text(f"#!/bin/sh\n{interpreter}\n", encoding="utf-8")
    python.chmod(0o755)
    # Run in a folder of its own, so that nothing of the checkout is touched; the rule needs this file.
    (tmp_path / "pyproject.toml").touch()
    made = subprocess.run(
        ["make", "-C", str(tmp_path), "-f", str(ROOT / "Makefile"), f"PYTHON={python}", "demo"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode != 0
    assert says in made.stderr
    assert not (tmp_path / ".venv").exists()


def test_ci_runs_what_a_contributor_runs() -> None:
    lines = text(ROOT / ".ci" / "run").splitlines()
    assert lines[0].startswith("#!")
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o111
    assert lines.index("make check") < lines.index("make test") < lines.index("make demo </dev/null | cat")
    assert "set -euo pipefail" in lines


# what is written


def test_the_readme_begins_with_the_two_commands() -> None:
    readme = text(ROOT / "README.md")
    assert "make demo" in readme
    assert "make test" in readme
    assert readme.index("make demo") < readme.index("pip install")
    assert "unrelated" in readme[readme.index("gpuwatchd") :]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_page_sends_a_user_to_the_unrelated_package(page: Path) -> None:
    assert not re.search(r"pip3? install (-\S+ )*gpuwatch(\s|`|\[|$)", text(page))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", text(page)):
        if target.startswith(("http://", "https://")):
            continue
        name, _, anchor = target.partition("#")
        file = (page.parent / name) if name else page
        assert file.exists(), target
        if anchor:
            assert anchor in {slug(title) for title in re.findall(r"^#+ (.+)$", text(file), re.MULTILINE)}, target


def slug(title: str) -> str:
    return re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")


def code_of(page: Path) -> Iterator[str]:
    """Commands in code blocks and in code spans, one a line."""
    for block in re.findall(r"```\w*\n(.*?)```", text(page), re.DOTALL):
        yield from block.splitlines()
    yield from re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", text(page), flags=re.DOTALL))


def documented_commands() -> Iterator[tuple[Path, list[str]]]:
    for page in PAGES:
        for line in code_of(page):
            for found in re.finditer(r"(?:^|/|\s)gpuwatch ([a-z].*)$", line.split(" #")[0].strip()):
                yield page, found.group(1).split()


def command_of(words: list[str]) -> click.Command:
    """The command that these words call; groups are followed."""
    context = click.Context(cli, info_name="gpuwatch")
    command: click.Command = cli
    for word in words:
        if not isinstance(command, click.Group):
            break
        found = command.get_command(context, word)
        assert found is not None, f"no command {word}"
        command = found
    return command


def test_every_command_in_the_documentation_exists_with_its_options() -> None:
    seen = set()
    for page, words in documented_commands():
        assert words[0] in COMMANDS, f"{page.name}: gpuwatch {' '.join(words)}"
        command = command_of(words)
        options = {option for param in command.params for option in param.opts} | {"--help"}
        for word in words[1:]:
            for option in re.findall(r"(?<![\w-])--[a-z][a-z-]*", word):
                assert option in options, f"{page.name}: gpuwatch {' '.join(words)}: no {option}"
        seen.add(words[0])
    assert seen == set(COMMANDS)


def test_every_exit_code_is_documented_and_every_documented_one_exists() -> None:
    table = {int(code) for code in re.findall(r"^\| (\d+) \|", text(DOCS / "exit-codes.md"), re.MULTILINE)}
    classes = {cls.exit_code for _, cls in inspect.getmembers(errors, inspect.isclass) if hasattr(cls, "exit_code")}
    verdicts = {value for name, value in vars(errors).items() if name.startswith("EXIT_")}
    assert table == classes | verdicts | {130, 141}


def test_every_setting_is_documented_with_its_default() -> None:
    rows = dict(re.findall(r"^\| `([a-z_.]+)` \| (\S+) \|", text(DOCS / "configuration.md"), re.MULTILINE))
    assert list(rows) == list(KEYS)
    for key, shown in rows.items():
        default = value_of(Config(), key)
        assert json.loads(shown) == (list(default) if isinstance(default, tuple) else default), key


def test_every_message_recording_kind_and_reason_is_documented() -> None:
    page = text(DOCS / "wire.md")
    messages = [cls for _, cls in inspect.getmembers(wire, inspect.isclass) if issubclass(cls, Struct)]
    for tag in {cls.__struct_config__.tag for cls in messages} - {None}:
        assert f"`{tag}`" in page, tag
    assert "version {}.{}".format(*wire.PROTOCOL) in page
    assert str(wire.MAX_REQUEST_BYTES) in page
    recording = text(DOCS / "recording-format.md")
    assert set(_KINDS) == set(re.findall(r"^\| `([a-z_]+)` \|", recording, re.MULTILINE))
    assert f"version {FORMAT_VERSION}" in recording
    for reason in Reason:
        assert f"`{reason.name.lower()}`" in text(DOCS / "status.md")


def cause_ids() -> set[str]:
    """What diagnose/ can name: first argument of ``finding``, or what a variable ``cause`` may be."""
    found: set[str] = set()
    for path in (ROOT / "gpuwatch" / "diagnose").glob("*.py"):
        for node in ast.walk(ast.parse(text(path))):
            match node:
                case ast.Call(func=ast.Name(id="finding"), args=[first, *_]):
                    found |= strings_in(first)
                case ast.Assign(targets=[ast.Name(id="cause")], value=value):
                    found |= strings_in(value)
    return found


def strings_in(node: ast.AST) -> set[str]:
    return {sub.value for sub in ast.walk(node) if isinstance(sub, ast.Constant) and isinstance(sub.value, str)}


def test_every_cause_that_a_user_can_be_told_is_explained() -> None:
    explained = set(re.findall(r"^\| `([a-z_]+)` \|", text(DOCS / "causes.md"), re.MULTILINE))
    assert cause_ids() - explained == set()
    code = "".join(text(path) for path in (ROOT / "gpuwatch" / "diagnose").glob("*.py"))
    assert {cause for cause in explained if f'"{cause}"' not in code} == set()


def test_every_key_of_the_screen_is_in_its_page() -> None:
    page = text(DOCS / "tui.md")
    for key in KEY_BINDINGS:
        assert f"| {key.shown} | {key.help} |" in page


def test_the_version_is_the_same_wherever_it_is_written() -> None:
    assert f'version = "{__version__}"' in text(ROOT / "pyproject.toml")


def test_the_licence_is_the_one_that_the_package_names() -> None:
    assert "Apache License" in text(ROOT / "LICENSE")
    assert 'license = "Apache-2.0"' in text(ROOT / "pyproject.toml")


# what must not be there

# Written in pieces, or this file would find itself.
FORBIDDEN = [
    "/" + "work/",
    "/" + "root/",
    "pypi" + r"\.org",
    "files" + r"\.pythonhosted",
    "download" + r"\.pytorch",
    "extra-" + "index-url",
    "find-" + "links",
]


def test_no_file_names_a_machine_of_ours_or_a_package_index() -> None:
    pattern = re.compile("|".join(FORBIDDEN))
    hits = []
    for path in tracked():
        try:
            content = text(path)
        except UnicodeDecodeError:
            continue
        hits += [
            f"{path.relative_to(ROOT)}: {line.strip()[:120]}" for line in content.splitlines() if pattern.search(line)
        ]
    assert hits == []
