"""The published schema: what a script that reads ``diagnose --json`` may rely on."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema  # type: ignore[import-untyped]
import pytest

from gpuwatch.diagnose.judge import diagnose
from gpuwatch.export.json_schema import diagnose_schema
from gpuwatch.export.jsonable import document, dumps
from gpuwatch.model import Inventory, ProcessTick, Role
from gpuwatch.replay.player import load

ROOT = Path(__file__).resolve().parents[2]
PUBLISHED = ROOT / "docs" / "schema" / "diagnose-1.json"
VALIDATOR = jsonschema.Draft202012Validator(diagnose_schema())


def test_the_published_schema_is_the_present_one() -> None:
    """Mend with: gpuwatch diagnose --json-schema >docs/schema/diagnose-1.json."""
    assert json.loads(PUBLISHED.read_text(encoding="utf-8")) == diagnose_schema()
    jsonschema.Draft202012Validator.check_schema(diagnose_schema())


@pytest.mark.parametrize("name", ["one_worker_jpeg", "two_tenants", "resnet_on_device", "forgotten_notebook"])
def test_what_is_printed_keeps_to_the_schema(name: str) -> None:
    seen = load(ROOT / "tests" / "recordings" / f"{name}.gwrec")
    pid = next(i.pid for o in seen if isinstance(o, ProcessTick) for i in o.infos if i.role is Role.MAIN)
    devices = next(o.devices for o in seen if isinstance(o, Inventory))
    body = {"diagnoses": [diagnose(seen, pid)], "devices": devices, "exit_code": 1}
    VALIDATOR.validate(json.loads(dumps(document("diagnose", body))))


@pytest.mark.parametrize(
    ("place", "value"), [(("diagnoses", 0, "findings", 0, "severity"), "bad"), (("diagnoses", 0, "pid"), "7")]
)
def test_another_value_does_not(place: tuple[str | int, ...], value: str) -> None:
    seen = load(ROOT / "tests" / "recordings" / "one_worker_jpeg.gwrec")
    said = json.loads(dumps(document("diagnose", {"diagnoses": [diagnose(seen, 967)], "devices": [], "exit_code": 1})))
    within = said
    for step in place[:-1]:
        within = within[step]
    within[place[-1]] = value
    with pytest.raises(jsonschema.ValidationError):
        VALIDATOR.validate(said)
