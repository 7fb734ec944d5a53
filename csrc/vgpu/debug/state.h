// Answers to requests for the state of a stopped launch, as JSON.
#pragma once

#include <sstream>
#include <string>

#include "vgpu/debug/stops.h"
#include "vgpu/object/launch.h"

namespace vgpu {

// The launch's description: kernel, grid, arguments. `number` counts the launches of the process.
std::string describe_launch(const Launch& launch, u64 number);

// Where a launch has stopped.
struct Stopped {
  const Launch& launch;
  LineTable& lines;
  const Wave* wave;  // null before the first instruction

  // Returns the answer to a request, or an empty text if it is not one for state. Throws
  // std::invalid_argument with the reason.
  std::string answer(const std::string& name, std::istringstream& words) const;

 private:
  const Wave& wave_at(std::istringstream& words) const;
  std::string listing() const;
  std::string waves() const;
  std::string scalars(const Wave& w) const;
  std::string vectors(const Wave& w, std::istringstream& words) const;
  std::string memory(std::istringstream& words) const;
  std::string allocation(std::istringstream& words) const;
};

// Reads a number of a request, decimal or 0x. Throws std::invalid_argument.
i64 next_number(std::istringstream& words);

}  // namespace vgpu
