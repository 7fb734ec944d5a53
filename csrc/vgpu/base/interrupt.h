// Ends a launch when a signal arrives. In a Python process, signal handlers run only when the main
// thread returns to the interpreter, which an endless kernel never does.
#pragma once

namespace vgpu {

// Runs pending Python signal handlers. Returns true if one of them raised (as Ctrl-C's does): the
// launch must end, and Python raises the exception when the main thread runs next. Called
// periodically by the launching thread, which must hold no lock. Returns false in other threads and
// without Python.
bool interrupted();

}  // namespace vgpu
