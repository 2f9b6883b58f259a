"""vLLM on blockmgr: its own scheduler, workers and samplers; the block manager is this one.

Installed beside vLLM it is switched on by one option, and does nothing without it::

    vllm serve MODEL --additional-config '{"blockmgr": {}}'

``Scheduler`` is the same for engines that load no plugins (``--scheduler-cls
blockmgr.ports.vllm.Scheduler``). Only this package imports vLLM, and only when it is used.
"""

from blockmgr.ports.unsupported import UnsupportedConfigError
from blockmgr.ports.vllm.options import OptionError, Options
from blockmgr.ports.vllm.plugin import Scheduler, register

__all__ = ["OptionError", "Options", "Scheduler", "UnsupportedConfigError", "register"]
