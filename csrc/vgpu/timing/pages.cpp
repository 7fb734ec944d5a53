// Numbers of pages, and what workgroups of different XCDs share.
#include <algorithm>
#include <cmath>

#include "vgpu/timing/chip.h"

namespace vgpu {
namespace {

// How many workgroups of XCD 0 use each line of a page.
using Users = std::array<u16, kPageLines>;
// Those who read it, those who write it.
using Mask = u32 TracedPage::*;
constexpr Mask kMasks[] = {&TracedPage::read, &TracedPage::written};
constexpr u32 kUses = static_cast<u32>(std::size(kMasks));

struct Pages {
  std::unordered_map<u64, u32> numbers;
  std::vector<std::array<Users, kUses>> users;

  u32 number(u64 page) {
    const auto [found, fresh] = numbers.try_emplace(page, static_cast<u32>(users.size()));
    if (fresh) users.push_back({});
    return found->second;
  }
  void add(const TracedPage& page, u32 at) {
    for (u32 use = 0; use < kUses; ++use) {
      for (u32 lines = page.*kMasks[use]; lines; lines &= lines - 1) {
        u16& count = users[at][use][static_cast<u32>(std::countr_zero(lines))];
        count = static_cast<u16>(std::min(65535, count + 1));
      }
    }
  }
};

u32 renumbered(u32 line, const std::vector<u32>& numbers) {
  return numbers[line / kPageLines] * kPageLines + line % kPageLines;
}

void renumber(std::vector<u32>& stream, const std::vector<u32>& numbers) {
  for_each_line(stream, [&numbers](u32& line) { line = renumbered(line, numbers); });
}

// Lines by how many workgroups of an XCD use them, in powers of two: operands of different reuse
// are shared by different XCDs.
constexpr u32 kClasses = 17;
struct Class {
  double lines = 0, uses = 0;  // of XCD 0
  double not_read = 0;         // lines that it only writes
  double found = 0;            // uses in the other XCDs for each there, by the workgroups looked at
};
using Classes = std::array<std::array<Class, kClasses>, kUses>;

u32 class_of(u32 users) { return static_cast<u32>(std::bit_width(users)) - 1; }

void look_here(const Pages& pages, Classes& classes) {
  for (const auto& page : pages.users) {
    for (u32 use = 0; use < kUses; ++use) {
      for (u32 line = 0; line < kPageLines; ++line) {
        const u16 count = page[use][line];
        if (!count) continue;
        Class& c = classes[use][class_of(count)];
        c.lines += 1;
        c.uses += count;
        c.not_read += !page[0][line];
      }
    }
  }
}

void look_elsewhere(const GroupTrace& trace, const Pages& pages, double weight, Classes& classes) {
  for (const TracedPage& page : trace.pages) {
    const auto known = pages.numbers.find(page.number);
    if (known == pages.numbers.end()) continue;
    for (u32 use = 0; use < kUses; ++use) {
      const Users& users = pages.users[known->second][use];
      for (u32 lines = page.*kMasks[use]; lines; lines &= lines - 1) {
        const u32 count = users[static_cast<u32>(std::countr_zero(lines))];
        if (count) classes[use][class_of(count)].found += weight / count;
      }
    }
  }
}

// Of the lines that this XCD reads, which share it would fetch if all that do took turns; of its
// writes, those before which another XCD has written the line.
void fill_sharing(const Classes& classes, double others, LaunchTime& time) {
  double lines = 0, own = 0, written_only = 0, writes = 0, taken = 0;
  for (u32 i = 0; i < kClasses; ++i) {
    const Class &read = classes[0][i], &written = classes[1][i];
    if (read.lines > 0) {
      lines += read.lines;
      own += read.lines / (1 + std::min(others, read.found / read.lines));
    }
    if (written.lines > 0) {
      const double elsewhere = std::min(others, written.found / written.lines);
      writes += written.uses;
      taken += written.uses * elsewhere / (1 + elsewhere);
      written_only += written.not_read / (1 + elsewhere);
    }
  }
  time.sharing = own > 0 ? lines / own : 1;
  time.taken = writes > 0 ? taken / writes : 0;
  time.footprint_bytes = own + written_only;
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
      pages.add(page, number);
    }
    for (std::vector<u32>& stream : trace->waves) renumber(stream, numbers);
    for (FlagWrite& flag : trace->flags) flag.line = renumbered(flag.line, numbers);
  }
  Classes classes{};
  look_here(pages, classes);
  // A workgroup looked at stands for all of its XCD that were not.
  const double others = sample.xccs - 1;
  const double weight = sample.elsewhere.empty()
                            ? 0
                            : others * static_cast<double>(sample.replayed.size()) /
                                  static_cast<double>(sample.elsewhere.size());
  for (const auto& trace : traces) {
    if (trace && trace->flat % sample.xccs) look_elsewhere(*trace, pages, weight, classes);
  }
  fill_sharing(classes, others, time);
  time.footprint_bytes *= sample.xccs * kLineBytes * static_cast<double>(sample.own) /
                          static_cast<double>(sample.replayed.size());
}

}  // namespace vgpu
