/// @file ranking.h
/// @brief A time model's choice among variants.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

namespace rfops {

/// rank(rows, weights, low, high, excluded, variants, factors, max_correction, parts[, steps,
/// numbers, first_number]): the best variant of each kernel by
///
///   us = sum_r weights[r] * rows[r] * 2^correction, of the first `factors` rows
///   correction = sum of the same over 1, the logs and the product of each two
///
/// Rows and weights are [rows, variants]; of rows, the products are not read. Logs are taken within
/// low and high, [logs, variants], without rows where there is no correction; corrections within
/// -max_correction and max_correction. `excluded` is a mask of variants or None, `parts` a tuple of
/// pairs of a kernel and the index of its first variant.
///
/// With a program (row_program.h), rows are followed by its own, which it and `numbers` are written
/// to: steps are int32 [steps, 4], `numbers` a call's, for the rows from `first_number` on.
/// `excluded` may be the index of a row then, which is 0 for variants that are not.
///
/// Returns a list of (us, kernel, index), or null with ValueError or TypeError.
PyObject* rank(PyObject*, PyObject* const* args, Py_ssize_t count);

}  // namespace rfops
