#include "policies/policy.h"

#include "memory/errors.h"
#include "policies/adaptive.h"
#include "policies/arc.h"
#include "policies/lfuda.h"
#include "policies/s3fifo.h"
#include "policies/sieve.h"
#include "policies/slru.h"

namespace blockmgr {

std::unique_ptr<Policy> make_policy(std::string_view name, Blocks& blocks, const PrefixIndex& index,
                                    Range range) {
  if (name == "lru") return nullptr;
  if (name == "lfuda") return std::make_unique<LfudaPolicy>(blocks, index, range);
  if (name == "s3fifo") return std::make_unique<S3FifoPolicy>(blocks, index, range);
  if (name == "arc") return std::make_unique<ArcPolicy>(blocks, index, range);
  if (name == "sieve") return std::make_unique<SievePolicy>(blocks, index, range);
  if (name == "slru") return std::make_unique<SlruPolicy>(blocks, index, range);
  if (name == "adaptive") return std::make_unique<AdaptivePolicy>(blocks, index, range);
  throw Error(ErrorKind::kValue, "there is no eviction policy '" + std::string(name) + "'");
}

}  // namespace blockmgr
