"""A prefix cache for SGLang, on blockmgr: ``--radix-cache-backend blockmgr``.

SGLang finds the plug-in by itself where this package is installed. Its scheduler, its workers and
its slot allocator stay as they are; which slots hold which tokens is decided here. Full attention
only: what else SGLang may be configured for is refused at start-up, by name.
"""

from blockmgr.ports.sglang.plugin import register
from blockmgr.ports.unsupported import UnsupportedConfigError

__all__ = ["UnsupportedConfigError", "register"]
