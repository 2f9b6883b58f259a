/* blockmgr: KV-cache blocks for paged attention, for engines in C, C++, Rust and all that call C.
 *
 * The calls are those of the Python class BlockManager, with the same meanings. This header is the
 * contract; the page "The step contract" of the documentation has the order of calls within a step.
 *
 * UNITS     Lengths, positions and limits are in tokens or in blocks, as their names say; sizes of
 *           memory are in bytes; times are in seconds. Ids of blocks begin at 0.
 * ERRORS    Calls return a blockmgr_status. Unless it is BLOCKMGR_OK, nothing has changed: neither
 *           the manager nor what the pointers for results point to, except where
 *           BLOCKMGR_TOO_SMALL tells the number that is needed. blockmgr_last_error() has a text
 *           that names the argument. No C++ exception leaves a call. Running out of blocks is an
 *           ordinary outcome.
 * OWNERSHIP Arguments are read during the call and not kept. The caller owns the memory for
 *           results, and says how much there is: "room" counts elements. Tables belong to the
 *           manager, and stay where they are until blockmgr_destroy. Events have a destructor.
 * POINTERS  A call refuses NULL with BLOCKMGR_BAD_VALUE, except where its comment says "or NULL"
 *           and where the number of elements beside it is 0. A manager or events that were
 *           destroyed must not be passed.
 * THREADS   Several threads may call one manager: a call waits until the one before is done. Work
 *           of several calls (a plan of copies and its ticket) still needs one owner. Tables are
 *           read without a lock, by the thread that makes the calls. The text of the last error
 *           belongs to the thread. Managers share nothing.
 * VERSIONS  A struct that may grow begins with struct_size: set it to sizeof the struct. A library
 *           takes every size from that of its first release up to its own, and uses the defaults
 *           for what a smaller one lacks. Fields with the value 0 mean the default, except in
 *           blockmgr_options, which blockmgr_options_init fills. Until version 1.0 a minor version
 *           may change what exists; the name of the shared library then changes.
 */
#ifndef BLOCKMGR_H
#define BLOCKMGR_H

#include <stddef.h>
#include <stdint.h>

#define BLOCKMGR_VERSION_MAJOR 0
#define BLOCKMGR_VERSION_MINOR 42
#define BLOCKMGR_VERSION_PATCH 0

#if defined(_WIN32)
#define BLOCKMGR_API
#else
#define BLOCKMGR_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef struct blockmgr_manager blockmgr_manager;
typedef struct blockmgr_events blockmgr_events;

/* A sequence. The low 32 bits are its row in the tables; no other sequence gets the same number. */
typedef int64_t blockmgr_handle;

typedef int32_t blockmgr_status;
enum {
  BLOCKMGR_OK = 0,
  /* Ordinary outcomes. */
  BLOCKMGR_OUT_OF_BLOCKS = 1,    /* free or preempt a sequence, and try again */
  BLOCKMGR_OUT_OF_SEQUENCES = 2, /* every row is taken */
  BLOCKMGR_PIN_BUDGET = 3,       /* more pins than max_pinned_blocks */
  BLOCKMGR_STALE_MATCH = 4,      /* the cache no longer holds what a match found */
  BLOCKMGR_TOO_SMALL = 5,        /* room is too small; the needed number was written */
  BLOCKMGR_OUT_OF_NODES = 6,     /* the same as OUT_OF_BLOCKS, where num_nodes is what is short */
  /* The call was wrong. */
  BLOCKMGR_BAD_VALUE = 16,        /* an argument or an option is out of its bounds */
  BLOCKMGR_NEVER_FITS = 17,       /* larger than the pool or a table row */
  BLOCKMGR_UNKNOWN_SEQUENCE = 18, /* never admitted, freed, or of another manager */
  BLOCKMGR_UNKNOWN_PIN = 19,      /* never made, or released */
  BLOCKMGR_SEQUENCE_STATE = 20,   /* the sequence is preempted, running, or lacks slots */
  BLOCKMGR_BLOCK_STATE = 21,      /* the block is not held, or not in use */
  BLOCKMGR_STEP = 22,             /* the order of calls within a step is broken */
  BLOCKMGR_TICKET = 23,           /* resolved already, or never taken */
  BLOCKMGR_REENTRANCY = 24,       /* a call from inside a digest function */
  BLOCKMGR_FORK = 25,             /* the process was forked during a call */
  /* The call could not be done. */
  BLOCKMGR_DIGEST_FAILED = 48, /* the digest function returned another number than 0 */
  BLOCKMGR_OUT_OF_MEMORY = 49,
  BLOCKMGR_INVARIANT = 50, /* the books do not balance: please report it */
  BLOCKMGR_INTERNAL = 51   /* an unexpected exception: please report it */
};

/* The version of the library: major << 16 | minor << 8 | patch. */
BLOCKMGR_API uint32_t blockmgr_version(void);

/* The text of the last call of this thread that was refused. Valid until the next one. */
BLOCKMGR_API const char* blockmgr_last_error(void);

/* The numbers of the last shortage of this thread (blocks, nodes, sequences or the pin budget):
 * needed, available, and held back by the watermark. Each pointer may be NULL. */
BLOCKMGR_API void blockmgr_last_shortage(int64_t* needed, int64_t* available, int64_t* reserved);

/* "out of blocks" for BLOCKMGR_OUT_OF_BLOCKS; a constant string for every number. */
BLOCKMGR_API const char* blockmgr_status_text(blockmgr_status status);

/* ---- managers -------------------------------------------------------------------------------- */

/* Makes a digest of a message: writes digest_size bytes and returns 0. Any other number makes the
 * call fail with BLOCKMGR_DIGEST_FAILED. A digest finds candidates and is not trusted. The function
 * runs inside a call: it must not call the manager, and must not throw. */
typedef int (*blockmgr_digest_function)(void* context, const uint8_t* message, size_t length,
                                        uint8_t* digest);

/* Blocks that are reserved for one namespace. */
typedef struct blockmgr_quota {
  const void* name;
  size_t name_size; /* at most 1024 */
  int64_t num_blocks;
} blockmgr_quota;

enum {
  BLOCKMGR_FULL = 0,
  BLOCKMGR_WINDOW = 1,
  BLOCKMGR_CHUNK = 2,
  BLOCKMGR_STATE = 3,
  BLOCKMGR_RING = 4
};

/* A group of layers: its kind, and what the numbers beside it are; 0 where there is nothing.
 *
 *            width                        detail
 *   FULL     -                            -
 *   WINDOW   tokens that a query reads    0; or, for a window that prompts do not find, the tokens
 *                                         that are computed again before a hit: at least width - 1
 *   CHUNK    tokens of a chunk            -
 *   STATE    -                            blocks of a sequence beside the one that its state is
 *                                         in, for drafts; as many in all such groups
 *   RING     positions that a block       restart: the query at p reads nothing before p - p %
 *            holds, at p % width          restart; 0 for 1 */
typedef struct blockmgr_group {
  int32_t kind;
  int32_t detail;
  int64_t width;
} blockmgr_group;

/* Options, fixed at creation. Flags are 0 or 1. */
typedef struct blockmgr_options {
  size_t struct_size;
  int64_t num_blocks;          /* in the pool, the null block included */
  int64_t block_size;          /* tokens of a block, 1 to 65535 */
  int64_t max_seqs;            /* rows of the tables; default 256 */
  int64_t max_blocks_per_seq;  /* columns of the tables; 0: as many as there are blocks, or nodes */
  int64_t min_partial_tokens;  /* fewest tokens to reuse from part of a block; 0: none are */
  int64_t watermark_blocks;    /* held back from admission */
  int64_t steps_in_flight;     /* launched steps that may be incomplete */
  int64_t hit_rate_window;     /* requests of recent hits; default 1000 */
  int64_t ghost_blocks;        /* evicted blocks that are remembered */
  int64_t max_pinned_blocks;   /* only with retention */
  int64_t event_blocks;        /* most blocks whose events wait, only with events; 0: a default */
  int64_t max_rollback_tokens; /* with groups: computed tokens that truncate may drop */
  int64_t halfway_stop_tokens; /* with states; default 8192 */
  int64_t prompt_end_stop;     /* with states; -1 (the default): none */
  int32_t prefix_caching;      /* default 1 */
  int32_t append_only;         /* commit never changes a table, instead of merging equal blocks */
  int32_t early_commit;        /* commit comes before the forward */
  int32_t null_block;          /* block 0 is a target for padded writes */
  int32_t retention;           /* for retain, pin, set_time and free_expecting */
  int32_t events;              /* records what becomes findable, and what stops being so */
  int32_t debug;               /* 0, 1 or 2: what each call checks afterwards */
  int32_t strict_decode;       /* decode refuses more than one token to compute a sequence */
  const char* eviction;        /* "lru" (the default), "lfuda", "s3fifo" or "arc" */
  const blockmgr_quota* quotas;
  size_t num_quotas;
  const blockmgr_group* groups; /* in the order of the engine; none: one of full attention */
  size_t num_groups;
  blockmgr_digest_function digest; /* NULL (the default): xxh3_128 */
  void* digest_context;
  int64_t digest_size; /* bytes, 8 to 64; default 16, which xxh3_128 has */
  /* Only with groups none of which has full attention: most stretches of block_size tokens that
   * sequences and cached prefixes consist of. 0: for prefixes of 8192 tokens, as many as can end in
   * the blocks with their windows and states. Such a manager has no retention, quotas and events.
   */
  int64_t num_nodes;
  int64_t stop_margin_tokens; /* with groups: tokens before their places where prompts stop */
  /* With groups: tokens of a block of each, of which block_size is a multiple. 0 for block_size,
   * and for states and rings; NULL: 0 for all. */
  const int64_t* group_block_sizes;
  int64_t max_sessions; /* with retention: that are known at a time; default 65536. A new one takes
                           the place of the one whose last prompt is the oldest */
} blockmgr_options;

/* Fills in the defaults; num_blocks and block_size have none. struct_size: sizeof *options. */
BLOCKMGR_API blockmgr_status blockmgr_options_init(blockmgr_options* options, size_t struct_size);

/* Makes a manager. All its memory is taken here, except that for sessions, before the first one. */
BLOCKMGR_API blockmgr_status blockmgr_create(const blockmgr_options* options,
                                             blockmgr_manager** manager);
/* Ends a manager, or does nothing with NULL. No other thread may be inside a call. */
BLOCKMGR_API void blockmgr_destroy(blockmgr_manager* manager);

/* ---- prompts --------------------------------------------------------------------------------- */

/* Extra keys of a block, such as the hash of an image: with other keys, equal tokens differ. */
typedef struct blockmgr_extra {
  int64_t block; /* of the prompt, from 0 */
  const void* bytes;
  size_t size; /* 1 to 1024 */
} blockmgr_extra;

enum {
  BLOCKMGR_SKIP_CACHE = 1,   /* takes nothing from the cache */
  BLOCKMGR_LIMIT_CACHED = 2, /* takes at most max_cached_tokens */
  BLOCKMGR_EXACT_CACHED = 4, /* takes exactly max_cached_tokens, which a match found, or is refused
                                with BLOCKMGR_STALE_MATCH */
  BLOCKMGR_SET_WATERMARK = 8 /* watermark_blocks instead of the option */
};

typedef struct blockmgr_prompt {
  size_t struct_size;
  const uint32_t* tokens;
  int64_t num_tokens; /* at least 1 */
  const void* name;   /* of the namespace, such as a tenant's secret; or NULL */
  size_t name_size;   /* at most 1024 */
  const blockmgr_extra* extras;
  size_t num_extras;
  int64_t num_slots; /* slots to take; 0: as many as tokens */
  int64_t max_cached_tokens;
  int64_t watermark_blocks;
  uint32_t flags;
  uint32_t reserved; /* 0 */
  /* K/V of so many leading tokens comes from elsewhere before the first forward, such as a lower
   * tier: groups then have no blocks that only those tokens read. 0: none */
  int64_t num_loaded_tokens;
  const void* session; /* that an admission continues, or NULL; the other calls do not read it */
  size_t session_size; /* at most 256 */
} blockmgr_prompt;

typedef struct blockmgr_match_result {
  size_t struct_size;
  int64_t num_cached_tokens;    /* that an admission would not compute */
  int64_t num_partial_tokens;   /* of those, in part of a block */
  int64_t num_idle_blocks;      /* that an admission would take into use */
  int64_t num_computing_tokens; /* after the cached ones, that a running sequence has to commit */
  int64_t num_blocks;           /* whole blocks found */
  int64_t num_stops;
  int64_t stops[4];          /* with states: where forwards should end, ascending */
  int64_t num_shared_tokens; /* leading ones that full attention has, whatever other groups lack */
  int64_t num_replayed_tokens; /* after the cached ones: found, too, and computed again for windows
                                  that prompts do not find */
} blockmgr_match_result;

/* The cached part of a prompt. Changes nothing. block_ids: the whole blocks found; or NULL. With
 * BLOCKMGR_TOO_SMALL result->num_blocks is the room that is needed. */
BLOCKMGR_API blockmgr_status blockmgr_match(blockmgr_manager* manager,
                                            const blockmgr_prompt* prompt,
                                            blockmgr_match_result* result, int32_t* block_ids,
                                            int64_t room);

enum { BLOCKMGR_NOW = 0, BLOCKMGR_LATER = 1, BLOCKMGR_NEVER = 2 };
/* Whether a prompt would be admitted. */
BLOCKMGR_API blockmgr_status blockmgr_can_admit(blockmgr_manager* manager,
                                                const blockmgr_prompt* prompt, int32_t* admission);
/* Refers to the longest cached prefix, and takes blocks for the rest, or for num_slots. */
BLOCKMGR_API blockmgr_status blockmgr_admit(blockmgr_manager* manager,
                                            const blockmgr_prompt* prompt, blockmgr_handle* handle);
/* The digests of a prompt's whole blocks, digest_size bytes each. room and num_bytes: bytes. */
BLOCKMGR_API blockmgr_status blockmgr_block_digests(blockmgr_manager* manager,
                                                    const blockmgr_prompt* prompt, uint8_t* digests,
                                                    int64_t room, int64_t* num_bytes);

/* ---- sequences ------------------------------------------------------------------------------- */

/* Slots for at least so many tokens: for the next chunk, or for drafts. */
BLOCKMGR_API blockmgr_status blockmgr_reserve(blockmgr_manager* manager, blockmgr_handle handle,
                                              int64_t num_slots);
/* New tokens at the end, with slots. A shared last block is copied first. */
BLOCKMGR_API blockmgr_status blockmgr_append(blockmgr_manager* manager, blockmgr_handle handle,
                                             const uint32_t* tokens, int64_t num_tokens);
/* K/V up to here is written: full blocks become findable. */
BLOCKMGR_API blockmgr_status blockmgr_commit(blockmgr_manager* manager, blockmgr_handle handle,
                                             int64_t num_computed_tokens);
/* One step of a batch: commits what each sequence has, appends one token to each, and writes the
 * slot of each token. All or none; the handles must be distinct. slots: room for count. */
BLOCKMGR_API blockmgr_status blockmgr_decode(blockmgr_manager* manager,
                                             const blockmgr_handle* handles, const uint32_t* tokens,
                                             int64_t count, int64_t* slots);
/* Makes n sequences that share every block; copies nothing. children: room for n. */
BLOCKMGR_API blockmgr_status blockmgr_fork(blockmgr_manager* manager, blockmgr_handle handle,
                                           int64_t n, blockmgr_handle* children);
/* Beam search: handles[i] becomes a fork of what handles[parents[i]] was. All or none. */
BLOCKMGR_API blockmgr_status blockmgr_reparent(blockmgr_manager* manager,
                                               const blockmgr_handle* handles,
                                               const int64_t* parents, int64_t count);
/* Keeps the leading tokens. num_computed_tokens, or NULL: those of them whose K/V stays. */
BLOCKMGR_API blockmgr_status blockmgr_truncate(blockmgr_manager* manager, blockmgr_handle handle,
                                               int64_t num_tokens, int64_t* num_computed_tokens);

enum { BLOCKMGR_WITHDRAW = 1 }; /* first takes back what was committed ahead of the forward */
/* Ends a sequence. What it has committed stays findable. flags: 0 or BLOCKMGR_WITHDRAW. */
BLOCKMGR_API blockmgr_status blockmgr_free(blockmgr_manager* manager, blockmgr_handle handle,
                                           uint32_t flags);
/* The same, and says whether its blocks will be used again (0 or 1). Needs retention. */
BLOCKMGR_API blockmgr_status blockmgr_free_expecting(blockmgr_manager* manager,
                                                     blockmgr_handle handle, int32_t expect_reuse,
                                                     uint32_t flags);
/* Releases the blocks and keeps the tokens. */
BLOCKMGR_API blockmgr_status blockmgr_preempt(blockmgr_manager* manager, blockmgr_handle handle,
                                              uint32_t flags);
/* Takes blocks for a preempted sequence again. num_slots as in a prompt. flags: 0 or
 * BLOCKMGR_SKIP_CACHE. */
BLOCKMGR_API blockmgr_status blockmgr_resume(blockmgr_manager* manager, blockmgr_handle handle,
                                             int64_t num_slots, uint32_t flags);
/* The same for several, all or none: what they have in common they share again, as forks do. The
 * handles must be distinct. */
BLOCKMGR_API blockmgr_status blockmgr_resume_together(blockmgr_manager* manager,
                                                      const blockmgr_handle* handles, int64_t count,
                                                      int64_t num_slots, uint32_t flags);
/* Caches the states of a sequence now. cached, or NULL: whether they are (0 or 1). */
BLOCKMGR_API blockmgr_status blockmgr_cache_state(blockmgr_manager* manager, blockmgr_handle handle,
                                                  int32_t* cached);
/* A launched forward has moved the states and rings past the tokens of the sequence, maybe through
 * all of its slots. */
BLOCKMGR_API blockmgr_status blockmgr_mark_state_moved(blockmgr_manager* manager,
                                                       blockmgr_handle handle);
/* Before a commit: the states are in this column of their tables. They are in column 0 after admit,
 * fork, reparent and resume. */
BLOCKMGR_API blockmgr_status blockmgr_place_state(blockmgr_manager* manager, blockmgr_handle handle,
                                                  int64_t slot);

typedef struct blockmgr_sequence {
  size_t struct_size;
  int64_t num_tokens;
  int64_t num_computed_tokens; /* with K/V: the next forward writes from here on */
  int64_t num_cached_tokens;   /* found by the last admit or resume */
  int64_t num_blocks;          /* in its row of the table */
  int64_t num_slots;
  int32_t is_preempted;
  int32_t state_stands; /* its states are those after num_computed_tokens */
  int64_t num_stops;
  int64_t stops[5];            /* with states: where its forwards should end, ascending */
  int64_t num_replayed_tokens; /* as of a match, by the last admit or resume */
} blockmgr_sequence;
BLOCKMGR_API blockmgr_status blockmgr_view(blockmgr_manager* manager, blockmgr_handle handle,
                                           blockmgr_sequence* sequence);
/* The tokens of a sequence. */
BLOCKMGR_API blockmgr_status blockmgr_tokens(blockmgr_manager* manager, blockmgr_handle handle,
                                             uint32_t* tokens, int64_t room, int64_t* num_tokens);
/* All sequences that are alive. */
BLOCKMGR_API blockmgr_status blockmgr_handles(blockmgr_manager* manager, blockmgr_handle* handles,
                                              int64_t room, int64_t* num_handles);

/* ---- tables ---------------------------------------------------------------------------------- */

/* The block table of a group (0 without groups): int32[num_rows][row_width], live. A group with
 * smaller blocks has more columns. Row: the low half of a handle. Entries past the last block are
 * 0. Of rings, the first entry is the block; of states, those of the slots for drafts follow it. */
BLOCKMGR_API blockmgr_status blockmgr_table(blockmgr_manager* manager, int32_t group,
                                            const int32_t** table, int64_t* num_rows,
                                            int64_t* row_width);
/* int32[num_rows], live: num_tokens of the running sequence of each row, else 0. */
BLOCKMGR_API blockmgr_status blockmgr_seq_lens(blockmgr_manager* manager, const int32_t** lengths,
                                               int64_t* num_rows);
enum { BLOCKMGR_PAD_SLOT = -1 };
/* The slots of tokens [start, stop) in a group of attention: block * the tokens of its blocks +
 * offset, or BLOCKMGR_PAD_SLOT for replayed tokens, of which a group that prompts find writes
 * nothing. room for stop - start. */
BLOCKMGR_API blockmgr_status blockmgr_slot_mapping(blockmgr_manager* manager,
                                                   blockmgr_handle handle, int32_t group,
                                                   int64_t start, int64_t stop, int64_t* slots);
/* Leading whole computed blocks that these sequences have in common; handles NULL: all running. */
BLOCKMGR_API blockmgr_status blockmgr_num_common_prefix_blocks(blockmgr_manager* manager,
                                                               const blockmgr_handle* handles,
                                                               int64_t count, int64_t* num_blocks);

/* ---- steps ----------------------------------------------------------------------------------- */

/* The leading num_tokens of a block, to be copied before the forward; in any order. With rings, a
 * block that begins empty is its own source: fill it with zeros. Those come last in a plan, to be
 * filled after the copies, which may read them. */
typedef struct blockmgr_copy {
  int32_t source;
  int32_t destination;
  int32_t num_tokens;
  int32_t group;
} blockmgr_copy;

/* Closes a step: its copies, and its ticket, which one of the next two calls resolves. */
BLOCKMGR_API blockmgr_status blockmgr_take_copies(blockmgr_manager* manager, blockmgr_copy* copies,
                                                  int64_t room, int64_t* num_copies,
                                                  int64_t* ticket);
/* Copies and forward were launched; or neither was. */
BLOCKMGR_API blockmgr_status blockmgr_copies_applied(blockmgr_manager* manager, int64_t ticket);
BLOCKMGR_API blockmgr_status blockmgr_copies_aborted(blockmgr_manager* manager, int64_t ticket);
/* With steps_in_flight: the device has finished this step and all before it. */
BLOCKMGR_API blockmgr_status blockmgr_complete(blockmgr_manager* manager, int64_t ticket);

/* An entry of a table that commit or decode has changed. */
typedef struct blockmgr_remap {
  blockmgr_handle handle;
  int32_t index;
  int32_t old_block; /* -1: the log was full, and this is the present entry */
  int32_t new_block;
  int32_t reserved;
} blockmgr_remap;
BLOCKMGR_API blockmgr_status blockmgr_take_remaps(blockmgr_manager* manager, blockmgr_remap* remaps,
                                                  int64_t room, int64_t* num_remaps);

/* ---- the cache ------------------------------------------------------------------------------- */

enum {
  BLOCKMGR_PRIORITY_NONE = -1, /* withdraws what earlier calls set */
  BLOCKMGR_PRIORITY_LOW = 0,
  BLOCKMGR_PRIORITY_NORMAL = 1,
  BLOCKMGR_PRIORITY_EXPECTED = 2,
  BLOCKMGR_PRIORITY_HIGH = 3
};
/* Retention, which the option enables. seconds: above 0, may be infinite. num_blocks, or NULL: the
 * blocks that the call is about. */
BLOCKMGR_API blockmgr_status blockmgr_retain(blockmgr_manager* manager, blockmgr_handle handle,
                                             int64_t start, int64_t stop, int32_t priority,
                                             double seconds, int64_t* num_blocks);
BLOCKMGR_API blockmgr_status blockmgr_retain_prefix(blockmgr_manager* manager,
                                                    const blockmgr_prompt* prompt, int32_t priority,
                                                    double seconds, int64_t* num_blocks);
/* Keeps the cached whole blocks of a prompt until unpin. */
BLOCKMGR_API blockmgr_status blockmgr_pin(blockmgr_manager* manager, const blockmgr_prompt* prompt,
                                          int64_t* pin);
BLOCKMGR_API blockmgr_status blockmgr_unpin(blockmgr_manager* manager, int64_t pin);
/* The clock of retention; it must not go back. */
BLOCKMGR_API blockmgr_status blockmgr_set_time(blockmgr_manager* manager, double seconds);
/* Makes the cached blocks of a waiting prompt the most recently used ones. */
BLOCKMGR_API blockmgr_status blockmgr_touch(blockmgr_manager* manager,
                                            const blockmgr_prompt* prompt, int64_t* num_blocks);
/* Blocks by their ids. acquire holds them, during a transfer for instance; release ends that; touch
 * marks them as used last; forget makes them and what continues them unfindable. num_forgotten, or
 * NULL: blocks that could be found before. */
BLOCKMGR_API blockmgr_status blockmgr_acquire(blockmgr_manager* manager, const int64_t* blocks,
                                              int64_t count);
BLOCKMGR_API blockmgr_status blockmgr_release(blockmgr_manager* manager, const int64_t* blocks,
                                              int64_t count);
BLOCKMGR_API blockmgr_status blockmgr_touch_blocks(blockmgr_manager* manager, const int64_t* blocks,
                                                   int64_t count);
BLOCKMGR_API blockmgr_status blockmgr_forget(blockmgr_manager* manager, const int64_t* blocks,
                                             int64_t count, int64_t* num_forgotten);
/* A pool that gives memory back for a while: shrink takes the blocks from num_blocks on out of use,
 * and grow those below num_blocks back into use. num_blocks counts the null block, and quotas stay
 * whole. What these blocks hold is no longer found. num_leaving, or NULL: how many still belong to
 * a sequence, a hold, a copy or a step; each leaves when it is released. blockmgr_leaving tells the
 * sequences, each once; blockmgr_preempt or blockmgr_free ends their use. */
BLOCKMGR_API blockmgr_status blockmgr_shrink(blockmgr_manager* manager, int64_t num_blocks,
                                             int64_t* num_leaving);
BLOCKMGR_API blockmgr_status blockmgr_grow(blockmgr_manager* manager, int64_t num_blocks);
BLOCKMGR_API blockmgr_status blockmgr_leaving(blockmgr_manager* manager, blockmgr_handle* handles,
                                              int64_t room, int64_t* num_handles);
/* Forgets all that is cached, as after a change of weights. reset_hit_rate: 0 or 1. */
BLOCKMGR_API blockmgr_status blockmgr_reset_prefix_cache(blockmgr_manager* manager,
                                                         int32_t reset_hit_rate,
                                                         int64_t* num_forgotten);
/* The same in one namespace. Running sequences of it continue with what they have, and what they
 * compute is not cached. num_sequences, or NULL: how many these are. */
BLOCKMGR_API blockmgr_status blockmgr_retire(blockmgr_manager* manager, const void* name,
                                             size_t name_size, int64_t* num_sequences);

/* A session: prompts that follow one another. If a prompt shares at least half of the blocks that
 * the last sequence of its session left, the rest of those goes first, unless something else uses
 * it. Needs retention. A session of another namespace is another one. num_blocks, or NULL: -1 if no
 * such session is known; else the blocks that go first, or that are expected after
 * BLOCKMGR_TOOL_WAIT and BLOCKMGR_RESUMED. */
BLOCKMGR_API blockmgr_status blockmgr_end_session(blockmgr_manager* manager, const void* name,
                                                  size_t name_size, const void* session,
                                                  size_t session_size, int64_t* num_blocks);
/* A tool runs, whose answer comes in so many seconds; it has answered; no prompt follows. */
enum { BLOCKMGR_TOOL_WAIT = 0, BLOCKMGR_RESUMED = 1, BLOCKMGR_DONE = 2 };
/* What a client reports of a session, until its next prompt or signal. seconds: until the next
 * prompt is expected; above 0, may be infinite. */
BLOCKMGR_API blockmgr_status blockmgr_signal(blockmgr_manager* manager, const void* name,
                                             size_t name_size, const void* session,
                                             size_t session_size, int32_t signal, double seconds,
                                             int64_t* num_blocks);

/* ---- events ---------------------------------------------------------------------------------- */

enum { BLOCKMGR_STORED = 0, BLOCKMGR_REMOVED = 1, BLOCKMGR_CLEARED = 2 };

/* Blocks that became findable, each the parent of the next; or that stopped being so. */
typedef struct blockmgr_event {
  int32_t kind;
  int32_t group;
  int64_t step;        /* steps whose copies had been applied */
  int64_t first_block; /* of digests */
  int64_t num_blocks;
  const uint8_t* parent;  /* digest of the block before the first; NULL: it begins a prompt */
  const uint32_t* tokens; /* stored: num_blocks * block_size; else NULL */
  const void* name;       /* stored: the namespace */
  size_t name_size;
  const void* session; /* stored: that of the sequence that cached them; NULL: none */
  size_t session_size;
} blockmgr_event;

/* Extra keys of a stored block. */
typedef struct blockmgr_event_extra {
  int64_t block; /* among the blocks of all stored events */
  const void* bytes;
  size_t size;
} blockmgr_event_extra;

/* All of it lies in memory of the events. */
typedef struct blockmgr_event_list {
  size_t struct_size;
  int64_t num_lost; /* that did not fit: take a snapshot */
  int64_t digest_size;
  int64_t num_events;
  const blockmgr_event* events;
  int64_t num_digests;
  const uint8_t* digests; /* digest_size bytes a block, of all events in order */
  int64_t num_extras;
  const blockmgr_event_extra* extras;
} blockmgr_event_list;

/* The events since the last call; or all that is findable now, which also empties the log. */
BLOCKMGR_API blockmgr_status blockmgr_take_events(blockmgr_manager* manager,
                                                  blockmgr_events** events);
BLOCKMGR_API blockmgr_status blockmgr_take_snapshot(blockmgr_manager* manager,
                                                    blockmgr_events** events);
BLOCKMGR_API blockmgr_status blockmgr_events_list(const blockmgr_events* events,
                                                  blockmgr_event_list* list);
BLOCKMGR_API void blockmgr_events_destroy(blockmgr_events* events); /* or NULL */

/* ---- counts ---------------------------------------------------------------------------------- */

/* Gauges and counters, in blocks unless the name says otherwise; as in Python's Stats. */
typedef struct blockmgr_stats {
  size_t struct_size;
  int64_t capacity; /* free + idle + fenced + used: fewer than at first after blockmgr_shrink */
  int64_t free_blocks;
  int64_t idle_blocks;
  int64_t fenced_blocks;
  int64_t used_blocks;
  int64_t cached_blocks;
  int64_t peak_used_blocks;
  int64_t num_sequences;
  int64_t pending_copies;
  int64_t query_tokens;
  int64_t hit_tokens;
  int64_t partial_hit_tokens;
  int64_t resumed_query_tokens;
  int64_t resumed_hit_tokens;
  int64_t promoted_blocks;
  int64_t deduplicated_blocks;
  int64_t cached_tails;
  int64_t evicted_blocks;
  int64_t planned_copies;
  int64_t cancelled_copies;
  int64_t forks;
  int64_t preemptions;
  int64_t low_priority_blocks;
  int64_t expected_blocks;
  int64_t high_priority_blocks;
  int64_t pinned_blocks;
  int64_t pins;
  int64_t expired_blocks;
  int64_t evicted_pinned_blocks;
  int64_t touched_blocks;
  int64_t forgotten_blocks;
  int64_t sessions;
  int64_t superseded_blocks;
} blockmgr_stats;
BLOCKMGR_API blockmgr_status blockmgr_get_stats(blockmgr_manager* manager, blockmgr_stats* stats);
/* Bytes that the manager has taken. */
BLOCKMGR_API blockmgr_status blockmgr_memory_usage(blockmgr_manager* manager, size_t* bytes);
/* Recomputes all counts and links. BLOCKMGR_INVARIANT, with a text, if they are wrong. Takes time
 * in proportion to the pool. */
BLOCKMGR_API blockmgr_status blockmgr_check_invariants(blockmgr_manager* manager);

#ifdef __cplusplus
}
#endif

#endif
