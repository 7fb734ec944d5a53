/// @file ranking.cpp
/// @brief `rank`: which variant of each kernel a time model predicts to be the quickest, from the
/// factors of a call; what rfops/dispatch/time_model.py does by fifteen calls of numpy.

#include "ranking.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "row_program.h"

namespace rfops {

namespace {

/// The numbers of an array of Python's, which lie side by side.
class Numbers {
 public:
  Numbers() = default;
  Numbers(const Numbers&) = delete;
  Numbers& operator=(const Numbers&) = delete;

  ~Numbers() {
    if (is_open_) PyBuffer_Release(&view_);
  }

  /// Returns false with an exception for what are no numbers of so many bytes.
  bool open(PyObject* object, const char* name, size_t bytes, int flags = 0) {
    if (PyObject_GetBuffer(object, &view_, PyBUF_C_CONTIGUOUS | flags) != 0) return false;
    is_open_ = true;
    if (static_cast<size_t>(view_.itemsize) == bytes) return true;
    PyErr_Format(PyExc_ValueError, "rank: %s must have elements of %zu bytes, got %zd", name, bytes,
                 view_.itemsize);
    return false;
  }

  /// The same for another number of them.
  bool open_all(PyObject* object, const char* name, size_t count, size_t bytes) {
    if (PyObject_GetBuffer(object, &view_, PyBUF_C_CONTIGUOUS) != 0) return false;
    is_open_ = true;
    if (static_cast<size_t>(view_.itemsize) == bytes &&
        static_cast<size_t>(view_.len) == count * bytes) {
      return true;
    }
    PyErr_Format(PyExc_ValueError, "rank: %s must have %zu elements of %zu bytes, got %zd of %zd",
                 name, count, bytes, view_.len / std::max<Py_ssize_t>(view_.itemsize, 1),
                 view_.itemsize);
    return false;
  }

  size_t count() const { return static_cast<size_t>(view_.len / view_.itemsize); }
  double* doubles() const { return static_cast<double*>(view_.buf); }
  const void* data() const { return view_.buf; }
  const unsigned char* bytes() const { return static_cast<const unsigned char*>(view_.buf); }

 private:
  Py_buffer view_{};
  bool is_open_ = false;
};

/// Sizes of a ranking.
struct Sizes {
  size_t variants, factors, logs;

  size_t rows() const { return factors + (logs == 0 ? 0 : 1 + logs + logs * (logs + 1) / 2); }
};

/// Adds a row of weights times values to sums.
void add(double* sums, const double* weights, const double* values, size_t count) {
  for (size_t i = 0; i < count; ++i) sums[i] += values[i] * weights[i];
}

/// Multiplies predicted times by 2^correction. `rows` begins at the row of 1 before the logs; the
/// order of sums is that of numpy.
void correct(double* us, const double* rows, const double* weights, const double* low,
             const double* high, const Sizes& sizes, double max_correction) {
  const size_t n = sizes.variants;
  std::vector<double> logs(sizes.logs * n), sums(weights, weights + n), product(n);
  const double* log_rows = rows + n;
  for (size_t i = 0; i < logs.size(); ++i) {
    logs[i] = std::min(std::max(log_rows[i], low[i]), high[i]);
  }
  weights += n;
  for (size_t i = 0; i < sizes.logs; ++i, weights += n) add(sums.data(), weights, &logs[i * n], n);
  for (size_t i = 0; i < sizes.logs; ++i) {
    for (size_t j = i; j < sizes.logs; ++j, weights += n) {
      for (size_t v = 0; v < n; ++v) product[v] = logs[i * n + v] * logs[j * n + v];
      add(sums.data(), weights, product.data(), n);
    }
  }
  for (size_t v = 0; v < n; ++v)
    us[v] *= std::exp2(std::min(std::max(sums[v], -max_correction), max_correction));
}

/// Returns the first of the shortest times; a difference of a rounding is none, as for `quickest`
/// of rfops/dispatch/time_model.py.
const double* quickest(const double* begin, const double* end) {
  constexpr double kMaxTie = 1e-12;
  const double min_us = *std::min_element(begin, end), limit = min_us + std::abs(min_us) * kMaxTie;
  return std::find_if(begin, end, [limit](double us) { return !(us > limit); });
}

/// A list of (us, kernel, index of its best variant), the quickest kernel first. `parts` are
/// (kernel, index of its first variant).
PyObject* best_of(const std::vector<double>& us, PyObject* parts) {
  const Py_ssize_t count = PyTuple_GET_SIZE(parts);
  std::vector<size_t> begins;
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyObject* part = PyTuple_GET_ITEM(parts, i);
    if (!PyTuple_Check(part) || PyTuple_GET_SIZE(part) != 2) {
      PyErr_SetString(PyExc_ValueError, "rank: parts must be pairs of a kernel and an index");
      return nullptr;
    }
    const size_t begin = PyLong_AsSize_t(PyTuple_GET_ITEM(part, 1));
    if (PyErr_Occurred()) return nullptr;
    if (begin >= us.size() || (!begins.empty() && begin <= begins.back())) {
      PyErr_SetString(PyExc_ValueError, "rank: parts must begin at growing indices of variants");
      return nullptr;
    }
    begins.push_back(begin);
  }
  std::vector<std::pair<size_t, Py_ssize_t>> best;  // a variant and its part
  for (Py_ssize_t i = 0; i < count; ++i) {
    const size_t end = i + 1 < count ? begins[i + 1] : us.size();
    best.emplace_back(quickest(us.data() + begins[i], us.data() + end) - us.data(), i);
  }
  std::stable_sort(best.begin(), best.end(),
                   [&us](const auto& a, const auto& b) { return us[a.first] < us[b.first]; });
  PyObject* list = PyList_New(count);
  if (list == nullptr) return nullptr;
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyObject* kernel = PyTuple_GET_ITEM(PyTuple_GET_ITEM(parts, best[i].second), 0);
    PyObject* one =
        Py_BuildValue("dOn", us[best[i].first], kernel, static_cast<Py_ssize_t>(best[i].first));
    if (one == nullptr) {
      Py_DECREF(list);
      return nullptr;
    }
    PyList_SET_ITEM(list, i, one);
  }
  return list;
}

/// Fills rows of `values` from `first_row` on, each with one of `numbers`.
bool fill_rows(PyObject* numbers, double* values, size_t first_row, size_t num_rows, size_t n) {
  PyObject* items = PySequence_Fast(numbers, "rank: numbers must be a sequence");
  if (items == nullptr) return false;
  const size_t count = static_cast<size_t>(PySequence_Fast_GET_SIZE(items));
  if (first_row > num_rows || count > num_rows - first_row) {
    PyErr_Format(PyExc_ValueError, "rank: numbers must be at most %zu, got %zu",
                 num_rows - std::min(first_row, num_rows), count);
  }
  for (size_t i = 0; i < count && !PyErr_Occurred(); ++i) {
    const double number =
        PyFloat_AsDouble(PySequence_Fast_GET_ITEM(items, static_cast<Py_ssize_t>(i)));
    double* row = values + (first_row + i) * n;
    if (!PyErr_Occurred()) std::fill(row, row + n, number);
  }
  Py_DECREF(items);
  return !PyErr_Occurred();
}

/// Runs a program (row_program.h) on rows of `values`: `args` are its steps, the numbers of a call
/// and the row of the first of them.
bool run_program(PyObject* const* args, const Numbers& values, size_t n) {
  const size_t num_rows = n == 0 ? 0 : values.count() / n;
  const size_t first_row = PyLong_AsSize_t(args[2]);
  Numbers steps;
  if (PyErr_Occurred() || !steps.open(args[0], "steps", sizeof(int32_t)) ||
      !fill_rows(args[1], values.doubles(), first_row, num_rows, n)) {
    return false;
  }
  const auto* first = static_cast<const RowStep*>(steps.data());
  const size_t count = steps.count() / 4;
  if (steps.count() % 4 != 0 || !are_steps_valid(first, count, num_rows)) {
    PyErr_SetString(PyExc_ValueError, "rank: steps must be operations on rows that there are");
    return false;
  }
  run_steps(first, count, values.doubles(), num_rows, n);
  return true;
}

/// Sets the times of excluded variants to infinity: those of a mask, or whose number in a row of
/// `values` is not 0. Returns false with an exception.
bool exclude(PyObject* excluded, const Numbers& values, std::vector<double>& us) {
  const size_t n = us.size();
  if (excluded == Py_None) return true;
  if (PyLong_Check(excluded)) {
    const size_t row = PyLong_AsSize_t(excluded);
    if (PyErr_Occurred()) return false;
    if (n == 0 || row >= values.count() / n) {
      PyErr_SetString(PyExc_ValueError, "rank: excluded must be a row that there is");
      return false;
    }
    const double* is_excluded = values.doubles() + row * n;
    for (size_t v = 0; v < n; ++v) us[v] = is_excluded[v] != 0 ? HUGE_VAL : us[v];
    return true;
  }
  Numbers mask;
  if (!mask.open_all(excluded, "excluded", n, 1)) return false;
  for (size_t v = 0; v < n; ++v) us[v] = mask.bytes()[v] != 0 ? HUGE_VAL : us[v];
  return true;
}

}  // namespace

PyObject* rank(PyObject*, PyObject* const* args, Py_ssize_t count) {
  const bool has_program = count == 12;
  if ((count != 9 && !has_program) || !PyTuple_Check(args[8])) {
    PyErr_SetString(PyExc_TypeError,
                    "rank(rows, weights, low, high, excluded, variants, factors, max_correction, "
                    "parts[, steps, numbers, first_number])");
    return nullptr;
  }
  Sizes sizes{PyLong_AsSize_t(args[5]), PyLong_AsSize_t(args[6]), 0};
  const double max_correction = PyFloat_AsDouble(args[7]);
  if (PyErr_Occurred()) return nullptr;
  const Py_ssize_t length = PyObject_Length(args[2]);
  if (length < 0) return nullptr;
  sizes.logs = static_cast<size_t>(length);
  Numbers rows, weights, low, high;
  const size_t n = sizes.variants, num_logs = sizes.logs * n, num_rows = sizes.rows() * n;
  const bool are_rows_open = has_program
                                 ? rows.open(args[0], "rows", sizeof(double), PyBUF_WRITABLE)
                                 : rows.open_all(args[0], "rows", num_rows, sizeof(double));
  if (!are_rows_open || !weights.open_all(args[1], "weights", num_rows, sizeof(double)) ||
      !low.open_all(args[2], "low", num_logs, sizeof(double)) ||
      !high.open_all(args[3], "high", num_logs, sizeof(double))) {
    return nullptr;
  }
  if (rows.count() < num_rows) {
    PyErr_Format(PyExc_ValueError, "rank: rows must have at least %zu elements, got %zu", num_rows,
                 rows.count());
    return nullptr;
  }
  if (has_program && !run_program(args + 9, rows, n)) return nullptr;
  std::vector<double> us(n, 0.0);
  const double *values = rows.doubles(), *factor = weights.doubles();
  for (size_t i = 0; i < sizes.factors; ++i, values += n, factor += n) {
    add(us.data(), factor, values, n);
  }
  if (sizes.logs != 0) {
    correct(us.data(), values, factor, low.doubles(), high.doubles(), sizes, max_correction);
  }
  return exclude(args[4], rows, us) ? best_of(us, args[8]) : nullptr;
}

}  // namespace rfops
