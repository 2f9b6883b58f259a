#include "c/status.h"

#include <cstdarg>
#include <cstdio>
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

blockmgr_status status_of(ErrorKind kind) noexcept {
  switch (kind) {
    case ErrorKind::kValue:
      return BLOCKMGR_BAD_VALUE;
    case ErrorKind::kNeverFits:
      return BLOCKMGR_NEVER_FITS;
    case ErrorKind::kSequenceState:
      return BLOCKMGR_SEQUENCE_STATE;
    case ErrorKind::kStep:
      return BLOCKMGR_STEP;
    case ErrorKind::kTicket:
      return BLOCKMGR_TICKET;
    case ErrorKind::kReentrancy:
      return BLOCKMGR_REENTRANCY;
    case ErrorKind::kFork:
      return BLOCKMGR_FORK;
  }
  return BLOCKMGR_INTERNAL;
}

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
    return status_of(e.kind);
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
  switch (status) {
    case BLOCKMGR_OK:
      return "ok";
    case BLOCKMGR_OUT_OF_BLOCKS:
      return "out of blocks";
    case BLOCKMGR_OUT_OF_SEQUENCES:
      return "out of sequences";
    case BLOCKMGR_PIN_BUDGET:
      return "pin budget";
    case BLOCKMGR_STALE_MATCH:
      return "stale match";
    case BLOCKMGR_TOO_SMALL:
      return "too small";
    case BLOCKMGR_OUT_OF_NODES:
      return "out of nodes";
    case BLOCKMGR_BAD_VALUE:
      return "bad value";
    case BLOCKMGR_NEVER_FITS:
      return "never fits";
    case BLOCKMGR_UNKNOWN_SEQUENCE:
      return "unknown sequence";
    case BLOCKMGR_UNKNOWN_PIN:
      return "unknown pin";
    case BLOCKMGR_SEQUENCE_STATE:
      return "sequence state";
    case BLOCKMGR_BLOCK_STATE:
      return "block state";
    case BLOCKMGR_STEP:
      return "step";
    case BLOCKMGR_TICKET:
      return "ticket";
    case BLOCKMGR_REENTRANCY:
      return "reentrancy";
    case BLOCKMGR_FORK:
      return "fork";
    case BLOCKMGR_DIGEST_FAILED:
      return "digest failed";
    case BLOCKMGR_OUT_OF_MEMORY:
      return "out of memory";
    case BLOCKMGR_INVARIANT:
      return "invariant";
    case BLOCKMGR_INTERNAL:
      return "internal";
    default:
      return "no status of this version";
  }
}
