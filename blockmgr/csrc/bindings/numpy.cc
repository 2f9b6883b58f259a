#include "bindings/numpy.h"

// Nothing that NumPy 2 has taken away, so that one build serves NumPy 1.26 as well.
#define NPY_NO_DEPRECATED_API NPY_1_25_API_VERSION
#define NPY_TARGET_VERSION NPY_1_25_API_VERSION
#include <numpy/arrayobject.h>

namespace blockmgr {

namespace {

// In the order of Dtype.
constexpr int kTypes[] = {NPY_BOOL, NPY_UINT8, NPY_UINT16, NPY_UINT32, NPY_UINT64,
                          NPY_INT8, NPY_INT16, NPY_INT32,  NPY_INT64};

}  // namespace

void know_numpy() {
  if (PyArray_ImportNumPyAPI()) throw nb::python_error();
}

void* new_array(Dtype dtype, std::int64_t size, nb::object& array) {
  npy_intp length = size;
  array = nb::steal(PyArray_SimpleNew(1, &length, kTypes[static_cast<int>(dtype)]));
  if (!array.is_valid()) throw nb::python_error();
  return PyArray_DATA(reinterpret_cast<PyArrayObject*>(array.ptr()));
}

bool is_plain_array(PyObject* object, Numbers& numbers) noexcept {
  if (!PyArray_CheckExact(object)) return false;
  auto* const array = reinterpret_cast<PyArrayObject*>(object);
  const int type = PyArray_TYPE(array);
  if (PyArray_NDIM(array) != 1 || !PyTypeNum_ISINTEGER(type) || !PyArray_ISCARRAY_RO(array))
    return false;
  numbers = {PyArray_DATA(array), PyArray_DIM(array, 0), PyArray_ITEMSIZE(array),
             static_cast<bool>(PyTypeNum_ISSIGNED(type)), PyArray_ITEMSIZE(array)};
  return true;
}

}  // namespace blockmgr
