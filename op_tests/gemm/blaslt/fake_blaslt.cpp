// A hipBLASLt of scripted algorithms, on the host's memory: of test_blaslt.py.
//
// The file that RFOPS_TEST_BLASLT_SCRIPT names has `version N`, `revision TEXT`, and a line an
// algorithm: `algo NAME us=5 workspace=0 dense=1 grouped=1 supported=1 fails=0 wrong=0`. A run of
// one takes so long by the clock of `fake_clock`. float32 alone, A transposed.
#include <hip/hip_runtime_api.h>
#include <hipblaslt/hipblaslt.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <hipblaslt/hipblaslt-ext.hpp>
#include <map>
#include <sstream>

namespace {

struct Algorithm {
  std::string name;
  std::map<std::string, long> has = {{"us", 5},      {"workspace", 0}, {"dense", 1},
                                     {"grouped", 1}, {"supported", 1}, {"fails", 0},
                                     {"wrong", 0}};
};
struct Script {
  int version = 0;
  std::string revision;
  std::vector<Algorithm> algorithms;
};
Script script;
double clock_us = 0;
int objects = 0;  // made and not destroyed

void read_script() {
  script = {};
  std::ifstream file(std::getenv("RFOPS_TEST_BLASLT_SCRIPT"));
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string kind, word;
    words >> kind;
    if (kind == "version") words >> script.version;
    if (kind == "revision") words >> script.revision;
    if (kind != "algo") continue;
    Algorithm one;
    words >> one.name;
    while (words >> word) {
      one.has[word.substr(0, word.find('='))] = std::stol(word.substr(word.find('=') + 1));
    }
    script.algorithms.push_back(one);
  }
}

struct Layout {
  uint64_t rows, columns;
};
struct Gemm {
  long m, n, k;
  const float *a, *b;
  float* d;
};
struct State {
  std::vector<Gemm> gemms;
  int chosen = -1;
  bool user_arguments = false;  // what it was initialised for
};

// hipBLASLt 7.2.4 answers a run with other arguments than it was initialised for so.
constexpr auto kWrongRun = static_cast<hipblasStatus_t>(10);

Gemm gemm_of(const void* a, const Layout& la, const void* b, const Layout& lb, void* d) {
  return {static_cast<long>(la.columns), static_cast<long>(lb.columns), static_cast<long>(la.rows),
          static_cast<const float*>(a),  static_cast<const float*>(b),  static_cast<float*>(d)};
}
int index_of(const hipblasLtMatmulAlgo_t& algo) { return algo.data[0]; }

hipblasStatus_t compute(const State& state) {
  const Algorithm& own = script.algorithms[state.chosen];
  if (own.has.at("fails")) return HIPBLAS_STATUS_EXECUTION_FAILED;
  clock_us += static_cast<double>(own.has.at("us"));
  for (const Gemm& g : state.gemms) {
    for (long n = 0; n < g.n; ++n) {
      for (long m = 0; m < g.m; ++m) {
        double sum = own.has.at("wrong") ? 1 : 0;
        for (long k = 0; k < g.k; ++k) sum += double(g.a[m * g.k + k]) * g.b[n * g.k + k];
        g.d[n * g.m + m] = static_cast<float>(sum);
      }
    }
  }
  return HIPBLAS_STATUS_SUCCESS;
}

}  // namespace

extern "C" {
__attribute__((visibility("default"))) double fake_clock() { return clock_us; }
__attribute__((visibility("default"))) int fake_objects() { return objects; }

hipblasStatus_t hipblasLtCreate(hipblasLtHandle_t* handle) {
  read_script();
  *handle = reinterpret_cast<hipblasLtHandle_t>(&script);
  return HIPBLAS_STATUS_SUCCESS;
}
hipblasStatus_t hipblasLtDestroy(const hipblasLtHandle_t) { return HIPBLAS_STATUS_SUCCESS; }
hipblasStatus_t hipblasLtGetVersion(hipblasLtHandle_t, int* version) {
  *version = script.version;
  return HIPBLAS_STATUS_SUCCESS;
}
hipblasStatus_t hipblasLtGetGitRevision(hipblasLtHandle_t, char* text) {
  std::strcpy(text, script.revision.c_str());
  return HIPBLAS_STATUS_SUCCESS;
}
hipblasStatus_t hipblasLtMatrixLayoutCreate(hipblasLtMatrixLayout_t* layout, hipDataType type,
                                            uint64_t rows, uint64_t columns, int64_t) {
  if (type != HIP_R_32F) return HIPBLAS_STATUS_NOT_SUPPORTED;
  ++objects;
  *layout = reinterpret_cast<hipblasLtMatrixLayout_t>(new Layout{rows, columns});
  return HIPBLAS_STATUS_SUCCESS;
}
hipblasStatus_t hipblasLtMatrixLayoutDestroy(const hipblasLtMatrixLayout_t layout) {
  --objects;
  delete reinterpret_cast<Layout*>(layout);
  return HIPBLAS_STATUS_SUCCESS;
}
hipblasStatus_t hipblasLtMatmulDescCreate(hipblasLtMatmulDesc_t* desc, hipblasComputeType_t,
                                          hipDataType) {
  ++objects;
  *desc = reinterpret_cast<hipblasLtMatmulDesc_t>(new int[2]{});
  return HIPBLAS_STATUS_SUCCESS;
}
hipblasStatus_t hipblasLtMatmulDescDestroy(const hipblasLtMatmulDesc_t desc) {
  --objects;
  delete[] reinterpret_cast<int*>(desc);
  return HIPBLAS_STATUS_SUCCESS;
}
hipblasStatus_t hipblasLtMatmulDescSetAttribute(hipblasLtMatmulDesc_t,
                                                hipblasLtMatmulDescAttributes_t, const void*,
                                                size_t) {
  return HIPBLAS_STATUS_SUCCESS;
}
}

namespace hipblaslt_ext {

#if HIPBLASLT_VERSION_MAJOR >= 1  // ROCm 7
class GemmProblemType::GemmProblemTypeImpl {};
GemmProblemType::~GemmProblemType() = default;
#endif

GemmInstance::GemmInstance(hipblasLtHandle_t handle, GemmType type)
    : m_gemm_type(type), m_handle(handle), m_data(std::make_shared<State>()) {}

hipblasStatus_t GemmInstance::isAlgoSupported(hipblasLtMatmulAlgo_t& algo, size_t& workspace) {
  const Algorithm& own = script.algorithms[index_of(algo)];
  workspace = own.has.at("workspace");
  return own.has.at("supported") ? HIPBLAS_STATUS_SUCCESS : HIPBLAS_STATUS_INVALID_VALUE;
}
hipblasStatus_t GemmInstance::initialize(const hipblasLtMatmulAlgo_t& algo, void* workspace,
                                         bool user_arguments, hipStream_t) {
  auto& state = *static_cast<State*>(m_data.get());
  state.user_arguments = user_arguments;
  state.chosen = index_of(algo);
  const bool lacks = script.algorithms[state.chosen].has.at("workspace") && workspace == nullptr;
  return lacks ? HIPBLAS_STATUS_INVALID_VALUE : HIPBLAS_STATUS_SUCCESS;
}
hipblasStatus_t GemmInstance::run(hipStream_t, hipEvent_t, hipEvent_t) {
  const auto& state = *static_cast<State*>(m_data.get());
  return state.user_arguments ? kWrongRun : compute(state);
}

Gemm::Gemm(hipblasLtHandle_t handle, hipblasLtMatmulDesc_t, const void*, const void* a,
           hipblasLtMatrixLayout_t la, const void* b, hipblasLtMatrixLayout_t lb, const void*,
           const void*, hipblasLtMatrixLayout_t, void* d, hipblasLtMatrixLayout_t)
    : GemmInstance(handle, GemmType::HIPBLASLT_GEMM) {
  static_cast<State*>(m_data.get())
      ->gemms.push_back(
          gemm_of(a, *reinterpret_cast<Layout*>(la), b, *reinterpret_cast<Layout*>(lb), d));
}

GroupedGemm::GroupedGemm(hipblasLtHandle_t handle, std::vector<hipblasLtMatmulDesc_t>&,
                         std::vector<void*>&, std::vector<void*>& a,
                         std::vector<hipblasLtMatrixLayout_t>& la, std::vector<void*>& b,
                         std::vector<hipblasLtMatrixLayout_t>& lb, std::vector<void*>&,
                         std::vector<void*>&, std::vector<hipblasLtMatrixLayout_t>&,
                         std::vector<void*>& d, std::vector<hipblasLtMatrixLayout_t>&)
    : GemmInstance(handle, GemmType::HIPBLASLT_GROUPED_GEMM) {
  for (size_t at = 0; at < a.size(); ++at) {
    static_cast<State*>(m_data.get())
        ->gemms.push_back(gemm_of(a[at], *reinterpret_cast<Layout*>(la[at]), b[at],
                                  *reinterpret_cast<Layout*>(lb[at]), d[at]));
  }
}
hipblasStatus_t GroupedGemm::getDefaultValueForDeviceUserArguments(void* out) {
  auto* each = static_cast<UserArguments*>(out);
  for (const ::Gemm& g : static_cast<State*>(m_data.get())->gemms) {
    *each = {};
    each->m = g.m, each->n = g.n, each->k = g.k, each->batch = 1;
    each->a = const_cast<float*>(g.a), each->b = const_cast<float*>(g.b), each->d = g.d;
    ++each;
  }
  return HIPBLAS_STATUS_SUCCESS;
}
hipblasStatus_t GroupedGemm::run(void* arguments, hipStream_t) {
  State state = *static_cast<State*>(m_data.get());
  if (!state.user_arguments) return kWrongRun;
  auto* each = static_cast<UserArguments*>(arguments);
  for (::Gemm& g : state.gemms) {
    g = {each->m,
         each->n,
         each->k,
         static_cast<float*>(each->a),
         static_cast<float*>(each->b),
         static_cast<float*>(each->d)};
    ++each;
  }
  return compute(state);
}

hipblasStatus_t getAllAlgos(hipblasLtHandle_t, GemmType type, hipblasOperation_t a,
                            hipblasOperation_t b, hipDataType, hipDataType, hipDataType,
                            hipDataType, hipblasComputeType_t,
                            std::vector<hipblasLtMatmulHeuristicResult_t>& found) {
  if (a != HIPBLAS_OP_T || b != HIPBLAS_OP_N) return HIPBLAS_STATUS_NOT_SUPPORTED;
  const char* kind = type == GemmType::HIPBLASLT_GEMM ? "dense" : "grouped";
  for (size_t at = 0; at < script.algorithms.size(); ++at) {
    if (!script.algorithms[at].has.at(kind)) continue;
    found.emplace_back();
    found.back().algo.data[0] = static_cast<uint8_t>(at);
  }
  return HIPBLAS_STATUS_SUCCESS;
}
std::string getSolutionNameFromAlgo(hipblasLtHandle_t, hipblasLtMatmulAlgo_t& algo) {
  return script.algorithms[index_of(algo)].name;
}

}  // namespace hipblaslt_ext
