#include "policies/policy.h"

#include "memory/errors.h"
#include "policies/arc.h"
#include "policies/lfuda.h"
#include "policies/s3fifo.h"

namespace blockmgr {

std::unique_ptr<Policy> make_policy(std::string_view name, Nodes& nodes, const PrefixIndex& index,
                                    Range range) {
  if (name == "lru") return nullptr;
  if (name == "lfuda") return std::make_unique<LfudaPolicy>(nodes, index, range);
  if (name == "s3fifo") return std::make_unique<S3FifoPolicy>(nodes, index, range);
  if (name == "arc") return std::make_unique<ArcPolicy>(nodes, index, range);
  throw Error(ErrorKind::kValue, "there is no eviction policy '" + std::string(name) + "'");
}

}  // namespace blockmgr
