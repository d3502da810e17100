"""The files and programs of a box's sensors, in a folder that stands for its root."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

# Of a Raspberry Pi 5: raspberrypi.com/documentation/computers/os.html, `vcgencmd`. 3.3 V x 0.6 A + 0.85 V x 1.2 A.
VCGENCMD = """#!/bin/sh
case "$1" in
get_throttled) echo 'throttled=0x80008' ;;
measure_temp) echo "temp=48.3'C" ;;
pmic_read_adc)
  echo '     3V3_SYS_A current(2)=0.60000000A'
  echo '    VDD_CORE_A current(7)=1.20000000A'
  echo '     3V3_SYS_V volt(10)=3.30000000V'
  echo '    VDD_CORE_V volt(15)=0.85000000V'
  echo '      EXT5V_V volt(24)=5.14000000V' ;;
esac
"""


def write_files(root: Path, files: Mapping[str, str]) -> None:
    """Write each file; one that begins with `#!` is a program."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        if text.startswith("#!"):
            path.chmod(0o755)


def heat(root: Path, celsius: float) -> None:
    """The box's only thermal zone says so."""
    zone = "sys/class/thermal/thermal_zone0"
    write_files(root, {f"{zone}/temp": f"{celsius * 1000:.0f}\n", f"{zone}/type": "cpu-thermal\n"})


def memory(root: Path, available_mb: float, stalled_percent: float = 0.0, total_mb: float = 4000) -> None:
    """What the kernel says of the box's memory."""
    kilobytes = f"MemTotal: {total_mb * 1024:.0f} kB\nMemAvailable: {available_mb * 1024:.0f} kB\n"
    pressure = f"some avg10={stalled_percent:.2f} avg60=0.00 avg300=0.00 total=0\nfull avg10=0.00 avg60=0.00 total=0\n"
    write_files(root, {"proc/meminfo": kilobytes, "proc/pressure/memory": pressure})
