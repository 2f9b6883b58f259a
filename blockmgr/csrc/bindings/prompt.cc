#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "bindings/bindings.h"

namespace blockmgr {

namespace {

// The tokens of a prompt, in memory that never moves, so that arrays can share it: only what
// nothing has been written to yet is written. A prompt reads a number of leading tokens; prompts
// that were copied from one another share this, until they grow apart.
struct PromptTokens {
  explicit PromptTokens(std::int64_t size)
      : capacity(size + size / 4),
        tokens(std::make_unique_for_overwrite<Token[]>(static_cast<std::size_t>(capacity))) {}

  static constexpr bool kIsReadOnly = true;
  std::pair<void*, std::size_t> bytes() const {
    return {tokens.get(), static_cast<std::size_t>(size) * sizeof(Token)};
  }
  bool has_room(std::int64_t from, std::int64_t count) const {
    return from == size && count <= capacity - size;
  }
  void append(const Token* more, std::int64_t count) {
    std::copy_n(more, count, tokens.get() + size);
    size += count;
  }

  // A quarter more than was asked for: a copy each time that a prompt has grown by so much, so each
  // token is copied a few times at most. Memory that nothing was written to takes no room.
  std::int64_t capacity;
  std::int64_t size = 0;
  std::unique_ptr<Token[]> tokens;
};

nb::tuple with_size(nb::object own, std::int64_t size) {
  return made(nb::make_tuple(made(std::move(own)), size));
}

// The tokens of a prompt, once all of the prompt has been checked, and their number.
nb::tuple prompt_tokens(nb::handle tokens, nb::handle name, nb::handle extras, nb::handle session) {
  bytes_argument(name, "namespace", 0);
  extras_argument(extras);
  session_argument(session, 0);
  std::vector<Token> home;
  // In place, because nothing runs between the check and the copy.
  TokenArray from(tokens, "tokens", kTokenLimit, home, 0, Inside::kNative);
  from.read();
  PromptTokens own(not_empty(from.size(), "tokens"));
  own.append(from.data(), from.size());
  return with_size(nb::cast(std::move(own)), from.size());
}

// The first so many of these tokens and more: in the same memory, if there is room after them that
// no other prompt has taken. They are in place before any object is made, which may run the garbage
// collector, and with it code that extends the same prompt.
nb::tuple extended_tokens(nb::handle own, std::int64_t size, nb::handle tokens, nb::handle extras) {
  extras_argument(extras);
  std::vector<Token> home;
  TokenArray more(tokens, "tokens", kTokenLimit, home, 0, Inside::kNative);
  more.read();
  auto& before = nb::cast<PromptTokens&>(own);
  if (before.has_room(size, more.size())) {
    before.append(more.data(), more.size());
    return with_size(nb::borrow(own), size + more.size());
  }
  PromptTokens after(size + more.size());
  after.append(before.tokens.get(), size);
  after.append(more.data(), more.size());
  return with_size(nb::cast(std::move(after)), size + more.size());
}

}  // namespace

void bind_prompt(nb::module_& m) {
  nb::class_<PromptTokens>(
      m, "PromptTokens", nb::type_slots(buffer_slots<PromptTokens>()),
      "The memory of the tokens of a prompt: a buffer that cannot be written.");
  m.def("prompt_tokens", prompt_tokens);
  m.def("extended_tokens", extended_tokens);
}

}  // namespace blockmgr
