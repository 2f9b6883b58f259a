// The core's exceptions as the Python classes of blockmgr.errors.
#include "memory/errors.h"

#include <Python.h>  // before structmember.h, which needs it
#include <structmember.h>

#include <stdexcept>
#include <string>
#include <string_view>

#include "bindings/bindings.h"

namespace blockmgr {

namespace {

Known python;

void set_python_error(PyObject* type, nb::object arguments) {
  nb::object error =
      in_python([&] { return nb::steal(PyObject_CallObject(type, arguments.ptr())); });
  if (!error.is_valid()) throw nb::python_error();
  PyErr_SetObject(type, error.ptr());
}

}  // namespace

const Known& known() { return python; }

void know_python() {
  const auto member = [](const char* module, const char* name) {
    return nb::object(nb::module_::import_(module).attr(name)).release().ptr();
  };
  PyObject* const match = member("blockmgr.blocks", "Match");
  const auto field = [match](const char* name) {
    auto* type = reinterpret_cast<PyTypeObject*>(match);
    const auto* m = static_cast<PyMemberDef*>(PyType_GetSlot(type, Py_tp_members));
    for (; m && m->name; ++m)
      if (std::string_view(m->name) == name) return Field{m->offset};
    throw std::runtime_error(std::string("Match has no slot ") + name);
  };
  const auto error = [&](const char* name) { return member("blockmgr.errors", name); };
  python = {
      member("numpy", "ndarray"),
      member("sys", "is_finalizing"),
      nb::object(nb::steal(PyUnicode_InternFromString("__array__"))).release().ptr(),
      match,
      {field("num_cached_tokens"), field("num_replayed_tokens"), field("num_partial_tokens"),
       field("num_idle_blocks"), field("num_computing_tokens"), field("num_shared_tokens"),
       field("block_ids"), field("stops")},
      nb::object(nb::steal(PyTuple_New(0))).release().ptr(),
      error("OutOfBlocksError"),
      error("OutOfSequencesError"),
      error("UnknownSequenceError"),
      error("StaleMatchError"),
      error("PinBudgetError"),
      error("UnknownPinError"),
      error("BlockStateError"),
      error("InvariantError"),
      error("CopyError"),
      {PyExc_ValueError, error("NeverFitsError"), error("SequenceStateError"), error("StepError"),
       error("TicketError"), error("ReentrancyError"), error("ForkError")}};
}

static void set_error(const std::exception_ptr& thrown) {
  try {
    std::rethrow_exception(thrown);
  } catch (const OutOfBlocks& e) {
    set_python_error(python.out_of_blocks,
                     nb::make_tuple(e.needed, e.available, e.watermark, e.of_nodes));
  } catch (const BrokenInvariants& e) {
    nb::list violations = made(nb::list());
    for (const std::string& violation : e.violations) violations.append(violation);
    set_python_error(python.invariant, nb::make_tuple(nb::tuple(violations)));
  } catch (const OutOfSequences& e) {
    set_python_error(python.out_of_sequences, nb::make_tuple(e.needed, e.available));
  } catch (const WrongBlockState& e) {
    set_python_error(python.block_state, nb::make_tuple(e.block, e.problem));
  } catch (const UnknownSequence& e) {
    set_python_error(python.unknown_sequence, nb::make_tuple(e.handle));
  } catch (const StaleMatch& e) {
    set_python_error(python.stale_match, nb::make_tuple(e.expected, e.found));
  } catch (const PinBudget& e) {
    set_python_error(python.pin_budget, nb::make_tuple(e.needed, e.available, e.budget));
  } catch (const UnknownPin& e) {
    set_python_error(python.unknown_pin, nb::make_tuple(e.pin));
  } catch (const Error& e) {
    set_python_error(python.of_kind[static_cast<std::size_t>(e.kind)], nb::make_tuple(e.what()));
  }
}

void raise_unknown_sequence(nb::handle handle) {
  set_python_error(python.unknown_sequence, nb::make_tuple(handle));
  throw nb::python_error();
}

void raise_unknown_pin(nb::handle pin) {
  set_python_error(python.unknown_pin, nb::make_tuple(pin));
  throw nb::python_error();
}

void translate_errors(const std::exception_ptr& thrown, void*) {
  try {
    set_error(thrown);
  } catch (nb::python_error& error) {
    error.restore();  // there was no memory for the error, say
  } catch (const std::bad_alloc&) {
    PyErr_NoMemory();
  }
}

}  // namespace blockmgr
