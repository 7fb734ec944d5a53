/// @file module.cpp
/// @brief The extension module: `Launcher`, `Plans`, `setup`, `slow_launches`, `rank`.

#include "ranking.h"
#include "tensors.h"

namespace rfops {

Torch torch;
int slow_launches = 0;

namespace {

struct Version {
  uint32_t major, minor;
};

/// The beginning of DLPack's exchange table, up to the function used here.
struct ExchangeTable {
  Version version;
  void* older;
  void* allocate;
  void* tensor_from;
  void* tensor_to;
  int (*view_from)(void* tensor, DlTensor* out);
};

PyObject* set_slow(PyObject*, PyObject* count) {
  slow_launches = static_cast<int>(PyLong_AsLong(count));
  if (PyErr_Occurred()) return nullptr;
  Py_RETURN_NONE;
}

PyMethodDef functions[] = {
    {"setup", setup, METH_VARARGS,
     "setup(Tensor, Parameter, exchange API, must_dispatch, gradients, negative_bit) -> can it be "
     "read"},
    {"rank", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(rank)), METH_FASTCALL,
     "rank(rows, weights, low, high, excluded, variants, factors, max_correction, parts[, steps, "
     "numbers, first_number]) -> the best variant of each kernel"},
    {"set_slow", set_slow, METH_O,
     "set_slow(1) sends all launches through Python until set_slow(0)"},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef module = {
    PyModuleDef_HEAD_INIT,
    "rfops_launcher",
    "rfops's launch path",
    -1,
    functions,
    nullptr,
    nullptr,
    nullptr,
    nullptr,
};

/// Returns whether a function of torch returned true; takes a new reference, or null.
bool is_yes(PyObject* answer) {
  if (answer == nullptr) PyErr_Clear();
  Py_XDECREF(answer);
  return answer != nullptr && answer != Py_False;
}

}  // namespace

bool is_gradient_wanted(PyObject* const* args, Py_ssize_t count) {
  PyObject* level = PyDict_GetItemWithError(torch.forward_ad, torch.level);  // borrowed
  if (level != nullptr && PyLong_AsLong(level) >= 0) return true;
  PyErr_Clear();
  for (Py_ssize_t i = 0; i < count; ++i) {
    if (is_tensor(args[i]) && has_metadata(args[i]) &&
        is_yes(torch.requires_grad->get(args[i], torch.requires_grad->closure))) {
      return is_yes(PyObject_CallNoArgs(torch.is_grad_enabled));
    }
  }
  return false;
}

bool query_negated(PyObject* tensor) {
  PyObject* answer = PyObject_CallMethod(tensor, "is_neg", nullptr);
  const bool is_negated = answer != Py_False;
  if (answer == nullptr) PyErr_Clear();
  Py_XDECREF(answer);
  return is_negated;
}

PyObject* setup(PyObject*, PyObject* args) {
  PyObject *tensor, *parameter, *capsule, *must_dispatch, *gradients, *requires_grad;
  if (!PyArg_ParseTuple(args, "O!O!OO!O!(IK)", &PyType_Type, &tensor, &PyType_Type, &parameter,
                        &capsule, &PyTuple_Type, &must_dispatch, &PyTuple_Type, &gradients,
                        &torch.keys, &torch.negative) ||
      !PyArg_ParseTuple(gradients, "OO!O!UII", &torch.is_grad_enabled, &PyGetSetDescr_Type,
                        &requires_grad, &PyDict_Type, &torch.forward_ad, &torch.level, &torch.impl,
                        &torch.metadata)) {
    return nullptr;
  }
  Py_INCREF(gradients);  // protects its items, too
  torch.requires_grad = reinterpret_cast<PyGetSetDescrObject*>(requires_grad)->d_getset;
  torch.read = nullptr;
  if (PyCapsule_IsValid(capsule, "dlpack_exchange_api")) {
    void* table = PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
    const auto* exchange = static_cast<ExchangeTable*>(table);
    if (exchange->version.major == 1) torch.read = exchange->view_from;
  }
  torch.tensor = reinterpret_cast<PyTypeObject*>(Py_NewRef(tensor));
  torch.parameter = reinterpret_cast<PyTypeObject*>(Py_NewRef(parameter));
  torch.must_dispatch = Py_NewRef(must_dispatch);
  torch.data_ptr = PyUnicode_InternFromString("data_ptr");
  return PyBool_FromLong(torch.read != nullptr);
}

}  // namespace rfops

PyMODINIT_FUNC PyInit_rfops_launcher() {
  using namespace rfops;
  PyTypeObject* const types[] = {&launcher_type, &plans_type, &caller_type, &run_of_type,
                                 &run_type};
  for (PyTypeObject* type : types) {
    if (PyType_Ready(type) < 0) return nullptr;
  }
  PyObject* module = PyModule_Create(&rfops::module);
  if (module == nullptr) return nullptr;
  PyModule_AddObjectRef(module, "Launcher", reinterpret_cast<PyObject*>(&launcher_type));
  PyModule_AddObjectRef(module, "Plans", reinterpret_cast<PyObject*>(&plans_type));
  return module;
}
