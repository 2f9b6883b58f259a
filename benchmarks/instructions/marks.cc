// Lets a Python program tell callgrind what to count.
#include <valgrind/callgrind.h>

extern "C" void toggle() { CALLGRIND_TOGGLE_COLLECT; }

extern "C" void dump(const char* name) { CALLGRIND_DUMP_STATS_AT(name); }
