// What rfops uses of hipBLASLt's interface, declared as AMD documents it, for tests where its own
// headers are not: RFOPS_TEST_BLASLT names a folder with those, and the tests take them then.
#pragma once
#include <hip/hip_runtime_api.h>
#include <hip/library_types.h>
#include <hipblas-common/hipblas-common.h>

#include <cstddef>
#include <cstdint>

#define HIPBLASLT_VERSION_MAJOR 0
#define HIPBLASLT_VERSION_MINOR 12
#define HIPBLASLT_VERSION_PATCH 0
#define HIPBLASLT_EXPORT __attribute__((visibility("default")))

typedef void* hipblasLtHandle_t;
typedef struct rfopsMatmulDesc* hipblasLtMatmulDesc_t;
typedef struct rfopsMatrixLayout* hipblasLtMatrixLayout_t;
typedef enum {
  HIPBLASLT_MATMUL_DESC_TRANSA = 0,
  HIPBLASLT_MATMUL_DESC_TRANSB = 1
} hipblasLtMatmulDescAttributes_t;

struct hipblasLtMatmulAlgo_t {
  uint8_t data[16] = {0};
  size_t max_workspace_bytes = 0;
};
struct hipblasLtMatmulHeuristicResult_t {
  hipblasLtMatmulAlgo_t algo;
  size_t workspaceSize = 0;
  hipblasStatus_t state = HIPBLAS_STATUS_SUCCESS;
  float wavesCount = 1.0;
  int reserved[4];
};

extern "C" {
HIPBLASLT_EXPORT hipblasStatus_t hipblasLtCreate(hipblasLtHandle_t* handle);
HIPBLASLT_EXPORT hipblasStatus_t hipblasLtDestroy(const hipblasLtHandle_t handle);
HIPBLASLT_EXPORT hipblasStatus_t hipblasLtGetVersion(hipblasLtHandle_t handle, int* version);
HIPBLASLT_EXPORT hipblasStatus_t hipblasLtGetGitRevision(hipblasLtHandle_t handle, char* revision);
HIPBLASLT_EXPORT hipblasStatus_t hipblasLtMatrixLayoutCreate(hipblasLtMatrixLayout_t* layout,
                                                             hipDataType type, uint64_t rows,
                                                             uint64_t columns, int64_t leading);
HIPBLASLT_EXPORT hipblasStatus_t hipblasLtMatrixLayoutDestroy(const hipblasLtMatrixLayout_t layout);
HIPBLASLT_EXPORT hipblasStatus_t hipblasLtMatmulDescCreate(hipblasLtMatmulDesc_t* desc,
                                                           hipblasComputeType_t compute,
                                                           hipDataType scale);
HIPBLASLT_EXPORT hipblasStatus_t hipblasLtMatmulDescDestroy(const hipblasLtMatmulDesc_t desc);
HIPBLASLT_EXPORT hipblasStatus_t
hipblasLtMatmulDescSetAttribute(hipblasLtMatmulDesc_t desc, hipblasLtMatmulDescAttributes_t what,
                                const void* value, size_t bytes);
}
