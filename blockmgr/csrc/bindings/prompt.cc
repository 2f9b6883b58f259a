#include <algorithm>
#include <vector>

#include "bindings/bindings.h"
#include "bindings/numpy.h"

namespace blockmgr {

namespace {

// The tokens of a prompt in an array of their own, once all of the prompt has been checked.
nb::object prompt_tokens(nb::handle tokens, nb::handle name, nb::handle extras,
                         nb::handle session) {
  bytes_argument(name, "namespace", 0);
  extras_argument(extras);
  session_argument(session, 0);
  std::vector<Token> home;
  TokenArray from(tokens, "tokens", kTokenLimit, home, 0);
  from.read();
  const std::int64_t count = not_empty(from.size(), "tokens");
  auto own = new_numbers<Token>(count);
  std::copy(from.data(), from.data() + count, own.get());
  return to_array(std::move(own), count);
}

}  // namespace

void bind_prompt(nb::module_& m) {
  const auto any = [] { return nb::arg().none(); };
  m.def("prompt_tokens", prompt_tokens,
        nb::sig("def prompt_tokens(tokens: object, namespace: object, extras: object, "
                "session: object, /) -> "
                "numpy.typing.NDArray[numpy.uint32]"),
        any(), any(), any(), any());
}

}  // namespace blockmgr
