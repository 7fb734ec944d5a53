#include "vgpu/base/pool.h"

#include <pthread.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "vgpu/base/settings.h"

namespace vgpu {
namespace {

constexpr std::chrono::milliseconds kPollInterval{
    50};  // interval at which a waiting thread calls `wait`

class Pool {
 public:
  explicit Pool(u32 helpers) {
    for (u32 i = 0; i < helpers; ++i) std::thread([this] { run_helper(); }).detach();
  }

  // Returns false if another launch uses the pool.
  bool run(const std::function<void()>& work, const std::function<void()>& wait) {
    if (busy_.exchange(true)) return false;
    {
      const std::lock_guard lock(mutex_);
      work_ = &work;
      ++round_;
    }
    wake_.notify_all();
    work();
    std::unique_lock lock(mutex_);
    work_ = nullptr;  // helpers that have not woken yet have nothing to do
    while (!helpers_done_.wait_for(lock, kPollInterval, [this] { return active_ == 0; })) {
      lock.unlock();
      wait();
      lock.lock();
    }
    busy_ = false;
    return true;
  }

 private:
  void run_helper() {
    u64 last_round = 0;
    std::unique_lock lock(mutex_);
    while (true) {
      wake_.wait(lock, [&] { return work_ && round_ != last_round; });
      last_round = round_;
      const std::function<void()>* work = work_;
      ++active_;
      lock.unlock();
      (*work)();
      lock.lock();
      if (--active_ == 0) helpers_done_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_, helpers_done_;
  const std::function<void()>* work_ = nullptr;
  u64 round_ = 0;
  u32 active_ = 0;
  std::atomic<bool> busy_{false};
};

// Threads do not survive fork: the child creates its own pool and leaks the parent's.
std::atomic<Pool*> current{nullptr};
void forget_pool() { current = nullptr; }

Pool& pool() {
  static std::mutex creation;
  Pool* existing = current;
  if (existing) return *existing;
  const std::lock_guard lock(creation);
  if (!current) {
    static const int registered = pthread_atfork(nullptr, nullptr, forget_pool);
    (void)registered;
    current = new Pool(settings().threads - 1);
  }
  return *current;
}

}  // namespace

void share_work(u64 parallelism, const std::function<void()>& work,
                const std::function<void()>& wait) {
  if (parallelism <= 1 || settings().threads <= 1 || !pool().run(work, wait)) work();
}

}  // namespace vgpu
