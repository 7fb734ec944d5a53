// Records of launches as JSON texts, kept until a caller takes them. Thread-safe.
#pragma once

#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "vgpu/base/json.h"

namespace vgpu {

class Records {
 public:
  void add(std::string record) {
    const std::lock_guard lock(mutex_);
    records_.push_back(std::move(record));
  }
  void add(const std::vector<std::string>& records) {
    const std::lock_guard lock(mutex_);
    records_.insert(records_.end(), records.begin(), records.end());
  }
  // Returns the records as a JSON array in `text`, and clears them.
  const char* take(std::string& text) {
    const std::lock_guard lock(mutex_);
    text = json_array(records_);
    records_.clear();
    return text.c_str();
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> records_;
};

}  // namespace vgpu
