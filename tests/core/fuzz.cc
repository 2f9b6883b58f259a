// The fuzz target: the first byte of an input chooses what the other bytes drive.
//
// With clang it is linked with libFuzzer; AFL++ in persistent mode calls the same function. Built
// with BLOCKMGR_FUZZ_MAIN, it needs neither and runs each file of its arguments once.
#include <cstdio>
#include <cstdlib>
#include <exception>

#include "runs.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace blockmgr::testing;
  if (size < 8 || size > 16384) return 0;
  Bytes bytes(data, size);
  try {
    std::int64_t calls = 0;
    run(bytes, bytes.next(), INT32_MAX, calls);
  } catch (const std::exception& violation) {
    std::fprintf(stderr, "violation: %s\n", violation.what());
    std::abort();
  }
  return 0;
}

#ifdef BLOCKMGR_FUZZ_MAIN
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace {

int run_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string data((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(data.data()), data.size());
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  int count = 0;
  for (int i = 1; i < argc; ++i) {
    if (std::filesystem::is_directory(argv[i])) {
      for (const auto& entry : std::filesystem::directory_iterator(argv[i]))
        count += run_file(entry.path());
    } else {
      count += run_file(argv[i]);
    }
  }
  std::printf("%d inputs, 0 violations\n", count);
  return count ? 0 : 2;
}
#endif
