"""vLLM with blockmgr as its block manager; its scheduler, workers and samplers stay.

If blockmgr is installed, one option of vLLM turns it on::

    vllm serve MODEL --additional-config '{"blockmgr": {}}'

``Scheduler`` does the same for engines that load no plugins
(``--scheduler-cls blockmgr.ports.vllm.Scheduler``). Only this package imports vLLM, and only when
it is used.
"""

from blockmgr.ports.unsupported import UnsupportedConfigError
from blockmgr.ports.vllm.options import OptionError, Options
from blockmgr.ports.vllm.plugin import Scheduler, register

__all__ = ["OptionError", "Options", "Scheduler", "UnsupportedConfigError", "register"]
