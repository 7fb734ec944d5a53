/// @file row_program.cpp
/// @brief Runs the steps of a time model's program on rows of variants.

#include "row_program.h"

#include <algorithm>
#include <cmath>

namespace rfops {

namespace {

enum Operation : int32_t {
  kAdd,
  kSubtract,
  kMultiply,
  kDivide,
  kRemainder,
  kMinimum,
  kMaximum,
  kCeil,
  kFloor,
  kLog2,
  kSet,
  kTake,
  kNumOperations,
};

template <typename Fn>
void apply(double* out, const double* a, const double* b, size_t count, Fn fn) {
  for (size_t i = 0; i < count; ++i) out[i] = fn(a[i], b[i]);
}

/// The remainder of the divisor's sign, as numpy has it.
double remainder_of(double a, double b) {
  const double remainder = std::fmod(a, b);
  return remainder != 0 && (remainder < 0) != (b < 0) ? remainder + b : remainder;
}

}  // namespace

bool are_steps_valid(const RowStep* steps, size_t count, size_t num_rows) {
  return std::all_of(steps, steps + count, [num_rows](const RowStep& step) {
    const auto is_row = [num_rows](int32_t index) {
      return index >= 0 && static_cast<size_t>(index) < num_rows;
    };
    return step.operation >= 0 && step.operation < kNumOperations && is_row(step.target) &&
           is_row(step.first) && is_row(step.second);
  });
}

void run_steps(const RowStep* steps, size_t count, double* values, size_t num_rows,
               size_t num_columns) {
  const size_t n = num_columns;
  for (const RowStep* step = steps; step != steps + count; ++step) {
    double* out = values + static_cast<size_t>(step->target) * n;
    const double* a = values + static_cast<size_t>(step->first) * n;
    const double* b = values + static_cast<size_t>(step->second) * n;
    switch (step->operation) {
      case kAdd:
        apply(out, a, b, n, [](double x, double y) { return x + y; });
        break;
      case kSubtract:
        apply(out, a, b, n, [](double x, double y) { return x - y; });
        break;
      case kMultiply:
        apply(out, a, b, n, [](double x, double y) { return x * y; });
        break;
      case kDivide:
        apply(out, a, b, n, [](double x, double y) { return x / y; });
        break;
      case kRemainder:
        apply(out, a, b, n, remainder_of);
        break;
      case kMinimum:
        apply(out, a, b, n, [](double x, double y) { return std::min(x, y); });
        break;
      case kMaximum:
        apply(out, a, b, n, [](double x, double y) { return std::max(x, y); });
        break;
      case kCeil:
        apply(out, a, a, n, [](double x, double) { return std::ceil(x); });
        break;
      case kFloor:
        apply(out, a, a, n, [](double x, double) { return std::floor(x); });
        break;
      case kLog2:
        apply(out, a, a, n, [](double x, double) { return std::log2(x); });
        break;
      case kSet:
        std::copy(a, a + n, out);
        break;
      case kTake: {
        const double last = static_cast<double>(num_rows - 1 - static_cast<size_t>(step->first));
        for (size_t i = 0; i < n; ++i) {
          out[i] = a[static_cast<size_t>(std::min(std::max(b[i], 0.0), last)) * n + i];
        }
        break;
      }
    }
  }
}

}  // namespace rfops
