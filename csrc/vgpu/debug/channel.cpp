#include "vgpu/debug/channel.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "vgpu/base/log.h"

namespace vgpu {
namespace {

const char* socket_path() {
  static const char* const path = std::getenv("RFOPS_VGPU_DEBUG");
  return path && *path ? path : nullptr;
}

}  // namespace

bool debugging() { return socket_path() != nullptr; }

Channel& Channel::of_this_thread() {
  thread_local Channel channel;
  if (channel.owner_ != getpid()) channel.open();
  return channel;
}

Channel::~Channel() { close(); }

void Channel::open() {
  close();
  owner_ = getpid();
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, socket_path(), sizeof(address.sun_path) - 1);
  file_ = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (connect(file_, reinterpret_cast<const sockaddr*>(&address), sizeof(address))) {
    log_line(1, "RFOPS_VGPU_DEBUG: " + std::string(socket_path()) + ": " + std::strerror(errno));
    close();
  }
}

void Channel::close() {
  if (file_ >= 0) ::close(file_);
  file_ = -1;
  received_.clear();
}

void Channel::send(const std::string& line) {
  const std::string text = line + "\n";
  for (std::size_t offset = 0; is_open() && offset < text.size();) {
    const ssize_t sent = ::send(file_, text.data() + offset, text.size() - offset, MSG_NOSIGNAL);
    if (sent > 0) offset += static_cast<std::size_t>(sent);
    if (sent < 0 && errno != EINTR) close();
  }
}

std::string Channel::receive() {
  while (is_open()) {
    if (const std::size_t end = received_.find('\n'); end != std::string::npos) {
      std::string line = received_.substr(0, end);
      received_.erase(0, end + 1);
      return line;
    }
    char bytes[4096];
    const ssize_t count = recv(file_, bytes, sizeof(bytes), 0);
    if (count > 0) received_.append(bytes, static_cast<std::size_t>(count));
    if (count == 0 || (count < 0 && errno != EINTR)) close();
  }
  return "";
}

bool Channel::is_readable() const {
  if (!received_.empty()) return true;
  pollfd wanted = {file_, POLLIN, 0};
  return is_open() && poll(&wanted, 1, 0) > 0;
}

}  // namespace vgpu
