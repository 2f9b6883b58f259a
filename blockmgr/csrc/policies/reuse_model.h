// The worth of an idle block, learned from how long blocks like it waited until they were used
// again, if they were.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace blockmgr {

// Ages in bins: kPerOctave of one unit each, and as many for each doubling after that.
class AgeBins {
 public:
  static constexpr int kPerOctave = 4;
  static constexpr int kBins = 48;

  explicit AgeBins(std::int64_t unit);
  int bin(std::int64_t age) const;
  double start(int bin) const { return starts_[static_cast<std::size_t>(bin)]; }
  double width(int bin) const { return start(bin + 1) - start(bin); }

 private:
  std::int64_t unit_;
  std::array<double, kBins + 1> starts_;
};

// What can be seen of a block when its last use ends.
struct BlockTraits {
  static constexpr std::array<int, 4> kValues{9, 3, 4, 4};
  static constexpr int kCells = 1 + 9 * 3 * 4 * 4;

  enum Part { kNew, kMatched, kShared };

  int turn = 0;      // of the conversation, in buckets: see turn_bucket
  int part = 0;      // what it was to the request: computed in it, found, or found by others
  int gap = 0;       // how long the conversation's last pause was; 0: it has had none
  int computed = 0;  // how much of the request was not found, in four steps

  static int turn_bucket(int turn);
  // A number for each combination; 0 is kept for blocks nothing is known of.
  int cell() const {
    return 1 + ((turn * kValues[1] + part) * kValues[2] + gap) * kValues[3] + computed;
  }
};

// A wait begins when a block becomes idle and ends when it is used again (a hit) or forgotten.
//
//   hazard(block, age) = P(used in this age bin | idle until then)
//                      = factor(turn) factor(part) factor(gap) factor(computed) * common(age)
//
// The common curve is counted over all blocks. The factors are fitted in turn until the expected
// hits of each value are those seen (iterative proportional fitting of a Poisson model), and each
// combination is drawn towards its own count as far as that is large enough to trust. Blocks with
// about the same factor are of one level, and a level has a hazard curve of its own, drawn towards
// factor * common(age). The worth of an idle block of a level is its Gittins index
//
//   worth(level, age) = max over T of P(used within T | idle until age) / E[time held within T]
//
// which orders independent jobs, and items of a cache, best.
//
// Sources: Gittins, "Bandit Processes and Dynamic Allocation Indices", J. R. Stat. Soc. B 41(2),
// 1979. Classes of requests by turn, with a curve of reuse times each: Wang et al., "KVCache Cache
// in the Wild", USENIX ATC 2025.
class ReuseModel {
 public:
  static constexpr int kLevels = 24;

  // unit: width of the first age bins.
  explicit ReuseModel(std::int64_t unit);

  int level(int cell) const { return cell_level_[static_cast<std::size_t>(cell)]; }
  double worth(int level, std::int64_t age) const { return worth_[at(level, bins_.bin(age))]; }
  double factor(int cell) const { return factor_[static_cast<std::size_t>(cell)]; }
  // A wait ended at this age.
  void end(int cell, int level, std::int64_t age, bool used) noexcept;
  // Waits that go on are counted again before each fit, so that blocks never used again weigh in
  // before they are forgotten.
  void clear_waiting() noexcept;
  void waiting(int cell, int level, std::int64_t age) noexcept;
  // Learns from what was counted so far, and lets it weigh a little less the next time.
  void fit() noexcept;

  std::size_t memory() const;
  void fingerprint(std::string& out) const;

 private:
  static constexpr int kBins = AgeBins::kBins;
  static constexpr int kOctaves = kBins / AgeBins::kPerOctave;
  static std::size_t at(int level, int bin) {
    return static_cast<std::size_t>(level * kBins + bin);
  }
  static std::size_t octave(int cell, int bin) {
    return static_cast<std::size_t>(cell * kOctaves + bin / AgeBins::kPerOctave);
  }
  using Curve = std::array<double, kBins>;

  void fit_common() noexcept;
  void count_expected() noexcept;
  void fit_factors() noexcept;
  void fit_level(int level) noexcept;

  AgeBins bins_;
  std::vector<double> hits_, ended_, waiting_, worth_;  // [level][bin]
  std::vector<double> cell_ended_, cell_waiting_;       // [cell][octave]
  std::vector<double> cell_hits_, expected_, factor_;   // [cell]
  std::vector<std::uint8_t> cell_level_;
  std::array<double, kLevels> level_factor_;
  Curve common_{};
};

}  // namespace blockmgr
