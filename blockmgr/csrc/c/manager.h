// The manager behind a blockmgr_manager.
#pragma once

#include <memory>
#include <utility>

#include "sequences/sequences.h"

struct blockmgr_manager {
  blockmgr_manager(const blockmgr::Config& config, std::unique_ptr<blockmgr::Digester> digester)
      : core(config, std::move(digester)) {}

  blockmgr::Sequences core;
};
