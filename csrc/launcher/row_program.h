/// @file row_program.h
/// @brief Arithmetic on rows of numbers, one of each variant: the steps of
/// rfops/dispatch/row_program.py.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace rfops {

/// A step: values[target] = operation(values[first], values[second]). Codes are those of
/// row_program.py, in its order.
struct RowStep {
  int32_t operation, target, first, second;
};

/// Returns whether all steps have an operation and rows among so many.
bool are_steps_valid(const RowStep* steps, size_t count, size_t num_rows);

/// Runs steps on `values`, [num_rows, num_columns]. `take` reads no row beyond them.
void run_steps(const RowStep* steps, size_t count, double* values, size_t num_rows,
               size_t num_columns);

}  // namespace rfops
