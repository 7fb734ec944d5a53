// Numbers of pages, and what workgroups of different XCDs share.
#include <algorithm>
#include <cmath>

#include "vgpu/timing/chip.h"

namespace vgpu {
namespace {

// How many workgroups of XCD 0 read each line of a page.
using Readers = std::array<u16, kPageLines>;

struct Pages {
  std::unordered_map<u64, u32> numbers;
  std::vector<Readers> readers;

  u32 number(u64 page) {
    const auto [found, fresh] = numbers.try_emplace(page, static_cast<u32>(readers.size()));
    if (fresh) readers.push_back({});
    return found->second;
  }
};

void renumber(std::vector<u32>& stream, const std::vector<u32>& numbers) {
  for (std::size_t at = 0; at < stream.size();) {
    const u32 count = Head::words(stream[at]);
    for (std::size_t i = at + 1; i <= at + count;) {
      if (tag_of(stream[i]) != GlobalWord::kTag) {
        ++i;
        continue;
      }
      const u32 lines = GlobalWord::lines(stream[i]);
      for (std::size_t l = i + 1; l <= i + lines; ++l) {
        stream[l] = numbers[stream[l] / kPageLines] * kPageLines + stream[l] % kPageLines;
      }
      i += 1 + lines;
    }
    at += 1 + count;
  }
}

// Lines by how many workgroups of an XCD read them, in powers of two: operands of different reuse
// are shared by different XCDs.
constexpr u32 kClasses = 17;
struct Class {
  double lines = 0, found = 0;  // of XCD 0; in another XCD, by the workgroups looked at
};

u32 class_of(u32 readers) { return static_cast<u32>(std::bit_width(readers)) - 1; }

void look_elsewhere(const GroupTrace& trace, const Pages& pages, double weight,
                    std::array<Class, kClasses>& classes) {
  for (const TracedPage& page : trace.pages) {
    const auto known = pages.numbers.find(page.number);
    if (known == pages.numbers.end()) continue;
    const Readers& readers = pages.readers[known->second];
    for (u32 lines = page.read; lines; lines &= lines - 1) {
      const u32 count = readers[static_cast<u32>(std::countr_zero(lines))];
      if (count) classes[class_of(count)].found += weight / count;
    }
  }
}

}  // namespace

void number_pages(std::vector<std::unique_ptr<GroupTrace>>& traces, const Sample& sample,
                  LaunchTime& time) {
  Pages pages;
  for (const auto& trace : traces) {
    if (!trace || trace->flat % sample.xccs) continue;
    std::vector<u32> numbers;
    for (const TracedPage& page : trace->pages) {
      const u32 number = pages.number(page.number);
      numbers.push_back(number);
      for (u32 lines = page.read; lines; lines &= lines - 1) {
        u16& count = pages.readers[number][static_cast<u32>(std::countr_zero(lines))];
        count = static_cast<u16>(std::min(65535, count + 1));
      }
    }
    for (std::vector<u32>& stream : trace->waves) renumber(stream, numbers);
  }
  std::array<Class, kClasses> classes{};
  for (const Readers& page : pages.readers) {
    for (const u16 count : page) {
      if (count) classes[class_of(count)].lines += 1;
    }
  }
  // A workgroup looked at stands for all of its XCD that were not.
  const double others = sample.xccs - 1;
  const double weight = sample.elsewhere.empty()
                            ? 0
                            : others * static_cast<double>(sample.replayed.size()) /
                                  static_cast<double>(sample.elsewhere.size());
  for (const auto& trace : traces) {
    if (trace && trace->flat % sample.xccs) look_elsewhere(*trace, pages, weight, classes);
  }
  double lines = 0, own = 0;  // own: what this XCD would fetch if all took turns
  for (const Class& c : classes) {
    if (c.lines == 0) continue;
    lines += c.lines;
    own += c.lines / (1 + std::min(others, c.found / c.lines));
  }
  time.sharing = own > 0 ? lines / own : 1;
  const double scale =
      static_cast<double>(sample.own) / static_cast<double>(sample.replayed.size());
  time.footprint_bytes = own * sample.xccs * kLineBytes * scale;
}

}  // namespace vgpu
