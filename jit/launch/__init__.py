"""From a code object to a launch: HIP, signatures, plans, the native path."""
