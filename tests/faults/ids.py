"""Does a manager grow with the sequences it has served? ``python -m tests.faults.ids``.

Answers the question of ``python -m tests.core ids`` through Python: prompts of new and known
namespaces are admitted, committed, forked and freed, and resident memory is compared with that
after a tenth of them. The argument is the number of sequences.
"""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

from blockmgr import BlockManager


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE")


def main(count: int) -> int:
    rng = random.Random(1)
    manager = BlockManager(num_blocks=4096, block_size=4, max_seqs=1025, min_partial_tokens=1)
    live: list[int] = []
    created = 0
    after_warm_up = most = 0
    while created < count:
        while len(live) > 1000 or manager.num_available < 8:
            place = rng.randrange(len(live))
            live[place], live[-1] = live[-1], live[place]
            manager.free(live.pop())
        tokens = [rng.randrange(2) for _ in range(rng.randint(1, 12))]
        number = str(created).encode()
        live.append(
            manager.admit(
                tokens,
                namespace=number if created % 2 else b"tenant",
                extras={0: number} if created % 16 == 0 else None,
            )
        )
        manager.commit(live[-1], len(tokens))
        created += 1
        if created % 16 == 0:
            live += manager.fork(live[-1])
            created += 1
            manager.append(live[-1], [1])
            manager.copies_applied(manager.take_copies().ticket)
        if created >= count // 10 and created % (count // 10) < 2:
            most = max(most, resident_bytes())
            after_warm_up = after_warm_up or most
            print(f"{created:12} sequences  {most / 2**20:.2f} MiB resident", flush=True)
    for handle in live:
        manager.free(handle)
    manager.check_invariants()
    growth = 100 * (most - after_warm_up) / after_warm_up
    print(f"{created} sequences, growth after warm-up {growth:.2f} % (at most 1 %)")
    return growth > 1


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000))
