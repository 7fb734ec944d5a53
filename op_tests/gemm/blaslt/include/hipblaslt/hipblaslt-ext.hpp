// See hipblaslt.h beside this.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "hipblaslt/hipblaslt.h"

namespace hipblaslt_ext {

enum class GemmType { HIPBLASLT_GEMM = 1, HIPBLASLT_GROUPED_GEMM = 2 };

struct UserArguments {
  uint32_t m, n, batch, k;
  void *d, *c, *a, *b;
  uint32_t strideD1, strideD2, strideC1, strideC2, strideA1, strideA2, strideB1, strideB2;
  int8_t alpha[16], beta[16];
  void *scaleA, *scaleB, *scaleC, *scaleD, *scaleAlphaVec, *bias;
  int biasType;
  uint32_t reserved;
  void* e;
  uint32_t strideE1, strideE2;
  float act0, act1;
  int activationType;
} __attribute__((packed));

class GemmInstance {
 public:
  virtual ~GemmInstance() {}
  hipblasStatus_t isAlgoSupported(hipblasLtMatmulAlgo_t& algo, size_t& workspace);
  hipblasStatus_t initialize(const hipblasLtMatmulAlgo_t& algo, void* workspace,
                             bool useUserArgs = true, hipStream_t queue = 0);
  hipblasStatus_t run(hipStream_t queue, hipEvent_t start = nullptr, hipEvent_t stop = nullptr);

 protected:
  GemmInstance(hipblasLtHandle_t handle, GemmType type);
  GemmType m_gemm_type;
  hipblasLtHandle_t m_handle;
  std::shared_ptr<void> m_data;
};

class Gemm : public GemmInstance {
 public:
  Gemm(hipblasLtHandle_t handle, hipblasLtMatmulDesc_t desc, const void* alpha, const void* a,
       hipblasLtMatrixLayout_t of_a, const void* b, hipblasLtMatrixLayout_t of_b, const void* beta,
       const void* c, hipblasLtMatrixLayout_t of_c, void* d, hipblasLtMatrixLayout_t of_d);
};

class GroupedGemm : public GemmInstance {
 public:
  GroupedGemm(hipblasLtHandle_t handle, std::vector<hipblasLtMatmulDesc_t>& desc,
              std::vector<void*>& alpha, std::vector<void*>& a,
              std::vector<hipblasLtMatrixLayout_t>& of_a, std::vector<void*>& b,
              std::vector<hipblasLtMatrixLayout_t>& of_b, std::vector<void*>& beta,
              std::vector<void*>& c, std::vector<hipblasLtMatrixLayout_t>& of_c,
              std::vector<void*>& d, std::vector<hipblasLtMatrixLayout_t>& of_d);
  using GemmInstance::run;
  hipblasStatus_t run(void* deviceUserArgs, hipStream_t queue);
  hipblasStatus_t getDefaultValueForDeviceUserArguments(void* arguments);
};

hipblasStatus_t getAllAlgos(hipblasLtHandle_t handle, GemmType type, hipblasOperation_t a,
                            hipblasOperation_t b, hipDataType type_a, hipDataType type_b,
                            hipDataType type_c, hipDataType type_d, hipblasComputeType_t compute,
                            std::vector<hipblasLtMatmulHeuristicResult_t>& found);
std::string getSolutionNameFromAlgo(hipblasLtHandle_t handle, hipblasLtMatmulAlgo_t& algo);

}  // namespace hipblaslt_ext
