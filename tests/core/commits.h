// Checks that commits cannot fail: the compiler checks that every function of a commit is noexcept,
// and a noexcept function that ran out of memory would terminate faults.cc.
//
// Explicit instantiations name the private members, because access control does not apply there.
#pragma once

#include "identity/index.h"
#include "places/pool.h"
#include "policies/policy.h"
#include "sequences/block_pool.h"
#include "sequences/copies.h"
#include "sequences/sequences.h"

namespace blockmgr::testing {

template <class Member>
inline constexpr bool kCannotThrow = false;
template <class Owner, class Result, class... Arguments>
inline constexpr bool kCannotThrow<Result (Owner::*)(Arguments...) noexcept> = true;

template <auto... members>
struct Commits {
  static_assert((kCannotThrow<decltype(members)> && ...), "a commit must not be able to throw");
};

template struct Commits<&Pool::take, &Pool::take_run, &Pool::take_idle, &Pool::victim,
                        &Pool::acquire, &Pool::acquire_chain, &Pool::release, &Pool::release_table,
                        &Pool::pin, &Pool::unpin, &Pool::admitted, &Pool::hit, &Pool::touch,
                        &Pool::tell_cached, &Pool::exchange, &Pool::promote, &Pool::promote_tail,
                        &Pool::forget, &Pool::set_twin, &Pool::drop_twin, &Pool::part_from_twins,
                        &Pool::hand_over, &Pool::take_over, &Pool::move_fence>;
template struct Commits<&PrefixIndex::retain_root, &PrefixIndex::release_root, &PrefixIndex::insert,
                        &PrefixIndex::insert_tail, &PrefixIndex::erase, &PrefixIndex::move>;
template struct Commits<&Interner::retain, &Interner::release>;
template struct Commits<&CopyTracker::plan, &CopyTracker::drop, &CopyTracker::take,
                        &CopyTracker::applied, &CopyTracker::aborted>;
template struct Commits<&Observer::on_taken, &Observer::on_freed, &Observer::on_cached,
                        &Observer::on_idle, &Observer::on_used, &Observer::on_touched,
                        &Observer::on_moved, &Observer::on_uncached>;
template struct Commits<&Policy::admitted, &Policy::on_hit, &Policy::victim>;
template struct Commits<&BlockPool::acquire_run, &BlockPool::run_from>;
template struct Commits<&Store::copy_to_fresh, &Store::make_findable, &Store::drop_reference,
                        &Store::abort_copies>;
template struct Commits<&Rows::store_tokens, &Rows::note_unwritten, &Rows::limit_computed>;
template struct Commits<&Growing::make_private, &Growing::grow>;
template struct Commits<&GroupEnds::leave, &GroupEnds::keep_end, &GroupEnds::supersede_tails>;
template struct Commits<&Committing::promote_all, &Committing::promote, &Committing::deduplicate>;
template struct Commits<&Admitting::occupy, &Admitting::keep_found_parts,
                        &Admitting::take_first_parts>;
template struct Commits<&Ending::release_blocks>;

}  // namespace blockmgr::testing
