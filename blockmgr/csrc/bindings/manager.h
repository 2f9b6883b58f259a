// The class of a manager for Python.
#pragma once

#include "bindings/holder.h"

namespace blockmgr {

// Calls that change nothing.
void add_reads(nb::class_<Core>& type);

}  // namespace blockmgr
