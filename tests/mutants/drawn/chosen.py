"""The tests that must find a bug of a file, the quickest first.

Each entry has the arguments of one run of pytest. A file without an entry uses ``REST``.
"""

from __future__ import annotations

from fnmatch import fnmatch
from pathlib import Path

from tests.mutants.planted import OF_GROUPS

ROOT = Path(__file__).parents[3]

UNIT = "tests/unit"
POOL = (
    "tests/ports/test_pool.py tests/ports/test_pool_bad_input.py tests/ports/test_port_policies.py"
    " tests/unit/test_shares.py"
)
CORE = (
    f"{UNIT}/test_admission.py {UNIT}/test_growth.py {UNIT}/test_fork.py {UNIT}/test_copies.py"
    f" {UNIT}/test_release.py {UNIT}/test_eviction.py {UNIT}/test_steps.py {UNIT}/test_dedup.py"
    f" {UNIT}/test_partial_reuse.py {UNIT}/test_stats.py {UNIT}/test_quotas.py {UNIT}/test_salts.py"
    f" {UNIT}/test_identity.py {UNIT}/test_retention.py {UNIT}/test_explain.py {UNIT}/test_debug.py"
    f" {UNIT}/test_inspect.py {UNIT}/test_hit_rate_curve.py {UNIT}/test_memory.py"
    f" {UNIT}/test_policies.py {UNIT}/test_python_policy.py {UNIT}/test_shares.py"
    f" {UNIT}/test_blocks_by_id.py {UNIT}/test_cache_calls.py {UNIT}/test_events.py"
    f" {UNIT}/test_uncopied.py tests/golden"
)
INPUT = (
    f"{UNIT}/test_bad_input.py {UNIT}/test_wrong_calls.py {UNIT}/test_arguments.py"
    f" {UNIT}/test_errors.py {UNIT}/test_digest.py {UNIT}/test_package.py"
)
ARGUMENTS = "tests/arguments"
STRESS = "tests/stateful/test_stress.py"
POLICIES = (
    f"tests/golden/test_policies.py {UNIT}/test_policies.py tests/property/test_policies.py"
    " tests/conformance/test_policies.py"
)
EVENTS = (
    f"{UNIT}/test_events.py",
    f"{UNIT}/test_event_wire.py {UNIT}/test_event_stream.py {UNIT}/test_worker_index.py",
    "tests/stateful/test_event_mirror.py",
)
INDEX = (f"{UNIT}/test_worker_index.py {UNIT}/test_index_service.py", *EVENTS[1:])
VLLM_DIGESTS = f"{UNIT}/test_digest.py tests/property/test_vllm_digests.py"
ENGINE = (
    "tests/ports/test_engine_behaviour.py tests/ports/test_engine_beam.py"
    " tests/ports/test_engine_threads.py",
    "tests/ports/test_engine_tokens.py tests/ports/test_engine_models.py",
)
CLI = "tests/cli --ignore=tests/cli/test_interrupt.py"
LAB = "tests/lab"
REST = (CORE, STRESS, INPUT)
CONFORMANCE = "tests/conformance/test_manager.py"
# Under sanitizers: tests that read arguments and write arrays.
MISREAD = (ARGUMENTS, f"{INPUT} {UNIT}/test_cache_calls.py tests/kv/test_copy_checker.py")

BY_FILE: dict[str, tuple[str, ...]] = {
    # Between Python and the core.
    "csrc/bindings/block_pool.cc": (POOL, f"{INPUT} {UNIT}/test_shares.py", ARGUMENTS),
    "csrc/bindings/cbor.cc": EVENTS[1:],
    "csrc/bindings/events*": (*EVENTS, ARGUMENTS),
    "csrc/bindings/fleet*": (*INDEX, ARGUMENTS),
    "csrc/bindings/digest*": (VLLM_DIGESTS, CORE, INPUT),
    "csrc/bindings/copies.cc": (
        f"{UNIT}/test_copies.py tests/kv/test_copy_order.py tests/kv/test_copy_checker.py",
        CORE,
        INPUT,
        ARGUMENTS,
    ),
    "csrc/bindings/policy.*": (
        f"{UNIT}/test_python_policy.py",
        "tests/property/test_policies.py",
        CORE,
    ),
    "csrc/bindings/input.cc": (INPUT, ARGUMENTS, CORE),
    "csrc/bindings/*": (
        CORE,
        f"{INPUT} {UNIT}/test_cache_calls.py",
        f"{UNIT}/test_threads.py {UNIT}/test_isolation.py"
        f" {UNIT}/test_forks_of_the_process.py {UNIT}/test_stray_writes.py",
        ARGUMENTS,
    ),
    # The core, after its own programs.
    "csrc/*/group*": (" ".join(OF_GROUPS),),
    "csrc/sequences/monitor*": (
        f"{UNIT}/test_forks_of_the_process.py {UNIT}/test_threads.py {UNIT}/test_isolation.py",
        CORE,
    ),
    "csrc/events/*": EVENTS,
    "csrc/fleet/*": INDEX,
    "csrc/identity/event_columns*": EVENTS,
    "csrc/identity/[cd]*": (VLLM_DIGESTS, CORE, INPUT),
    "csrc/sequences/block_pool*": (POOL,),
    "csrc/sequences/copy_order*": (
        f"tests/kv/test_copy_order.py tests/kv/test_copy_checker.py {UNIT}/test_copies.py",
    ),
    "csrc/policies/reuse*": (f"{UNIT}/test_hit_rate_curve.py tests/property/test_reuse.py", CORE),
    "csrc/sequences/explain*": (f"{UNIT}/test_explain.py tests/property/test_explain.py", CORE),
    "csrc/*/ret*": (f"{UNIT}/test_retention.py tests/property/test_retention.py", CORE),
    "csrc/policies/*": (POLICIES, CORE),
    "csrc/memory/buckets*": (POLICIES, CORE),
    "csrc/*": (CORE, INPUT, f"{UNIT}/test_interference.py {CONFORMANCE}"),
    # The package.
    "manager.py": (
        CORE,
        INPUT,
        CONFORMANCE,
        f"{UNIT}/test_threads.py {UNIT}/test_isolation.py",
        STRESS,
    ),
    "pool.py": (POOL, INPUT, f"{UNIT}/test_shares.py"),
    "explain.py": (
        f"{UNIT}/test_explain.py tests/property/test_explain.py",
        "tests/cli/test_explain.py",
    ),
    "inspect.py": (f"{UNIT}/test_inspect.py tests/cli/test_show.py", CORE),
    "config.py": (CORE, INPUT, POLICIES),
    "options.py": (f"{UNIT}/test_options.py", INPUT),
    "digest.py": (VLLM_DIGESTS, "tests/property/test_digest_bytes.py", CORE),
    "vllm_keys.py": (VLLM_DIGESTS,),
    "event_columns.py": EVENTS,
    "common_calls.py": (CORE, POOL, INPUT, *EVENTS),
    "events/*": EVENTS[1:],
    "index/*": INDEX,
    "metrics.py": (f"{UNIT}/test_metrics.py {UNIT}/test_dashboard.py",),
    "policy.py": (f"{UNIT}/test_python_policy.py tests/property/test_policies.py", CORE),
    "files.py": (f"{UNIT}/test_files.py tests/lab/test_trace.py", LAB, CLI),
    "arguments.py": (CORE, INPUT, f"{UNIT}/test_files.py {UNIT}/test_event_stream.py", LAB),
    "installed.py": (f"{UNIT}/test_clone.py {UNIT}/test_package.py",),
    "interrupt.py": ("tests/cli",),
    "__main__.py": ("tests/cli/test_cli.py",),
    "cli/*": (CLI,),
    "lab/references.py": ("tests/lab/test_references.py tests/lab/test_optimum.py", LAB),
    "lab/report.py": ("tests/lab/test_report.py tests/cli/test_lab_commands.py", LAB, CLI),
    "lab/formats/*": ("tests/lab/test_formats.py tests/lab/test_trace.py", LAB, CLI),
    "lab/*": ("tests/lab/test_{stem}.py", LAB, CLI),
    "kv/copy_triton.py": (
        "tests/kv/test_copy_errors.py tests/kv/test_copy_ops.py tests/kv/test_copy_layouts.py",
        "tests/kv --deselect tests/kv/test_copy_far.py",
    ),
    "shapes/*": (
        "tests/kv/test_shape.py tests/kv/test_hybrid_shape.py tests/cli/test_model_option.py",
    ),
    "kv/*": (
        "tests/kv --ignore=tests/kv/test_copy_compiled.py --ignore=tests/kv/test_write_compiled.py",
        *ENGINE,
    ),
    "ports/drift.py": ("tests/ports/test_drift.py tests/ports/test_vllm_options.py",),
    "ports/unsupported.py": ("tests/ports/test_vllm_options.py",),
    "ports/sglang/keys.py": ("tests/ports/test_sglang_keys.py",),
    "ports/vllm/options.py": ("tests/ports/test_vllm_options.py",),
    "ports/sglang/*": ("tests/ports/test_sglang_keys.py", "tests/engines/sglang/test_port.py"),
    "ports/vllm/*": ("tests/ports/test_vllm_options.py", "tests/engines/test_planted.py"),
    "ports/aphrodite/*": (
        "tests/ports/test_aphrodite.py tests/ports/test_aphrodite_bad_input.py"
        " tests/ports/test_aphrodite_swaps.py"
        " tests/ports/test_aphrodite_tables.py tests/ports/test_aphrodite_scheduling.py",
        "tests/ports/test_lives.py",
    ),
    "ports/nano_vllm.py": ("tests/ports/test_nano_vllm.py",),
    "ports/radix/*": (
        "tests/ports/test_radix.py tests/ports/test_radix_paged.py"
        " tests/ports/test_radix_defects.py tests/ports/test_threads.py",
        "tests/ports/test_lives.py",
    ),
    "ports/slots.py": (
        "tests/ports/test_slots.py",
        "tests/ports/test_slots_random.py",
    ),
    "ports/tgi.py": (
        "tests/ports/test_tgi.py tests/ports/test_tgi_defects.py tests/ports/test_tgi_tasks.py",
    ),
    "ports/engine/*": ENGINE,
    "ports/transformers/*": ENGINE,
}


def tests_of(file: str) -> tuple[str, ...]:
    """The test runs for a bug of this file, in order."""
    name = file.removeprefix("blockmgr/")
    stem = name.rsplit("/", 1)[-1].removesuffix(".py")
    for pattern, tests in BY_FILE.items():
        if fnmatch(name, pattern):
            return tuple(filter(None, (there(entry.format(stem=stem)) for entry in tests)))
    return REST


def there(entry: str) -> str:
    """Drops missing files, because not every module has its own test file."""
    words = [w for w in entry.split() if w.startswith("-") or (ROOT / w).exists()]
    return " ".join(words) if any(not word.startswith("-") for word in words) else ""
