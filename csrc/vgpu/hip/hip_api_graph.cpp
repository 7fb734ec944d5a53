// HIP's functions on whole graphs and on executable graphs.
#include <algorithm>
#include <fstream>

#include "vgpu/hip/hip_capture.h"

namespace vgpu {
namespace {

// HIP's list protocol: without an output array returns the number, otherwise as many entries as
// fit, the rest null.
hipError_t return_list(const std::vector<Node*>& list, hipGraphNode_t* out, size_t* count) {
  if (!count) return fail(hipErrorInvalidValue, "graph query: count is null");
  if (out) {
    for (size_t i = 0; i < *count; ++i) out[i] = i < list.size() ? handle_of(list[i]) : nullptr;
  }
  *count = out ? std::min(*count, list.size()) : list.size();
  return hipSuccess;
}

template <class Body>
hipError_t with_graph(const char* function, hipGraph_t handle, Body body) {
  return with_error_handling(function, [&] {
    std::lock_guard lock(graph_mutex());
    const auto graph = graph_or_fail(handle);
    return graph ? body(graph) : hipErrorInvalidValue;
  });
}

template <class Body>
hipError_t with_node(const char* function, hipGraphNode_t handle, Body body) {
  return with_error_handling(function, [&] {
    std::lock_guard lock(graph_mutex());
    const auto node = node_or_fail(handle);
    return node ? body(*node) : hipErrorInvalidValue;
  });
}

// Implements hipGraphAddDependencies (add) and hipGraphRemoveDependencies. An edge must connect two
// different nodes of the graph, and exist at most once.
hipError_t modify_edges(hipGraph_t handle, const hipGraphNode_t* sources,
                        const hipGraphNode_t* targets, size_t count, bool add) {
  return with_graph("graph dependencies", handle, [&](const std::shared_ptr<Graph>& graph) {
    if (count && (!sources || !targets))
      return fail(hipErrorInvalidValue, "graph edges: null pointer");
    for (size_t i = 0; i < count; ++i) {
      const auto first = nodes().lookup(sources[i]), second = nodes().lookup(targets[i]);
      const bool is_valid = first && second && first != second && first->graph == graph.get() &&
                            second->graph == graph.get();
      if (is_valid &&
          (add ? add_edge(first.get(), second.get()) : remove_edge(first.get(), second.get()))) {
        continue;
      }
      return fail(hipErrorInvalidValue, "graph edge " + std::to_string(i) +
                                            (!is_valid ? " does not join two nodes of this graph"
                                             : add     ? " is there already"
                                                       : " is not there"));
    }
    return hipSuccess;
  });
}

hipError_t instantiate(hipGraphExec_t* out, hipGraph_t handle, unsigned long long flags) {
  if (!out) return fail(hipErrorInvalidValue, "hipGraphInstantiate: null pointer");
  return with_graph("hipGraphInstantiate", handle, [&](const std::shared_ptr<Graph>& graph) {
    if (is_capturing_into(graph.get())) {
      return fail(hipErrorIllegalState, "hipGraphInstantiate: the graph is still being captured");
    }
    auto exec = std::make_shared<GraphExec>();
    exec->graph = graph->clone();
    exec->flags = flags;
    if (!exec->make_plan()) {
      return fail(hipErrorInvalidValue,
                  "hipGraphInstantiate: nodes depend on each other in a circle", kLogAlways);
    }
    *out = reinterpret_cast<hipGraphExec_t>(execs().add(std::move(exec)));
    return hipSuccess;
  });
}

size_t position(const std::vector<Node*>& nodes, const Node* node) {
  return static_cast<size_t>(std::ranges::find(nodes, node) - nodes.begin());
}

bool have_same_needs(const std::vector<Node*>& a, const std::vector<Node*>& b, size_t index) {
  std::vector<size_t> first, second;
  for (const Node* need : a[index]->needs) first.push_back(position(a, need));
  for (const Node* need : b[index]->needs) second.push_back(position(b, need));
  std::ranges::sort(first);
  std::ranges::sort(second);
  return first == second;
}

// Copies the parameters of `source`, which must have the same nodes and edges, node by node.
hipError_t update(const Graph& target, const Graph& source, hipGraphNode_t& error_node,
                  int& result) {
  std::vector<Node*> target_nodes, source_nodes;
  if (!target.order(target_nodes) || !source.order(source_nodes) ||
      target_nodes.size() != source_nodes.size()) {
    result = hipGraphExecUpdateErrorTopologyChanged;
    return hipErrorGraphExecUpdateFailure;
  }
  for (size_t i = 0; i < target_nodes.size(); ++i) {
    error_node = handle_of(source_nodes[i]);
    result = hipGraphExecUpdateErrorNodeTypeChanged;
    if (target_nodes[i]->work.index() != source_nodes[i]->work.index())
      return hipErrorGraphExecUpdateFailure;
    result = hipGraphExecUpdateErrorTopologyChanged;
    if (!have_same_needs(target_nodes, source_nodes, i)) return hipErrorGraphExecUpdateFailure;
  }
  for (size_t i = 0; i < target_nodes.size(); ++i) {
    if (const auto* child = std::get_if<ChildWork>(&source_nodes[i]->work)) {
      const auto& target_child = std::get<ChildWork>(target_nodes[i]->work).graph;
      const hipError_t code = update(*target_child, *child->graph, error_node, result);
      if (code != hipSuccess) return code;
    } else {
      target_nodes[i]->work = source_nodes[i]->work;
    }
  }
  error_node = nullptr;
  result = hipGraphExecUpdateSuccess;
  return hipSuccess;
}

const char* type_name(hipGraphNodeType type) {
  static constexpr const char* kNames[] = {"kernel", "memcpy", "memset",     "host",
                                           "graph",  "empty",  "event wait", "event record"};
  if (type == hipGraphNodeTypeMemAlloc) return "mem alloc";
  return type == hipGraphNodeTypeMemFree ? "mem free" : kNames[type];
}

void print_dot(const Graph& graph, std::ostream& stream) {
  for (const auto& node : graph.nodes) {
    stream << "  n" << node->id << " [label=\"" << type_name(type_of(node->work));
    if (const auto* work = std::get_if<KernelWork>(&node->work)) {
      stream << "\\n" << work->function->kernel->name;
    }
    stream << "\"];\n";
    for (const Node* need : node->needs)
      stream << "  n" << need->id << " -> n" << node->id << ";\n";
    if (const auto* child = std::get_if<ChildWork>(&node->work)) print_dot(*child->graph, stream);
  }
}

}  // namespace
}  // namespace vgpu

using namespace vgpu;

VGPU_API hipError_t hipGraphCreate(hipGraph_t* graph, unsigned flags) {
  return with_error_handling(__func__, [&] {
    if (!graph || flags) return fail(hipErrorInvalidValue, "hipGraphCreate: null, or flags not 0");
    *graph = reinterpret_cast<hipGraph_t>(graphs().add(std::make_shared<Graph>()));
    return hipSuccess;
  });
}

VGPU_API hipError_t hipGraphDestroy(hipGraph_t handle) {
  return with_graph(__func__, handle, [&](const std::shared_ptr<Graph>& graph) {
    if (graph->is_owned || is_capturing_into(graph.get())) {
      return fail(hipErrorInvalidValue, "hipGraphDestroy: the graph is a child's or under capture");
    }
    graphs().remove(handle);
    return hipSuccess;
  });
}

VGPU_API hipError_t hipGraphClone(hipGraph_t* clone, hipGraph_t handle) {
  if (!clone) return fail(hipErrorInvalidValue, "hipGraphClone: null pointer");
  return with_graph(__func__, handle, [&](const std::shared_ptr<Graph>& graph) {
    *clone = reinterpret_cast<hipGraph_t>(graphs().add(graph->clone()));
    return hipSuccess;
  });
}

VGPU_API hipError_t hipGraphNodeFindInClone(hipGraphNode_t* out, hipGraphNode_t original,
                                            hipGraph_t clone) {
  return with_graph(__func__, clone, [&](const std::shared_ptr<Graph>& graph) {
    const auto node = node_or_fail(original);
    Node* twin = node && out ? graph->clone_of(node->id) : nullptr;
    if (!twin) return fail(hipErrorInvalidValue, "hipGraphNodeFindInClone: no clone of this node");
    *out = handle_of(twin);
    return hipSuccess;
  });
}

VGPU_API hipError_t hipGraphDestroyNode(hipGraphNode_t handle) {
  return with_node(__func__, handle, [&](Node& node) {
    node.graph->remove(&node);
    return hipSuccess;
  });
}

VGPU_API hipError_t hipGraphAddDependencies(hipGraph_t graph, const hipGraphNode_t* sources,
                                            const hipGraphNode_t* targets, size_t count) {
  return modify_edges(graph, sources, targets, count, true);
}

VGPU_API hipError_t hipGraphRemoveDependencies(hipGraph_t graph, const hipGraphNode_t* sources,
                                               const hipGraphNode_t* targets, size_t count) {
  return modify_edges(graph, sources, targets, count, false);
}

VGPU_API hipError_t hipGraphGetNodes(hipGraph_t handle, hipGraphNode_t* out, size_t* count) {
  return with_graph(__func__, handle, [&](const std::shared_ptr<Graph>& graph) {
    std::vector<Node*> nodes;
    for (const auto& node : graph->nodes) nodes.push_back(node.get());
    return return_list(nodes, out, count);
  });
}

VGPU_API hipError_t hipGraphGetRootNodes(hipGraph_t handle, hipGraphNode_t* out, size_t* count) {
  return with_graph(__func__, handle, [&](const std::shared_ptr<Graph>& graph) {
    std::vector<Node*> roots;
    for (const auto& node : graph->nodes) {
      if (node->needs.empty()) roots.push_back(node.get());
    }
    return return_list(roots, out, count);
  });
}

VGPU_API hipError_t hipGraphGetEdges(hipGraph_t handle, hipGraphNode_t* sources,
                                     hipGraphNode_t* targets, size_t* count) {
  return with_graph(__func__, handle, [&](const std::shared_ptr<Graph>& graph) {
    if (!sources != !targets)
      return fail(hipErrorInvalidValue, "hipGraphGetEdges: one list is null");
    std::vector<Node*> starts, ends;
    for (const auto& node : graph->nodes) {
      for (Node* need : node->needs) starts.push_back(need), ends.push_back(node.get());
    }
    size_t num_targets = count ? *count : 0;
    const hipError_t code = return_list(starts, sources, count);
    return code == hipSuccess ? return_list(ends, targets, &num_targets) : code;
  });
}

VGPU_API hipError_t hipGraphNodeGetDependencies(hipGraphNode_t handle, hipGraphNode_t* out,
                                                size_t* count) {
  return with_node(__func__, handle,
                   [&](Node& node) { return return_list(node.needs, out, count); });
}

VGPU_API hipError_t hipGraphNodeGetDependentNodes(hipGraphNode_t handle, hipGraphNode_t* out,
                                                  size_t* count) {
  return with_node(__func__, handle,
                   [&](Node& node) { return return_list(node.feeds, out, count); });
}

VGPU_API hipError_t hipGraphNodeGetType(hipGraphNode_t handle, hipGraphNodeType* type) {
  return with_node(__func__, handle, [&](Node& node) {
    if (!type) return fail(hipErrorInvalidValue, "hipGraphNodeGetType: null pointer");
    *type = type_of(node.work);
    return hipSuccess;
  });
}

VGPU_API hipError_t hipGraphDebugDotPrint(hipGraph_t handle, const char* path, unsigned) {
  return with_graph(__func__, handle, [&](const std::shared_ptr<Graph>& graph) {
    std::ofstream file(path ? path : "");
    file << "digraph {\n";
    print_dot(*graph, file);
    file << "}\n";
    file.close();
    return file ? hipSuccess : fail(hipErrorInvalidValue, "hipGraphDebugDotPrint: cannot write");
  });
}

// ------------------------------------------------------------------------------ executable graphs

VGPU_API hipError_t hipGraphInstantiate(hipGraphExec_t* exec, hipGraph_t graph,
                                        hipGraphNode_t* error_node, char* log, size_t log_bytes) {
  const hipError_t code = instantiate(exec, graph, 0);
  if (error_node) *error_node = nullptr;
  if (log && log_bytes) *log = '\0';
  return code;
}

VGPU_API hipError_t hipGraphInstantiateWithFlags(hipGraphExec_t* exec, hipGraph_t graph,
                                                 unsigned long long flags) {
  return instantiate(exec, graph, flags);
}

VGPU_API hipError_t hipGraphInstantiateWithParams(hipGraphExec_t* exec, hipGraph_t graph,
                                                  hipGraphInstantiateParams* params) {
  if (!params) return fail(hipErrorInvalidValue, "hipGraphInstantiateWithParams: null pointer");
  const hipError_t code = instantiate(exec, graph, params->flags);
  params->errNode_out = nullptr;
  params->result_out = code == hipSuccess ? 0 : 1;  // hipGraphInstantiateSuccess, ...Error
  return code;
}

VGPU_API hipError_t hipGraphExecGetFlags(hipGraphExec_t handle, unsigned long long* flags) {
  return with_error_handling(__func__, [&] {
    const auto exec = exec_or_fail(handle);
    if (!exec || !flags) return fail(hipErrorInvalidValue, "hipGraphExecGetFlags: null or unknown");
    *flags = exec->flags;
    return hipSuccess;
  });
}

VGPU_API hipError_t hipGraphExecDestroy(hipGraphExec_t handle) {
  return with_error_handling(__func__, [&] {
    std::lock_guard lock(graph_mutex());
    const auto exec = exec_or_fail(handle);
    if (!exec) return hipErrorInvalidValue;
    execs().remove(handle);
    return hipSuccess;
  });
}

// On a captured stream the graph becomes a child node of the captured graph.
VGPU_API hipError_t hipGraphLaunch(hipGraphExec_t handle, hipStream_t stream) {
  return with_error_handling(__func__, [&] {
    const auto exec = exec_or_fail(handle);
    if (!exec) return hipErrorInvalidValue;
    bool captured = false;
    const hipError_t code = enter_stream(stream, captured);
    if (code != hipSuccess) return code;
    if (!captured) return exec->run();
    std::lock_guard lock(graph_mutex());
    return capture(stream, ChildWork{exec->graph->clone()});
  });
}

VGPU_API hipError_t hipGraphUpload(hipGraphExec_t handle, hipStream_t stream) {
  return with_error_handling(
      __func__, [&] { return exec_or_fail(handle) ? check_stream(stream) : hipErrorInvalidValue; });
}

// Replaces a child graph in an executable graph by one of the same structure.
VGPU_API hipError_t hipGraphExecChildGraphNodeSetParams(hipGraphExec_t handle,
                                                        hipGraphNode_t node_handle,
                                                        hipGraph_t child) {
  return with_graph(__func__, child, [&](const std::shared_ptr<Graph>& graph) {
    const auto exec = exec_or_fail(handle);
    const auto node = exec ? node_or_fail(node_handle) : nullptr;
    Node* twin = node ? exec->graph->clone_of(node->id) : nullptr;
    const auto* work = twin ? std::get_if<ChildWork>(&twin->work) : nullptr;
    hipGraphNode_t error_node = nullptr;
    int result = 0;
    if (work && update(*work->graph, *graph, error_node, result) == hipSuccess) {
      exec->make_plan();
      return hipSuccess;
    }
    return fail(hipErrorInvalidValue, "executable graph: no such child, or one of another shape");
  });
}

VGPU_API hipError_t hipGraphExecUpdate(hipGraphExec_t handle, hipGraph_t graph_handle,
                                       hipGraphNode_t* error_node, int* result) {
  return with_graph(__func__, graph_handle, [&](const std::shared_ptr<Graph>& graph) {
    const auto exec = exec_or_fail(handle);
    if (!exec || !error_node || !result) {
      return fail(hipErrorInvalidValue, "hipGraphExecUpdate: null pointer or unknown handle");
    }
    const hipError_t code = update(*exec->graph, *graph, *error_node, *result);
    exec->make_plan();
    return code == hipSuccess
               ? code
               : fail(code, "hipGraphExecUpdate: the graphs differ in nodes or edges");
  });
}
