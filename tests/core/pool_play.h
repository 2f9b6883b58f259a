// The same for a pool of single blocks: what its holders are told must be what they put there.
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
  enum Outcome { kDone, kOutOfBlocks, kWrongBlock, kBadValue, kStepRefused, kWrongTicket, kFailed };

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

  Outcome call(const char* name, unsigned due, const std::function<void()>& run);
  void put_on_trial(const char* name, const std::function<void()>& run);
  static constexpr unsigned bit(Outcome outcome) { return 1u << outcome; }
  [[noreturn]] void fail(const std::string& otherwise) const;
  void check();
  Ids some(int most);
  bool known(const Ids& ids) const;
  bool in_range(std::int64_t id) const { return id >= first_ && id < num_blocks_; }
  std::uint32_t held(std::int64_t id) const;
  bool keyed(std::int64_t id) const { return pool_.blocks()[static_cast<BlockId>(id)].keyed(); }
  void forget_lost();

  void take();
  void acquire();
  void release();
  void touch();
  void promote();
  void find();
  void make_writable();
  void evict(bool forget);
  void reset();
  void copies();
  Content extended(const Content& before, const std::string& extras, const Token* tokens) const;

  Bytes& bytes_;
  Trial* trial_;
  bool null_block_;
  int num_blocks_;
  int size_;
  std::int64_t first_;
  TestDigester* digester_;
  BlockPool pool_;
  std::map<std::int64_t, std::uint32_t> held_;  // references of each block in use
  std::map<std::int64_t, Content> contents_;    // of each cached block
  std::int64_t ticket_ = 0;
  bool open_ = false;
  std::int64_t calls_ = 0;
};

}  // namespace blockmgr::testing
