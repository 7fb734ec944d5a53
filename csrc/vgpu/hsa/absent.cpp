// Functions that HIP's runtime links against and the virtual GPU lacks: images, memory of other
// processes and of other drivers, files, and attributes of shared virtual memory.
#include "vgpu/hsa/hsa_internal.h"
#include "vgpu/hsa/hsa_versions.h"  // not for this file: see there

using namespace vgpu;

#define ABSENT(name) \
  HSA_API Status name() { return fail(kError, #name ": not supported", kLogAlways); }

ABSENT(hsa_amd_ais_file_read)
ABSENT(hsa_amd_ais_file_write)
ABSENT(hsa_amd_image_create)
ABSENT(hsa_amd_interop_map_buffer)
ABSENT(hsa_amd_interop_unmap_buffer)
ABSENT(hsa_amd_ipc_memory_attach)
ABSENT(hsa_amd_ipc_memory_create)
ABSENT(hsa_amd_ipc_memory_detach)
ABSENT(hsa_amd_portable_export_dmabuf)
ABSENT(hsa_amd_svm_attributes_get)
ABSENT(hsa_amd_svm_prefetch_async)
ABSENT(hsa_amd_vmem_export_shareable_handle)
ABSENT(hsa_amd_vmem_import_shareable_handle)
ABSENT(hsa_ext_image_create)
ABSENT(hsa_ext_image_create_with_layout)
ABSENT(hsa_ext_image_data_get_info)
ABSENT(hsa_ext_image_destroy)
ABSENT(hsa_ext_image_export)
ABSENT(hsa_ext_image_import)
ABSENT(hsa_ext_sampler_create_v2)
ABSENT(hsa_ext_sampler_destroy)
