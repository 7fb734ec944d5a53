// Ends a launch for a signal. In a process of Python's a signal's handler runs when the main thread
// comes back to Python, which a kernel without end never does.
#pragma once

namespace vgpu {

// To be asked now and then during a launch, by its own thread, which holds no lock. Runs the
// handlers of signals that have come. Whether one has raised, as Ctrl-C's does: the launch is to
// end, and Python raises that exception in the main thread when it runs next. False in other
// threads and where there is no Python.
bool interrupted();

}  // namespace vgpu
