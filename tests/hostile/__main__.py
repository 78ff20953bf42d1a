"""Attack an emulator on this machine: `python -m tests.hostile [ATTACK ...] [--before CHECKOUT]`.

Each attack runs against an emulator in a process of its own, while another client sends messages. A row shows the
processor time of the emulator, how long it waited for a processor that other programs used, the growth of its memory at
its peak and 2 s later, the longest step of its event loop in processor time, and the latency of that client, alone and
during the attack. With `--before` each attack first runs against the version of the package in a directory.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Final

from tests.hostile.attacks import ATTACKS, Attack
from tests.hostile.limits import MAX_P99_S, memory_limit_mib
from tests.hostile.target import Bystander, percentile, serving

QUIET_S: Final = 1.0
LOOK_AGAIN_S: Final = 0.2
ATTEMPTS: Final = 3
"""How often an attack is measured that exceeds a limit, because other programs may have delayed the other client."""


def measure(name: str, attack: Attack, checkout: Path | None) -> bool:
    """Run one attack, print its row, and return whether the other client and the memory kept their limits."""
    with serving(checkout, *attack.options, descriptors=attack.descriptors) as server:
        bystander = Bystander(server.port)
        time.sleep(QUIET_S)
        alone = bystander.latencies()
        server.forget_peak()
        memory, cpu, queued, began_at = server.memory_mib(), server.cpu_s(), server.waited_s(), time.monotonic()
        note = attack.run(server)
        time.sleep(max(LOOK_AGAIN_S, attack.settles_s))
        taken = bystander.latencies()
        spent, peak, lasted = server.cpu_s() - cpu, server.memory_mib("VmHWM") - memory, time.monotonic() - began_at
        step, queued = server.longest_step_s(began_at), server.waited_s() - queued
        time.sleep(2.0)
        left = server.memory_mib() - memory
        bystander.close()
    version = "after" if checkout is None else "before"
    quiet, p99, worst = percentile(alone, 0.99), percentile(taken, 0.99), percentile(taken, 1.0)
    is_kept = p99 <= MAX_P99_S and peak <= memory_limit_mib(attack.sent_mib)
    print(
        f"{name:24} {version:6} {spent:6.2f} s {queued:6.2f} s of {lasted:5.1f} "
        f"{peak:7.1f} {left:7.1f} MiB  {len(taken):5} {step * 1e3:6.1f} "
        f"{quiet * 1e3:6.1f} {p99 * 1e3:8.1f} {worst * 1e3:8.1f} ms  "
        f"{'kept' if is_kept else 'NOT KEPT'}, {note}",
        flush=True,
    )
    return is_kept


def main() -> int:
    """Run the chosen attacks; the exit status is 1 if one delays the other client or takes memory too much."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("attacks", nargs="*", metavar="ATTACK", help=f"{', '.join(ATTACKS)}; all by default")
    parser.add_argument("--before", type=Path, metavar="CHECKOUT", help="also attack the version in this directory")
    options = parser.parse_args()
    print(
        f"{'':31} {'processor':9} {'waited':14} {'peak':>6} {'later':>7}      {'sends':>6} {'step':>6} {'alone':>6} "
        f"{'p99':>8} {'worst':>8}"
    )
    are_served = True
    for name in options.attacks or ATTACKS:
        if options.before:
            measure(name, ATTACKS[name], options.before)
        are_served = any(measure(name, ATTACKS[name], None) for _ in range(ATTEMPTS)) and are_served
    return 0 if are_served else 1


if __name__ == "__main__":
    raise SystemExit(main())
