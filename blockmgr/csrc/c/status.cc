#include "c/status.h"

#include <cstdarg>
#include <cstdio>
#include <iterator>
#include <new>
#include <stdexcept>

#include "memory/errors.h"

namespace blockmgr::c {

namespace {

// Fixed memory, so that a shortage of memory has a text, too.
struct LastError {
  char text[512] = "";
  std::int64_t needed = 0, available = 0, reserved = 0;
};
thread_local LastError last;

[[gnu::format(printf, 1, 2)]] void say(const char* format, ...) noexcept {
  std::va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(last.text, sizeof last.text, format, arguments);
  va_end(arguments);
}

void note(std::int64_t needed, std::int64_t available, std::int64_t reserved = 0) noexcept {
  last.needed = needed;
  last.available = available;
  last.reserved = reserved;
}

long long wide(std::int64_t number) { return number; }

// By ErrorKind.
constexpr blockmgr_status kStatuses[] = {
    BLOCKMGR_BAD_VALUE, BLOCKMGR_NEVER_FITS, BLOCKMGR_SEQUENCE_STATE,
    BLOCKMGR_STEP,      BLOCKMGR_TICKET,     BLOCKMGR_REENTRANCY,
    BLOCKMGR_FORK};
static_assert(std::size(kStatuses) == static_cast<std::size_t>(ErrorKind::kFork) + 1);

struct StatusText {
  blockmgr_status status;
  const char* text;
};
constexpr StatusText kTexts[] = {{BLOCKMGR_OK, "ok"},
                                 {BLOCKMGR_OUT_OF_BLOCKS, "out of blocks"},
                                 {BLOCKMGR_OUT_OF_SEQUENCES, "out of sequences"},
                                 {BLOCKMGR_PIN_BUDGET, "pin budget"},
                                 {BLOCKMGR_STALE_MATCH, "stale match"},
                                 {BLOCKMGR_TOO_SMALL, "too small"},
                                 {BLOCKMGR_OUT_OF_NODES, "out of nodes"},
                                 {BLOCKMGR_BAD_VALUE, "bad value"},
                                 {BLOCKMGR_NEVER_FITS, "never fits"},
                                 {BLOCKMGR_UNKNOWN_SEQUENCE, "unknown sequence"},
                                 {BLOCKMGR_UNKNOWN_PIN, "unknown pin"},
                                 {BLOCKMGR_SEQUENCE_STATE, "sequence state"},
                                 {BLOCKMGR_BLOCK_STATE, "block state"},
                                 {BLOCKMGR_STEP, "step"},
                                 {BLOCKMGR_TICKET, "ticket"},
                                 {BLOCKMGR_REENTRANCY, "reentrancy"},
                                 {BLOCKMGR_FORK, "fork"},
                                 {BLOCKMGR_DIGEST_FAILED, "digest failed"},
                                 {BLOCKMGR_OUT_OF_MEMORY, "out of memory"},
                                 {BLOCKMGR_INVARIANT, "invariant"},
                                 {BLOCKMGR_INTERNAL, "internal"}};

// An ordinary shortage.
blockmgr_status report_shortage(const OutOfBlocks& e) noexcept {
  note(e.needed, e.available, e.watermark);
  if (e.of_nodes) {
    say("need %lld nodes, %lld available; num_nodes sets how many there are", wide(e.needed),
        wide(e.available));
    return BLOCKMGR_OUT_OF_NODES;
  }
  const std::int64_t held_back = e.watermark < e.available ? e.watermark : e.available;
  say("need %lld blocks, %lld available", wide(e.needed), wide(e.available));
  if (e.watermark)
    say("need %lld blocks, %lld available, %lld of them held back by the watermark", wide(e.needed),
        wide(e.available), wide(held_back));
  return BLOCKMGR_OUT_OF_BLOCKS;
}

}  // namespace

blockmgr_status report() noexcept {
  try {
    throw;
  } catch (const TooSmall& e) {
    say("room must be at least %lld, got %lld", wide(e.needed), wide(e.room));
    return BLOCKMGR_TOO_SMALL;
  } catch (const DigestFailed& e) {
    say("the digest function returned %d", e.answer);
    return BLOCKMGR_DIGEST_FAILED;
  } catch (const OutOfBlocks& e) {
    return report_shortage(e);
  } catch (const OutOfSequences& e) {
    note(e.needed, e.available);
    say("need %lld sequence rows, %lld available; max_seqs sets how many there are", wide(e.needed),
        wide(e.available));
    return BLOCKMGR_OUT_OF_SEQUENCES;
  } catch (const PinBudget& e) {
    note(e.needed, e.available);
    say("need %lld more of the pin budget, %lld of %lld left; max_pinned_blocks sets it",
        wide(e.needed), wide(e.available), wide(e.budget));
    return BLOCKMGR_PIN_BUDGET;
  } catch (const StaleMatch& e) {
    say("the match found %lld tokens, %lld of them are cached now", wide(e.expected),
        wide(e.found));
    return BLOCKMGR_STALE_MATCH;
  } catch (const UnknownSequence& e) {
    say("handle %lld names no live sequence; it was freed, or never issued", wide(e.handle));
    return BLOCKMGR_UNKNOWN_SEQUENCE;
  } catch (const UnknownPin& e) {
    say("pin %lld is not held; it was released, or never made", wide(e.pin));
    return BLOCKMGR_UNKNOWN_PIN;
  } catch (const WrongBlockState& e) {
    say("block %lld: %s", wide(e.block), e.problem.c_str());
    return BLOCKMGR_BLOCK_STATE;
  } catch (const BrokenInvariants& e) {
    say("%s", e.violations.empty() ? "broken invariants" : e.violations.front().c_str());
    return BLOCKMGR_INVARIANT;
  } catch (const Error& e) {
    say("%s", e.what());
    return kStatuses[static_cast<std::size_t>(e.kind)];
  } catch (const std::bad_alloc&) {
    say("out of memory");
    return BLOCKMGR_OUT_OF_MEMORY;
  } catch (const std::length_error&) {
    say("out of memory: more than can be addressed");
    return BLOCKMGR_OUT_OF_MEMORY;
  } catch (const std::exception& e) {
    say("unexpected: %s", e.what());
  } catch (...) {
    say("unexpected exception");
  }
  return BLOCKMGR_INTERNAL;
}

}  // namespace blockmgr::c

using blockmgr::c::last;

uint32_t blockmgr_version(void) {
  return BLOCKMGR_VERSION_MAJOR << 16 | BLOCKMGR_VERSION_MINOR << 8 | BLOCKMGR_VERSION_PATCH;
}

const char* blockmgr_last_error(void) { return last.text; }

void blockmgr_last_shortage(int64_t* needed, int64_t* available, int64_t* reserved) {
  if (needed) *needed = last.needed;
  if (available) *available = last.available;
  if (reserved) *reserved = last.reserved;
}

const char* blockmgr_status_text(blockmgr_status status) {
  for (const auto& each : blockmgr::c::kTexts)
    if (each.status == status) return each.text;
  return "no status of this version";
}
