// HIP's functions on graph nodes: adding them, and their parameters in graphs and executable
// graphs.
#include <algorithm>

#include "vgpu/hip/hip_capture.h"

namespace vgpu {
namespace {

hipError_t null_params() { return fail(hipErrorInvalidValue, "graph node: null parameters"); }

// ------------------------------------------------------------ parameter conversion
// Each with its checks; then back.

hipError_t read_params(const hipKernelNodeParams* params, Work& out) {
  if (!params) return null_params();
  const auto function = resolve_function(params->func);
  if (!function) return fail(hipErrorInvalidDeviceFunction, "graph node: unknown kernel function");
  const dim3 &grid = params->gridDim, &block = params->blockDim;
  const LaunchRequest request{.function = function.get(),
                              .grid = {grid.x, grid.y, grid.z},
                              .block = {block.x, block.y, block.z},
                              .dynamic_lds = params->sharedMemBytes,
                              .params = params->kernelParams,
                              .extra = params->extra,
                              .bad_shape = hipErrorInvalidConfiguration};
  KernelWork work{.function = function, .handle = params->func};
  const hipError_t code = record_launch(request, work);
  if (code == hipSuccess) out = std::move(work);
  return code;
}

hipError_t read_params(const hipMemcpy3DParms* params, Work& out) {
  if (!params) return null_params();
  if (params->srcArray || params->dstArray) {
    return fail(hipErrorNotSupported, "graph node: the virtual GPU has no arrays (images)");
  }
  if (params->kind < hipMemcpyHostToHost || params->kind > hipMemcpyDefault) {
    return fail(hipErrorInvalidMemcpyDirection,
                "graph node: copy direction " + std::to_string(params->kind));
  }
  out = CopyWork{*params};
  return hipSuccess;
}

hipError_t read_params(const hipMemsetParams* params, Work& out) {
  if (!params) return null_params();
  const unsigned element = params->elementSize;
  const bool is_element = element == 1 || element == 2 || element == 4;
  const bool is_plane = params->height == 1 ||
                        (is_element && params->height && params->pitch / element >= params->width);
  if (!is_element || !is_plane) {
    return fail(hipErrorInvalidValue,
                "memset node: expected elements of 1, 2 or 4 bytes, a height of at least 1, and a "
                "pitch of at least a row");
  }
  out = FillWork{*params};
  return hipSuccess;
}

hipError_t read_params(const hipHostNodeParams* params, Work& out) {
  if (!params || !params->fn) return null_params();
  out = HostWork{*params};
  return hipSuccess;
}

template <class EventWork>
hipError_t read_event(hipEvent_t event, Work& out) {
  const hipError_t code = check_event(event);
  if (code == hipSuccess) out = EventWork{event};
  return code;
}

// Returns the work of type T of a node, or null after fail().
template <class T>
T* work_of(Node& node) {
  T* work = std::get_if<T>(&node.work);
  if (!work) fail(hipErrorInvalidValue, "graph node: it is of another type");
  return work;
}

// Returns the stored arguments, as a pointer to each.
void write_params(Node& node, const KernelWork& work, hipKernelNodeParams& out) {
  node.kernel_params.clear();
  for (const ArgPlan::Explicit& arg : work.function->plan.explicits) {
    node.kernel_params.push_back(const_cast<u8*>(work.args.data()) + arg.offset);
  }
  const LaunchShape& shape = work.shape;
  out = {.blockDim = {shape.block[0], shape.block[1], shape.block[2]},
         .extra = nullptr,
         .func = work.handle,
         .gridDim = {shape.grid[0], shape.grid[1], shape.grid[2]},
         .kernelParams = node.kernel_params.empty() ? nullptr : node.kernel_params.data(),
         .sharedMemBytes = shape.dynamic_lds};
}

// ------------------------------------------------------------------------------ helpers

template <class ReadParams>
hipError_t add_node(const char* function, hipGraphNode_t* out, hipGraph_t handle,
                    const hipGraphNode_t* dependencies, size_t count, ReadParams read) {
  return with_error_handling(function, [&] {
    if (!out) return fail(hipErrorInvalidValue, std::string(function) + ": null pointer");
    std::lock_guard lock(graph_mutex());
    const auto graph = graph_or_fail(handle);
    if (!graph) return hipErrorInvalidValue;
    std::vector<Node*> needs;
    hipError_t code = read_nodes(*graph, dependencies, count, needs);
    Work work;
    if (code == hipSuccess) code = read(work);
    if (code == hipSuccess) *out = handle_of(graph->add(std::move(work), needs));
    return code;
  });
}

// Sets the parameters of a node; its type must not change. `owner`: null for the graph's own node,
// otherwise the executable graph whose clone is changed.
template <class ReadParams>
hipError_t set_node(const char* function, const hipGraphExec_t* owner, hipGraphNode_t handle,
                    ReadParams read) {
  return with_error_handling(function, [&] {
    std::lock_guard lock(graph_mutex());
    auto node = node_or_fail(handle);
    if (!node) return hipErrorInvalidValue;
    Node* target = node.get();
    std::shared_ptr<GraphExec> exec;
    if (owner) {
      exec = exec_or_fail(*owner);
      target = exec ? exec->graph->clone_of(node->id) : nullptr;
      if (!target) return fail(hipErrorInvalidValue, "executable graph: it has no such node");
    }
    Work work;
    const hipError_t code = read(work);
    if (code != hipSuccess) return code;
    if (work.index() != target->work.index()) {
      return fail(hipErrorInvalidValue, "graph node: it is of another type");
    }
    target->work = std::move(work);
    return hipSuccess;
  });
}

template <class T, class WriteParams>
hipError_t get_node(const char* function, hipGraphNode_t handle, const void* out,
                    WriteParams write_params) {
  return with_error_handling(function, [&] {
    std::lock_guard lock(graph_mutex());
    const auto node = node_or_fail(handle);
    const T* work = node && out ? work_of<T>(*node) : nullptr;
    if (!work) return hipErrorInvalidValue;
    write_params(*node, *work);
    return hipSuccess;
  });
}

hipError_t read_child(hipGraph_t handle, Work& out) {
  const auto graph = graph_or_fail(handle);
  if (!graph) return hipErrorInvalidValue;
  out = ChildWork{graph->clone()};
  return hipSuccess;
}

hipError_t find_exec_node(hipGraphExec_t exec_handle, hipGraphNode_t handle, Node*& out) {
  const auto exec = exec_or_fail(exec_handle);
  const auto node = exec ? node_or_fail(handle) : nullptr;
  out = node ? exec->graph->clone_of(node->id) : nullptr;
  return out ? hipSuccess : fail(hipErrorInvalidValue, "executable graph: it has no such node");
}

}  // namespace
}  // namespace vgpu

using namespace vgpu;

// Add, get, set, and set in an executable graph, for node types whose parameters are one struct.
#define VGPU_NODE_CALLS(Type, T, Give)                                                             \
  VGPU_API hipError_t hipGraphAdd##Type##Node(hipGraphNode_t* to, hipGraph_t graph,                \
                                              const hipGraphNode_t* dependencies, size_t count,    \
                                              const T* params) {                                   \
    return add_node(__func__, to, graph, dependencies, count,                                      \
                    [&](Work& work) { return read_params(params, work); });                        \
  }                                                                                                \
  VGPU_API hipError_t hipGraph##Type##NodeSetParams(hipGraphNode_t node, const T* params) {        \
    return set_node(__func__, nullptr, node,                                                       \
                    [&](Work& work) { return read_params(params, work); });                        \
  }                                                                                                \
  VGPU_API hipError_t hipGraphExec##Type##NodeSetParams(hipGraphExec_t exec, hipGraphNode_t node,  \
                                                        const T* params) {                         \
    return set_node(__func__, &exec, node, [&](Work& work) { return read_params(params, work); }); \
  }                                                                                                \
  VGPU_API hipError_t hipGraph##Type##NodeGetParams(hipGraphNode_t node, T* params) { return Give; }

VGPU_NODE_CALLS(Kernel, hipKernelNodeParams,
                get_node<KernelWork>(__func__, node, params, [&](Node& n, const KernelWork& work) {
                  write_params(n, work, *params);
                }))
VGPU_NODE_CALLS(Memcpy, hipMemcpy3DParms,
                get_node<CopyWork>(__func__, node, params,
                                   [&](Node&, const CopyWork& work) { *params = work.params; }))
VGPU_NODE_CALLS(Memset, hipMemsetParams,
                get_node<FillWork>(__func__, node, params,
                                   [&](Node&, const FillWork& work) { *params = work.params; }))
VGPU_NODE_CALLS(Host, hipHostNodeParams,
                get_node<HostWork>(__func__, node, params,
                                   [&](Node&, const HostWork& work) { *params = work.params; }))

// The same for events.
#define VGPU_EVENT_CALLS(Type, T)                                                                  \
  VGPU_API hipError_t hipGraphAdd##Type##Node(hipGraphNode_t* to, hipGraph_t graph,                \
                                              const hipGraphNode_t* dependencies, size_t count,    \
                                              hipEvent_t event) {                                  \
    return add_node(__func__, to, graph, dependencies, count,                                      \
                    [&](Work& work) { return read_event<T>(event, work); });                       \
  }                                                                                                \
  VGPU_API hipError_t hipGraph##Type##NodeSetEvent(hipGraphNode_t node, hipEvent_t event) {        \
    return set_node(__func__, nullptr, node,                                                       \
                    [&](Work& work) { return read_event<T>(event, work); });                       \
  }                                                                                                \
  VGPU_API hipError_t hipGraphExec##Type##NodeSetEvent(hipGraphExec_t exec, hipGraphNode_t node,   \
                                                       hipEvent_t event) {                         \
    return set_node(__func__, &exec, node,                                                         \
                    [&](Work& work) { return read_event<T>(event, work); });                       \
  }                                                                                                \
  VGPU_API hipError_t hipGraph##Type##NodeGetEvent(hipGraphNode_t node, hipEvent_t* event) {       \
    return get_node<T>(__func__, node, event, [&](Node&, const T& work) { *event = work.event; }); \
  }

VGPU_EVENT_CALLS(EventRecord, RecordWork)
VGPU_EVENT_CALLS(EventWait, WaitWork)

VGPU_API hipError_t hipGraphAddEmptyNode(hipGraphNode_t* out, hipGraph_t graph,
                                         const hipGraphNode_t* dependencies, size_t count) {
  return add_node(__func__, out, graph, dependencies, count, [](Work&) { return hipSuccess; });
}

VGPU_API hipError_t hipGraphAddMemcpyNode1D(hipGraphNode_t* out, hipGraph_t graph,
                                            const hipGraphNode_t* dependencies, size_t count,
                                            void* target, const void* source, size_t bytes,
                                            hipMemcpyKind kind) {
  const CopyWork copy = copy_work(target, source, bytes, kind);
  return add_node(__func__, out, graph, dependencies, count,
                  [&](Work& work) { return read_params(&copy.params, work); });
}

VGPU_API hipError_t hipGraphMemcpyNodeSetParams1D(hipGraphNode_t node, void* target,
                                                  const void* source, size_t bytes,
                                                  hipMemcpyKind kind) {
  const CopyWork copy = copy_work(target, source, bytes, kind);
  return hipGraphMemcpyNodeSetParams(node, &copy.params);
}

VGPU_API hipError_t hipGraphExecMemcpyNodeSetParams1D(hipGraphExec_t exec, hipGraphNode_t node,
                                                      void* target, const void* source,
                                                      size_t bytes, hipMemcpyKind kind) {
  const CopyWork copy = copy_work(target, source, bytes, kind);
  return hipGraphExecMemcpyNodeSetParams(exec, node, &copy.params);
}

// The child is a copy of the graph; later changes of the graph do not affect it.
VGPU_API hipError_t hipGraphAddChildGraphNode(hipGraphNode_t* out, hipGraph_t graph,
                                              const hipGraphNode_t* dependencies, size_t count,
                                              hipGraph_t child) {
  return add_node(__func__, out, graph, dependencies, count,
                  [&](Work& work) { return read_child(child, work); });
}

VGPU_API hipError_t hipGraphChildGraphNodeGetGraph(hipGraphNode_t node, hipGraph_t* graph) {
  return get_node<ChildWork>(__func__, node, graph, [&](Node&, const ChildWork& work) {
    *graph = reinterpret_cast<hipGraph_t>(work.graph.get());
  });
}

// Kernels, copies and fills of an executable graph can be disabled.
VGPU_API hipError_t hipGraphNodeSetEnabled(hipGraphExec_t exec, hipGraphNode_t handle,
                                           unsigned enabled) {
  return with_error_handling(__func__, [&] {
    std::lock_guard lock(graph_mutex());
    Node* node = nullptr;
    const hipError_t code = find_exec_node(exec, handle, node);
    if (code != hipSuccess) return code;
    if (type_of(node->work) > hipGraphNodeTypeMemset) {
      return fail(hipErrorInvalidValue, "graph node: only kernels, copies and fills are disabled");
    }
    node->enabled = enabled != 0;
    return hipSuccess;
  });
}

VGPU_API hipError_t hipGraphNodeGetEnabled(hipGraphExec_t exec, hipGraphNode_t handle,
                                           unsigned* enabled) {
  return with_error_handling(__func__, [&] {
    if (!enabled) return null_params();
    std::lock_guard lock(graph_mutex());
    Node* node = nullptr;
    const hipError_t code = find_exec_node(exec, handle, node);
    if (code == hipSuccess) *enabled = node->enabled;
    return code;
  });
}
