#include "vgpu/base/interrupt.h"

#include <dlfcn.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace vgpu {
namespace {

// Functions of CPython's stable ABI, looked up in the process at run time.
struct Python {
  int (*is_initialized)();
  int (*ensure)();
  void (*release)(int);
  int (*check_signals)();
  void (*fetch)(void**, void**, void**);
  void (*restore)(void*, void*, void*);
  int (*add_pending)(int (*)(void*), void*);
  bool complete = true;

  Python() {
    find(is_initialized, "Py_IsInitialized");
    find(ensure, "PyGILState_Ensure");
    find(release, "PyGILState_Release");
    find(check_signals, "PyErr_CheckSignals");
    find(fetch, "PyErr_Fetch");
    find(restore, "PyErr_Restore");
    find(add_pending, "Py_AddPendingCall");
  }

 private:
  template <class Function>
  void find(Function& function, const char* name) {
    function = reinterpret_cast<Function>(dlsym(RTLD_DEFAULT, name));
    complete = complete && function;
  }
};

const Python& python() {
  static const Python instance;
  return instance;
}

struct Raised {
  void *type, *value, *traceback;
};

int raise_again(void* argument) {
  const Raised* raised = static_cast<Raised*>(argument);
  python().restore(raised->type, raised->value, raised->traceback);
  delete raised;
  return -1;
}

}  // namespace

bool interrupted() {
  thread_local const bool is_main = syscall(SYS_gettid) == getpid();
  if (!is_main || !python().complete || !python().is_initialized()) return false;
  const int state = python().ensure();
  const bool raised = python().check_signals() != 0;
  if (raised) {
    // The launch's caller does not know of the exception; Python raises it when it next runs
    // bytecode.
    auto* const exception = new Raised;
    python().fetch(&exception->type, &exception->value, &exception->traceback);
    python().add_pending(raise_again, exception);
  }
  python().release(state);
  return raised;
}

}  // namespace vgpu
