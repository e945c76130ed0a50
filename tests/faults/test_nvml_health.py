"""Slow readings through the C ABI: complete, in the right unit, with the right meaning for this driver."""

from __future__ import annotations

from pathlib import Path

import pytest
from fakenvml.bench import ticking

from gpuwatch.collect.field_ids import COUNTERS, LIMITS, MOVING, known_to, version_of
from gpuwatch.export import card
from gpuwatch.model import (
    NOT_READ,
    NOT_SUPPORTED,
    Absent,
    CounterGrowth,
    DeviceHealth,
    PeerLink,
    Reason,
)

NOT_FIELDS = {"device_index", "mono_ns", "energy_window_ns", "throttle_window_ns"}


def test_a_card_that_has_everything_shows_everything(tmp_path: Path) -> None:
    counters = " ".join(f"fi.{field.id}={number}" for number, field in enumerate(COUNTERS))
    levels = "fi.185=412500 fi.186=420250 fi.186.2=97700 fi.82=41 fi.138=0@1024 fi.139=0@2048"
    rates = "fi.197=5000000000@1000 fi.198=6000000000@2000 " + " ".join(f"fi.{i}=0" for i in (74, 75, 76, 77, 79))
    limits = "fi.187=200000 fi.188=700000 fi.189=700000 fi.193=-8 fi.194=-2 fi.195=0 fi.196=0"
    types = " ".join(f"fitype.{i}=5" for i in (193, 194, 195, 196))
    # One link that tells of itself; "fi.91" above says how many there are.
    newer = "fi.269=0 fi.270=0 fi.271=0 fi.165=1 fi.161=2 fi.162=3 fi.163=4 fi.170=10 fi.172=44712"
    newer += " fi.208=5 fi.211=6 fi.212=7 fi.214=8"
    lines = [f"gpu 0 {part}" for part in (counters, levels, rates, limits, types, newer)]
    with ticking(tmp_path, "\n".join(["gpu 0 fans=2 fan=30 energy=0@300000 mig=0", *lines])) as t:
        health = t.health(6)
    absent = {
        name
        for name in health.__struct_fields__
        if isinstance(getattr(health, name), Absent) and name not in NOT_FIELDS
    }
    # What Ada and newer cards tell as offsets, older ones tell as temperatures.
    assert absent == {"temp_shutdown_c", "temp_slowdown_c", "temp_mem_max_c", "temp_gpu_max_c"}
    for number, field in enumerate(COUNTERS):
        assert getattr(health, field.name) == number, field.name
    assert (health.power_avg_w, health.power_instant_w, health.power_memory_w) == (412.5, 420.25, 97.7)
    assert (health.power_limit_min_w, health.power_limit_max_w, health.power_limit_default_w) == (200, 700, 700)
    assert health.tlimit_shutdown_c == -8
    assert health.tlimit_slowdown_c == -2
    links = (health.nvlink_link_replays, health.nvlink_link_recoveries, health.nvlink_link_crc_errors)
    assert (*links, health.nvlink_links_down) == (2, 3, 4, 0)
    assert (health.c2c_links, health.c2c_link_mbytes_per_s) == (10, 44712)
    assert (health.fabric_state, health.fabric_status, health.fabric_health) == (0, 0, 0)
    assert (health.fan_pct, health.mig_enabled, health.persistence_mode) == (30, 0, 1)


def test_a_bare_card_is_absent_rather_than_zero(tmp_path: Path) -> None:
    with ticking(tmp_path, "gpu 0 rc.*=3 rc.nvmlDeviceGetHandleByIndex_v2=0") as t:
        t.tick()
        health = t.tick(2000).health
        third = t.tick(30_000)
    assert health is not None
    for name in health.__struct_fields__:
        if name not in {
            *NOT_FIELDS,
            "pcie_under_load",
            "peers",
            "process_utils",
            "slowed_calls",
            "grown",
            "grown_window_ns",
            "confidential_compute",
        }:
            assert getattr(health, name) in (NOT_SUPPORTED, None), name
    assert health.process_utils_absent == NOT_SUPPORTED
    # Nothing that the card said it never has is asked again.
    assert third.calls == {}


@pytest.mark.parametrize(
    ("driver", "ids"),
    [
        ("580.159.04", {269, 270, 271}),
        ("580.82.07", {269, 270, 271}),
        ("580.65.06", {251, 252, 253}),
        ("575.51.02", {251, 252, 253}),
        ("570.124.06", set()),
        ("535.161.08", set()),
    ],
)
def test_thermal_throttling_is_read_under_the_number_that_it_has_on_this_driver(driver: str, ids: set[int]) -> None:
    asked = {field.id for field in known_to(version_of(driver), MOVING)}
    assert asked & {251, 252, 253, 269, 270, 271} == ids


def test_an_unknown_driver_version_asks_only_what_every_driver_has() -> None:
    assert not {f.id for f in known_to(version_of(NOT_SUPPORTED), MOVING)} & {251, 269}


def test_an_id_that_means_something_else_on_this_driver_is_not_taken_for_throttling(tmp_path: Path) -> None:
    # On 580.159 the number 251 answers with power smoothing.
    with ticking(tmp_path, "driver=580.159.04\ngpu 0 fi.251=0@900000000 fi.269=0@20000000") as t:
        share = t.health(3).throttle_sw_thermal_share
    assert isinstance(share, float)
    assert 0.015 < share < 0.025


def test_throttling_is_a_share_of_the_time_and_never_more_than_all_of_it(tmp_path: Path) -> None:
    scenario = "gpu 0 fi.74=0@700000000 fi.76=0@1040000000 fi.77=0@5000000000"
    with ticking(tmp_path, scenario) as t:
        first = t.health()
        health = t.health(2)
    assert first.throttle_power_cap_share == NOT_READ
    assert health.throttle_window_ns == 2_000_000_000
    assert isinstance(health.throttle_power_cap_share, float)
    assert 0.65 < health.throttle_power_cap_share < 0.75
    assert health.throttle_sync_boost_share == 1.0
    # Another unit, or another quantity: no share can be five.
    assert isinstance(health.throttle_board_limit_share, Absent)
    assert health.throttle_board_limit_share.reason is Reason.OUT_OF_RANGE


def test_a_counter_that_fell_was_reset_and_gives_no_negative_rate(tmp_path: Path) -> None:
    with ticking(tmp_path, "gpu 0 energy=10000000 fi.74=9000000000") as t:
        t.health(6)
        t.fake.set("gpu 0 energy=5 fi.74=7")
        health = t.health(6)
        assert health.energy_mj == 5
        assert health.energy_power_w == Absent(Reason.NOT_READ, "the counter was reset")
        t.fake.set("gpu 0 energy=2000005")
        later = t.health(5)
    assert later.energy_power_w == pytest.approx(2_000_000 / 5000, rel=0.01)


def test_power_from_energy_sees_what_samples_miss(tmp_path: Path) -> None:
    with ticking(tmp_path, "gpu 0 power=76000 energy=1000@626540") as t:
        health = t.health(6)
    assert health.energy_window_ns == 5_000_000_000
    assert health.energy_power_w == pytest.approx(626.54, rel=0.01)


def test_memory_temperature_survives_a_driver_that_names_the_wrong_type(tmp_path: Path) -> None:
    with ticking(tmp_path, "gpu 0 fi.82=41 fitype.82=0") as t:
        assert t.health().mem_temp_c == 41


def test_a_field_with_garbage_does_not_spoil_the_batch(tmp_path: Path) -> None:
    scenario = "gpu 0 fi.82=4294967295 fitype.82=1 fi.185=4294967295 fi.186=300000 firc.74=999 fitype.75=99 fi.75=1"
    with ticking(tmp_path, scenario) as t:
        health = t.health(3)
    assert health.mem_temp_c == Absent(Reason.OUT_OF_RANGE, "4294967295")
    assert health.power_avg_w == Absent(Reason.OUT_OF_RANGE, "4294967295")
    assert health.power_instant_w == 300
    assert health.throttle_power_cap_share == Absent(Reason.ERROR, "NVML error 999")
    assert health.throttle_thermal_share == Absent(Reason.OUT_OF_RANGE, "value type 99")


def test_field_values_cost_one_call_and_what_a_card_lacks_is_left_out_of_it(tmp_path: Path) -> None:
    with ticking(tmp_path, "gpu 0 fi.186=300000") as t:
        t.tick()
        second = t.tick(2000)
        assert second.calls["nvmlDeviceGetFieldValues"] == 1
        assert [f.name for f in t.reader._queries.health._moving._fields] == ["power_instant_mw"]  # type: ignore[union-attr]


def test_a_driver_without_field_values_loses_only_those(tmp_path: Path) -> None:
    with ticking(tmp_path, "gpu 0 rc.nvmlDeviceGetFieldValues=13") as t:
        first = t.tick()
        second = t.tick(2000)
    assert first.calls["nvmlDeviceGetFieldValues"] == 3
    assert "nvmlDeviceGetFieldValues" not in second.calls
    assert second.health is not None
    assert second.health.power_avg_w == NOT_SUPPORTED
    assert second.health.temp_margin_c == 59


@pytest.mark.parametrize(
    ("scenario", "loaded"),
    [("gpu 0 util=97 gpm.1=95", True), ("gpu 0 util=0 gpm.1=0", False), ("gpu 0 gpm=0 util=60", True)],
)
def test_a_narrow_link_of_an_idle_gpu_is_marked_as_read_without_load(
    tmp_path: Path, scenario: str, loaded: bool
) -> None:
    with ticking(tmp_path, scenario + " pciegen=1 pciewidth=8") as t:
        health = t.health(3)
    assert (health.pcie_gen, health.pcie_width, health.pcie_gen_max, health.pcie_width_max) == (1, 8, 5, 16)
    assert health.pcie_under_load is loaded


def test_byte_counters_give_rates_where_gpm_is_missing(tmp_path: Path) -> None:
    scenario = "gpu 0 gpm=0 fi.197=9000000000@1000000 fi.198=9000000000@56000000 fi.138=0@1048576 fi.139=0@2097152"
    with ticking(tmp_path, scenario) as t:
        health = t.health(3)
    assert health.pcie_tx_bytes_per_s == pytest.approx(1e6, rel=0.02)
    assert health.pcie_rx_bytes_per_s == pytest.approx(56e6, rel=0.02)
    assert health.nvlink_tx_bytes_per_s == pytest.approx(2**30, rel=0.02)
    assert health.nvlink_rx_bytes_per_s == pytest.approx(2**31, rel=0.02)


def test_a_byte_counter_of_32_bits_is_not_taken_for_a_rate(tmp_path: Path) -> None:
    # 56 GB/s wraps 32 bits thirteen times a second: any difference is a lottery.
    with ticking(tmp_path, "gpu 0 fi.198=1000@1000000") as t:
        rate = t.health(3).pcie_rx_bytes_per_s
    assert rate == Absent(Reason.NOT_FOUND, "the byte counter may wrap between readings")


def test_a_margin_beyond_the_limit_is_negative(tmp_path: Path) -> None:
    with ticking(tmp_path, "gpu 0 margin=-4") as t:
        assert t.health().temp_margin_c == -4


def test_rows_that_wait_for_a_reset_are_seen(tmp_path: Path) -> None:
    with ticking(tmp_path, "gpu 0 remap=2:1:1:0 ecc=1 fi.230=1") as t:
        health = t.health()
    assert (health.remapped_correctable, health.remapped_uncorrectable) == (2, 1)
    assert (health.remap_pending, health.remap_failed, health.recovery_action) == (1, 0, 1)


def test_the_way_to_each_other_gpu_and_the_near_cpus(tmp_path: Path) -> None:
    with ticking(tmp_path, "gpus=3\ngpu 1 affinity=65295 topo=50 p2p=6", index=1) as t:
        health = t.health()
    assert health.cpu_affinity == "0-3,8-15"
    assert health.peers == (PeerLink(0, "across sockets", 0), PeerLink(2, "across sockets", 0))


def test_a_gpu_that_is_lost_gives_no_slow_readings_and_two_calls_at_most(tmp_path: Path) -> None:
    with ticking(tmp_path) as t:
        t.tick()
        t.fake.set("gpu 0 rc.*=15")
        gone = t.tick(31_000)
    assert gone.health is None
    assert gone.burst is None
    assert sum(gone.calls.values()) <= 4


def test_a_binding_that_raises_something_odd_costs_one_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with ticking(tmp_path) as t:
        monkeypatch.setattr("pynvml.c_nvmlProcessesUtilizationInfo_v1_t", lambda: 3)
        for _ in range(3):
            health = t.tick(2000).health
    assert isinstance(health, DeviceHealth)
    assert health.process_utils_absent == NOT_READ
    assert health.bar1_used_bytes == 1048576
    assert [r.message.split(":")[0] for r in caplog.records] == ["reading process utilization of a GPU failed"]


def test_every_field_has_its_place_in_the_reading() -> None:
    fields = set(DeviceHealth.__struct_fields__)
    for field in COUNTERS:
        assert field.name in fields
    for field in (*MOVING, *LIMITS):
        name = field.name.replace("_mw", "_w").replace("_kib", "_bytes_per_s").removesuffix("_bytes")
        assert {name, f"{name}_share", f"{name}_bytes_per_s"} & fields, field.name


def test_errors_of_hoppers_links_are_added_up_and_links_that_do_not_run_are_counted(tmp_path: Path) -> None:
    links = "fi.91=3 fi.165=1 fi.165.1=0 fi.165.2=1 fi.161=5 fi.161.1=0 fi.161.2=7"
    with ticking(tmp_path, f"gpu 0 {links}") as t:
        health = t.health(1)
        t.fake.set("gpu 0 fi.161.2=9")
        later = t.health(32)
    assert (health.nvlink_links, health.nvlink_links_down, health.nvlink_link_replays) == (3, 1, 12)
    assert health.nvlink_link_crc_errors == NOT_SUPPORTED
    assert later.grown == (CounterGrowth("nvlink_link_replays", 2),)
    assert later.grown_window_ns > 30_000_000_000


def test_blackwells_links_tell_their_errors_by_the_counters_that_replaced_hoppers(tmp_path: Path) -> None:
    """Read by the older ids alone an NVLink that fails on a B200 would be a link without errors."""
    links = "fi.91=2 fi.165=1 fi.165.1=1 fi.215=3 fi.215.1=3 fi.214=1 fi.214.1=1 fi.208=10 fi.208.1=0 fi.211=0 fi.212=4"
    with ticking(tmp_path, f"gpu 0 {links}") as t:
        health = t.health(1)
        t.fake.set("gpu 0 fi.208.1=6 fi.215.1=4")
        later = t.health(32)
    assert health.nvlink_link_replays == health.nvlink_link_crc_errors == NOT_SUPPORTED
    assert (health.nvlink_link_recoveries, health.nvlink_link_failed_recoveries) == (6, 2)
    assert (health.nvlink_link_receive_errors, health.nvlink_link_integrity_errors) == (10, 0)
    assert health.nvlink_link_discards == 4
    assert set(later.grown) == {
        CounterGrowth("nvlink_link_receive_errors", 6),
        CounterGrowth("nvlink_link_recoveries", 1),
    }


def test_a_driver_before_blackwell_is_not_asked_for_nvlink_5(tmp_path: Path) -> None:
    with ticking(tmp_path, "driver=550.54.15\ngpu 0 fi.91=1 fi.162=2 fi.215=9 fi.208=9") as t:
        health = t.health(1)
    assert (health.nvlink_link_recoveries, health.nvlink_link_receive_errors) == (2, NOT_SUPPORTED)


def test_links_of_an_older_card_or_driver_are_asked_by_the_older_call(tmp_path: Path) -> None:
    for driver in ("580.159.04", "515.65.01"):
        with ticking(tmp_path, f"driver={driver}\ngpu 0 fi.91=2 link.0=1 link.1=0") as t:
            assert t.health(1).nvlink_links_down == 1


def test_a_fabric_that_is_not_ready_is_told_for_it_is_why_cuda_fails(tmp_path: Path) -> None:
    with ticking(tmp_path, "gpu 0 fabric=2:0:1") as t:
        health = t.health(1)
        assert (health.fabric_state, health.fabric_health) == (2, 1)
        said = list(card.warnings(health))
    assert said == [
        "the NVLink fabric is being set up: CUDA fails with error 802 until it is ready (nvidia-fabricmanager)",
        "the NVLink fabric: reduced bandwidth",
    ]
    failed = DeviceHealth(0, 0, fabric_state=3, fabric_status=15)
    assert list(card.warnings(failed)) == ["the NVLink fabric could not be set up (NVML error 15)"]
    assert list(card.warnings(DeviceHealth(0, 0, fabric_state=3, fabric_status=0, fabric_health=0b10101010))) == []


def test_limits_of_a_card_before_ada_are_temperatures_and_asked_once(tmp_path: Path) -> None:
    with ticking(tmp_path, "gpu 0 threshold.0=95 threshold.1=92 threshold.3=85") as t:
        first = t.tick()
        assert first.health is not None
        assert (first.health.temp_shutdown_c, first.health.temp_slowdown_c, first.health.temp_gpu_max_c) == (95, 92, 85)
        assert first.health.temp_mem_max_c == NOT_SUPPORTED
        assert "nvmlDeviceGetTemperatureThreshold" not in t.tick(31_000).calls


def test_engines_of_a_mig_instance_are_told_by_gpm_which_alone_knows_them(tmp_path: Path) -> None:
    engines = " ".join(f"rc.nvmlDeviceGet{name}Utilization=3" for name in ("Encoder", "Decoder", "Jpg", "Ofa"))
    absent = " ".join(f"gpmrc.{number}=3" for number in (*range(32, 38), *range(40, 48), 50, 51, *range(166, 170)))
    with ticking(tmp_path, f"gpu 0 {engines} gpm.30=40 gpm.31=61 {absent}") as t:
        health = t.health(6)
        calls = [t.tick(1000).calls.get("nvmlGpmMetricsGet", 0) for _ in range(8)]
    assert health.decoder_util_pct == 61, "a unit that is not there reads as an idle one: a mean would be too low"
    assert (health.encoder_util_pct, health.jpeg_util_pct, health.ofa_util_pct) == (NOT_SUPPORTED,) * 3
    assert sum(calls) == 8 + 4, "two more in four seconds, not one more in each tick"


def test_engines_that_the_card_tells_itself_are_not_asked_of_gpm(tmp_path: Path) -> None:
    with ticking(tmp_path, "gpu 0 dec=33 gpm.30=99") as t:
        assert t.health(6).decoder_util_pct == 33
        assert [t.tick(1000).calls.get("nvmlGpmMetricsGet", 0) for _ in range(4)] == [1] * 4
