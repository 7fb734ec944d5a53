// The connection of a host thread to `rfops debug`: lines of text over the local socket at the path
// RFOPS_VGPU_DEBUG. The thread sends an event and then answers requests until one of them
// lets it go on.
#pragma once

#include <string>

namespace vgpu {

class Channel {
 public:
  // Returns the calling thread's connection, made at its first call. After a fork the child makes
  // its own.
  static Channel& of_this_thread();

  ~Channel();
  bool is_open() const { return file_ >= 0; }
  // Sends a line. If the other side has gone, the channel closes and the program runs on.
  void send(const std::string& line);
  // Waits for a line. Returns an empty text if the other side has gone.
  std::string receive();
  // Returns whether a line, or the end of the connection, can be received without waiting.
  bool is_readable() const;

 private:
  Channel() = default;
  void open();
  void close();

  int file_ = -1;
  int owner_ = 0;  // process
  std::string received_;
};

// Returns whether RFOPS_VGPU_DEBUG is set.
bool debugging();

}  // namespace vgpu
