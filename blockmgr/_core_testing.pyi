"""What only tests need of the native core."""

from typing import overload

import blockmgr._core


@overload
def fingerprint(core: blockmgr._core.Core) -> bytes: ...

@overload
def fingerprint(core: blockmgr._core.PoolCore) -> bytes: ...

def victim_steps(core: blockmgr._core.Core) -> int: ...

def longest_runs(digests: bytes) -> tuple[int, int]: ...
