"""Compiles the copy kernels for GPUs that are not present.

Run ``python -m tests.kv.compile_kernels``. It is a separate process, because the tests beside it
interpret the kernels. The package's launcher compiles and "launches" through Triton's own path, on
a driver that replaces a GPU, so the examined code is the code that would run. Prints a JSON object
for each kernel, target and tile.
"""

from __future__ import annotations

import json
import re
import sys
from types import SimpleNamespace
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget

from blockmgr.kv import copy_triton

TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "sm_100": GPUTarget("cuda", 100, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
DATA_OF_CUDA = re.compile(r"\b(ld|st)\.global(?:\.\w+)*?\.(?:v(\d)\.)?b(\d+)")
DATA_OF_HIP = re.compile(r"\b(?:buffer|global|flat)_(load|store)_(\w+)")
HIP_WIDTHS = {"dwordx4": 16, "dwordx3": 12, "dwordx2": 8, "dword": 4}


class Driver:
    """The part of a GPU driver that compiling and launching needs."""

    def __init__(self, device: int, target: GPUTarget) -> None:
        self.device = device  # Triton caches compiled code by device
        self.target = target
        self.launches: list[tuple[Any, ...]] = []
        self.utils = SimpleNamespace(
            load_binary=lambda *_: (object(), 1, 32, 0, 1024),
            unload_module=lambda _: None,
            get_device_properties=lambda _: {"max_shared_mem": 1 << 17, "warpSize": 64},
        )

    def get_current_device(self) -> int:
        return self.device

    def get_current_stream(self, _: int) -> int:
        return 7

    def get_current_target(self) -> GPUTarget:
        return self.target

    def launcher_cls(self, source: Any, _: Any) -> Any:
        types = list(source.signature.values())

        def launch(*arguments: Any) -> None:
            grid, stream, values = arguments[:3], arguments[3], arguments[9:]
            kinds = [t for t in types if t != "constexpr"]
            given = [v for v, t in zip(values, types, strict=True) if t != "constexpr"]
            self.launches.append((grid, stream, kinds, given))

        return launch


def widths(assembly: dict[str, str]) -> dict[str, list[int]]:
    """Bytes of each access of global memory in the code: ``{"load": [...], "store": [...]}``."""
    found: dict[str, list[int]] = {"load": [], "store": []}
    if "ptx" in assembly:
        for kind, words, bits in DATA_OF_CUDA.findall(assembly["ptx"]):
            size = int(words or 1) * int(bits) // 8
            found["load" if kind == "ld" else "store"].append(size)
    else:
        for kind, width in DATA_OF_HIP.findall(assembly["amdgcn"]):
            found[kind].append(HIP_WIDTHS.get(width, 0))
    return found


def main() -> None:
    table = torch.zeros(1, 8, dtype=torch.int64)
    chunks = torch.zeros(1, 2, dtype=torch.int32)
    odd = torch.zeros(64, dtype=torch.int32)[3:]  # as pairs are: not aligned to 16 bytes
    for device, (name, target) in enumerate(TARGETS.items()):
        driver = Driver(device, target)
        triton.runtime.driver.set_active(driver)
        for kernel, example in (
            (copy_triton.copy_kernel, (table, table, chunks, odd, odd, 2, 2, 2, 2)),
            (copy_triton.copy_few_kernel, (table, table, chunks, *[2] * 16)),
            (copy_triton.move_kernel, (table, chunks, odd, 2, 2)),
        ):
            launcher = copy_triton._Launcher(kernel, 16, *example)
            # Lengths 1 and 16, which fail if a launch is specialised on its first list.
            numbers = [a if isinstance(a, torch.Tensor) else 1 for a in example]
            launcher(5, *numbers)
            (grid, stream, kinds, given) = driver.launches.pop()
            right = all(a is b for a, b in zip(given, numbers, strict=True))
            json.dump(
                {
                    "target": name,
                    "kernel": kernel.__name__,
                    "units": copy_triton.TILE_UNITS,
                    "threads": copy_triton.NUM_WARPS * target.warp_size,
                    "shared": launcher._run.metadata.shared,
                    "grid": list(grid),
                    "stream": stream,
                    "types": kinds,
                    "arguments_arrive": right,
                    **widths(launcher._run.asm),
                },
                sys.stdout,
            )
            print()


if __name__ == "__main__":
    main()
