// The same for a pool of single blocks: find must return the content that holders cached.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "bytes.h"
#include "device.h"
#include "digester.h"
#include "sequences/block_pool.h"
#include "trial.h"

namespace blockmgr::testing {

class PoolPlay {
 public:
  enum Outcome {
    kDone,
    kOutOfBlocks,
    kWrongBlock,
    kBadValue,
    kStepRefused,
    kWrongTicket,
    kFailed,
    kPinRefused,
    kUnknownPin
  };

  // Draws a configuration from the stream.
  explicit PoolPlay(Bytes& bytes, Trial* trial = nullptr);
  // One move; false when the stream is at its end.
  bool move();
  std::int64_t calls() const { return calls_; }
  const BlockPool& pool() const { return pool_; }

 private:
  // The whole prefix that a cached block stands for: namespace, then extras and tokens by block.
  using Content = std::string;
  using Ids = std::vector<std::int64_t>;

  // touched: the partition that the call may change; -1: any.
  Outcome call(const char* name, unsigned due, const std::function<void()>& run, int touched = -1);
  void put_on_trial(const char* name, const std::function<void()>& run);
  static constexpr unsigned bit(Outcome outcome) { return 1u << outcome; }
  [[noreturn]] void fail(const std::string& otherwise) const;
  void check();
  Ids some(int most);
  bool known(const Ids& ids) const;
  bool in_range(std::int64_t id) const { return id >= first_ && id < num_blocks_; }
  std::uint32_t held(std::int64_t id) const;
  bool keyed(std::int64_t id) const { return pool_.view(id).keyed(); }
  void forget_lost();
  // The state of a partition, of its policy and of its past, as bytes.
  std::string share(int number) const;
  int share_of(const std::string& name) const;
  int share_of_block(std::int64_t id) const;
  const std::string& some_name();
  std::vector<NodeId> chain_of(std::int64_t id) const;
  std::int64_t pinned_in(int number) const;

  void take();
  void take_blocks();
  void acquire();
  void release();
  void touch();
  void promote();
  void find();
  void acquire_prefix();
  void retain();
  void pin();
  void unpin();
  void set_time();
  void check_levels();
  void merge(std::int64_t own, std::int64_t cached);
  void make_writable();
  void evict(bool forget);
  void forget_blocks();
  void reset();
  void copies();
  Content extended(const Content& before, const std::string& extras, const Token* tokens) const;

  Bytes& bytes_;
  Trial* trial_;
  StoreConfig config_;
  int num_blocks_;
  int size_;
  std::int64_t first_;
  TestDigester* digester_;
  BlockPool pool_;
  std::map<std::int64_t, std::uint32_t> held_;  // references of each block in use
  std::map<std::int64_t, Content> contents_;    // of each cached block
  // The retention that callers set: a level until a time, while the content is the same.
  struct Said {
    std::uint32_t generation;
    int level;
    double until;
  };
  struct Pinned {
    int share;
    std::vector<std::pair<NodeId, std::uint32_t>> chain;  // with generations
  };
  std::map<std::int64_t, Said> said_;
  std::map<std::int64_t, Pinned> pins_;
  double time_ = 0;
  std::int64_t ticket_ = 0;
  bool open_ = false;
  std::int64_t calls_ = 0;
};

}  // namespace blockmgr::testing
