// Services of the host for a running kernel: printf, and so device_print and assertion texts.
#pragma once

#include "vgpu/isa/isa.h"
#include "vgpu/isa/wave.h"

namespace vgpu {

// Returns the value of a kernel's hidden_hostcall_buffer; the buffer is created at the first such
// launch.
u64 hostcall_buffer();

// From now on calls `handler` for each interrupt message instead of serving hostcalls: the buffer
// is that of another runtime (hsa/), which waits for its doorbell signal.
void set_interrupt_handler(void (*handler)());

// Serves all pending calls. Waves announce a call with s_sendmsg and then wait for its completion.
// Throws Fault for an unsupported service.
void serve_hostcalls(const Wave& wave, const Inst& inst);

}  // namespace vgpu
