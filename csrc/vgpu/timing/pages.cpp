// Renumbers the pages of traces, and estimates which lines the XCDs share.
#include <algorithm>
#include <cmath>

#include "vgpu/timing/launch_time.h"

namespace vgpu {
namespace {

// Per line of a page: the number of workgroups of XCD 0 that use it.
using Users = std::array<u16, kPageLines>;
// Selects the lines read or the lines written.
using Mask = u32 TracedPage::*;
constexpr Mask kMasks[] = {&TracedPage::read, &TracedPage::written};
constexpr u32 kUses = static_cast<u32>(std::size(kMasks));

struct Pages {
  std::unordered_map<u64, u32> numbers;
  std::vector<std::array<Users, kUses>> users;

  u32 number(u64 page) {
    const auto [it, inserted] = numbers.try_emplace(page, static_cast<u32>(users.size()));
    if (inserted) users.push_back({});
    return it->second;
  }
  void add(const TracedPage& page, u32 index) {
    for (u32 use = 0; use < kUses; ++use) {
      for (u32 lines = page.*kMasks[use]; lines; lines &= lines - 1) {
        u16& count = users[index][use][static_cast<u32>(std::countr_zero(lines))];
        count = static_cast<u16>(std::min(65535, count + 1));
      }
    }
  }
};

u32 renumbered_line(u32 line, const std::vector<u32>& numbers) {
  return numbers[line / kPageLines] * kPageLines + line % kPageLines;
}

void renumber(std::vector<u32>& stream, const std::vector<u32>& numbers) {
  for_each_line(stream, [&numbers](u32& line) { line = renumbered_line(line, numbers); });
}

// Lines are classified by log2 of the number of workgroups of an XCD that use them, because
// operands of different reuse are shared by different XCDs.
constexpr u32 kClasses = 17;
struct Class {
  double lines = 0, uses = 0;  // of XCD 0
  double write_only = 0;       // lines that are written and never read
  // Uses by other XCDs per use by XCD 0, extrapolated from the remote workgroups.
  double remote_uses = 0;
};
using Classes = std::array<std::array<Class, kClasses>, kUses>;

u32 class_of(u32 users) { return static_cast<u32>(std::bit_width(users)) - 1; }

void count_local_uses(const Pages& pages, Classes& classes) {
  for (const auto& page : pages.users) {
    for (u32 use = 0; use < kUses; ++use) {
      for (u32 line = 0; line < kPageLines; ++line) {
        const u16 count = page[use][line];
        if (!count) continue;
        Class& cls = classes[use][class_of(count)];
        cls.lines += 1;
        cls.uses += count;
        cls.write_only += !page[0][line];
      }
    }
  }
}

void count_remote_uses(const WorkgroupTrace& trace, const Pages& pages, double weight,
                       Classes& classes) {
  for (const TracedPage& page : trace.pages) {
    const auto it = pages.numbers.find(page.number);
    if (it == pages.numbers.end()) continue;
    for (u32 use = 0; use < kUses; ++use) {
      const Users& users = pages.users[it->second][use];
      for (u32 lines = page.*kMasks[use]; lines; lines &= lines - 1) {
        const u32 count = users[static_cast<u32>(std::countr_zero(lines))];
        if (count) classes[use][class_of(count)].remote_uses += weight / count;
      }
    }
  }
}

// Estimates the fraction of its read lines that this XCD fetches from HBM if all XCDs that read a
// line fetch it equally often, and the fraction of its writes to lines that another XCD has written
// since.
void fill_sharing(const Classes& classes, double num_other_xccs, LaunchTime& time) {
  double lines = 0, fetched = 0, write_only = 0, writes = 0, contended = 0;
  for (u32 i = 0; i < kClasses; ++i) {
    const Class &read = classes[0][i], &written = classes[1][i];
    if (read.lines > 0) {
      lines += read.lines;
      fetched += read.lines / (1 + std::min(num_other_xccs, read.remote_uses / read.lines));
    }
    if (written.lines > 0) {
      const double remote_writers = std::min(num_other_xccs, written.remote_uses / written.lines);
      writes += written.uses;
      contended += written.uses * remote_writers / (1 + remote_writers);
      write_only += written.write_only / (1 + remote_writers);
    }
  }
  time.sharing = fetched > 0 ? lines / fetched : 1;
  time.contended = writes > 0 ? contended / writes : 0;
  time.footprint_bytes = fetched + write_only;
}

}  // namespace

void number_pages(std::vector<std::unique_ptr<WorkgroupTrace>>& traces, const Sample& sample,
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
    for (FlagWrite& flag : trace->flags) flag.line = renumbered_line(flag.line, numbers);
  }
  Classes classes{};
  count_local_uses(pages, classes);
  // Each remote workgroup stands for all workgroups of its XCD that were not traced.
  const double num_other_xccs = sample.xccs - 1;
  const double weight = sample.remote.empty()
                            ? 0
                            : num_other_xccs * static_cast<double>(sample.replayed.size()) /
                                  static_cast<double>(sample.remote.size());
  for (const auto& trace : traces) {
    if (trace && trace->flat % sample.xccs) count_remote_uses(*trace, pages, weight, classes);
  }
  fill_sharing(classes, num_other_xccs, time);
  time.footprint_bytes *= sample.xccs * kLineBytes * static_cast<double>(sample.num_local) /
                          static_cast<double>(sample.replayed.size());
}

}  // namespace vgpu
