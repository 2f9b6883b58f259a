// The core's exceptions as the Python classes of blockmgr.errors.
#include "bindings.h"
#include "errors.h"

namespace blockmgr {

namespace {

void set_python_error(nb::handle errors, const char* name, nb::object arguments) {
  nb::object type = errors.attr(name);
  nb::object error = nb::steal(PyObject_CallObject(type.ptr(), arguments.ptr()));
  if (!error.is_valid()) throw nb::python_error();
  PyErr_SetObject(type.ptr(), error.ptr());
}

const char* error_name(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kNeverFits:
      return "NeverFitsError";
    case ErrorKind::kSequenceState:
      return "SequenceStateError";
    case ErrorKind::kStep:
      return "StepError";
    case ErrorKind::kTicket:
      return "TicketError";
    default:
      return "ReentrancyError";
  }
}

}  // namespace

static void set_error(const std::exception_ptr& thrown) {
  try {
    std::rethrow_exception(thrown);
  } catch (const OutOfBlocks& e) {
    set_python_error(nb::module_::import_("blockmgr.errors"), "OutOfBlocksError",
                     nb::make_tuple(e.needed, e.available, e.watermark));
  } catch (const BrokenInvariants& e) {
    nb::list violations = made(nb::list());
    for (const std::string& violation : e.violations) violations.append(violation);
    set_python_error(nb::module_::import_("blockmgr.errors"), "InvariantError",
                     nb::make_tuple(nb::tuple(violations)));
  } catch (const OutOfSequences& e) {
    set_python_error(nb::module_::import_("blockmgr.errors"), "OutOfSequencesError",
                     nb::make_tuple(e.needed, e.available));
  } catch (const WrongBlockState& e) {
    set_python_error(nb::module_::import_("blockmgr.errors"), "BlockStateError",
                     nb::make_tuple(e.block, e.problem));
  } catch (const UnknownSequence& e) {
    set_python_error(nb::module_::import_("blockmgr.errors"), "UnknownSequenceError",
                     nb::make_tuple(e.handle));
  } catch (const PinBudget& e) {
    set_python_error(nb::module_::import_("blockmgr.errors"), "PinBudgetError",
                     nb::make_tuple(e.needed, e.available, e.budget));
  } catch (const UnknownPin& e) {
    set_python_error(nb::module_::import_("blockmgr.errors"), "UnknownPinError",
                     nb::make_tuple(e.pin));
  } catch (const Error& e) {
    if (e.kind == ErrorKind::kValue) {
      PyErr_SetString(PyExc_ValueError, e.what());
    } else {
      set_python_error(nb::module_::import_("blockmgr.errors"), error_name(e.kind),
                       nb::make_tuple(e.what()));
    }
  }
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
