"""What is read of a GPU every few seconds or once a minute.

Owns: DeviceHealth and its parts. Refuses: what is read each tick (device.py).
"""

from __future__ import annotations

from msgspec import Struct

from gpuwatch.model.reading import NOT_READ, Absent, Int, Num, Text


class ProcessUtil(Struct, frozen=True, array_like=True):
    """What one process on a GPU used since the previous reading, in percent of the engine's time."""

    pid: int
    sm_pct: Int = NOT_READ
    mem_pct: Int = NOT_READ
    encoder_pct: Int = NOT_READ
    decoder_pct: Int = NOT_READ


class PeerLink(Struct, frozen=True, array_like=True):
    """The nearest point at which two GPUs meet."""

    device_index: int
    """The other GPU."""
    path: Text
    """"same board", "one PCIe switch", "several PCIe switches", "host bridge", "same NUMA node", "across sockets"."""
    nvlink: Int = NOT_READ
    """1: the driver can copy between the two over NVLink."""


class CounterGrowth(Struct, frozen=True, array_like=True):
    """How much an error counter has grown of late."""

    counter: str
    """Its name here, such as "pcie_replays"."""
    count: int


class DeviceHealth(Struct, frozen=True, array_like=True):
    """What is read of a GPU less often than every tick: docs/telemetry.md has source, tier and unit of each.

    A value stands until its own tier's next turn; ``mono_ns`` is that of the newest part. Counters count since the
    driver was loaded unless said otherwise: alarm on growth, never on a value (a healthy card has PCIe errors).
    ``*_share`` of throttling is the part of the time since the previous reading.
    """

    device_index: int
    mono_ns: int
    bar1_total_bytes: Int = NOT_READ
    bar1_used_bytes: Int = NOT_READ
    power_avg_w: Num = NOT_READ
    """Over one second, by the driver."""
    power_instant_w: Num = NOT_READ
    power_memory_w: Num = NOT_READ
    """The memory's part of it."""
    energy_mj: Int = NOT_READ
    """Millijoules since the driver was loaded."""
    energy_power_w: Num = NOT_READ
    """Mean power over ``energy_window_ns``, from the energy counter: bursts between samples are in it."""
    energy_window_ns: int = 0
    power_limit_w: Num = NOT_READ
    """Enforced: the least of all limiters."""
    power_limit_default_w: Num = NOT_READ
    power_limit_min_w: Num = NOT_READ
    power_limit_max_w: Num = NOT_READ
    mem_temp_c: Int = NOT_READ
    temp_margin_c: Int = NOT_READ
    """Degrees left until the nearest slowdown; negative beyond it."""
    tlimit_shutdown_c: Int = NOT_READ
    """Signed offset on the margin's scale, as the next three: −8 is eight degrees beyond the limit."""
    tlimit_slowdown_c: Int = NOT_READ
    tlimit_mem_max_c: Int = NOT_READ
    tlimit_gpu_max_c: Int = NOT_READ
    sm_clock_max_mhz: Int = NOT_READ
    mem_clock_max_mhz: Int = NOT_READ
    performance_state: Int = NOT_READ
    """0 is the fastest; some data-centre cards stay in 0 when idle."""
    reasons_supported: Int = NOT_READ
    """Bits of ``ClocksEvent`` that this card can report: an unset bit is unknown, not fine."""
    throttle_window_ns: int = 0
    throttle_power_cap_share: Num = NOT_READ
    throttle_thermal_share: Num = NOT_READ
    """Any thermal reason."""
    throttle_sync_boost_share: Num = NOT_READ
    throttle_board_limit_share: Num = NOT_READ
    throttle_reliability_share: Num = NOT_READ
    throttle_sw_thermal_share: Num = NOT_READ
    throttle_hw_thermal_share: Num = NOT_READ
    throttle_power_brake_share: Num = NOT_READ
    ecc_enabled: Int = NOT_READ
    ecc_volatile_corrected: Int = NOT_READ
    ecc_volatile_uncorrected: Int = NOT_READ
    ecc_aggregate_corrected: Int = NOT_READ
    """Over the card's life, as the next."""
    ecc_aggregate_uncorrected: Int = NOT_READ
    remapped_correctable: Int = NOT_READ
    remapped_uncorrectable: Int = NOT_READ
    remap_pending: Int = NOT_READ
    """1: rows will be remapped at the next reset."""
    remap_failed: Int = NOT_READ
    retired_pages_corrected: Int = NOT_READ
    """Pages taken out of use, before Ampere; as the next two."""
    retired_pages_uncorrected: Int = NOT_READ
    retired_pages_pending: Int = NOT_READ
    recovery_action: Int = NOT_READ
    """What the driver asks for: 0 nothing, 1 GPU reset, 2 reboot, 3 drain peers, 4 drain and reset, 5 IMEX domain,
    6 bus reset, 7 system reboot."""
    pcie_gen: Int = NOT_READ
    pcie_width: Int = NOT_READ
    pcie_under_load: bool = False
    """The link was read while the GPU was busy: an idle link trains down, which is no fault."""
    pcie_gen_max: Int = NOT_READ
    """Of card and slot together."""
    pcie_width_max: Int = NOT_READ
    pcie_rx_bytes_per_s: Num = NOT_READ
    """Towards the GPU, from byte counters, over ``throttle_window_ns``; for cards without GPM. As the next three."""
    pcie_tx_bytes_per_s: Num = NOT_READ
    nvlink_rx_bytes_per_s: Num = NOT_READ
    nvlink_tx_bytes_per_s: Num = NOT_READ
    pcie_replays: Int = NOT_READ
    pcie_replay_rollovers: Int = NOT_READ
    pcie_to_recovery: Int = NOT_READ
    """Times that the link went to recovery."""
    pcie_correctable_errors: Int = NOT_READ
    pcie_naks_received: Int = NOT_READ
    pcie_receiver_errors: Int = NOT_READ
    pcie_bad_tlps: Int = NOT_READ
    pcie_naks_sent: Int = NOT_READ
    pcie_bad_dllps: Int = NOT_READ
    pcie_nonfatal_errors: Int = NOT_READ
    pcie_fatal_errors: Int = NOT_READ
    pcie_unsupported_requests: Int = NOT_READ
    pcie_lcrc_errors: Int = NOT_READ
    pcie_lane_errors: Int = NOT_READ
    nvlink_links: Int = NOT_READ
    nvlink_link_mbytes_per_s: Int = NOT_READ
    """Of one link and direction."""
    nvlink_crc_flit_errors: Int = NOT_READ
    nvlink_crc_data_errors: Int = NOT_READ
    nvlink_replays: Int = NOT_READ
    nvlink_recoveries: Int = NOT_READ
    encoder_util_pct: Int = NOT_READ
    decoder_util_pct: Int = NOT_READ
    jpeg_util_pct: Int = NOT_READ
    ofa_util_pct: Int = NOT_READ
    """Optical flow accelerator."""
    fan_pct: Int = NOT_READ
    """Of the intended maximum, the fastest fan; a blocked fan still reads so."""
    persistence_mode: Int = NOT_READ
    """0 with no client: every start of CUDA pays seconds per GPU."""
    compute_mode: Int = NOT_READ
    """0 shared, 2 prohibited, 3 exclusive process."""
    mig_enabled: Int = NOT_READ
    virtualization: Int = NOT_READ
    """0 none, 1 passed through, 2 vGPU, 3 and 4 host of vGPUs."""
    confidential_compute: Int = NOT_READ
    """1: performance counters are off unless the developer tools mode is on."""
    cpu_affinity: Text = NOT_READ
    """CPUs near this GPU, such as "0-31,64-95"."""
    peers: tuple[PeerLink, ...] = ()
    process_utils: tuple[ProcessUtil, ...] = ()
    """One for each process that NVML lists on this GPU."""
    process_utils_absent: Absent | None = NOT_READ
    slowed_calls: tuple[str, ...] = ()
    """Groups of calls that took too long here and are made less often for it."""
    grown: tuple[CounterGrowth, ...] = ()
    """Error counters that have grown within ``grown_window_ns``; empty is a card without new errors."""
    grown_window_ns: int = 0
    """An hour, or the time since this GPU's counters were read first; 0 before the second reading."""
    graphics_clock_mhz: Int = NOT_READ
    video_clock_mhz: Int = NOT_READ
    """Of encoders and decoders."""
    temp_shutdown_c: Int = NOT_READ
    """Degrees, as the next three: of cards whose limits are temperatures, before Ada. Newer ones have ``tlimit_*``."""
    temp_slowdown_c: Int = NOT_READ
    temp_mem_max_c: Int = NOT_READ
    temp_gpu_max_c: Int = NOT_READ
    nvlink_ecc_errors: Int = NOT_READ
    nvlink_link_replays: Int = NOT_READ
    """Sum over the links, as the next two: from Hopper on they count by link, not by GPU."""
    nvlink_link_recoveries: Int = NOT_READ
    nvlink_link_crc_errors: Int = NOT_READ
    nvlink_links_down: Int = NOT_READ
    """Links that do not run. All of them on a card without a bridge: some of them is news."""
    fabric_state: Int = NOT_READ
    """Of the NVSwitch fabric: 0 none, 1 not started, 2 being set up, 3 ready. Before 3 CUDA fails with error 802."""
    fabric_status: Int = NOT_READ
    """NVML's code for how setting it up ended; 0 is well. Of a fabric that is ready."""
    fabric_health: Int = NOT_READ
    """Bits, two for each question, 1 is bad: reduced bandwidth, routes being recovered, routes unhealthy, recovery from
    a timeout of access."""
    c2c_links: Int = NOT_READ
    """Links to the CPU beside it (Grace)."""
    c2c_link_mbytes_per_s: Int = NOT_READ
    """Of one link, as the first of them tells."""
    nvlink_link_failed_recoveries: Int = NOT_READ
    """Sum over the links, as the next three, of NVLink 5 (Blackwell): a link was given up."""
    nvlink_link_receive_errors: Int = NOT_READ
    """Packets that came with an error."""
    nvlink_link_integrity_errors: Int = NOT_READ
    """Times that a link's own errors went over its limit."""
    nvlink_link_discards: Int = NOT_READ
    """Packets with an error that were not sent."""
