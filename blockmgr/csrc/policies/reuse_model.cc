#include "policies/reuse_model.h"

#include <algorithm>
#include <bit>

namespace blockmgr {

namespace {

// How many hits must be seen until a count weighs as much as what is expected without it: of one
// value of a trait, of a combination of traits, and (blocks at risk) of a level at one age.
constexpr double kValueTrust = 8;
constexpr double kCellTrust = 128;
constexpr double kLevelTrust = 400;
constexpr int kRounds = 4;      // of proportional fitting
constexpr int kNeighbours = 3;  // age bins on each side that a hazard is averaged over
constexpr double kKeep = 0.99;  // of every count, at each fit
// Levels stand for factors from 2^-4 to 2^4, three for each doubling.
constexpr double kLowestFactor = 1.0 / 16;
constexpr double kLevelRatio = 1.2599210498948732;

}  // namespace

AgeBins::AgeBins(std::int64_t unit) : unit_(std::max<std::int64_t>(unit, 1)) {
  double start = 0;
  double width = static_cast<double>(unit_);
  for (int i = 0; i <= kBins; ++i) {
    if (i >= 2 * kPerOctave && i % kPerOctave == 0) width *= 2;
    starts_[static_cast<std::size_t>(i)] = start;
    start += width;
  }
}

int AgeBins::bin(std::int64_t age) const {
  const auto units = static_cast<std::uint64_t>(std::max<std::int64_t>(age, 0) / unit_);
  if (units < kPerOctave) return static_cast<int>(units);
  const auto octave =
      static_cast<int>(std::bit_width(units) - std::bit_width(std::uint64_t{kPerOctave}));
  const int within = static_cast<int>(units >> octave) - kPerOctave;
  return std::min(kPerOctave * (octave + 1) + within, kBins - 1);
}

int BlockTraits::turn_bucket(int turn) {
  constexpr std::array<int, 8> kLast{1, 2, 3, 4, 5, 7, 10, 15};
  int bucket = 0;
  while (bucket < 8 && turn > kLast[static_cast<std::size_t>(bucket)]) ++bucket;
  return bucket;
}

ReuseModel::ReuseModel(std::int64_t unit)
    : bins_(unit),
      hits_(kLevels * kBins),
      ended_(kLevels * kBins),
      waiting_(kLevels * kBins),
      worth_(kLevels * kBins),
      cell_ended_(BlockTraits::kCells * kOctaves),
      cell_waiting_(BlockTraits::kCells * kOctaves),
      cell_hits_(BlockTraits::kCells),
      expected_(BlockTraits::kCells),
      factor_(BlockTraits::kCells, 1.0),
      cell_level_(BlockTraits::kCells) {
  double factor = kLowestFactor;
  for (double& of_level : level_factor_) {
    of_level = factor;
    factor *= kLevelRatio;
  }
  fit();
}

void ReuseModel::end(int cell, int level, std::int64_t age, bool used) noexcept {
  const int bin = bins_.bin(age);
  ended_[at(level, bin)] += 1;
  cell_ended_[octave(cell, bin)] += 1;
  if (!used) return;
  hits_[at(level, bin)] += 1;
  cell_hits_[static_cast<std::size_t>(cell)] += 1;
}

void ReuseModel::clear_waiting() noexcept {
  std::fill(waiting_.begin(), waiting_.end(), 0.0);
  std::fill(cell_waiting_.begin(), cell_waiting_.end(), 0.0);
}

void ReuseModel::waiting(int cell, int level, std::int64_t age) noexcept {
  const int bin = bins_.bin(age);
  waiting_[at(level, bin)] += 1;
  cell_waiting_[octave(cell, bin)] += 1;
}

void ReuseModel::fit() noexcept {
  fit_common();
  count_expected();
  fit_factors();
  for (int level = 0; level < kLevels; ++level) fit_level(level);
  for (auto* counts : {&hits_, &ended_, &cell_ended_, &cell_hits_})
    for (double& count : *counts) count *= kKeep;
}

void ReuseModel::fit_common() noexcept {
  double at_risk = 0;
  for (int bin = kBins - 1; bin >= 0; --bin) {
    double hits = 0;
    for (int level = 0; level < kLevels; ++level) {
      hits += hits_[at(level, bin)];
      at_risk += ended_[at(level, bin)] + waiting_[at(level, bin)];
    }
    common_[static_cast<std::size_t>(bin)] = at_risk > 0 ? hits / at_risk : 0;
  }
}

// The hits each cell would have seen at the common hazard.
void ReuseModel::count_expected() noexcept {
  std::array<double, kOctaves> until{};
  double sum = 0;
  for (int i = 0; i < kBins; ++i) {
    sum += common_[static_cast<std::size_t>(i)];
    until[static_cast<std::size_t>(i / AgeBins::kPerOctave)] += sum / AgeBins::kPerOctave;
  }
  for (int cell = 0; cell < BlockTraits::kCells; ++cell) {
    double expected = 0;
    for (int i = 0; i < kOctaves; ++i) {
      const auto o = static_cast<std::size_t>(cell * kOctaves + i);
      expected += until[static_cast<std::size_t>(i)] * (cell_ended_[o] + cell_waiting_[o]);
    }
    expected_[static_cast<std::size_t>(cell)] = expected;
  }
}

void ReuseModel::fit_factors() noexcept {
  const auto ratio = [](double hits, double expected, double trust) {
    return (hits + trust) / (expected + trust);
  };
  constexpr int kCells = BlockTraits::kCells;
  std::fill(factor_.begin(), factor_.end(), 1.0);
  for (int round = 0; round < kRounds; ++round) {
    int stride = kCells - 1;
    for (const int values : BlockTraits::kValues) {
      stride /= values;
      std::array<double, 9> hits{}, expected{};
      for (int cell = 1; cell < kCells; ++cell) {
        const auto value = static_cast<std::size_t>((cell - 1) / stride % values);
        const auto c = static_cast<std::size_t>(cell);
        hits[value] += cell_hits_[c];
        expected[value] += expected_[c] * factor_[c];
      }
      for (int cell = 1; cell < kCells; ++cell) {
        const auto value = static_cast<std::size_t>((cell - 1) / stride % values);
        factor_[static_cast<std::size_t>(cell)] *= ratio(hits[value], expected[value], kValueTrust);
      }
    }
  }
  for (std::size_t c = 0; c < factor_.size(); ++c) {
    factor_[c] *= ratio(cell_hits_[c], expected_[c] * factor_[c], kCellTrust);
    int level = 0;
    // The nearest level, by ratio: the bound lies a sixth of a doubling above its factor.
    while (level + 1 < kLevels &&
           factor_[c] > level_factor_[static_cast<std::size_t>(level)] * 1.1224620483093730)
      ++level;
    cell_level_[c] = static_cast<std::uint8_t>(level);
  }
}

void ReuseModel::fit_level(int level) noexcept {
  Curve rate, hazard;  // per unit of age; per bin
  double at_risk = 0;
  for (int bin = kBins - 1; bin >= 0; --bin) {
    const auto b = static_cast<std::size_t>(bin);
    at_risk += ended_[at(level, bin)] + waiting_[at(level, bin)];
    const double prior = level_factor_[static_cast<std::size_t>(level)] * common_[b];
    const double mixed = (hits_[at(level, bin)] + kLevelTrust * prior) / (at_risk + kLevelTrust);
    rate[b] = std::min(1.0, mixed) / bins_.width(bin);
  }
  for (int bin = 0; bin < kBins; ++bin) {
    const int from = std::max(0, bin - kNeighbours);
    const int to = std::min(kBins - 1, bin + kNeighbours);
    double sum = 0;
    for (int i = from; i <= to; ++i) sum += rate[static_cast<std::size_t>(i)];
    hazard[static_cast<std::size_t>(bin)] = std::min(1.0, sum / (to - from + 1) * bins_.width(bin));
  }
  for (int from = 0; from < kBins; ++from) {
    double idle = 1, used = 0, held = 0, best = 0;
    for (int bin = from; bin < kBins; ++bin) {
      const double now = idle * hazard[static_cast<std::size_t>(bin)];
      used += now;
      idle -= now;
      held += bins_.width(bin) * (idle + now / 2);
      if (held > 0) best = std::max(best, used / held);
    }
    worth_[at(level, from)] = best;
  }
}

std::size_t ReuseModel::memory() const {
  std::size_t values = cell_level_.capacity() / sizeof(double);
  for (const auto* each : {&hits_, &ended_, &waiting_, &worth_, &cell_ended_, &cell_waiting_,
                           &cell_hits_, &expected_, &factor_})
    values += each->capacity();
  return values * sizeof(double);
}

}  // namespace blockmgr
