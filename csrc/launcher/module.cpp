/// @file module.cpp
/// @brief The extension module: `Launcher`, `Plans`, `setup`, `slow_launches`.

#include "tensors.h"

namespace rfops {

Torch torch;
int slow_launches = 0;

namespace {

struct Version {
  uint32_t major, minor;
};

/// The head of DLPack's exchange table, up to the function that is used here.
struct ExchangeTable {
  Version version;
  void* older;
  void* allocate;
  void* tensor_from;
  void* tensor_to;
  int (*view_from)(void* tensor, DlTensor* out);
};

PyObject* add_slow(PyObject*, PyObject* change) {
  slow_launches += static_cast<int>(PyLong_AsLong(change));
  if (PyErr_Occurred()) return nullptr;
  Py_RETURN_NONE;
}

PyMethodDef functions[] = {
    {"setup", setup, METH_VARARGS,
     "setup(Tensor, Parameter, exchange API, must_dispatch) -> can it be read"},
    {"add_slow", add_slow, METH_O, "add_slow(1) sends all launches through Python; -1 ends it"},
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

}  // namespace

PyObject* setup(PyObject*, PyObject* args) {
  PyObject *tensor, *parameter, *capsule, *must_dispatch;
  if (!PyArg_ParseTuple(args, "O!O!OO!", &PyType_Type, &tensor, &PyType_Type, &parameter, &capsule,
                        &PyTuple_Type, &must_dispatch)) {
    return nullptr;
  }
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
  using rfops::launcher_type, rfops::plans_type;
  if (PyType_Ready(&launcher_type) < 0 || PyType_Ready(&plans_type) < 0) return nullptr;
  PyObject* made = PyModule_Create(&rfops::module);
  if (made == nullptr) return nullptr;
  PyModule_AddObjectRef(made, "Launcher", reinterpret_cast<PyObject*>(&launcher_type));
  PyModule_AddObjectRef(made, "Plans", reinterpret_cast<PyObject*>(&plans_type));
  return made;
}
