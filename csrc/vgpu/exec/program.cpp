#include "vgpu/isa/program.h"

#include <sys/mman.h>

#include <new>

#include "vgpu/exec/load_queue.h"
#include "vgpu/exec/load_visibility.h"
#include "vgpu/isa/check_operands.h"

namespace vgpu {

// Entries are zero pages of the kernel until used, so a large code object costs only what it
// executes.
Program::Program(Arch a, const u32* w, u32 n)
    : arch(a), words(w), count(n), address(reinterpret_cast<u64>(w)) {
  if (!n) return;
  void* memory = mmap(nullptr, n * sizeof(Inst), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  insts = static_cast<Inst*>(memory);
}

Program::~Program() {
  if (insts) munmap(insts, count * sizeof(Inst));
}

void Program::decode_slot(u32 index) {
  Inst decoded;
  decode(arch, words, count, index, decoded);
  const std::lock_guard lock(mutex_);
  Inst& slot = insts[index];
  if (slot.exec) return;
  if (decoded.op && is_memory(decoded.format)) {
    const Operands operands = operands_of(decoded);
    decoded.queue = operands.queue;
    decoded.result = result_dwords(operands);
    if (!scan_) scan_ = std::make_unique<LoadVisibilityScan>(*this);
    if (scan_->may_be_observed(index)) decoded.exec = run_delayed;
  }
  const ExecFn exec = decoded.exec;  // stored last: it publishes the entry to other threads
  decoded.exec = nullptr;
  slot = decoded;
  __atomic_store_n(&slot.exec, exec, __ATOMIC_RELEASE);
}

bool Program::observes_pending_loads(u32 entry) {
  const std::lock_guard lock(mutex_);
  if (!scan_) scan_ = std::make_unique<LoadVisibilityScan>(*this);
  return scan_->kernel_has_observable_load(entry);
}

bool Program::observes_other_workgroups(u32 entry) {
  const std::lock_guard lock(mutex_);
  if (!scan_) scan_ = std::make_unique<LoadVisibilityScan>(*this);
  return scan_->kernel_observes_workgroups(entry);
}

}  // namespace vgpu
