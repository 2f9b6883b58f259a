"""Makes vLLM use this block manager, by a plug-in or a scheduler class.

Both wrap the constructor of vLLM's ``Scheduler``: while it runs, the name ``KVCacheManager`` in its
module refers to our manager. vLLM has no official interface for this.
"""

from __future__ import annotations

import functools
import logging
import sys
import threading
import time
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from blockmgr.ports.unsupported import UnsupportedConfigError
from blockmgr.ports.vllm.options import OptionError, Options

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Scheduler", "register", "scheduler_config"]

NAME = "blockmgr"
INSTEAD = (
    "To leave the KV cache to vLLM, start it with "
    '--additional-config \'{"blockmgr": {"fallback": "stock"}}\', or without that option'
)
MARK = "_blockmgr_register"
logger = logging.getLogger("vllm.blockmgr")
building = threading.Lock()
_config: ContextVar[Any] = ContextVar("blockmgr_vllm_config", default=None)


def register() -> None:
    """The plug-in of vLLM (``vllm.general_plugins``), which does nothing unless turned on."""
    _check_at_the_command_line()
    from vllm.v1.core.sched import scheduler  # noqa: PLC0415  needs vLLM

    original = scheduler.Scheduler.__init__
    if hasattr(original, MARK):
        return
    scheduler.Scheduler.__init__ = _watched(original)


def _check_at_the_command_line() -> None:
    """Make the process that reads vLLM's arguments refuse wrong options.

    The scheduler is made minutes later, in another process, whose error has two tracebacks. Only
    where the module of the arguments is imported already, because vLLM loads plug-ins in every
    process.
    """
    kind = getattr(sys.modules.get("vllm.engine.arg_utils"), "EngineArgs", None)
    original = getattr(kind, "create_engine_config", None)
    if kind is None or original is None or hasattr(original, MARK):
        return

    @functools.wraps(original)
    def create_engine_config(self: Any, *arguments: Any, **named: Any) -> Any:
        additional = getattr(self, "additional_config", None)
        if isinstance(additional, dict) and additional.get(NAME) is not None:
            Options.read(additional[NAME])
        return original(self, *arguments, **named)

    setattr(create_engine_config, MARK, True)
    kind.create_engine_config = create_engine_config


def scheduler_config() -> Any:
    """VLLM's configuration, for what is made in the constructor of its scheduler; else None."""
    return _config.get()


def Scheduler(vllm_config: Any, *arguments: Any, **named: Any) -> Any:
    """For ``--scheduler-cls blockmgr.ports.vllm.Scheduler``: vLLM's scheduler, on blockmgr.

    Asynchronous if vLLM's configuration says so. Options are those under ``blockmgr`` in
    ``--additional-config``, if there are any.

    Raises:
        OptionError: An option is wrong, or turns blockmgr off.
        UnsupportedConfigError: vLLM's configuration is not supported.
    """
    from vllm.v1.core.sched import async_scheduler, scheduler  # noqa: PLC0415

    additional = _additional(vllm_config)
    additional.setdefault(NAME, {})
    if not Options.read(additional[NAME]).enabled:
        raise OptionError(
            "blockmgr.enabled is false, and --scheduler-cls asks for blockmgr: remove one of them"
        )
    vllm_config.additional_config = additional
    register()
    asynchronous = vllm_config.scheduler_config.async_scheduling
    kind = async_scheduler.AsyncScheduler if asynchronous else scheduler.Scheduler
    return kind(vllm_config, *arguments, **named)


def _additional(vllm_config: Any) -> dict[str, Any]:
    config = vllm_config.additional_config
    return dict(config) if isinstance(config, dict) else {}


def _watched(original: Callable[..., None]) -> Callable[..., None]:
    def build(self: Any, vllm_config: Any, *arguments: Any, **named: Any) -> None:
        values = _additional(vllm_config).get(NAME)
        options = None if values is None else Options.read(values)
        if options is None or not options.enabled:
            return original(self, vllm_config, *arguments, **named)
        from vllm.v1.core.sched import scheduler  # noqa: PLC0415

        with building:
            stock = scheduler.KVCacheManager
            scheduler.KVCacheManager = functools.partial(_manager, options, vllm_config, stock)
            try:
                original(self, vllm_config, *arguments, **named)
            finally:
                scheduler.KVCacheManager = stock
        _settle(self, options, vllm_config)
        return None

    @functools.wraps(original)
    def __init__(self: Any, vllm_config: Any, *arguments: Any, **named: Any) -> None:
        before = _config.set(vllm_config)
        try:
            build(self, vllm_config, *arguments, **named)
        finally:
            _config.reset(before)

    setattr(__init__, MARK, True)
    return __init__


def _manager(
    options: Options, vllm_config: Any, stock: Callable[..., Any], **arguments: Any
) -> Any:
    """The manager for the scheduler: ours, or vLLM's for unsupported configurations."""
    from blockmgr.ports.vllm import manager, support  # noqa: PLC0415
    from blockmgr.ports.vllm.interface import INTERFACE  # noqa: PLC0415

    options = support.options_for(options, vllm_config, arguments)
    differences = INTERFACE.differences()
    lacking = [f"this version of vLLM is unknown: {d}" for d in differences if d.is_fatal]
    reasons = lacking + support.reasons_against(options, vllm_config, arguments)
    if reasons and options.fallback == "refuse":
        raise UnsupportedConfigError(tuple(reasons), INSTEAD)
    if reasons:
        logger.warning("blockmgr leaves the KV cache to vLLM: %s", "; ".join(reasons))
        return stock(**arguments)
    if not INTERFACE.is_tried():
        logger.warning(INTERFACE.warning(differences))
    # A step can preempt scheduled requests before it admits others, and sessions keep blocks.
    max_seqs = max(4 * vllm_config.scheduler_config.max_num_seqs, 1024)
    ours = manager.KVCacheManager(options, max_seqs, **arguments)
    config = ours.manager.config
    logger.info(
        "blockmgr manages the KV cache: %d blocks of %d tokens, eviction %s",
        config.num_blocks,
        config.block_size,
        options.eviction,
    )
    return ours


def _settle(scheduler: Any, options: Options, vllm_config: Any) -> None:
    """Stops hashing requests if nothing reads the hashes; else connects the publisher.

    The engine creates its block hasher after the scheduler, if there is caching or a connector.
    """
    from blockmgr.ports.vllm import manager, states  # noqa: PLC0415

    ours = scheduler.kv_cache_manager
    if not isinstance(ours, manager.KVCacheManager):
        return
    commits = ours.commits
    if scheduler.defer_block_free:
        commits.free_later = functools.partial(_free_later, scheduler)
        commits.most_in_flight = vllm_config.max_concurrent_batches
    if has_states := isinstance(commits, states.StateCommits):
        scheduler._mamba_block_aligned_split = commits.clip_chunk
        commits.finished_loads = functools.partial(_finished_loads, scheduler)
    if options.metrics_port:
        from blockmgr.ports.vllm import exposition  # noqa: PLC0415

        port = options.metrics_port + vllm_config.parallel_config.data_parallel_rank
        exposition.serve(ours.report, options.metrics_host, port)
    scheduler.add_request = _preparing(ours, scheduler)
    scheduler._handle_invalid_blocks = _forgetting(ours, scheduler)
    if ours.enable_kv_cache_events:
        ours.publish_events = functools.partial(_publish_events, scheduler)
    elif scheduler.connector is None and not options.hash_requests and not has_states:
        # Workers may share this configuration; those that move states insist on caching.
        vllm_config.cache_config.enable_prefix_caching = False


def _finished_loads(scheduler: Any) -> set[str]:
    """Requests whose loads have ended, and which the scheduler has not taken up yet."""
    done: set[str] = scheduler.finished_recving_kv_req_ids - scheduler.failed_recving_kv_req_ids
    return done


def _free_later(scheduler: Any, blocks: list[int]) -> None:
    """Ends holds once the steps in flight have run."""
    pool, fence = scheduler.kv_cache_manager.block_pool, scheduler.sched_step_seq
    scheduler._free_cow_retained_blocks([pool.blocks[block] for block in blocks], fence)


def _preparing(ours: Any, scheduler: Any) -> Callable[..., None]:
    add = scheduler.add_request

    @functools.wraps(add)
    def add_and_prepare(request: Any) -> None:
        is_new = request.request_id not in scheduler.requests  # or the next turn of a session
        add(request)
        if is_new:
            ours.prompts.prepare(request)

    return add_and_prepare


def _forgetting(ours: Any, scheduler: Any) -> Callable[..., set[str]]:
    handle: Callable[..., set[str]] = scheduler._handle_invalid_blocks

    @functools.wraps(handle)
    def handle_and_forget(*arguments: Any) -> set[str]:
        failed = handle(*arguments)
        ours.forget_failed(failed)
        return failed

    return handle_and_forget


def _publish_events(scheduler: Any) -> None:
    """Publishes events immediately: vLLM does it only in steps, and an idle engine has none."""
    from vllm.distributed.kv_events import KVEventBatch  # noqa: PLC0415

    if events := scheduler.kv_cache_manager.take_events():
        scheduler.kv_event_publisher.publish(KVEventBatch(ts=time.time(), events=events))
