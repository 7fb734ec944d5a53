// What a running kernel asks of the host: printf, thus device_print and the text of an assertion.
#pragma once

#include "vgpu/isa/isa.h"
#include "vgpu/isa/wave.h"

namespace vgpu {

// The value of a kernel's hidden_hostcall_buffer, made when the first such kernel is launched.
u64 hostcall_buffer();

// Serves the calls that wait. Waves announce one with s_sendmsg and then wait for its end. Throws
// Fault for a service that does not exist here.
void serve_hostcalls(const Wave& wave, const Inst& inst);

}  // namespace vgpu
