// Runs a given number of random operations: stress --seed 1 --ops 100000000 --profile all.
// The profile "groups" drives managers with groups of layers, and the profile "c" managers of all
// profiles through the C interface; "families" and "c:families" preempt forks and resume them
// together.
//
// Each run of some hundred moves draws a configuration from the stream of its seed. On a violation,
// the program writes the bytes of the run to a file, which --replay and the fuzz target can run
// again.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>

#include "runs.h"
#include "sets.h"

namespace {

using namespace blockmgr::testing;

struct Arguments {
  std::uint64_t seed = 1;
  std::int64_t ops = 1'000'000;
  std::vector<std::string> kinds = kind_names();
  int moves = 400;  // in one run
  double minutes = 0;
  std::string replay;
  std::string out = "stress-failure.bin";
};

[[noreturn]] void usage(const std::string& wrong) {
  std::fprintf(
      stderr,
      "%s\nusage: stress [--seed N] [--ops N] [--profile NAME|c|all] [--moves N] [--minutes M] "
      "[--out FILE] [--replay FILE]\nprofiles:",
      wrong.c_str());
  for (const auto& names : {kind_names(), kind_names_through_c(), kind_names_apart()})
    for (const std::string& name : names) std::fprintf(stderr, " %s", name.c_str());
  std::fprintf(stderr, "\n");
  std::exit(2);
}

Arguments parse(int argc, char** argv) {
  Arguments a;
  for (int i = 1; i < argc; i += 2) {
    const std::string key = argv[i];
    if (i + 1 == argc) usage(key + " has no value");
    const char* value = argv[i + 1];
    if (key == "--seed") {
      a.seed = std::strtoull(value, nullptr, 10);
    } else if (key == "--ops") {
      a.ops = std::strtoll(value, nullptr, 10);
    } else if (key == "--moves") {
      a.moves = std::atoi(value);
    } else if (key == "--minutes") {
      a.minutes = std::atof(value);
    } else if (key == "--out") {
      a.out = value;
    } else if (key == "--replay") {
      a.replay = value;
    } else if (key != "--profile") {
      usage("unknown option " + key);
    } else if (std::strcmp(value, "all") != 0) {
      if (std::strcmp(value, "c") == 0) {
        a.kinds = kind_names_through_c();
        continue;
      }
      const auto has = [&](const std::vector<std::string>& names) {
        return std::count(names.begin(), names.end(), value) > 0;
      };
      if (!has(kind_names()) && !has(kind_names_through_c()) && !has(kind_names_apart()))
        usage(std::string("unknown profile ") + value);
      a.kinds = {value};
    }
  }
  return a;
}

int replay(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) usage("cannot read " + path);
  const std::vector<char> data((std::istreambuf_iterator<char>(file)),
                               std::istreambuf_iterator<char>());
  Bytes bytes(reinterpret_cast<const std::uint8_t*>(data.data()), data.size());
  try {
    std::int64_t calls = 0;
    run(bytes, bytes.next(), INT32_MAX, calls);
  } catch (const std::exception& violation) {
    std::printf("violation: %s\n", violation.what());
    return 1;
  }
  std::printf("no violation\n");
  return 0;
}

void print(const Counts& counts) {
  for (std::size_t op = 0; op < kNumOps; ++op) {
    std::printf("  %-10s", name_of(static_cast<Op>(op)));
    for (std::size_t outcome = 0; outcome < kNumOutcomes; ++outcome)
      if (counts[op][outcome])
        std::printf("  %s %lld", name_of(static_cast<Outcome>(outcome)),
                    static_cast<long long>(counts[op][outcome]));
    std::printf("\n");
  }
}

// The stream of one run depends on the seed and the run's number, so that runs are independent.
std::uint64_t stream_of(std::uint64_t seed, std::uint64_t number) {
  std::seed_seq sequence{static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32),
                         static_cast<std::uint32_t>(number),
                         static_cast<std::uint32_t>(number >> 32)};
  std::uint32_t words[2];
  sequence.generate(words, words + 2);
  return static_cast<std::uint64_t>(words[0]) << 32 | words[1];
}

void keep(const std::string& path, std::uint8_t kind, const std::vector<std::uint8_t>& bytes) {
  std::ofstream out(path, std::ios::binary);
  out.put(static_cast<char>(kind));
  out.write(reinterpret_cast<const char*>(bytes.data()),
            static_cast<std::streamsize>(bytes.size()));
}

}  // namespace

int main(int argc, char** argv) {
  const Arguments a = parse(argc, argv);
  if (!a.replay.empty()) return replay(a.replay);
  const auto started = std::chrono::steady_clock::now();
  const auto seconds = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
  };
  Counts counts{};
  std::int64_t calls = 0;
  std::int64_t reported = 0;
  std::uint64_t runs = 0;
  try {
    check_sets(a.seed);
  } catch (const std::exception& violation) {
    std::printf("violation: %s\nseed %llu, sets, after 0 operations\n", violation.what(),
                static_cast<unsigned long long>(a.seed));
    return 1;
  }
  for (; calls < a.ops && (a.minutes <= 0 || seconds() < a.minutes * 60); ++runs) {
    const std::uint8_t kind = kind_of(a.kinds[runs % a.kinds.size()]);
    Bytes bytes(stream_of(a.seed, runs));
    try {
      run(bytes, kind, a.moves, calls, &counts);
    } catch (const std::exception& violation) {
      keep(a.out, kind, bytes.used());
      std::printf(
          "violation: %s\nseed %llu, run %llu, after %lld operations; run it again with "
          "--replay %s\n",
          violation.what(), static_cast<unsigned long long>(a.seed),
          static_cast<unsigned long long>(runs), static_cast<long long>(calls), a.out.c_str());
      return 1;
    }
    if (calls - reported >= 5'000'000) {
      reported = calls;
      std::fprintf(stderr, "%lld operations, %.0f s\n", static_cast<long long>(calls), seconds());
    }
  }
  std::printf("seed %llu, %lld operations in %llu runs, 0 violations, %.0f s\n",
              static_cast<unsigned long long>(a.seed), static_cast<long long>(calls),
              static_cast<unsigned long long>(runs), seconds());
  print(counts);
  return 0;
}
