// Error codes: names, texts, and each thread's last error.
#include "vgpu/hip/hip_internal.h"
#include "vgpu/hip/hip_versions.h"  // not for this file: see there

namespace vgpu {
namespace {

struct ErrorRow {
  hipError_t code;
  const char* name;
  const char* text;
};

#define ROW(code, text) {code, #code, text}
constexpr ErrorRow kErrors[] = {
    ROW(hipSuccess, "no error"),
    ROW(hipErrorInvalidValue, "invalid argument"),
    ROW(hipErrorOutOfMemory, "out of memory"),
    ROW(hipErrorNotInitialized, "initialization error"),
    ROW(hipErrorDeinitialized, "driver shutting down"),
    ROW(hipErrorInvalidConfiguration, "invalid configuration argument"),
    ROW(hipErrorInvalidPitchValue, "invalid pitch argument"),
    ROW(hipErrorInvalidSymbol, "invalid device symbol"),
    ROW(hipErrorInvalidDevicePointer, "invalid device pointer"),
    ROW(hipErrorInvalidMemcpyDirection, "invalid copy direction for memcpy"),
    ROW(hipErrorInsufficientDriver, "driver version is insufficient for runtime version"),
    ROW(hipErrorMissingConfiguration, "__global__ function call is not configured"),
    ROW(hipErrorInvalidDeviceFunction, "invalid device function"),
    ROW(hipErrorNoDevice, "no ROCm-capable device is detected"),
    ROW(hipErrorInvalidDevice, "invalid device ordinal"),
    ROW(hipErrorInvalidImage, "device kernel image is invalid"),
    ROW(hipErrorInvalidContext, "invalid device context"),
    ROW(hipErrorNoBinaryForGpu, "no kernel image is available for execution on the device"),
    ROW(hipErrorUnsupportedLimit, "limit is not supported on this architecture"),
    ROW(hipErrorFileNotFound, "file not found"),
    ROW(hipErrorInvalidHandle, "invalid resource handle"),
    ROW(hipErrorIllegalState, "the operation cannot be performed in the present state"),
    ROW(hipErrorNotFound, "named symbol not found"),
    ROW(hipErrorNotReady, "device not ready"),
    ROW(hipErrorIllegalAddress, "an illegal memory access was encountered"),
    ROW(hipErrorLaunchOutOfResources, "too many resources requested for launch"),
    ROW(hipErrorLaunchTimeOut, "the launch timed out and was terminated"),
    ROW(hipErrorContextIsDestroyed, "context is destroyed"),
    ROW(hipErrorHostMemoryAlreadyRegistered,
        "part or all of the requested memory range is already mapped"),
    ROW(hipErrorHostMemoryNotRegistered,
        "pointer does not correspond to a registered memory region"),
    ROW(hipErrorLaunchFailure, "unspecified launch failure"),
    ROW(hipErrorCooperativeLaunchTooLarge, "too many blocks in cooperative launch"),
    ROW(hipErrorNotSupported, "operation not supported"),
    ROW(hipErrorStreamCaptureUnsupported, "operation not permitted when stream is capturing"),
    ROW(hipErrorStreamCaptureInvalidated,
        "operation failed due to a previous error during capture"),
    ROW(hipErrorStreamCaptureMerge, "operation would result in a merge of separate captures"),
    ROW(hipErrorStreamCaptureUnmatched, "capture was not ended in the same stream as it began"),
    ROW(hipErrorStreamCaptureUnjoined, "capturing stream has unjoined work"),
    ROW(hipErrorStreamCaptureIsolation, "dependency created on uncaptured work in another stream"),
    ROW(hipErrorStreamCaptureImplicit,
        "operation would make the legacy stream depend on a capturing blocking stream"),
    ROW(hipErrorCapturedEvent, "operation not permitted on an event last recorded in a capture"),
    ROW(hipErrorStreamCaptureWrongThread,
        "attempt to end a capture from another thread than began it"),
    ROW(hipErrorGraphExecUpdateFailure,
        "the graph update was not performed because it included changes which violated "
        "constraints specific to instantiated graph update"),
    ROW(hipErrorUnknown, "unknown error"),
};
#undef ROW

thread_local hipError_t t_last_error = hipSuccess;

const ErrorRow& row_of(hipError_t code) {
  for (const ErrorRow& row : kErrors) {
    if (row.code == code) return row;
  }
  return kErrors[std::size(kErrors) - 1];
}

}  // namespace

hipError_t fail(hipError_t code, std::string text, int level) {
  t_last_error = code;
  log_line(level, text);
  set_error_text(std::move(text));
  return code;
}

const DeviceInfo* device_or_fail() {
  std::string error;
  const DeviceInfo* device = current_device(error);
  if (!device) fail(hipErrorInvalidValue, error, kLogAlways);
  return device;
}

hipError_t check_ordinal(int device) {
  if (device == 0) return hipSuccess;
  return fail(hipErrorInvalidDevice, "device " + std::to_string(device) + ": the only one is 0");
}

}  // namespace vgpu

using namespace vgpu;

VGPU_API hipError_t hipGetLastError() {
  const hipError_t previous = t_last_error;
  t_last_error = hipSuccess;
  return previous;
}

VGPU_API hipError_t hipPeekAtLastError() { return t_last_error; }

VGPU_API hipError_t hipExtGetLastError() { return hipGetLastError(); }

VGPU_API const char* hipGetErrorString(hipError_t code) { return row_of(code).text; }

VGPU_API const char* hipGetErrorName(hipError_t code) { return row_of(code).name; }

VGPU_API hipError_t hipDrvGetErrorString(hipError_t code, const char** text) {
  if (!text) return hipErrorInvalidValue;
  *text = row_of(code).text;
  return row_of(code).code == code ? hipSuccess : hipErrorInvalidValue;
}

VGPU_API hipError_t hipDrvGetErrorName(hipError_t code, const char** name) {
  if (!name) return hipErrorInvalidValue;
  *name = row_of(code).name;
  return row_of(code).code == code ? hipSuccess : hipErrorInvalidValue;
}

// Returns the full text of the calling thread's latest failure: kernel, instruction, address. HIP
// has no such call. Valid until the thread's next failure; "" before the first.
VGPU_API const char* rfops_vgpu_last_error() { return error_text().c_str(); }
