// Errors of the core. bindings/errors.cc turns each kind into the Python class of the same name.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace blockmgr {

enum class ErrorKind {
  kValue,
  kNeverFits,
  kSequenceState,
  kStep,
  kTicket,
  kReentrancy,
  kFork,
};

struct Error : std::runtime_error {
  Error(ErrorKind kind, const std::string& message) : std::runtime_error(message), kind(kind) {}
  ErrorKind kind;
};

struct OutOfBlocks : std::exception {
  OutOfBlocks(std::int64_t needed, std::int64_t available, std::int64_t watermark,
              bool of_nodes = false)
      : needed(needed), available(available), watermark(watermark), of_nodes(of_nodes) {}
  const char* what() const noexcept override { return "out of blocks"; }
  std::int64_t needed, available, watermark;
  bool of_nodes;  // what is short: nodes, which have no blocks of their own
};

// The books do not balance: one sentence for each thing found.
struct BrokenInvariants : std::exception {
  explicit BrokenInvariants(std::vector<std::string> violations)
      : violations(std::move(violations)) {}
  const char* what() const noexcept override { return "broken invariants"; }
  std::vector<std::string> violations;
};

struct OutOfSequences : std::exception {
  OutOfSequences(std::int64_t needed, std::int64_t available)
      : needed(needed), available(available) {}
  const char* what() const noexcept override { return "out of sequence rows"; }
  std::int64_t needed, available;
};

struct WrongBlockState : std::exception {
  WrongBlockState(std::int64_t block, const std::string& problem)
      : block(block), problem(problem) {}
  const char* what() const noexcept override { return problem.c_str(); }
  std::int64_t block;
  std::string problem;
};

// The cache no longer holds what a match said of it.
struct StaleMatch : std::exception {
  StaleMatch(std::int64_t expected, std::int64_t found) : expected(expected), found(found) {}
  const char* what() const noexcept override { return "stale match"; }
  std::int64_t expected, found;
};

struct PinBudget : std::exception {
  PinBudget(std::int64_t needed, std::int64_t available, std::int64_t budget)
      : needed(needed), available(available), budget(budget) {}
  const char* what() const noexcept override { return "pin budget"; }
  std::int64_t needed, available, budget;
};

struct UnknownPin : std::exception {
  explicit UnknownPin(std::int64_t pin) : pin(pin) {}
  const char* what() const noexcept override { return "unknown pin"; }
  std::int64_t pin;
};

struct UnknownSequence : std::exception {
  explicit UnknownSequence(std::int64_t handle) : handle(handle) {}
  const char* what() const noexcept override { return "unknown sequence"; }
  std::int64_t handle;
};

}  // namespace blockmgr
