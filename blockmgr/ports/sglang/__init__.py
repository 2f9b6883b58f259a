"""A prefix cache for SGLang, on blockmgr: ``--radix-cache-backend blockmgr``.

SGLang finds the plug-in if this package is installed. Its scheduler, its workers and its slot
allocator do not change; this cache decides which slots hold which tokens. It supports full
attention only, and refuses other configurations of SGLang at start-up, by name.
"""

from blockmgr.ports.sglang.plugin import register
from blockmgr.ports.unsupported import UnsupportedConfigError

__all__ = ["UnsupportedConfigError", "register"]
