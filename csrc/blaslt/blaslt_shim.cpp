// hipBLASLt behind C functions, as its interface for choosing algorithms is C++'s alone: a problem
// (one GEMM, or a group of them), its algorithms, which of them it takes, and a run of one.
//
// Built by rfops/gemm/blaslt.py where hipBLASLt's headers are. Every function returns 0 or
// hipBLASLt's status; names stay valid as long as their problem.
#include <hip/hip_runtime_api.h>
#include <hipblaslt/hipblaslt.h>

#include <cstdint>
#include <hipblaslt/hipblaslt-ext.hpp>
#include <memory>
#include <string>
#include <vector>

namespace {

using Algorithms = std::vector<hipblasLtMatmulHeuristicResult_t>;

struct Description {  // as rfops/gemm/blaslt.py has it
  int32_t count;      // of GEMMs; 0: one that is no group
  int32_t trans_a, trans_b;
  int32_t type_a, type_b, type_c, type_d, compute, scale;  // hipDataType, hipblasComputeType_t
  const int64_t *m, *n, *k;
  void *const *a, *const *b, *const *c, *const *d;
  const void *alpha, *beta;  // one value of the scale's type each
};

struct Problem {
  hipblasLtHandle_t handle;
  Description of;
  std::vector<hipblasLtMatmulDesc_t> operations;
  std::vector<hipblasLtMatrixLayout_t> layouts;  // of a, b, c and d of each
  std::unique_ptr<hipblaslt_ext::GemmInstance> gemm;
  hipblaslt_ext::GroupedGemm* grouped = nullptr;
  Algorithms algorithms;
  std::vector<std::string> names;
  int32_t selected = -1;  // algorithm
  void* workspace = nullptr;
  bool takes_device_arguments = false;

  ~Problem() {
    gemm.reset();
    for (hipblasLtMatrixLayout_t layout : layouts) hipblasLtMatrixLayoutDestroy(layout);
    for (hipblasLtMatmulDesc_t operation : operations) hipblasLtMatmulDescDestroy(operation);
  }

  // Column-major, as BLAS has it.
  hipblasStatus_t add_layout(int32_t type, int32_t trans, int64_t rows, int64_t columns) {
    if (trans != HIPBLAS_OP_N) std::swap(rows, columns);
    hipblasLtMatrixLayout_t made = nullptr;
    const auto kind = static_cast<hipDataType>(type);
    const hipblasStatus_t status = hipblasLtMatrixLayoutCreate(&made, kind, rows, columns, rows);
    if (status == HIPBLAS_STATUS_SUCCESS) layouts.push_back(made);
    return status;
  }

  hipblasStatus_t add(int at) {
    hipblasLtMatmulDesc_t operation = nullptr;
    hipblasStatus_t status =
        hipblasLtMatmulDescCreate(&operation, static_cast<hipblasComputeType_t>(of.compute),
                                  static_cast<hipDataType>(of.scale));
    if (status != HIPBLAS_STATUS_SUCCESS) return status;
    operations.push_back(operation);
    const int32_t trans[] = {of.trans_a, of.trans_b};
    hipblasLtMatmulDescSetAttribute(operation, HIPBLASLT_MATMUL_DESC_TRANSA, &trans[0], 4);
    hipblasLtMatmulDescSetAttribute(operation, HIPBLASLT_MATMUL_DESC_TRANSB, &trans[1], 4);
    const int64_t m = of.m[at], n = of.n[at], k = of.k[at];
    if ((status = add_layout(of.type_a, of.trans_a, m, k)) != HIPBLAS_STATUS_SUCCESS) return status;
    if ((status = add_layout(of.type_b, of.trans_b, k, n)) != HIPBLAS_STATUS_SUCCESS) return status;
    if ((status = add_layout(of.type_c, HIPBLAS_OP_N, m, n)) != HIPBLAS_STATUS_SUCCESS) {
      return status;
    }
    return add_layout(of.type_d, HIPBLAS_OP_N, m, n);
  }

  void make() {
    if (of.count == 0) {
      gemm = std::make_unique<hipblaslt_ext::Gemm>(handle, operations[0], of.alpha, of.a[0],
                                                   layouts[0], of.b[0], layouts[1], of.beta,
                                                   of.c[0], layouts[2], of.d[0], layouts[3]);
      return;
    }
    const size_t count = operations.size();
    std::vector<void*> alpha(count, const_cast<void*>(of.alpha)), beta(count);
    beta.assign(count, const_cast<void*>(of.beta));
    std::vector<void*> a(of.a, of.a + count), b(of.b, of.b + count), c(of.c, of.c + count),
        d(of.d, of.d + count);
    std::vector<hipblasLtMatrixLayout_t> each[4];
    for (size_t at = 0; at < layouts.size(); ++at) each[at % 4].push_back(layouts[at]);
    auto made = std::make_unique<hipblaslt_ext::GroupedGemm>(
        handle, operations, alpha, a, each[0], b, each[1], beta, c, each[2], d, each[3]);
    grouped = made.get();
    gemm = std::move(made);
  }

  // A group is initialised for arguments from the host or for those from the device: hipBLASLt
  // 7.2.4 refuses the other run by status 10.
  hipblasStatus_t initialize(bool from_device, void* queue) {
    takes_device_arguments = from_device;
    return gemm->initialize(algorithms[selected].algo, workspace, from_device,
                            static_cast<hipStream_t>(queue));
  }

  hipblasStatus_t prepare(bool from_device, void* queue) {
    if (selected < 0) return HIPBLAS_STATUS_INVALID_VALUE;
    if (from_device == takes_device_arguments) return HIPBLAS_STATUS_SUCCESS;
    return initialize(from_device, queue);
  }

  hipblasStatus_t enumerate() {
    using hipblaslt_ext::GemmType;
    const auto type = [](int32_t value) { return static_cast<hipDataType>(value); };
    const hipblasStatus_t status = hipblaslt_ext::getAllAlgos(
        handle, of.count ? GemmType::HIPBLASLT_GROUPED_GEMM : GemmType::HIPBLASLT_GEMM,
        static_cast<hipblasOperation_t>(of.trans_a), static_cast<hipblasOperation_t>(of.trans_b),
        type(of.type_a), type(of.type_b), type(of.type_c), type(of.type_d),
        static_cast<hipblasComputeType_t>(of.compute), algorithms);
    if (status != HIPBLAS_STATUS_SUCCESS) return status;
    for (auto& found : algorithms) {
      names.push_back(hipblaslt_ext::getSolutionNameFromAlgo(handle, found.algo));
    }
    return status;
  }
};

// No exception leaves C.
template <typename Work>
int32_t guarded(Work&& work) {
  try {
    return static_cast<int32_t>(work());
  } catch (...) {
    return HIPBLAS_STATUS_INTERNAL_ERROR;
  }
}

}  // namespace

#define RFOPS_EXPORT extern "C" __attribute__((visibility("default")))

// `built_for`: the headers' version; the library's classes lie as its own headers have them.
RFOPS_EXPORT int32_t rfops_blaslt_open(void** handle, int32_t* version, int32_t* built_for) {
  *built_for = HIPBLASLT_VERSION_MAJOR * 100000 + HIPBLASLT_VERSION_MINOR * 100 +
               HIPBLASLT_VERSION_PATCH;  // as hipblasLtGetVersion counts
  return guarded([&] {
    hipblasLtHandle_t made = nullptr;
    const hipblasStatus_t status = hipblasLtCreate(&made);
    *handle = made;
    return status == HIPBLAS_STATUS_SUCCESS ? hipblasLtGetVersion(made, version) : status;
  });
}

// The library's build, beside its version: solutions change with it.
RFOPS_EXPORT int32_t rfops_blaslt_revision(void* handle, char* text) {
  return guarded(
      [&] { return hipblasLtGetGitRevision(static_cast<hipblasLtHandle_t>(handle), text); });
}

RFOPS_EXPORT int32_t rfops_blaslt_close(void* handle) {
  return guarded([&] { return hipblasLtDestroy(static_cast<hipblasLtHandle_t>(handle)); });
}

RFOPS_EXPORT int32_t rfops_blaslt_problem(void* handle, const Description* of, void** out,
                                          int32_t* algorithms) {
  return guarded([&] {
    auto made = std::make_unique<Problem>();
    made->handle = static_cast<hipblasLtHandle_t>(handle);
    made->of = *of;
    for (int at = 0; at < (of->count ? of->count : 1); ++at) {
      const hipblasStatus_t status = made->add(at);
      if (status != HIPBLAS_STATUS_SUCCESS) return status;
    }
    made->make();
    const hipblasStatus_t status = made->enumerate();
    if (status != HIPBLAS_STATUS_SUCCESS) return status;
    *algorithms = static_cast<int32_t>(made->algorithms.size());
    *out = made.release();
    return status;
  });
}

RFOPS_EXPORT void rfops_blaslt_drop(void* problem) { delete static_cast<Problem*>(problem); }

RFOPS_EXPORT const char* rfops_blaslt_name(void* problem, int32_t at) {
  return static_cast<Problem*>(problem)->names[at].c_str();
}

// 0 where the problem takes it, and the workspace that it wants.
RFOPS_EXPORT int32_t rfops_blaslt_supported(void* problem, int32_t at, size_t* workspace) {
  return guarded([&] {
    auto* own = static_cast<Problem*>(problem);
    return own->gemm->isAlgoSupported(own->algorithms[at].algo, *workspace);
  });
}

// From now on a run is this algorithm's.
RFOPS_EXPORT int32_t rfops_blaslt_select(void* problem, int32_t at, void* workspace, void* queue) {
  return guarded([&] {
    auto* own = static_cast<Problem*>(problem);
    own->selected = at;
    own->workspace = workspace;
    return own->initialize(false, queue);
  });
}

RFOPS_EXPORT int32_t rfops_blaslt_run(void* problem, void* queue, void* start, void* stop) {
  return guarded([&] {
    auto* own = static_cast<Problem*>(problem);
    const hipblasStatus_t status = own->prepare(false, queue);
    if (status != HIPBLAS_STATUS_SUCCESS) return status;
    return own->gemm->run(static_cast<hipStream_t>(queue), static_cast<hipEvent_t>(start),
                          static_cast<hipEvent_t>(stop));
  });
}

// Bytes of one GEMM's device arguments, and what they are by default: `arguments` has room for all.
RFOPS_EXPORT int32_t rfops_blaslt_arguments(void* problem, void* arguments, size_t* each) {
  return guarded([&] {
    *each = sizeof(hipblaslt_ext::UserArguments);
    auto* own = static_cast<Problem*>(problem);
    if (own->grouped == nullptr) return HIPBLAS_STATUS_INVALID_VALUE;
    if (arguments == nullptr) return HIPBLAS_STATUS_SUCCESS;
    return own->grouped->getDefaultValueForDeviceUserArguments(arguments);
  });
}

RFOPS_EXPORT int32_t rfops_blaslt_run_device(void* problem, void* arguments, void* queue) {
  return guarded([&] {
    auto* own = static_cast<Problem*>(problem);
    if (own->grouped == nullptr) return HIPBLAS_STATUS_INVALID_VALUE;
    const hipblasStatus_t status = own->prepare(true, queue);
    if (status != HIPBLAS_STATUS_SUCCESS) return status;
    return own->grouped->run(arguments, static_cast<hipStream_t>(queue));
  });
}
