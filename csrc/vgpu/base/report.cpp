#include "vgpu/base/report.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <mutex>

#include "vgpu/base/json.h"
#include "vgpu/base/log.h"

namespace vgpu {
namespace {

const char* folder() {
  static const char* const name = std::getenv("RFOPS_VGPU_REPORT");
  return name && *name ? name : nullptr;
}

void write_line(int file, const std::string& line) {
  for (std::size_t offset = 0; offset < line.size();) {
    const ssize_t written = write(file, line.data() + offset, line.size() - offset);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;
    offset += static_cast<std::size_t>(written);
  }
}

// Returns the command line of this process.
std::string command() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), {}};
  while (!text.empty() && !text.back()) text.pop_back();
  for (char& c : text) c = c ? c : ' ';
  return text.substr(0, 200);
}

// A forked child writes its own file.
struct File {
  pid_t owner = 0;
  int number = -1;
};

int file_of_this_process() {
  static File file;
  if (file.owner == getpid()) return file.number;
  if (file.number >= 0) close(file.number);
  file.owner = getpid();
  const std::string name = std::string(folder()) + "/" + std::to_string(file.owner) + ".jsonl";
  file.number = open(name.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (file.number < 0) log_line(1, "RFOPS_VGPU_REPORT: " + name + ": " + std::strerror(errno));
  Json json;
  json.open('{');
  json.field("process", u64(file.owner));
  json.field("command", command());
  json.close('}');
  if (file.number >= 0) write_line(file.number, json.take() + "\n");
  return file.number;
}

}  // namespace

bool reporting() { return folder() != nullptr; }

void report(const char* kind, const std::string& record) {
  if (!reporting()) return;
  const std::string line = "{\"" + std::string(kind) + "\": " + record + "}\n";
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  const int file = file_of_this_process();
  if (file >= 0) write_line(file, line);
}

}  // namespace vgpu
