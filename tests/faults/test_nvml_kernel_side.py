"""What is known about the driver without asking it: another module, other GPUs, another library on disk."""

from __future__ import annotations

from pathlib import Path

import pytest
from fakenvml.build import LIBRARY, loaded

from gpuwatch.collect.nvml import Nvml

LINE = "7f00-7f10 r-xp 00000000 08:01 42    {path}\n"


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """The library's link, as a driver package leaves it."""
    (tmp_path / "libnvidia-ml.so.580.1").touch()
    link = tmp_path / LIBRARY
    link.symlink_to("libnvidia-ml.so.580.1")
    return link


def nvml_with(tmp_path: Path, mapped: str) -> Nvml:
    maps = tmp_path / "maps"
    maps.write_text(LINE.format(path="/usr/lib/libc.so.6") + LINE.format(path=mapped))
    return Nvml(maps=maps, proc_driver=tmp_path / "driver")


def test_the_library_in_use_is_the_one_on_disk(tmp_path: Path, library: Path) -> None:
    assert not nvml_with(tmp_path, str(library.resolve())).library_replaced()


def test_a_package_that_put_a_new_library_beside_it_is_noticed(tmp_path: Path, library: Path) -> None:
    mapped = str(library.resolve())
    (tmp_path / "libnvidia-ml.so.590.1").touch()
    library.unlink()
    library.symlink_to("libnvidia-ml.so.590.1")
    assert nvml_with(tmp_path, mapped).library_replaced()


def test_a_library_that_was_removed_is_noticed(tmp_path: Path, library: Path) -> None:
    assert nvml_with(tmp_path, f"{library.resolve()} (deleted)").library_replaced()


def test_without_a_mapped_library_nothing_was_replaced(tmp_path: Path) -> None:
    assert not nvml_with(tmp_path, "/usr/lib/libm.so.6").library_replaced()
    assert not Nvml(maps=tmp_path / "none").library_replaced()


def test_another_module_or_gpu_is_noticed_without_a_call(tmp_path: Path) -> None:
    driver = tmp_path / "driver"
    (driver / "gpus" / "0000:61:00.0").mkdir(parents=True)
    (driver / "version").write_text("NVRM version: 580.1\n")
    with loaded(tmp_path, "gpus=1") as fake:
        nvml = Nvml(proc_driver=driver)
        nvml.open()
        nvml.devices()
        fake.forget_calls()
        assert not nvml.kernel_changed()
        (driver / "gpus" / "0000:62:00.0").mkdir()
        assert nvml.kernel_changed()
        assert nvml.changed(frozenset())
        (driver / "gpus" / "0000:62:00.0").rmdir()
        (driver / "version").write_text("NVRM version: 590.1\n")
        assert nvml.kernel_changed()
        assert not fake.calls()
        nvml.close()


def test_a_gpu_that_hangs_is_not_asked_about_its_instances(tmp_path: Path) -> None:
    with loaded(tmp_path, "gpus=2\ngpu * mig=1\ngpu 100 there=1") as fake:
        nvml = Nvml(proc_driver=tmp_path / "none")
        nvml.open()
        assert [d.index for d in nvml.devices()] == [0, 100, 1]
        fake.forget_calls()
        assert not nvml.changed(frozenset({1}))
        asked = fake.calls()
        assert asked["nvmlDeviceGetMigMode", 0] == 1
        assert asked["nvmlDeviceGetMigMode", 1] == 0
        fake.set("gpu 100 there=0")
        assert nvml.changed(frozenset())
        nvml.close()
