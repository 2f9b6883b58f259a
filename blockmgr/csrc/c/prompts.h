// Prompts of callers in C, as the core takes them.
#pragma once

#include "c/structs.h"

namespace blockmgr::c {

// Refers to the memory of the caller.
Prompt prompt_of(const blockmgr_prompt* given);

}  // namespace blockmgr::c
